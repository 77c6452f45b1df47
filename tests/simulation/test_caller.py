"""The callers of a simulated dependency, and the dependency: what they do in virtual time."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from resilient_mw.calls.breaker import BreakerState
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Deliver, Expire, Fail, Head, Phase, Refuse
from resilient_mw.calls.state import DependencyState
from resilient_mw.core.rejection import Reason
from resilient_mw.simulation import Caller, Condition, Constant, Engine, RemoteService, Workers

FIELDS: dict[str, Any] = {"retry": None, "breaker": None, "reserve": 0.0, "smallest_budget": 0.0}


class Setting:
    """One caller and one dependency. Keyword arguments are fields of the dependency."""

    def __init__(
        self,
        *conditions: tuple[float, Condition],
        workers: int = 4,
        stoppable: bool = True,
        late: float = 0.0,
        **fields: Any,
    ) -> None:
        self.engine = Engine()
        self.state = DependencyState(
            Dependency("prices", "http://prices/*", **{**FIELDS, **fields}), Random(1)
        )
        plant = Workers(workers, stoppable=stoppable).build(self.engine, Random(2))
        self.remote = RemoteService(self.engine, plant, conditions, Random(3))
        self.caller = Caller(self.engine, self.state, self.remote, late=lambda: late)

    def call(self, **request: Any) -> tuple[object, float]:
        """Make a call; return how it ended, and after how long."""
        began = self.engine.now
        ended: list[float] = []
        call = self.caller.call(**request, ended=lambda _: ended.append(self.engine.now - began))
        self.engine.run()
        assert call.over
        assert not self.remote.open
        assert self.state.in_use == 0
        return call.outcome, ended[0] if ended else 0.0


def test_a_call_takes_connection_work_and_body() -> None:
    setting = Setting((0.0, Condition(service=Constant(0.5), connect=Constant(0.125), body=Constant(1.0))))
    assert setting.call() == (Deliver(), 1.625)
    assert setting.remote.received == 1


@pytest.mark.parametrize(
    ("condition", "fields", "outcome", "after"),
    [
        ({"refuses": 1.0}, {}, Fail(), 0.0),
        ({"unreachable": 1.0}, {"connect_timeout": 0.5}, Fail(), 0.5),
        ({"unreachable": 1.0}, {"connect_timeout": None}, Fail(), 2.0),
        ({"connect": Constant(0.75)}, {"connect_timeout": 0.5}, Fail(), 0.5),
        ({"resets": 1.0}, {}, Fail(), 0.25),
        ({"service": Constant(9.0)}, {"timeout": 1.0}, Fail(), 1.0),
        ({"errors": 1.0}, {}, Deliver(), 0.25),
    ],
)
def test_what_goes_wrong(
    condition: dict[str, Any], fields: dict[str, Any], outcome: object, after: float
) -> None:
    setting = Setting((0.0, Condition(**{"service": Constant(0.25), **condition})), **fields)
    assert setting.call() == (outcome, after)


def test_the_budget_ends_work_and_body_with_the_phase() -> None:
    setting = Setting((0.0, Condition(service=Constant(0.5), body=Constant(1.0))))
    assert setting.call(budget=0.25) == (Expire(Phase.HEAD), 0.25)
    assert setting.call(budget=1.0) == (Expire(Phase.BODY), 1.0)
    setting = Setting((0.0, Condition(service=Constant(0.5), unreachable=1.0)), connect_timeout=None)
    assert setting.call(budget=0.25) == (Expire(Phase.CONNECT), 0.25)


def test_a_body_that_is_cut_off_ends_half_way() -> None:
    setting = Setting((0.0, Condition(service=Constant(0.5), body=Constant(1.0), cuts=1.0)))
    assert setting.call() == (Deliver(), 1.0)
    assert setting.state.attempts == {"body": 1}


def test_work_is_stopped_when_its_caller_has_gone_if_it_can_be() -> None:
    for stoppable, second in ((True, 0.5), (False, 4.5)):
        setting = Setting((0.0, Condition(service=Constant(4.0))), (0.5, Condition(service=Constant(0.0))),
                          workers=1, stoppable=stoppable, timeout=5.0)  # fmt: skip
        call = setting.caller.call()
        setting.engine.at(0.5, call.hang_up)
        setting.engine.run(0.5)
        assert (call.over, call.outcome) == (True, None)
        assert setting.state.in_use == 0
        began = setting.engine.now
        outcome, after = setting.call()
        assert (outcome, began + after) == (Deliver(), second if stoppable else 4.0)


def test_an_overloaded_dependency_sheds_before_any_work_and_says_when_to_return() -> None:
    setting = Setting(
        (0.0, Condition(service=Constant(1.0), shed_above=0, retry_after=1.0)), workers=1,
        retry=RetryPolicy(attempts=2, backoff_base=0.0), timeout=3.0,
    )  # fmt: skip
    calls = [setting.caller.call("POST") for _ in range(3)]
    setting.engine.run()
    assert [len(call.starts) for call in calls] == [1, 1, 2]
    assert calls[2].starts[1][0] >= 1.0
    assert {call.answer for call in calls} <= {Head(200), Head(503, 1.0, refused=True)}


def test_late_timers_are_told() -> None:
    setting = Setting(
        (0.0, Condition(service=Constant(0.25), resets=1.0)), late=0.5,
        retry=RetryPolicy(attempts=2, backoff_base=1.0, budget_ratio=None),
    )  # fmt: skip
    call = setting.caller.call()
    setting.engine.run()
    assert [start.number for _, start in call.starts] == [1, 2]
    assert call.late == [call.starts[1][0]]


def test_a_sick_dependency_opens_the_circuit_and_a_well_one_closes_it() -> None:
    setting = Setting(
        (0.0, Condition(service=Constant(0.25), errors=1.0)), (10.0, Condition(service=Constant(0.25))),
        breaker=BreakerPolicy(window=4, minimum_calls=4, open_for=2.0, open_jitter=0.0, trials=1),
    )  # fmt: skip
    outcomes = []
    for second in range(20):
        setting.engine.run(float(second))
        outcomes.append(setting.caller.call())
    setting.engine.run()
    refused = [number for number, call in enumerate(outcomes) if isinstance(call.outcome, Refuse)]
    assert refused == [4, 5, 7, 8, 10, 11]
    assert all(
        call.outcome.reason is Reason.CIRCUIT_OPEN for call in outcomes if isinstance(call.outcome, Refuse)
    )
    assert setting.state.breaker is not None
    assert setting.state.breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("starts", [[], [1.0], [0.0, 3.0, 2.0]])
def test_conditions_are_in_order_of_time(starts: list[float]) -> None:
    with pytest.raises(ValueError, match="in order of time, the first at 0"):
        Setting(*((start, Condition(service=Constant(1.0))) for start in starts))


@pytest.mark.parametrize("field", ["refuses", "unreachable", "resets", "errors", "cuts"])
def test_shares_are_shares(field: str) -> None:
    with pytest.raises(ValueError, match=f"Condition.{field}=1.5 is not allowed"):
        Condition(service=Constant(1.0), **{field: 1.5})  # type: ignore[arg-type]
