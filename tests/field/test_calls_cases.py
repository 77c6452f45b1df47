"""Field cases of the client half that concern more than one part of it, through the transports of both libraries."""

from __future__ import annotations

import ast
import asyncio
import datetime
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.calls.call import Call
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Actions
from resilient_mw.core.errors import CallRefused, DeadlineExceeded
from resilient_mw.core.rejection import REFUSAL_HEADER, Reason
from resilient_mw.runtime import clocks
from resilient_mw.runtime.context import budget, current
from resilient_mw.testing import ScriptedASGI
from tests.field.calls import (
    ONE_TRIAL,
    ROOT,
    URL,
    half_open,
    nothing_held,
    owner,
    prices,
    taken,
    turns,
    unsteady,
)
from tests.integrations.httpx_wires import KINDS, Wire, every_wire
from tests.transport.tcp_server import RawServer

# -- B65: a trial without a verdict ----------------------------------------------------------------------------------------


def raising(error: Callable[[Wire], BaseException], after: float = 0.0) -> Callable[[Wire], Any]:
    def answer(wire: Wire) -> Any:
        time.sleep(after)
        raise error(wire)

    return answer


def status(code: int, **headers: str) -> Callable[[Wire], Any]:
    return lambda wire: wire.lib.Response(code, headers=headers)


ENDINGS: dict[str, Callable[[Wire], Any]] = {
    "404": status(404),
    "429": status(429),
    "429 with Retry-After": status(429, **{"Retry-After": "1"}),
    "a redirect": status(302, Location="http://elsewhere.test/"),
    "a refusal of the dependency": status(503, **{REFUSAL_HEADER: "queue_full"}),
    "a mistake of the caller": raising(lambda wire: wire.lib.LocalProtocolError("wrong")),
    "no connection in our pool": raising(lambda wire: wire.lib.PoolTimeout("none")),
    "the caller's budget": raising(lambda wire: wire.lib.ReadTimeout("late"), after=0.21),
    "StopIteration": raising(lambda wire: StopIteration()),
    "an error of somebody's own": raising(lambda wire: LookupError()),
    "a body that cannot be decoded": lambda wire: wire.lib.Response(
        200, headers={"Content-Encoding": "gzip"}, stream=wire.lib.ByteStream(b"no gzip")
    ),
}


@every_wire
@pytest.mark.parametrize("ending", ENDINGS)
def test_b65_whatever_a_trial_ends_with_the_next_one_is_let_in(wire: Wire, ending: str) -> None:
    answers = iter([ENDINGS[ending], status(200)])
    dependency = prices(breaker=ONE_TRIAL)
    wire.open([dependency], wire.handler(lambda request: next(answers)(wire)))
    half_open(dependency)
    left = 0.2 if ending == "the caller's budget" else 10.0
    with suppress(wire.lib.HTTPError, RuntimeError, StopIteration, LookupError), current().within(left):
        wire.get(URL)
    assert sum(owner(dependency).snapshot().attempts.values()) == 1
    nothing_held(dependency)
    assert owner(dependency).snapshot().breaker in {"half_open", "closed"}
    assert wire.get(URL).status_code == 200
    assert owner(dependency).snapshot().breaker == "closed"


def hooked(wire: Wire, hook: Callable[[Any], Any]) -> dict[str, Any]:
    """Options of a client whose hook is called with each response."""

    async def awaited(response: Any) -> None:
        result = hook(response)
        if inspect.isawaitable(result):
            await result

    return {"event_hooks": {"response": [awaited if wire.is_async else hook]}}


@every_wire
@pytest.mark.parametrize("hook", ["response", "trace"])
def test_b65_a_hook_of_the_user_that_fails_in_a_trial_lets_the_next_one_in(wire: Wire, hook: str) -> None:
    failing = True

    def fail(response: Any) -> None:
        if failing:
            raise LookupError

    def trace(event: str, info: Any) -> None:
        if event == "http11.send_request_headers.complete":
            raise LookupError

    async def trace_async(event: str, info: Any) -> None:
        trace(event, info)

    with RawServer(unsteady) as server:
        dependency = prices(f"{server.url}/*", breaker=ONE_TRIAL)
        wire.open(
            [dependency],
            limits=wire.lib.Limits(max_connections=1),
            client=hooked(wire, fail) if hook == "response" else {},
        )
        half_open(dependency)
        extensions = {"trace": trace_async if wire.is_async else trace} if hook == "trace" else {}
        with pytest.raises(LookupError):
            wire.get(server.url + "/ok", extensions=extensions)
        failing = False
        nothing_held(dependency)
        assert wire.get(server.url + "/ok").status_code == 200
        assert owner(dependency).snapshot().breaker == "closed"


# -- B67, B68: crowds ------------------------------------------------------------------------------------------------------


class Crowd:
    """Calls through clients of both libraries, sync and async, all at once.

    Args:
        dependency: whom they call.
        each: how many calls each kind of client makes.
        answer: returns the status of an answer; it may block.
    """

    def __init__(self, dependency: Dependency, each: int, answer: Callable[[], int]) -> None:
        self.dependency = dependency
        self.each = each
        self.answer = answer
        self.outcomes: list[Any] = []

    def run(self) -> list[Any]:
        """Return a status or an error for each call."""
        kinds = [threading.Thread(target=self._of_a_kind, args=(kind,), daemon=True) for kind in KINDS]
        for thread in kinds:
            thread.start()
        for thread in kinds:
            thread.join(30)
            assert not thread.is_alive(), "they wait for each other"
        return [getattr(outcome, "status_code", outcome) for outcome in self.outcomes]

    def _of_a_kind(self, kind: tuple[str, str]) -> None:
        wire = Wire(kind)
        try:
            with ThreadPoolExecutor(self.each) as threads:
                if wire.is_async:
                    self._by_tasks(wire, threads)
                else:
                    self._by_threads(wire, threads)
        finally:
            wire.shut()

    def _by_threads(self, wire: Wire, threads: ThreadPoolExecutor) -> None:
        wire.open([self.dependency], wire.handler(lambda request: wire.lib.Response(self.answer())))
        calls = [threads.submit(wire.client.get, URL) for _ in range(self.each)]
        self.outcomes += [call.exception() or call.result() for call in calls]

    def _by_tasks(self, wire: Wire, threads: ThreadPoolExecutor) -> None:
        async def handle(request: Any) -> Any:
            loop = asyncio.get_running_loop()
            return wire.lib.Response(await loop.run_in_executor(threads, self.answer))

        async def together() -> list[Any]:
            calls = (wire.client.get(URL) for _ in range(self.each))
            return await asyncio.gather(*calls, return_exceptions=True)

        wire.open([self.dependency], wire.handler(handle))
        self.outcomes += wire.run(together())


def test_b67_the_trials_are_shared_by_all_clients_of_a_dependency() -> None:
    each, trials = 10, 3
    received, refused = 0, threading.Event()
    counting = threading.Lock()
    dependency = prices(
        breaker=BreakerPolicy(window=4, minimum_calls=4, trials=trials),
        retry=RetryPolicy(attempts=3, backoff_base=0.0, budget_ratio=None),
    )
    half_open(dependency)
    state = owner(dependency).state
    count = state.refused

    def counted(reason: Reason) -> None:
        count(reason)
        if state.refusals[reason] == 4 * each - trials:
            refused.set()

    state.refused = counted  # type: ignore[method-assign]

    def answer() -> int:
        nonlocal received
        with counting:
            received += 1
        refused.wait(10)  # The trials are under way until everybody else has been refused.
        return 503

    outcomes = Crowd(dependency, each, answer).run()
    assert received == trials, "a retry of a trial is no way around"
    errors = [outcome for outcome in outcomes if isinstance(outcome, CallRefused)]
    assert len(errors) == 4 * each - trials
    assert {error.reason for error in errors} == {Reason.CIRCUIT_OPEN}
    assert all(error.retry_in >= 0 for error in errors)
    assert owner(dependency).snapshot().breaker == "open"


def test_b68_all_clients_of_a_dependency_are_inside_their_attempts_at_once() -> None:
    each = 12
    inside = threading.Barrier(4 * each)

    def answer() -> int:
        inside.wait(10)
        return 200

    dependency = prices()
    assert Crowd(dependency, each, answer).run() == [200] * 4 * each
    nothing_held(dependency)


@every_wire
def test_b68_a_hook_that_calls_the_same_dependency_does_not_wait_for_its_own_call(wire: Wire) -> None:
    nested: list[Any] = []

    def again(response: Any = None) -> Any:
        if len(nested) >= 3:
            return None
        nested.append(None)
        result = wire.client.get(server.url + "/ok")
        return result if wire.is_async else None

    def trace(event: str, info: Any) -> None:
        if event == "http11.send_request_headers.started":
            again()

    async def trace_async(event: str, info: Any) -> None:
        if event == "http11.send_request_headers.started":
            result = again()
            if result is not None:
                await result

    with RawServer(unsteady) as server:
        dependency = prices(f"{server.url}/*")
        wire.open([dependency], client=hooked(wire, again))
        extensions = {"trace": trace_async if wire.is_async else trace}
        assert wire.get(server.url + "/ok", extensions=extensions).status_code == 200
        assert len(nested) == 3
        assert owner(dependency).snapshot().attempts == {"2xx": 4}


# -- B70: who is to blame --------------------------------------------------------------------------------------------------


@every_wire
def test_b70_one_callers_mistakes_take_the_dependency_from_nobody(wire: Wire) -> None:
    codes: list[int] = []
    dependency = prices(breaker=BreakerPolicy(window=10, minimum_calls=5, failure_ratio=0.5))
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(codes.pop())))

    def answered(code: int, times: int = 1) -> None:
        for _ in range(times):
            codes.append(code)
            assert wire.get(URL).status_code == code

    for code in (400, 401, 404, 409, 413, 422, 304, 301, 501, 408, 425):
        answered(code, 50)
    answered(429, 5)
    assert owner(dependency).snapshot().transitions == {}
    for code in (503, 500, 503, 502):
        answered(code)
    assert owner(dependency).snapshot().breaker == "closed"
    answered(504)
    assert owner(dependency).snapshot().breaker == "open"
    with pytest.raises(CallRefused):
        wire.get(URL)


@every_wire
def test_b70_parts_of_a_host_that_are_dependencies_of_their_own_fail_on_their_own(wire: Wire) -> None:
    heavy = Dependency("heavy", match=URL + "heavy/*", retry=None, breaker=ONE_TRIAL)
    light = Dependency("light", match=URL + "*", retry=None, breaker=ONE_TRIAL)
    wire.open(
        [heavy, light],
        wire.handler(lambda request: wire.lib.Response(503 if "heavy" in request.url.path else 200)),
    )
    assert wire.request("POST", URL + "heavy/job").status_code == 503
    with pytest.raises(CallRefused):
        wire.request("POST", URL + "heavy/job")
    for _ in range(5):
        assert wire.get(URL + "light").status_code == 200
    assert (owner(heavy).snapshot().breaker, owner(light).snapshot().breaker) == ("open", "closed")


# -- B71: retries and the breaker ------------------------------------------------------------------------------------------


def together(wire: Wire, urls: list[str]) -> list[Any]:
    """Call them all at once; return a response or an error for each."""
    if wire.is_async:

        async def gathered() -> list[Any]:
            return await asyncio.gather(*map(wire.client.get, urls), return_exceptions=True)

        answered: list[Any] = wire.run(gathered())
        return answered
    with ThreadPoolExecutor(len(urls)) as threads:
        calls = [threads.submit(wire.client.get, url) for url in urls]
        return [call.exception() or call.result() for call in calls]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@every_wire
@pytest.mark.parametrize(("threshold", "sent"), [(100, 30), (10, 10)])
def test_b71_ten_calls_at_once_each_of_which_fails_twice_and_then_succeeds(
    wire: Wire, threshold: int, sent: int
) -> None:
    """The breaker counts attempts: with a patient one all calls succeed, with an eager one the retries stop."""
    received: Counter[str] = Counter()
    arriving = threading.Barrier(10)

    def answer(request: Any) -> Any:
        received[request.url.path] += 1
        return wire.lib.Response(503 if received[request.url.path] <= 2 else 200)

    def handle(request: Any) -> Any:
        if received[request.url.path] == 0:
            arriving.wait(10)
        return answer(request)

    async def handle_async(request: Any) -> Any:
        await asyncio.sleep(0.01)
        return answer(request)

    dependency = prices(
        breaker=BreakerPolicy(window=100, minimum_calls=threshold, failure_ratio=0.5),
        retry=RetryPolicy(attempts=3, backoff_base=0.0, budget_ratio=None),
    )
    owned = owner(dependency)
    owned.state.backoff = lambda attempts: 0.02  # type: ignore[method-assign]
    if not wire.is_async:
        resume = owned.resume

        def all_have_failed_once(call: Call, at: float) -> Actions:
            # A thread may be slower than another one's back-off.
            until(lambda: sum(owned.state.attempts.values()) >= 10)
            return resume(call, at)

        owned.resume = all_have_failed_once  # type: ignore[method-assign]
    wire.open([dependency], wire.handler(handle_async if wire.is_async else handle))
    outcomes = together(wire, [f"{URL}{number}" for number in range(10)])
    assert received.total() == sent
    snapshot = owner(dependency).snapshot()
    if threshold == 100:
        assert [outcome.status_code for outcome in outcomes] == [200] * 10
        assert (snapshot.attempts, snapshot.transitions) == ({"5xx": 20, "2xx": 10}, {})
    else:
        assert (snapshot.attempts, snapshot.breaker) == ({"5xx": 10}, "open")
        # The call whose failure opened it gets its answer at once; those that were in their back-off are told then.
        refused = [outcome for outcome in outcomes if isinstance(outcome, CallRefused)]
        assert len(refused) == 9
        assert snapshot.retries_refused == {"circuit_open": 10}


@every_wire
def test_b71_retry_budget_and_breaker_bound_what_is_sent(wire: Wire) -> None:
    received = 0

    def answer(request: Any) -> Any:
        nonlocal received
        received += 1
        return wire.lib.Response(503)

    dependency = prices(
        breaker=None,
        retry=RetryPolicy(attempts=4, backoff_base=0.0, budget_ratio=0.1, budget_per_second=0.0),
    )
    wire.open([dependency], wire.handler(answer))
    for _ in range(50):
        assert wire.get(URL).status_code == 503
    assert received == 55, "(1 + ratio) x calls"


# -- B73: the wall clock ---------------------------------------------------------------------------------------------------

DAY = 86_400.0


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets the wall clock jump, for everybody who reads it."""
    real = time.time

    def to(seconds: float) -> None:
        class Jumped(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> Jumped:
                return cls.fromtimestamp(real() + seconds, tz)

        monkeypatch.setattr(time, "time", lambda: real() + seconds)
        monkeypatch.setattr(clocks, "time", lambda: real() + seconds)
        monkeypatch.setattr(datetime, "datetime", Jumped)

    return to


@every_wire
@pytest.mark.parametrize("days", [1, -1])
def test_b73_a_jump_of_the_wall_clock_moves_no_circuit(
    wire: Wire, days: int, jump: Callable[[float], None]
) -> None:
    code = 503
    dependency = prices(
        breaker=BreakerPolicy(window=2, minimum_calls=2, open_for=0.5, open_jitter=0.0, trials=2)
    )
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(code)))
    wire.get(URL)
    jump(days * DAY)  # closed
    wire.get(URL)
    jump(-days * DAY)  # open
    with pytest.raises(CallRefused) as caught:
        wire.get(URL)
    assert 0.0 < caught.value.retry_in <= 0.5
    time.sleep(0.51)
    code = 200
    assert wire.get(URL).status_code == 200
    jump(days * DAY)  # half-open
    assert owner(dependency).snapshot().breaker == "half_open"
    assert wire.get(URL).status_code == 200
    assert owner(dependency).snapshot().breaker == "closed"


@every_wire
@pytest.mark.parametrize("days", [1, -1])
def test_b73_a_jump_of_the_wall_clock_moves_no_deadline_no_budget_and_no_wait(
    wire: Wire, days: int, jump: Callable[[float], None]
) -> None:
    answers: list[tuple[int, dict[str, str]]] = []
    told: list[int] = []

    def answer(request: Any) -> Any:
        jump(days * DAY)
        told.append(int(request.headers["x-request-timeout-ms"]))
        code, headers = answers.pop(0)
        return wire.lib.Response(code, headers=headers)

    policy = RetryPolicy(
        attempts=2, backoff_base=0.0, budget_ratio=0.0, budget_per_second=0.1, max_retry_after=0.5
    )
    dependency = prices(retry=policy, breaker=None, reserve=0.0)
    wire.open([dependency], wire.handler(answer))

    def call(*script: tuple[int, dict[str, str]]) -> int:
        answers[:] = script
        jump(-days * DAY)
        with current().within(1.5):
            answered: int = wire.get(URL).status_code
        return answered

    now = time.time()
    soon = {"Date": formatdate(now, usegmt=True), "Retry-After": formatdate(now + 2, usegmt=True)}
    passed = {"Date": formatdate(now, usegmt=True), "Retry-After": formatdate(now - 2, usegmt=True)}
    # A date is as far away as the clock says that wrote it: 2 s are more patience than the policy has.
    assert call((503, soon)) == 503
    assert owner(dependency).snapshot().retries_refused == {"retry_after": 1}
    assert call((503, passed), (200, {})) == 200
    assert 1000 <= min(told) <= max(told) <= 1500
    # One retry in 10 s is the budget, and 10 s are not over.
    assert call((503, {})) == 503
    assert owner(dependency).snapshot().retries_refused == {"retry_after": 1, "budget": 1}
    with budget(0.05) as context:
        jump(-days * DAY)
        assert 0.0 < context.remaining() <= 0.05
        time.sleep(0.06)
        with pytest.raises(DeadlineExceeded):
            context.check()


@pytest.mark.parametrize("days", [1, -1])
async def test_b73_a_jump_of_the_wall_clock_moves_no_wait_in_the_queue(
    days: int, jump: Callable[[float], None]
) -> None:
    hold = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await hold.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    policy = ServerPolicy(limit=1, queue=1, max_wait=0.5, wait_share=1.0)
    served: Any = AsgiMiddleware(app, policy)
    running = asyncio.ensure_future(ScriptedASGI(served).run())
    await turns(3)
    waiting = asyncio.ensure_future(ScriptedASGI(served).run())
    began = time.monotonic()
    await turns(3)
    jump(days * DAY)
    await turns(10)
    assert taken(policy) == (1, 1), "it waits on"
    assert (await waiting).status == 503
    assert 0.45 < time.monotonic() - began < 2.0
    hold.set()
    assert (await running).status == 200


WALL_CLOCK = {
    ("resilient_mw/runtime/clocks.py", "time"),  # wall_clock() itself
    ("resilient_mw/runtime/clocks.py", "time_ns"),  # wall_clock_ns() itself
    (
        "resilient_mw/runtime/protection.py",
        "wall_clock_ns",
    ),  # the age of an X-Request-Start of a trusted proxy
    (
        "integrations/resilient_mw_integrations/limits.py",
        "wall_clock_ns",
    ),  # windows of quotas, as in other processes
    ("resilient_mw/transport/exchange.py", "wall_clock"),  # a Retry-After date in an answer without a Date
    ("resilient_mw/runtime/dependency_owner.py", "wall_clock"),  # the first half of an idempotency key
    ("integrations/resilient_mw_integrations/opentelemetry.py", "wall_clock"),  # the end of a span
    ("resilient_mw/runtime/jobs_owner.py", "wall_clock"),  # the first half of an idempotency key
    ("resilient_mw/runtime/jobs_durable.py", "wall_clock"),  # leases, which other processes read
    (
        "integrations/resilient_mw_integrations/celery.py",
        "wall_clock",
    ),  # when a task expires, as in its message
    ("resilient_mw/lab/command.py", "datetime.datetime.now"),  # the date on a report
}


def _reads(tree: ast.AST) -> Iterator[str]:
    """Yield by which names a module asks for the time of day."""
    sources = {"time", "datetime", "resilient_mw.runtime.clocks"}
    nodes = list(ast.walk(tree))
    imported = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module in sources
        for alias in node.names
        if alias.name in {"time", "time_ns", "wall_clock", "wall_clock_ns"}
    }
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in imported:
            yield node.id
        elif isinstance(node, ast.Attribute):
            module, _, name = ast.unparse(node).rpartition(".")
            if (module == "time" and name in {"time", "time_ns"}) or (
                name in {"now", "utcnow", "today"} and module.rpartition(".")[2] in {"date", "datetime"}
            ):
                yield f"{module}.{name}"


def test_b73_who_reads_the_wall_clock_is_listed_here() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for folder in ("resilient_mw", "integrations/resilient_mw_integrations")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in _reads(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == WALL_CLOCK
