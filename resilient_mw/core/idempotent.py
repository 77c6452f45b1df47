"""What a route says of idempotency keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from resilient_mw.core.checks import require_flag, require_integer, require_number

Use = Literal["required", "optional", "off"]
Wait = Literal["join", "conflict"]
OnUnknown = Literal["refuse", "retry"] | Callable[..., Any]
"""What becomes of a key whose work was begun and may have been done: it is refused, run again, or the status function of the
operation is asked (`resilient_mw.idempotency.policy.StatusFunction`)."""
StoreDown = Literal["closed", "open"]

USES: Final = ("required", "optional", "off")
WAITS: Final = ("join", "conflict")
ON_UNKNOWN: Final = ("refuse", "retry")
STORE_DOWN: Final = ("closed", "open")

LONGEST: Final = 366 * 86_400.0
"""Seconds of the longest time for which anything is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRule:
    """How one route treats idempotency keys. None: what a surrounding mark, or the policy, says.

    Attributes:
        use: `required`: 400 without a key; `optional`: a key is honoured; `off`: keys are not looked at.
        wait: what a repeat does while the first request is at work: `join` waits for its answer, `conflict` gets 409.
        on_unknown: `refuse` with 409, `retry`, or the operation's status function.
        keep_statuses: the statuses whose answers are kept and replayed, instead of the policy's.
        max_answer: bytes of the largest body that is kept.
        lease: seconds after which an attempt that has not renewed it counts as dead.
        keep: seconds for which an answer is kept.
        canonical_json: bytes of body up to which JSON is compared by its meaning; 0: never.
        store_down: `closed`: 503 while the store is away; `open`: the work runs unprotected.
        in_transaction: True: the handler takes the key itself, in a transaction of its own (`idempotent(session)`): the middleware
            checks the key, which is required, and hands it over; no store is asked.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    use: Use | None = None
    wait: Wait | None = None
    on_unknown: OnUnknown | None = None
    keep_statuses: Collection[int] | None = None
    max_answer: int | None = None
    lease: float | None = None
    keep: float | None = None
    canonical_json: int | None = None
    store_down: StoreDown | None = None
    in_transaction: bool | None = None

    def __post_init__(self) -> None:
        if self.keep_statuses is not None:
            statuses = require_statuses("IdempotencyRule.keep_statuses", self.keep_statuses)
            object.__setattr__(self, "keep_statuses", statuses)
        check_rule("IdempotencyRule", self)
        if self.in_transaction is not None:
            require_flag("IdempotencyRule.in_transaction", self.in_transaction)

    def over(self, base: IdempotencyRule | None) -> IdempotencyRule:
        """Return this rule with its gaps filled from `base`."""
        if base is None:
            return self
        filled: dict[str, Any] = {}
        for field in fields(self):
            own = getattr(self, field.name)
            filled[field.name] = getattr(base, field.name) if own is None else own
        return IdempotencyRule(**filled)


def check_rule(name: str, rule: Any) -> None:
    """Check the fields that a rule and the policy have in common; None is left alone.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    _choice(f"{name}.use", rule.use, USES)
    _choice(f"{name}.wait", rule.wait, WAITS)
    _choice(f"{name}.store_down", rule.store_down, STORE_DOWN)
    if not callable(rule.on_unknown):
        _choice(f"{name}.on_unknown", rule.on_unknown, ON_UNKNOWN, " or a function")
    for field in ("max_answer", "canonical_json"):
        if getattr(rule, field) is not None:
            require_integer(f"{name}.{field}", getattr(rule, field), low=0, high=1 << 30)
    if rule.lease is not None:
        require_number(f"{name}.lease", rule.lease, low=0.1, high=86_400)
    if rule.keep is not None:
        require_number(f"{name}.keep", rule.keep, low=1, high=LONGEST)


def require_statuses(field: str, value: object) -> frozenset[int]:
    """Return `value` as a set of HTTP status codes of final answers.

    Raises:
        ValueError: naming the field and the value.
    """
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise ValueError(
            f"{field}={value!r} is not allowed: it must be a set of statuses such as {{200, 201}}"
        )
    return frozenset(require_integer(field, status, low=200, high=599) for status in value)


def _choice(field: str, value: object, allowed: tuple[str, ...], more: str = "") -> None:
    if value is not None and value not in allowed:
        names = ", ".join(repr(each) for each in allowed)
        raise ValueError(f"{field}={value!r} is not allowed: it must be one of {names}{more}")
