"""Makes the plan of a random sequence out of its seed.

Most instants are multiples of 10 ms: things that happen at the same instant are the ones that go wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from resilient_mw.core.priority import DEFAULT_CLASSES, PriorityClass
from resilient_mw.core.routes import RouteRule
from tests.asgi.fuzz_plan import LONG, MAXIMUM, QUICK, TRUSTED, Plan, RequestPlan, Step, When

# (field, value, the seconds that it asks for; None: it is outside the grammar)
FIELDS: tuple[tuple[str, bytes, float | None], ...] = (
    ("x-request-timeout-ms", b"30", 0.03),
    ("x-request-timeout-ms", b"80", 0.08),
    ("x-request-timeout-ms", b" 200\t", 0.2),
    ("x-request-timeout-ms", b"700", 0.7),
    ("x-request-timeout-ms", b"1", 0.001),
    ("x-request-timeout-ms", b"0", 0.0),
    ("x-request-timeout-ms", b"", None),
    ("x-request-timeout-ms", b"+50", None),
    ("x-request-timeout-ms", b"5e1", None),
    ("x-request-timeout-ms", b"\xb2\xb2", None),
    ("x-request-timeout-ms", "٥٠".encode(), None),
    ("x-request-timeout-ms", b"99999999999", None),
    ("grpc-timeout", b"100m", 0.1),
    ("grpc-timeout", b"50000u", 0.05),
    ("grpc-timeout", b"1H", 3600.0),
    ("grpc-timeout", b"0n", 0.0),
    ("grpc-timeout", b"100", None),
    ("connect-timeout-ms", b"150", 0.15),
    ("connect-timeout-ms", b"-1", None),
    ("x-envoy-expected-rq-timeout-ms", b"60", 0.06),
    ("x-envoy-expected-rq-timeout-ms", b"0", None),
)

STACKS = ("plain", "plain", "plain", "twice", "double", "task outside", "task inside")


def make(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = Random(seed)
    return Plan(
        seed=seed,
        policy=_policy(rng),
        early=rng.choice([0.0, 0.0, 0.0, 0.0005]),
        stack=rng.choice(STACKS),
        outer_default=rng.choice([0.05, 0.3, 1.0]),
        drain_at=_grid(rng, 0.3) if rng.random() < 0.1 else None,
        drain_within=rng.choice([20.0, 0.0, 0.1, 0.25]),
        reload_at=_grid(rng, 0.3) if rng.random() < 0.1 else None,
        requests=tuple(_request(rng) for _ in range(rng.choice([1, 2, 2, 3, 3, 4, 6]))),
    )


def _grid(rng: Random, most: float) -> float:
    """Return an instant up to `most`: mostly a multiple of 10 ms."""
    if rng.random() < 0.75:
        return rng.randint(0, round(most * 100)) / 100
    return rng.random() * most


def _policy(rng: Random) -> dict[str, Any]:
    limit = rng.choice([1, 1, 2, 2, 3])
    rules = [
        RouteRule("/low", priority="sheddable"),
        RouteRule("/high", priority="critical"),
        RouteRule("/quick", deadline_default=QUICK),
        RouteRule("/probe", priority="exempt"),
        RouteRule("/events", slot="head"),
        RouteRule("/feed", priority="sheddable", slot="head", deadline_idle=0.1),
    ]
    classes = DEFAULT_CLASSES
    if limit == 3 and rng.random() < 0.5:
        classes = (PriorityClass("critical", weight=8, reserved=1), *DEFAULT_CLASSES[1:])
    if limit >= 2:
        rules.append(RouteRule("/wide", cost=2))
    return {
        "limit": limit, "queue": rng.choice([0, 1, 1, 2, 3]), "max_wait": rng.choice([0.0, 0.03, 0.1, 1.0]),
        "wait_share": rng.choice([0.25, 0.5, 1.0]), "classes": classes, "exempt_limit": rng.choice([1, 2]),
        "deadline_default": rng.choice([0.08, 0.2, 0.2, 0.5, 1.0]), "deadline_minimum": rng.choice([0.0, 0.0, 0.05]),
        "deadline_maximum": MAXIMUM, "smallest_budget": rng.choice([0.0, 0.005, 0.04]),
        "trusted_peers": rng.choice([(), (TRUSTED,)]), "routes": tuple(rules), "stream_limit": rng.choice([1, 2, 8]),
    }  # fmt: skip


def _request(rng: Random) -> RequestPlan:
    fields: list[tuple[str, bytes]] = []
    wishes: dict[str, list[float | None]] = {}
    for _ in range(rng.choice([0, 0, 0, 1, 1, 1, 2])):
        name, value, seconds = rng.choice(FIELDS)
        fields.append((name, value))
        wishes.setdefault(name, []).append(seconds)
    valid = [each[0] for each in wishes.values() if len(each) == 1 and each[0] is not None]
    return RequestPlan(
        at=_grid(rng, rng.choice([0.0, 0.05, 0.2])),
        path=rng.choice(
            [
                "/",
                "/",
                "/",
                "/low",
                "/high",
                "/wide",
                "/quick",
                "/probe",
                "/health",
                "/events",
                "/events",
                "/feed",
            ]
        ),
        method=rng.choice(["GET", "GET", "GET", "POST", "POST", "HEAD"]),
        peer=rng.choice(["203.0.113.9", "10.1.2.3"]),
        fields=tuple(fields),
        wish=min(valid, default=None),
        body=_body(rng),
        ends=rng.random() < 0.9,
        steps=_handler(rng),
        leaves=_when(rng, 0.3) if rng.random() < 0.45 else None,
        cancelled=_when(rng, 0.3) if rng.random() < 0.12 else None,
        once=rng.random() < 0.4,
        wakes_one=rng.random() < 0.3,
        drops_body=rng.random() < 0.3,
        lost=rng.choice(["ignore", "ignore", "raise", "raise", "hang"]),
        slow=rng.choice([0.0, 0.0, 0.0, 0.0, 0.01, 0.04]),
        inherits=rng.random() < 0.15,
        notes=rng.random() < 0.6,
    )


def _body(rng: Random) -> tuple[tuple[float, int], ...]:
    if rng.random() < 0.4:
        return ((0.0, 0),)
    parts = rng.choice([1, 2, 3, 5, 20])
    size = rng.choice([0, 10, 10, 10, 30_000])
    return tuple((0.0 if rng.random() < 0.6 else _grid(rng, 0.05), size) for _ in range(parts))


def _when(rng: Random, most: float) -> When:
    draw = rng.random()
    if draw < 0.2:
        return When("sent", rng.randint(1, 4))
    if draw < 0.35:
        return When("received", rng.randint(1, 3))
    return When("at", _grid(rng, most))


# -- handlers ----------------------------------------------------------------------------------------------------------


def _handler(rng: Random) -> tuple[Step, ...]:
    before = _some(rng, rng.choice([0, 0, 1, 1, 2, 3]))
    after = _some(rng, rng.choice([0, 0, 0, 1]))
    if rng.random() < 0.06:
        after = (*after, ("late",))
    return (*before, *_answer(rng), *after)


def _some(rng: Random, count: int, depth: int = 0) -> tuple[Step, ...]:
    return tuple(_step(rng, depth) for _ in range(count))


def _answer(rng: Random) -> tuple[Step, ...]:
    draw = rng.random()
    if draw < 0.08:
        return ()
    if draw < 0.14:
        return (("fail",),)
    if draw < 0.6:
        return (("start", False), ("last",))
    if draw < 0.64:
        return (("start", False), ("pathsend",))
    steps: list[Step] = [("start", draw > 0.95)]
    for _ in range(rng.randint(1, 4)):
        steps.append(("part", rng.choice([0, 1, 100])))
        steps += _some(rng, rng.choice([0, 0, 1]))
    if rng.random() < 0.2:
        return (*steps, rng.choice([("fail",), ("stream", 0.01, rng.randint(2, 60))]))
    return (*steps, ("last",), ("trailers",)) if draw > 0.95 else (*steps, ("last",))


def _step(rng: Random, depth: int) -> Step:
    if depth < 2 and rng.random() < 0.2:
        name = rng.choice(["group", "group", "gather", "task", "within", "shield", "section"])
        branches = tuple(
            _some(rng, rng.choice([1, 1, 2]), depth + 1) for _ in range(rng.choice([1, 2, 2, 3]))
        )
        if name in {"group", "gather"}:
            return (name, branches)
        return (name, branches[0]) if name in {"task", "shield"} else (name, _grid(rng, 0.2), branches[0])
    return rng.choice(_CHOICES)(rng)


_CHOICES: tuple[Callable[[Random], Step], ...] = (
    lambda rng: ("sleep", _grid(rng, 0.1)),
    lambda rng: ("sleep", _grid(rng, 0.3)),
    lambda rng: ("sleep", LONG),
    lambda rng: ("turns", rng.randint(1, 5)),
    lambda rng: ("turns", rng.randint(1, 5)),
    lambda rng: ("read", rng.randint(1, 3)),
    lambda rng: ("read_all",),
    lambda rng: ("read_all",),
    lambda rng: ("listen", _grid(rng, 0.1), rng.randint(1, 3)),
    lambda rng: ("listeners", rng.randint(2, 3), _grid(rng, 0.1)),
    lambda rng: ("until_gone",),
    lambda rng: ("framework", _grid(rng, 0.2)),
    lambda rng: ("swallow", _grid(rng, 0.2), _grid(rng, 0.05)),
    lambda rng: ("clean_up", _grid(rng, 0.2), _grid(rng, 0.05)),
    lambda rng: ("ignore", _grid(rng, 0.6)),
    lambda rng: ("wait_for", _grid(rng, 0.1), _grid(rng, 0.1)),
    lambda rng: ("child", _grid(rng, 0.2), rng.random() < 0.5),
    lambda rng: ("hold", _grid(rng, 0.3)),
    lambda rng: ("on_cancel", _grid(rng, 0.1)),
    lambda rng: ("check",),
    lambda rng: ("hint",),
    lambda rng: ("block", rng.choice([0.01, 0.06, 0.12])) if rng.random() < 0.3 else ("turns", 1),
    lambda rng: ("fail",) if rng.random() < 0.3 else ("turns", 2),
)
