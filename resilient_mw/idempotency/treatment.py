"""How one route treats idempotency keys: the policy, the route's mark and the policy's rule for its path in one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from resilient_mw.core.idempotent import IdempotencyRule, OnUnknown, StoreDown, Wait
from resilient_mw.core.routes import PathIndex
from resilient_mw.idempotency.policy import READING, IdempotencyPolicy, IdempotencyRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """A rule without gaps. The attributes are those of `IdempotencyRule`.

    Attributes:
        required: whether a request without a key is refused.
        heartbeat: seconds between two renewals of the lease.
        in_transaction: whether the handler takes the key itself.
    """

    required: bool
    wait: Wait
    on_unknown: OnUnknown
    keep_statuses: Collection[int]
    max_answer: int
    lease: float
    heartbeat: float
    keep: float
    canonical_json: int
    store_down: StoreDown
    in_transaction: bool = False


SAID = tuple(
    each.name for each in fields(Treatment) if each.name not in {"required", "heartbeat", "in_transaction"}
)
"""What a rule may say and the policy does: fields of both."""


class Treatments:
    """Finds the treatment of a request.

    Args:
        policy: of the application.
    """

    __slots__ = ("_default", "_index", "_known", "_policy")

    def __init__(self, policy: IdempotencyPolicy) -> None:
        self._policy = policy
        self._index: PathIndex[IdempotencyRoute] = PathIndex()
        for route in policy.routes:
            self._index.add(route.path.removesuffix("/*"), route, below=route.path.endswith("/*"))
        self._known: dict[IdempotencyRule, Treatment] = {}
        self._default = None if policy.use == "off" else self._filled(IdempotencyRule(use=policy.use))

    def of(self, method: str, path: str, mark: IdempotencyRule | None = None) -> Treatment | None:
        """Return how a request is treated; None: keys are not looked at.

        Args:
            method: in capitals.
            path: below the root path.
            mark: what the endpoint and the routers around it say.
        """
        if method in READING:
            return None
        rule = self._said(method, path, mark) if self._policy.routes else mark
        if rule is None or rule.use is None:
            if method not in self._policy.methods:
                return None
            if rule is None:
                return self._default
            rule = IdempotencyRule(use=self._policy.use).over(rule)
        if rule.use == "off":
            return None
        # Rules come from decorators and from the policy, so there are few.
        try:
            if rule not in self._known:
                self._known[rule] = self._filled(rule)
            return self._known[rule]
        except TypeError:  # a status function that cannot be hashed
            return self._filled(rule)

    def _said(self, method: str, path: str, mark: IdempotencyRule | None) -> IdempotencyRule | None:
        for route in self._index.candidates(path):
            if not route.methods or method in route.methods:
                return route.rule.over(mark)
        return mark

    def _filled(self, rule: IdempotencyRule) -> Treatment:
        policy = self._policy
        said: dict[str, Any] = {
            name: getattr(policy if getattr(rule, name) is None else rule, name) for name in SAID
        }
        lease: float = said["lease"]
        in_transaction = rule.in_transaction is True
        return Treatment(
            required=in_transaction or (rule.use or policy.use) == "required",
            heartbeat=lease / 3 if policy.heartbeat is None else min(policy.heartbeat, lease / 2),
            in_transaction=in_transaction,
            **said,
        )
