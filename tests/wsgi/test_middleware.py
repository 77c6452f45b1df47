from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from resilient_mw import Reason, ResilienceWarning, RouteRule, ServerPolicy, current
from resilient_mw.core.cors import Cors
from resilient_mw.core.events import Event, GuardFailed, Refused
from resilient_mw.core.marks import Mark
from resilient_mw.core.rejection import REFUSAL_RULES
from resilient_mw.core.routes import Route
from resilient_mw.runtime import protection
from resilient_mw.runtime.context import CURRENT, NO_REQUEST
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ScriptedWSGI, disabled
from resilient_mw.wsgi import ResilienceMiddleware
from resilient_mw.wsgi.answers import prepare_answers
from tests.wsgi.helpers import TEXT, Blocking, hello, in_thread, outcomes, queued, refused, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def test_an_admitted_request_passes_unchanged() -> None:
    policy = ServerPolicy()
    server = ScriptedWSGI(ResilienceMiddleware(hello, policy)).run()
    assert (server.status, server.headers, server.body) == (
        "200 OK", [*TEXT, ("Content-Length", "5")], b"hello",
    )  # fmt: skip
    assert len(server.calls) == 1
    assert outcomes(policy) == {"completed": 1}
    assert slots_taken(policy) == 0


def test_a_full_server_refuses_with_an_explanation_and_without_the_application() -> None:
    events: list[Event] = []
    policy = ServerPolicy(limit=1, queue=0, listeners=[events.append])
    middleware = ResilienceMiddleware(hello, policy)
    first = ScriptedWSGI(middleware).call()
    second = ScriptedWSGI(middleware).run()
    assert second.status == "503 Service Unavailable"
    assert second.header("X-Refusal-Reason") == "queue_full"
    assert int(second.header("Retry-After") or "") >= 1
    assert second.header("Cache-Control") == "no-store"
    assert second.header("Content-Type") == "application/problem+json"
    assert second.header("Content-Length") == str(len(second.body))
    assert json.loads(second.body)["reason"] == "queue_full"
    assert events == [Refused("unmatched", "normal", Reason.QUEUE_FULL, 0.0)]
    first.read()
    first.close()
    assert ScriptedWSGI(middleware).run().status == "200 OK"
    assert refused(policy) == {"queue_full": 1}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("reason", list(Reason))
def test_every_answer_of_ours_is_a_valid_response(reason: Reason, method: str) -> None:
    answer = prepare_answers(Cors())[reason]

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        return answer.start(environ["REQUEST_METHOD"], environ, 7, start_response, None)

    server = ScriptedWSGI(app, method=method).run()
    whole = ScriptedWSGI(app).run()
    assert server.status.startswith(str(REFUSAL_RULES[reason].status))
    assert server.headers == whole.headers
    assert server.header("Content-Length") == str(len(whole.body))
    assert server.body == (b"" if method == "HEAD" else whole.body)
    assert not {"connection", "keep-alive", "transfer-encoding"} & {
        name.lower() for name, _ in server.headers
    }


def test_answers_do_not_share_the_list_of_their_headers() -> None:
    answer = prepare_answers(Cors())[Reason.QUEUE_FULL]
    seen: list[list[tuple[str, str]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        seen.append(headers)
        headers.append(("X-Outer", "1"))

    answer.start("GET", {}, 3, start_response, None)
    answer.start("GET", {}, None, start_response, None)
    assert ("Retry-After", "3") in seen[0]
    assert [name for name, _ in seen[1]] == [
        "Content-Type", "Content-Length", "Cache-Control", "Vary", "X-Refusal-Reason", "X-Outer",
    ]  # fmt: skip


def test_a_queued_request_runs_when_the_slot_comes_free() -> None:
    policy = ServerPolicy(limit=1, queue=1, max_wait=5.0, wait_share=1.0)
    middleware = ResilienceMiddleware(hello, policy)
    first = ScriptedWSGI(middleware).call()
    second = ScriptedWSGI(middleware)
    thread = in_thread(second.run)
    while queued(policy) == 0:
        thread.join(0.001)
    assert second.calls == []
    first.read()
    first.close()
    thread.join(5)
    assert second.status == "200 OK"
    assert slots_taken(policy) == 0


def test_a_queued_request_is_refused_at_its_wait_bound() -> None:
    policy = ServerPolicy(limit=1, queue=1, max_wait=0.05)
    middleware = ResilienceMiddleware(hello, policy)
    first = ScriptedWSGI(middleware).call()
    second = ScriptedWSGI(middleware).run()
    assert second.header("X-Refusal-Reason") == "queue_timeout"
    first.close()
    assert slots_taken(policy) == 0


def test_the_context_is_there_in_call_iteration_and_close_and_nowhere_else() -> None:
    seen: list[tuple[str, Any]] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            seen.append(("iter", current()))
            yield b"one"
            seen.append(("next", current()))
            yield b"two"
            seen.append(("end", current()))

        def close(self) -> None:
            seen.append(("close", current()))

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Body:
        seen.append(("call", current()))
        assert 0 < current().remaining() <= 5.0
        start_response("200 OK", list(TEXT))
        return Body()

    server = ScriptedWSGI(ResilienceMiddleware(app, deadline_default=5.0)).call()
    assert current() is NO_REQUEST
    server.read(1)
    assert current() is NO_REQUEST
    # Another thread may go on with the body.
    thread = in_thread(server.read)
    thread.join(5)
    server.close()
    assert current() is NO_REQUEST
    assert [step for step, _ in seen] == ["call", "iter", "next", "end", "close"]
    assert len({id(context) for _, context in seen}) == 1
    assert seen[0][1].remaining() == math.inf  # nothing that goes on after the response is worthless


def test_the_context_of_the_server_is_restored() -> None:
    token = CURRENT.set(NO_REQUEST)
    try:
        with pytest.raises(ZeroDivisionError):
            ScriptedWSGI(ResilienceMiddleware(lambda environ, start_response: 1 / 0)).run()  # type: ignore[arg-type, return-value]
        assert current() is NO_REQUEST
    finally:
        CURRENT.reset(token)


def test_an_exception_of_the_application_passes_and_gives_the_slot_back() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    boom = KeyError("mine")

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        raise boom

    with pytest.raises(KeyError) as raised:
        ScriptedWSGI(ResilienceMiddleware(app, policy)).run()
    assert raised.value is boom
    assert outcomes(policy) == {"error": 1}
    assert slots_taken(policy) == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("where", ["call", "chunk", "close"])
def test_what_is_no_exception_gives_the_slot_back_too(error: type[BaseException], where: str) -> None:
    policy = ServerPolicy(limit=1, queue=0)

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            yield b"x"
            if where == "chunk":
                raise error

        def close(self) -> None:
            if where == "close":
                raise error

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Body:
        if where == "call":
            raise error
        start_response("200 OK", list(TEXT))
        return Body()

    with pytest.raises(error):
        ScriptedWSGI(ResilienceMiddleware(app, policy)).run()
    assert slots_taken(policy) == 0
    assert outcomes(policy) == {"error": 1}


def test_our_own_failure_before_the_application_lets_the_request_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Event] = []
    policy = ServerPolicy(limit=1, queue=0, listeners=[events.append])
    middleware = ResilienceMiddleware(hello, policy)
    broken = OSError("ours")

    def fail(*_: object) -> None:
        raise broken

    monkeypatch.setattr(protection.Protection, "deadline_at", fail)
    for headers in ([("X-Request-Timeout-Ms", "100")], [("Grpc-Timeout", "1S")]):
        assert ScriptedWSGI(middleware, headers=headers).run().body == b"hello"
    monkeypatch.setattr(middleware.protection.guard, "arrive", fail)
    assert ScriptedWSGI(middleware).run().body == b"hello"
    assert events == [GuardFailed("admission", broken)] * 3
    assert guard_of(policy).snapshot().guard_errors == 3
    assert slots_taken(policy) == 0


def test_our_own_failure_after_the_wait_leaves_no_slot_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = ServerPolicy(limit=1, queue=1, max_wait=5.0)
    middleware = ResilienceMiddleware(hello, policy)
    first = ScriptedWSGI(middleware).call()

    def attach(*_: object) -> None:
        raise OSError("ours")

    monkeypatch.setattr(guard_of(policy), "attach", attach)
    assert ScriptedWSGI(middleware).run().body == b"hello"
    first.close()
    assert slots_taken(policy) == 0
    assert queued(policy) == 0


def test_our_own_failure_at_the_end_does_not_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = ServerPolicy()

    def end(*_: object) -> None:
        raise OSError("ours")

    monkeypatch.setattr(guard_of(policy), "end", end)
    assert ScriptedWSGI(ResilienceMiddleware(hello, policy)).run().body == b"hello"
    assert guard_of(policy).snapshot().guard_errors == 1


def test_two_policies_one_inside_the_other() -> None:
    outer, inner = ServerPolicy(deadline_default=3.0), ServerPolicy(deadline_default=60.0)
    seen: list[float] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        seen.append(current().remaining())
        return hello(environ, start_response)

    stack = ResilienceMiddleware(ResilienceMiddleware(app, inner), outer)
    assert ScriptedWSGI(stack).run().body == b"hello"
    assert seen[0] <= 3.0
    assert outcomes(outer) == outcomes(inner) == {"completed": 1}
    assert slots_taken(outer) == slots_taken(inner) == 0


def test_the_smaller_budget_may_be_the_inner_one() -> None:
    seen: list[float] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        seen.append(current().remaining())
        return hello(environ, start_response)

    stack = ResilienceMiddleware(ResilienceMiddleware(app, deadline_default=2.0), deadline_default=30.0)
    ScriptedWSGI(stack).run()
    assert 1.0 < seen[0] <= 2.0


def test_a_policy_guards_a_request_once_even_when_it_stands_twice_on_its_way() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    inner = ResilienceMiddleware(hello, policy)
    between = ResilienceMiddleware(inner, ServerPolicy())
    server = ScriptedWSGI(ResilienceMiddleware(between, policy)).run()
    assert server.body == b"hello"
    assert outcomes(policy) == {"completed": 1}
    # The next request on this thread is a request of its own.
    assert ScriptedWSGI(inner).run().body == b"hello"
    assert outcomes(policy) == {"completed": 2}


def test_two_applications_share_the_limit_of_one_policy() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    first = ScriptedWSGI(ResilienceMiddleware(hello, policy)).call()
    assert ScriptedWSGI(ResilienceMiddleware(hello, policy)).run().status.startswith("503")
    first.close()


def test_overrides_and_wrong_values() -> None:
    middleware = ResilienceMiddleware(hello, ServerPolicy(limit=5), queue=3)
    assert ScriptedWSGI(middleware).run().body == b"hello"
    with pytest.raises(ValueError, match=r"limit=0 is not allowed.*at least 1"):
        ResilienceMiddleware(hello, limit=0)
    with pytest.raises(TypeError, match="limits"):
        ResilienceMiddleware(hello, limits=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="must be a ServerPolicy"):
        ResilienceMiddleware(hello, {"limit": 1})  # type: ignore[arg-type]


class OneRoute:
    """A route source of one route, for any application."""

    def __init__(self, mark: Mark, error: Exception | None = None) -> None:
        self.mark = mark
        self.error = error

    def __call__(self, apps: object) -> OneRoute:
        if self.error is not None:
            raise self.error
        return self

    def routes(self) -> list[Route]:
        return [Route("/a", self.mark)]

    def resolve(self, path: str, scope: object) -> Route | None:
        return None


def test_a_mark_that_cannot_be_is_an_error_on_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "find_resolver", OneRoute(Mark(priority="urgent")))
    middleware = ResilienceMiddleware(hello)
    for _ in range(2):
        with pytest.raises(ValueError, match="'/a' names the priority class 'urgent', which does not exist"):
            ScriptedWSGI(middleware).run()


def test_a_rule_that_matches_nothing_warns_at_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "find_resolver", OneRoute(Mark()))
    middleware = ResilienceMiddleware(hello, routes=[RouteRule("/b", priority="critical")])
    with pytest.warns(ResilienceWarning, match="'/b'.* matches no route"):
        ScriptedWSGI(middleware).run()
    assert ScriptedWSGI(middleware).run().body == b"hello"


def test_a_broken_route_source_does_not_stop_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "find_resolver", OneRoute(Mark(), ImportError("no framework")))
    policy = ServerPolicy()
    assert ScriptedWSGI(ResilienceMiddleware(hello, policy)).run().body == b"hello"
    assert guard_of(policy).snapshot().guard_errors == 1
    assert outcomes(policy) == {"completed": 1}


def test_first_requests_that_come_together_bind_the_routes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def find(apps: object) -> None:
        calls.append(apps)
        threading.Event().wait(0.02)

    monkeypatch.setattr(protection, "find_resolver", find)
    middleware = ResilienceMiddleware(hello)
    servers = [ScriptedWSGI(middleware) for _ in range(8)]
    threads = [in_thread(server.run) for server in servers]
    for thread in threads:
        thread.join(5)
    assert [server.body for server in servers] == [b"hello"] * 8
    assert calls == [[middleware.app]]


def test_exempt_requests_pass_a_full_server() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    app = Blocking()
    middleware = ResilienceMiddleware(app, policy)
    thread = in_thread(ScriptedWSGI(middleware).run)
    assert app.entered.acquire(timeout=5)
    assert ScriptedWSGI(middleware).run().header("X-Refusal-Reason") == "queue_full"
    app.let_go.set()
    health = ScriptedWSGI(middleware, path="/health").run()
    assert health.status == "200 OK"
    thread.join(5)
    assert slots_taken(policy) == 0


def test_the_switch_takes_the_middleware_out_of_the_way() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    middleware = ResilienceMiddleware(hello, policy)
    running = ScriptedWSGI(middleware).call()
    with disabled():
        assert ScriptedWSGI(middleware, headers=[("X-Request-Timeout-Ms", "0")]).run().body == b"hello"
        running.read()
        running.close()  # was admitted before, so its slot comes back now
    assert outcomes(policy) == {"completed": 1}
    assert slots_taken(policy) == 0
