"""What the tests of the machine have in common: a policy, a request, and the first steps of one."""

from __future__ import annotations

import itertools
from typing import Any

from resilient_mw.idempotency import IdempotencyPolicy, Record, State, StoredAnswer
from resilient_mw.idempotency.actions import Actions, Begin
from resilient_mw.idempotency.machine import IdempotentRequest
from resilient_mw.idempotency.treatment import Treatments

ONE, OTHER = "1" * 64, "2" * 64
_tokens = itertools.count(1)


def policy(**facts: Any) -> IdempotencyPolicy:
    return IdempotencyPolicy(**{"single_tenant": True, **facts})


def request(
    rules: IdempotencyPolicy | None = None, *, caller: str | None = "", now: float = 0.0, **facts: Any
) -> IdempotentRequest:
    rules = rules or policy()
    treatment = Treatments(rules).of("POST", "/payments")
    assert treatment is not None
    return IdempotentRequest(
        rules,
        treatment,
        method="POST",
        route="/payments",
        caller=caller,
        token=f"token-{next(_tokens)}",
        now=now,
        **facts,
    )


def asked(
    rules: IdempotencyPolicy | None = None, fingerprint: str | None = ONE, **facts: Any
) -> IdempotentRequest:
    """Return a request whose claim is with the store."""
    each = request(rules, **facts)
    each.arrived(['"key"'])
    (begin,) = each.body_read(fingerprint)
    assert isinstance(begin, Begin)
    return each


def record(state: State = State.RUNNING, **facts: Any) -> Record:
    given: dict[str, Any] = {
        "record": "r" * 64,
        "state": state,
        "fingerprint": ONE,
        "fence": 1,
        "age": 2.0,
        "lease_left": 20.5 if state is State.RUNNING else 0.0,
        "expires_in": 86_400.0,
        "answer": StoredAnswer(201, (), b"first") if state is State.COMPLETED else None,
    }
    return Record(**{**given, **facts})


def only(actions: Actions) -> Any:
    assert len(actions) == 1, actions
    return actions[0]
