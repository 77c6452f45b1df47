"""Calls of functions: what the end of one says, in the words of the call machine.

A function has no status. What it returns is a good answer; what it raises is read by the table that the user gives
(`Dependency(exceptions=...)`), by class, the nearest one first:

| effect | blames the dependency | repeated | for example |
|---|---|---|---|
| `failed` | yes | if the function is idempotent | every other exception |
| `timeout` | yes, unless the caller's budget was too small | if the function is idempotent | `TimeoutError` |
| `unsent` | yes | always: the dependency cannot have acted | a refused connection, if the user says so |
| `neutral` | neither | if the function is idempotent | `CallRefused` of a call inside |
| `answered` | no: it works | never | not found, a duplicate key, a value it does not take |

Cancellations and everything else that is no `Exception` are never read: they end the call, and nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from resilient_mw.calls.classify import asked
from resilient_mw.calls.events import Failure, Head, Phase
from resilient_mw.core.errors import CallRefused


class Effect(StrEnum):
    """What an exception of a guarded function says about the dependency."""

    FAILED = "failed"
    TIMEOUT = "timeout"
    UNSENT = "unsent"
    NEUTRAL = "neutral"
    ANSWERED = "answered"


Exceptions = Mapping[Any, Effect | str] | Callable[[Exception], Effect | str | None]
"""By class, or a function that is asked; None: as without it."""

FUNCTION = "CALL"
"""The method of a guarded function: one that is not idempotent by definition."""

ANSWER = Head(200)
OUTCOMES: Mapping[Effect, Head | Failure] = {
    Effect.FAILED: Failure(Phase.HEAD),
    Effect.TIMEOUT: Failure(Phase.HEAD, timed_out=True),
    Effect.UNSENT: Failure(Phase.CONNECT),
    Effect.NEUTRAL: Failure(Phase.HEAD, ours=True),
    Effect.ANSWERED: Head(400),
}
OVERRUN = Failure(Phase.BODY, timed_out=True)
"""A function that could not be interrupted and came back after its time."""

DEFAULTS: Mapping[type[Exception], Effect] = {
    TimeoutError: Effect.TIMEOUT,
    CallRefused: Effect.NEUTRAL,
    Exception: Effect.FAILED,
}


def check_exceptions(field: str, value: object) -> None:
    """Raise unless the value can be asked for effects.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    if value is None or (callable(value) and not isinstance(value, Mapping)):
        return
    allowed = ", ".join(repr(effect.value) for effect in Effect)
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{field}={value!r} is not allowed: it must map exception classes to {allowed}, or be a function"
        )
    for kind, effect in value.items():
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise ValueError(f"{field} holds {kind!r}: each key must be a class of Exception")
        if effect not in Effect.__members__.values():
            raise ValueError(
                f"{field}[{kind.__name__}]={effect!r} is not allowed: it must be one of {allowed}"
            )


def effect_of(
    exceptions: Exceptions | None, error: Exception, excluded: tuple[type[BaseException], ...] = ()
) -> Effect:
    """Return what an exception says.

    Args:
        exceptions: what the user says of it.
        error: the exception.
        excluded: classes that say nothing about the dependency (`BreakerPolicy.exclude`), where the user's table is silent.

    Raises:
        ValueError: the user's function answers with something else.
        Exception: what the user's function raises.
    """
    told: Effect | str | None = None
    if isinstance(exceptions, Mapping):
        told = _nearest(exceptions, error)
    elif exceptions is not None:
        told = exceptions(error)
    if told is None and isinstance(error, excluded):
        told = Effect.NEUTRAL
    if told is None:
        told = _nearest(DEFAULTS, error) or Effect.FAILED
    return Effect(told)


def told(effect: Effect, error: Exception, rule: Callable[[Any], object] | None) -> Head | Failure:
    """Return what an effect says; the user's own rule (`RetryPolicy.retry_if`) decides whether a failure may pass."""
    outcome = OUTCOMES[effect]
    if rule is None or isinstance(outcome, Head):
        return outcome
    return replace(outcome, wanted=asked(rule, error))


def _nearest(effects: Mapping[Any, Effect | str], error: Exception) -> Effect | str | None:
    for kind in type(error).__mro__:
        effect = effects.get(kind)
        if effect is not None:
            return effect
    return None
