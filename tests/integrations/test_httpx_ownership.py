"""What a request says about its attempts: who retries, and which work it is; and what an answer and a rule say back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpcore
import httpx
import pytest

from resilient_mw import Dependency, RetryPolicy, budget, current
from resilient_mw.asgi.middleware import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.calls import IdempotencyKeys, RetryOwnership
from resilient_mw.core.errors import CallRefused, DeadlineExceeded
from resilient_mw.core.headers.idempotency_key import parse_idempotency_key
from resilient_mw.core.rejection import Reason
from resilient_mw.wsgi.middleware import ResilienceMiddleware as WsgiMiddleware
from resilient_mw_integrations.httpx import AsyncResilientTransport, CallExpired, ResilientTransport

Answer = Callable[[httpx.Request], httpx.Response]


def policy(**fields: Any) -> RetryPolicy:
    return RetryPolicy(**{"attempts": 3, "backoff_base": 0.0, "budget_ratio": None, **fields})


class Peer:
    """Answers requests, and keeps what they said. The last answer is given for ever."""

    def __init__(self, *answers: int | Exception | Callable[[], httpx.Response]) -> None:
        self.answers = answers or (200,)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer) if isinstance(answer, int) else answer()

    def said(self, name: str) -> list[str | None]:
        return [request.headers.get(name) for request in self.requests]


def prices(**fields: Any) -> Dependency:
    return Dependency("prices", "http://prices/*", **{"retry": policy(), "breaker": None, **fields})


def client(peer: Peer, *dependencies: Dependency) -> httpx.Client:
    return httpx.Client(transport=ResilientTransport(dependencies or [prices()], httpx.MockTransport(peer)))


def refused(dependency: Dependency) -> dict[str, int]:
    return dict(dependency.snapshot().retries_refused)


# -- idempotency keys


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("is_async", [False, True])
def test_one_key_for_all_attempts_of_a_call(method: str, is_async: bool) -> None:
    peer, dependency = Peer(500, httpx.ReadError("lost"), 200), prices(idempotency_key="Idempotency-Key")

    async def ask() -> int:
        transport = AsyncResilientTransport([dependency], httpx.MockTransport(peer))
        async with httpx.AsyncClient(transport=transport) as asking:
            return (await asking.request(method, "http://prices/", content=b"x")).status_code

    if is_async:
        assert asyncio.run(ask()) == 200
    else:
        assert client(peer, dependency).request(method, "http://prices/", content=b"x").status_code == 200
    keys = peer.said("idempotency-key")
    assert len(keys) == 3
    assert len(set(keys)) == 1
    key = parse_idempotency_key([str(keys[0])], strict=True)
    assert key is not None
    assert UUID(key).version == 7


def test_each_call_has_a_key_of_its_own_and_only_the_methods_that_were_asked_for() -> None:
    peer = Peer()
    keys = IdempotencyKeys(header="X-Key", methods={"put"}, version=4)
    asking = client(peer, prices(idempotency_key=keys))
    for method in ("PUT", "PUT", "POST", "GET"):
        asking.request(method, "http://prices/")
    first, second, *others = peer.said("x-key")
    assert first != second
    assert others == [None, None]
    assert UUID(parse_idempotency_key([str(first)], strict=True) or "").version == 4


def test_a_dependency_that_does_not_ask_gets_no_key_and_a_post_is_not_repeated() -> None:
    peer = Peer(500)
    assert client(peer).post("http://prices/").status_code == 500
    assert peer.said("idempotency-key") == [None]


def test_the_callers_own_key_goes_before_ours() -> None:
    peer = Peer(500)
    asking = client(peer, prices(idempotency_key="Idempotency-Key"))
    asking.post("http://prices/", headers={"idempotency-key": "job-7"})
    asking.post("http://prices/", extensions={"idempotency_key": 'job "7"'})
    asking.post("http://prices/", headers={"idempotency-key": "  "})
    said = peer.said("idempotency-key")
    assert said[:6] == ["job-7"] * 3 + ['"job \\"7\\""'] * 3
    assert len(set(said[6:])) == 1
    assert parse_idempotency_key([str(said[6])], strict=True)
    with pytest.raises(ValueError, match="idempotency key"):
        asking.post("http://prices/", extensions={"idempotency_key": "a\r\nb"})


def test_b62_a_redirect_keeps_the_key_of_the_work_and_gives_it_to_nobody_else() -> None:
    def moved(url: str) -> Callable[[], httpx.Response]:
        return lambda: httpx.Response(307, headers={"Location": url})

    peer = Peer(moved("http://prices/new"), moved("http://elsewhere/"), 200)
    asking = client(peer, prices(idempotency_key="Idempotency-Key"))
    assert asking.post("http://prices/", content=b"x", follow_redirects=True).status_code == 200
    first, second, third = peer.said("idempotency-key")
    assert first == second
    assert third is None
    assert peer.said("x-retry-owner") == ["caller", "caller", None]
    assert peer.said("x-retry-attempt") == ["1", "1", None]


# -- who retries: what is told


def test_a_layer_that_retries_says_so_and_counts() -> None:
    peer = Peer(503)
    client(peer, prices(ownership=RetryOwnership(owner="shop", attempt_header="X-Try"))).get("http://prices/")
    assert peer.said("x-retry-owner") == ["shop"] * 3
    assert peer.said("x-try") == ["1", "2", "3"]
    assert [request.headers.get_list("x-retry-owner") for request in peer.requests] == [["shop"]] * 3


@pytest.mark.parametrize(
    "fields",
    [{"trusted": False}, {"ownership": None}, {"retry": None}, {"retry": policy(attempts=1)}],
    ids=["not trusted", "off", "no retry", "one attempt"],
)
def test_nothing_is_said_to_strangers_or_by_who_does_not_retry(fields: dict[str, Any]) -> None:
    peer = Peer(200)
    client(peer, prices(**fields)).get("http://prices/")
    assert peer.said("x-retry-owner") == peer.said("x-retry-attempt") == [None]


def test_what_the_caller_says_himself_stands() -> None:
    peer = Peer(503)
    client(peer).get("http://prices/", headers={"X-Retry-Owner": "job"})
    assert peer.said("x-retry-owner") == ["job"] * 3
    assert peer.said("x-retry-attempt") == [None] * 3


# -- who retries: what is heard


def through_asgi(work: Callable[[], object], headers: dict[str, str]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        work()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask() -> None:
        transport = httpx.ASGITransport(app=AsgiMiddleware(app))
        async with httpx.AsyncClient(transport=transport) as asking:
            assert (await asking.get("http://us/", headers=headers)).status_code == 200

    asyncio.run(ask())


def through_wsgi(work: Callable[[], object], headers: dict[str, str]) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        work()
        start_response("200 OK", [])
        return iter([b""])

    with httpx.Client(transport=httpx.WSGITransport(app=WsgiMiddleware(app))) as asking:
        assert asking.get("http://us/", headers=headers).status_code == 200


def in_a_budget(work: Callable[[], object]) -> Callable[[], object]:
    def inside() -> None:
        with budget(2.0), current().shield(1.0):
            work()

    return inside


def in_a_thread(work: Callable[[], object]) -> Callable[[], object]:
    from contextvars import copy_context

    def inside() -> None:
        thread = threading.Thread(target=copy_context().run, args=(work,))
        thread.start()
        thread.join()

    return inside


def directly(work: Callable[[], object]) -> Callable[[], object]:
    return work


@pytest.mark.parametrize("through", [through_asgi, through_wsgi])
@pytest.mark.parametrize("carried", [directly, in_a_budget, in_a_thread])
def test_a_service_whose_caller_retries_does_not_and_passes_his_name_on(through: Any, carried: Any) -> None:
    peer, dependency = Peer(503), prices()
    asking = client(peer, dependency)
    work = carried(lambda: asking.get("http://prices/"))
    through(work, {"X-Retry-Owner": "edge", "X-Retry-Attempt": "2"})
    assert peer.said("x-retry-owner") == ["edge"]
    assert peer.said("x-retry-attempt") == ["2"]
    assert refused(dependency) == {"not_owner": 1}
    through(work, {})
    assert peer.said("x-retry-owner")[1:] == ["caller"] * 3
    asking.get("http://prices/")  # Outside any request nobody is above.
    assert len(peer.requests) == 7


@pytest.mark.parametrize("through", [through_asgi, through_wsgi])
@pytest.mark.parametrize(
    ("headers", "owner", "attempt"),
    [
        ({"x-envoy-attempt-count": "3"}, "envoy", "3"),
        ({"grpc-previous-rpc-attempts": "1"}, "grpc", "2"),
        ({"X-Retry-Owner": "a b"}, "unknown", "1"),
    ],
)
def test_other_layers_are_heard_and_passed_on(
    through: Any, headers: dict[str, str], owner: str, attempt: str
) -> None:
    peer, dependency = Peer(503), prices(retry=None)
    asking = client(peer, dependency)
    through(lambda: asking.get("http://prices/"), headers)
    assert (peer.said("x-retry-owner"), peer.said("x-retry-attempt")) == ([owner], [attempt])


def test_a_first_attempt_of_envoy_says_nothing() -> None:
    peer = Peer(503)
    asking = client(peer)
    through_asgi(lambda: asking.get("http://prices/"), {"x-envoy-attempt-count": "1"})
    assert len(peer.requests) == 3


def test_a_policy_can_insist_and_names_can_be_chosen() -> None:
    peer = Peer(503)
    asking = client(peer, prices(retry=policy(insist=True)))
    through_asgi(lambda: asking.get("http://prices/"), {"X-Retry-Owner": "edge"})
    assert peer.said("x-retry-owner") == ["edge"] * 3
    other = prices(ownership=RetryOwnership(owner_header="X-Who"))
    again = client(peer, other)
    through_asgi(lambda: again.get("http://prices/"), {"X-Retry-Owner": "edge"})
    assert refused(other) == {"attempts": 1}
    through_asgi(lambda: again.get("http://prices/"), {"X-Who": "edge"})
    assert refused(other) == {"attempts": 1, "not_owner": 1}


def test_two_dependencies_with_names_of_their_own_in_one_request() -> None:
    peer = Peer(503)
    stock = Dependency(
        "stock",
        "http://stock/*",
        retry=policy(),
        breaker=None,
        ownership=RetryOwnership(owner_header="X-Who"),
    )
    asking = client(peer, prices(), stock)

    def work() -> None:
        for host in ("prices", "stock", "prices"):
            asking.get(f"http://{host}/")

    through_asgi(work, {"X-Retry-Owner": "edge"})
    assert [request.url.host for request in peer.requests] == ["prices", *["stock"] * 3, "prices"]


# -- what an answer says back


@pytest.mark.parametrize(
    ("headers", "requests", "why"),
    [
        ({"x-envoy-ratelimited": "true"}, 1, "told_not_to"),
        ({"x-envoy-ratelimited": ""}, 1, "told_not_to"),
        ({"grpc-retry-pushback-ms": "-1"}, 1, "told_not_to"),
        ({"grpc-retry-pushback-ms": "soon"}, 1, "told_not_to"),
        ({"grpc-retry-pushback-ms": "6000"}, 1, "retry_after"),
        ({"grpc-retry-pushback-ms": "0"}, 3, "attempts"),
        ({}, 3, "attempts"),
    ],
)
def test_an_answer_can_say_do_not_retry(headers: dict[str, str], requests: int, why: str) -> None:
    peer, dependency = Peer(lambda: httpx.Response(503, headers=headers)), prices()
    client(peer, dependency).get("http://prices/")
    assert len(peer.requests) == requests
    assert refused(dependency) == {why: 1}


def test_a_pushback_is_waited_for() -> None:
    peer, dependency = (
        Peer(lambda: httpx.Response(503, headers={"grpc-retry-pushback-ms": "80"}), 200),
        prices(),
    )
    owner: Any
    with client(peer, dependency) as asking:
        owner = dependency.owner[0]
        begun = owner.clock.now()
        assert asking.get("http://prices/").status_code == 200
    assert owner.clock.now() - begun >= 0.08


# -- HTTP/2: what was not acted upon


class StreamReset(SimpleNamespace):
    """Like the event of h2."""


@pytest.mark.parametrize(
    ("event", "attempts"),
    [
        (StreamReset(stream_id=5, error_code=7), 3),
        (StreamReset(stream_id=5, error_code=2), 1),
        (StreamReset(error_code=0, last_stream_id=0), 3),
        (StreamReset(error_code=0, last_stream_id=5), 1),
        ("Server disconnected", 1),
    ],
)
def test_a_refused_stream_is_repeated_for_a_post(event: Any, attempts: int) -> None:
    error = httpx.RemoteProtocolError(str(event))
    error.__cause__ = httpcore.RemoteProtocolError(event)
    peer, dependency = Peer(error), prices()
    with pytest.raises(httpx.RemoteProtocolError):
        client(peer, dependency).post("http://prices/")
    assert len(peer.requests) == attempts


# -- B79: a rule of the user


def test_a_rule_is_given_the_answer_or_the_error() -> None:
    seen: list[Any] = []

    def rule(outcome: Any) -> bool:
        seen.append(outcome)
        return isinstance(outcome, httpx.Response) and outcome.status_code == 404

    peer = Peer(404, httpx.ReadError("lost"))
    with pytest.raises(httpx.ReadError):
        client(peer, prices(retry=policy(retry_if=rule))).get("http://prices/")
    assert len(peer.requests) == 2
    assert [type(each) for each in seen] == [httpx.Response, httpx.ReadError]


CONTROL = [
    asyncio.CancelledError(),
    KeyboardInterrupt(),
    SystemExit(),
    GeneratorExit(),
    DeadlineExceeded("over"),
    CallRefused("open", Reason.CIRCUIT_OPEN, "inner"),
    CallExpired("over", "head", "inner"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("error", CONTROL, ids=lambda error: type(error).__name__)
def test_b79_what_ends_the_work_is_never_repeated(error: BaseException) -> None:
    asked: list[Any] = []

    def everything(outcome: Any) -> bool:
        asked.append(outcome)
        return True

    for rule in (everything, None):
        peer, dependency = Peer(error), prices(retry=policy(retry_if=rule), bulkhead=1)  # type: ignore[arg-type]
        peer.__class__ = Raising
        with pytest.raises(type(error)) as caught:
            client(peer, dependency).get("http://prices/")
        assert caught.value is error
        assert len(peer.requests) == 1
        assert asked == []
        assert dependency.snapshot().in_use == 0


class Raising(Peer):
    """Raises what is no Exception, too."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        raise self.answers[0]  # type: ignore[misc]


def raises(outcome: Any) -> bool:
    raise ZeroDivisionError("in the rule")


@pytest.mark.parametrize(
    ("rule", "kind"),
    [(raises, ZeroDivisionError), (lambda outcome: "yes", TypeError), (lambda outcome: None, TypeError)],
    ids=["raises", "text", "nothing"],
)
@pytest.mark.parametrize("answer", [503, 200, httpx.ReadError("lost")])
def test_b79_a_rule_that_is_broken_ends_the_call_and_holds_nothing(rule: Any, kind: Any, answer: Any) -> None:
    closed: list[bool] = []

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b""

        def close(self) -> None:
            closed.append(True)

    made = answer if isinstance(answer, Exception) else (lambda: httpx.Response(answer, stream=Body()))
    peer, dependency = Peer(made), prices(retry=policy(retry_if=rule), bulkhead=1)
    with suppress(httpx.ReadError), pytest.raises(kind):
        client(peer, dependency).get("http://prices/")
    assert len(peer.requests) == 1
    assert dependency.snapshot().in_use == 0
    assert bool(closed) is not isinstance(answer, Exception)


# -- B58: every error of the library


NEVER_SENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"}
MISTAKES = {"LocalProtocolError", "UnsupportedProtocol"}


def kinds_of_errors() -> list[str]:
    return sorted(
        name
        for name, kind in vars(httpx).items()
        if isinstance(kind, type) and issubclass(kind, httpx.TransportError)
    )


@pytest.mark.parametrize("name", kinds_of_errors())
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST", "PATCH"])
def test_b58_every_error_and_method(name: str, method: str) -> None:
    peer, dependency = Peer(getattr(httpx, name)("x")), prices()
    with pytest.raises(getattr(httpx, name)):
        client(peer, dependency).request(method, "http://prices/")
    repeated = name not in MISTAKES and (name in NEVER_SENT or method in {"GET", "PUT", "DELETE"})
    assert len(peer.requests) == (3 if repeated else 1)
    owner: Any = dependency.owner[0]
    blamed = name not in MISTAKES and name != "PoolTimeout"
    assert owner.judged()[:2] == (0, (3 if repeated else 1) if blamed else 0)


# -- a chain of services


def test_five_services_in_a_row_over_a_failing_one() -> None:
    reached = 0
    calls, layers = 200, 5

    async def bottom(scope: Any, receive: Any, send: Any) -> None:
        nonlocal reached
        reached += 1
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def service(name: str, below: Any) -> tuple[Any, Dependency]:
        dependency = Dependency(
            name, "http://below/*", retry=RetryPolicy(attempts=3, backoff_base=0.0), breaker=None
        )
        asking = httpx.AsyncClient(
            transport=AsyncResilientTransport([dependency], httpx.ASGITransport(app=below))
        )

        async def app(scope: Any, receive: Any, send: Any) -> None:
            status = (await asking.get("http://below/")).status_code
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        return AsgiMiddleware(app), dependency

    async def ask() -> list[Dependency]:
        app: Any = bottom
        dependencies = []
        for layer in range(layers):
            app, dependency = service(f"layer{layer}", app)
            dependencies.append(dependency)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as asking:
            for _ in range(calls):
                assert (await asking.get("http://top/")).status_code == 503
        return dependencies

    *lower, top = asyncio.run(ask())
    assert calls * 1.05 < reached <= calls * 1.3
    assert top.snapshot().retries == reached - calls
    assert [each.snapshot().retries for each in lower] == [0] * (layers - 1)
