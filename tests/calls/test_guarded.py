"""What the exceptions of a guarded function say."""

from __future__ import annotations

from typing import Any

import pytest

from resilient_mw import CallRefused, Dependency, Reason
from resilient_mw.calls.classify import classify_failure, classify_head
from resilient_mw.calls.events import Head
from resilient_mw.calls.guarded import OUTCOMES, Effect, effect_of


@pytest.mark.parametrize(
    ("effect", "failed", "passing", "acted"),
    [
        (Effect.FAILED, True, True, True),
        (Effect.TIMEOUT, True, True, True),
        (Effect.UNSENT, True, True, False),
        (Effect.NEUTRAL, None, True, True),
        (Effect.ANSWERED, False, False, True),
    ],
)
def test_the_table_of_effects(effect: Effect, failed: bool | None, passing: bool, acted: bool) -> None:
    outcome = OUTCOMES[effect]
    if isinstance(outcome, Head):
        verdict = classify_head(outcome)
    else:
        verdict = classify_failure(outcome, cut_short=False)
    assert (verdict.failed, verdict.passing, verdict.acted) == (failed, passing, acted)


@pytest.mark.parametrize(
    ("error", "effect"),
    [
        (ValueError(), Effect.FAILED),
        (TimeoutError(), Effect.TIMEOUT),
        (CallRefused("no", Reason.CIRCUIT_OPEN, "other"), Effect.NEUTRAL),
        (StopIteration(), Effect.FAILED),
        (ExceptionGroup("two", [ValueError(), KeyError()]), Effect.FAILED),
    ],
)
def test_what_exceptions_say_without_a_table(error: Exception, effect: Effect) -> None:
    assert effect_of(None, error) is effect


def test_the_nearest_class_counts_and_others_stay_as_they_were() -> None:
    table = {LookupError: "answered", KeyError: Effect.UNSENT}
    assert effect_of(table, KeyError()) is Effect.UNSENT
    assert effect_of(table, IndexError()) is Effect.ANSWERED
    assert effect_of(table, TimeoutError()) is Effect.TIMEOUT


def test_a_function_may_say_it() -> None:
    def by_code(error: Exception) -> str | None:
        return "answered" if "duplicate" in str(error) else None

    assert effect_of(by_code, ValueError("duplicate key")) is Effect.ANSWERED
    assert effect_of(by_code, ValueError("away")) is Effect.FAILED
    with pytest.raises(ValueError, match="maybe"):
        effect_of(lambda _: "maybe", ValueError())


@pytest.mark.parametrize(
    ("exceptions", "said"),
    [
        (5, "must map exception classes"),
        ({"ValueError": "failed"}, "must be a class of Exception"),
        ({KeyboardInterrupt: "failed"}, "must be a class of Exception"),
        ({ValueError: "maybe"}, r"exceptions\[ValueError\]='maybe' is not allowed"),
    ],
)
def test_a_wrong_table_fails_when_it_is_made(exceptions: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Dependency("db", exceptions=exceptions)


def test_what_the_breaker_excludes_is_neutral_unless_the_table_says_more() -> None:
    excluded = (LookupError, KeyboardInterrupt)
    assert effect_of(None, KeyError(), excluded) is Effect.NEUTRAL
    assert effect_of({KeyError: "answered"}, KeyError(), excluded) is Effect.ANSWERED
    assert effect_of(lambda _: None, KeyError(), excluded) is Effect.NEUTRAL
    assert effect_of(None, ValueError(), excluded) is Effect.FAILED
