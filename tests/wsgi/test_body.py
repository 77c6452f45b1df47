"""Field cases B43, B44, B46, B47 and B35: a WSGI application through the middleware is the application alone."""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from wsgiref.util import FileWrapper
from wsgiref.validate import validator

import pytest

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.events import Cancelled, Event
from resilient_mw.runtime.context import NO_REQUEST
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware
from resilient_mw.wsgi.body import Body
from tests.wsgi.helpers import TEXT, Chunks, hello, outcomes, serving, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

THREE = [b"one", b"two", b"three"]


def guarded(app: WSGIApplication, policy: ServerPolicy, **options: Any) -> ScriptedWSGI:
    return ScriptedWSGI(ResilienceMiddleware(app, policy), **options)


# -- B43: close() ------------------------------------------------------------------------------------------------------


def test_b43_a_body_that_is_read_is_closed_once_and_then_the_slot_is_free() -> None:
    policy, body = ServerPolicy(limit=1, queue=0), Chunks(THREE)
    server = guarded(serving(body), policy).call()
    assert server.read() == THREE
    assert (body.closed, slots_taken(policy)) == (0, 1)
    server.close()
    assert (body.closed, slots_taken(policy)) == (1, 0)
    assert outcomes(policy) == {"completed": 1}
    server.close()
    assert (body.closed, slots_taken(policy)) == (1, 0)


@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_b43_a_body_that_is_closed_early_is_closed_once(chunks: int) -> None:
    events: list[Event] = []
    policy, body = ServerPolicy(limit=1, queue=0, listeners=[events.append]), Chunks(THREE)
    server = guarded(serving(body), policy).call()
    if chunks:
        assert server.read(chunks) == THREE[:chunks]
    assert slots_taken(policy) == 1
    server.close()
    assert (body.closed, slots_taken(policy)) == (1, 0)
    assert outcomes(policy) == {"client_disconnect": 1}
    assert [type(event) for event in events] == [Cancelled]


@pytest.mark.parametrize("fail_at", [0, 1, 2])
def test_b43_an_exception_in_a_chunk_passes_and_closes_once(fail_at: int) -> None:
    policy, body = ServerPolicy(limit=1, queue=0), Chunks(THREE, fail_at=fail_at)
    server = guarded(serving(body), policy)
    with pytest.raises(LookupError, match="chunk"):
        server.run() if fail_at else server.call()
    assert server.chunks == THREE[:fail_at]
    assert (body.closed, slots_taken(policy)) == (1, 0)
    assert outcomes(policy) == {"error": 1}


def test_b43_a_server_that_forgets_to_close_after_an_exception_costs_no_slot() -> None:
    policy, body = ServerPolicy(limit=1, queue=0), Chunks(THREE, fail_at=1)
    server = ScriptedWSGI(ResilienceMiddleware(serving(body), policy), validate=False).call()
    with pytest.raises(LookupError, match="chunk"):
        server.read()
    assert (body.closed, slots_taken(policy)) == (1, 0)
    assert server.read() == []
    server.close()
    assert (body.closed, slots_taken(policy)) == (1, 0)


@pytest.mark.parametrize("chunks", [0, 1, 9])
def test_b43_an_exception_in_close_passes_and_the_slot_is_free(chunks: int) -> None:
    policy, body = ServerPolicy(limit=1, queue=0), Chunks(THREE, fail_close=True)
    server = guarded(serving(body), policy).call()
    server.read(chunks)
    with pytest.raises(LookupError, match="close"):
        server.close()
    assert (body.closed, slots_taken(policy)) == (1, 0)
    assert "error" in outcomes(policy) or chunks < 9


def test_b43_both_fail() -> None:
    policy, body = ServerPolicy(limit=1, queue=0), Chunks(THREE, fail_at=1, fail_close=True)
    with pytest.raises(LookupError, match="close") as raised:
        guarded(serving(body), policy).run()
    assert str(raised.value.__context__) == "'chunk'" or str(raised.value.__context__) == "chunk"
    assert (body.closed, slots_taken(policy)) == (1, 0)


def test_b43_the_thread_is_clean_for_the_next_request() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    seen = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        seen.append(current())
        start_response("200 OK", list(TEXT))
        yield b"one"
        yield b"two"

    for _ in range(3):
        server = guarded(app, policy).call()
        server.read(1)
        server.close()
        assert current() is NO_REQUEST
    assert len(set(map(id, seen))) == 3


# -- B44: when start_response is called, and how the body comes --------------------------------------------------------


def lazy(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    start_response("201 Created", [*TEXT, ("X-A", "1"), ("X-A", "2")])
    yield b"one"
    yield b"two"


def lazy_empty(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    start_response("204 No Content", [("X-A", "1")])
    yield from ()


def called_first(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", list(TEXT))
    return (chunk for chunk in [b"a", b"b"])


def empty_list(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("204 No Content", [])
    return []


def empty_chunks(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    yield from ()
    start_response("200 OK", list(TEXT))
    yield b""
    yield b"a"
    yield b""
    yield b"b"


def only_empty_chunks(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", list(TEXT))
    return [b"", b""]


def one_empty_chunk(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", list(TEXT))
    return [b""]


def in_a_tuple(environ: WSGIEnvironment, start_response: StartResponse) -> tuple[bytes]:
    start_response("200 OK", list(TEXT))
    return (b"only",)


def by_write(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    write = start_response("200 OK", list(TEXT))
    write(b"")
    write(b"one")
    write(b"two")
    return [b"three"]


def by_write_alone(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    write = start_response("200 OK", list(TEXT))
    write(b"one")
    return []


def a_file(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", list(TEXT))
    return FileWrapper(io.BytesIO(b"12345"), 2)


def no_content_type(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("304 Not Modified", [("ETag", '"0"'), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")])
    return []


APPS = [
    hello, lazy, lazy_empty, called_first, empty_list, empty_chunks, only_empty_chunks, one_empty_chunk, in_a_tuple,
    by_write, by_write_alone, a_file, no_content_type,
]  # fmt: skip


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.__name__)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_b44_the_server_sees_what_it_would_see_without_us(app: Any, method: str) -> None:
    policy = ServerPolicy(limit=1, queue=0)
    alone = ScriptedWSGI(validator(app), method=method).run()
    server = guarded(app, policy, method=method).run()
    assert server.calls == alone.calls
    assert server.body == alone.body
    assert slots_taken(policy) == 0
    assert outcomes(policy) == {"completed": 1}


def test_b44_a_subclass_of_bytes_stays_what_it_is() -> None:
    class Text(bytes):
        pass

    policy = ServerPolicy()
    chunks = [Text(b""), Text(b"x"), Text(b"")]
    server = ScriptedWSGI(ResilienceMiddleware(serving(chunks), policy), validate=False).run()
    assert [(type(chunk), chunk) for chunk in server.chunks] == [(Text, b"x"), (Text, b"")]


def test_b44_the_time_in_the_body_counts_as_in_flight() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    seen: list[int] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        for _ in range(3):
            seen.append(slots_taken(policy))
            if len(seen) == 1:
                start_response("200 OK", list(TEXT))
            yield b"x"

    guarded(app, policy).run()
    assert seen == [1, 1, 1]


@pytest.mark.parametrize(
    ("body", "length"), [([b"abc"], "3"), ((b"abc",), "3"), ([b"a", b"bc"], None), (iter([b"abc"]), None)]
)
def test_a_server_can_still_tell_that_there_is_one_chunk(body: Any, length: str | None) -> None:
    # What servers do to make up a Content-Length.
    iterable: Any = ResilienceMiddleware(serving(body))(
        ScriptedWSGI(hello).environ, lambda *_: lambda _: None
    )
    found = str(sum(map(len, iterable))) if hasattr(iterable, "__len__") and len(iterable) == 1 else None
    assert found == length
    iterable.close()


def test_an_application_that_never_starts_a_response_is_the_servers_to_blame() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    with pytest.raises(AssertionError, match="start_response"):
        ScriptedWSGI(ResilienceMiddleware(lambda *_: [b"x"], policy)).run()
    assert slots_taken(policy) == 0


def test_headers_that_the_server_refuses_are_an_error_of_the_application() -> None:
    policy, body = ServerPolicy(limit=1, queue=0), Chunks(THREE)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [("Content Type", "text/plain")])
        return body

    middleware = ResilienceMiddleware(app, policy)
    middleware.app = app  # without what finds the fault before the server does
    with pytest.raises(AssertionError, match="Content Type"):
        ScriptedWSGI(middleware).run()
    assert (body.closed, slots_taken(policy)) == (1, 0)
    assert outcomes(policy) == {"error": 1}


def test_what_the_application_does_to_its_list_of_headers_afterwards_stays_with_it() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        headers = list(TEXT)
        start_response("200 OK", headers)
        headers.clear()
        return [b"x"]

    assert ScriptedWSGI(ResilienceMiddleware(app)).run().headers == TEXT


# -- B46: start_response again -----------------------------------------------------------------------------------------


def failing(message: str) -> tuple[Any, Any, Any]:
    try:
        raise ValueError(message)
    except ValueError:
        return sys.exc_info()


def test_b46_an_error_before_the_first_bytes_replaces_the_response() -> None:
    given = failing("early")

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [*TEXT, ("X-First", "1")])
        yield b""
        start_response("500 Internal Server Error", [*TEXT, ("X-Second", "1")], given)
        yield b"sorry"

    server = guarded(app, ServerPolicy()).run()
    assert server.status == "500 Internal Server Error"
    assert server.headers == [*TEXT, ("X-Second", "1")]
    assert server.body == b"sorry"
    # One call only: servers differ in what they make of a second one.
    assert [call.exc_info for call in server.calls] == [given]


@pytest.mark.parametrize("how", ["chunk", "write"])
def test_b46_an_error_after_the_first_bytes_reaches_the_server_with_all_it_needs(how: str) -> None:
    given = failing("late")
    policy = ServerPolicy(limit=1, queue=0)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        write = start_response("200 OK", list(TEXT))
        if how == "write":
            write(b"begun")
        else:
            yield b"begun"
        start_response("500 Internal Server Error", list(TEXT), given)
        yield b"never"

    server = guarded(app, policy)
    with pytest.raises(ValueError, match="late") as raised:
        server.run()
    assert raised.value is given[1]
    assert (server.status, server.body) == ("200 OK", b"begun")
    assert slots_taken(policy) == 0
    assert outcomes(policy) == {"error": 1}


def test_b46_a_second_call_without_an_error_is_refused_as_servers_refuse_it() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", list(TEXT))
        start_response("404 Not Found", list(TEXT))
        return [b"x"]

    policy = ServerPolicy(limit=1, queue=0)
    with pytest.raises(AssertionError, match="second time without exc_info"):
        ScriptedWSGI(ResilienceMiddleware(app, policy)).run()
    assert slots_taken(policy) == 0


def test_b46_the_call_after_the_first_bytes_passes_without_exc_info_too() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        yield b"begun"
        start_response("404 Not Found", list(TEXT))

    with pytest.raises(AssertionError, match="second time without exc_info"):
        ScriptedWSGI(ResilienceMiddleware(app), validate=False).run()


@pytest.mark.parametrize("ending", ["answered", "failed"])
def test_b46_no_traceback_is_kept_alive_by_a_finished_request(ending: str) -> None:
    class Marker(Exception):
        pass

    references: list[weakref.ref[Marker]] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        try:
            raise Marker
        except Marker as error:
            references.append(weakref.ref(error))
            start_response("500 Internal Server Error", list(TEXT), sys.exc_info())
        if ending == "failed":
            raise LookupError("mine")
        return [b"x"]

    def serve() -> None:
        body = ResilienceMiddleware(app)(ScriptedWSGI(hello).environ, lambda *_: lambda _: None)
        assert list(body) == [b"x"]
        body.close()  # type: ignore[attr-defined]

    gc.disable()
    try:
        with contextlib.suppress(LookupError):
            serve()
        assert references[0]() is None
    finally:
        gc.enable()


def test_a_server_without_write_says_so_to_the_application() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    middleware = ResilienceMiddleware(by_write, policy)
    with pytest.raises(TypeError, match="no write"):
        middleware(ScriptedWSGI(hello).environ, lambda *_: None)  # type: ignore[arg-type]
    assert slots_taken(policy) == 0


# -- B47: nothing is asked for its truth -------------------------------------------------------------------------------


class Falsy(Chunks):
    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("chunks", [[], [b"x"]])
def test_b47_an_iterable_of_length_0_is_iterated_and_closed_by_two_middlewares(
    method: str, chunks: list[bytes]
) -> None:
    policies = ServerPolicy(limit=1, queue=0), ServerPolicy(limit=1, queue=0)
    body = Falsy(chunks)
    stack = ResilienceMiddleware(ResilienceMiddleware(serving(body), policies[0]), policies[1])
    server = ScriptedWSGI(stack, method=method).run()
    assert server.chunks == chunks
    assert body.closed == 1
    assert [slots_taken(policy) for policy in policies] == [0, 0]


def test_b47_a_header_that_looks_false_is_there() -> None:
    called: list[object] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        called.append(environ)
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "0")])
        return [b""]

    server = ScriptedWSGI(ResilienceMiddleware(app), headers=[("X-Request-Timeout-Ms", "0")]).run()
    assert server.header("X-Refusal-Reason") == "expired_on_arrival"
    assert called == []
    server = ScriptedWSGI(ResilienceMiddleware(app), headers=[("X-Request-Timeout-Ms", "")]).run()
    assert server.header("Content-Length") == "0"


# -- B35: the slot is held to the end of the body ----------------------------------------------------------------------


def test_b35_bodies_in_progress_are_bounded_not_only_starts() -> None:
    policy = ServerPolicy(limit=2, queue=0)
    middleware = ResilienceMiddleware(lazy, policy)
    servers = [ScriptedWSGI(middleware).call() for _ in range(2)]
    assert [server.status[:3] for server in servers] == ["201", "201"]
    assert ScriptedWSGI(middleware).run().status[:3] == "503"
    servers[0].read(1)
    assert ScriptedWSGI(middleware).run().status[:3] == "503"
    servers[0].read()
    assert ScriptedWSGI(middleware).run().status[:3] == "503"
    servers[0].close()
    again = ScriptedWSGI(middleware).call()
    assert again.status[:3] == "201"
    again.close()
    servers[1].close()
    assert slots_taken(policy) == 0


def no_content_in_vain(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    start_response("204 No Content", [])
    yield b"in vain"


@pytest.mark.parametrize(
    ("method", "app"),
    [
        ("HEAD", hello),
        ("HEAD", lazy),
        ("GET", empty_list),
        ("GET", no_content_type),
        ("GET", no_content_in_vain),
    ],
)
def test_b35_answers_without_a_body_are_complete_with_their_head(method: str, app: Any) -> None:
    # Some servers take no chunk of such a response: that is not a caller who has gone.
    policy = ServerPolicy(limit=1, queue=0)
    server = guarded(app, policy, method=method).call()
    assert slots_taken(policy) == 1
    server.close()
    assert slots_taken(policy) == 0
    assert outcomes(policy) == {"completed": 1}


def test_b35_an_error_in_a_body_that_nobody_wants_is_an_error_all_the_same() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    with pytest.raises(LookupError, match="chunk"):
        guarded(serving(Chunks(THREE, fail_at=1)), policy, method="HEAD").run()
    assert outcomes(policy) == {"error": 1}


# -- files -------------------------------------------------------------------------------------------------------------


class Wrapper(FileWrapper):
    """What a server makes of files."""


def files(file: Any, wrapper: Any = Wrapper) -> Any:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", list(TEXT))
        made: Iterable[bytes] = environ["wsgi.file_wrapper"](file, 2)
        return made

    return app, {"wsgi.file_wrapper": wrapper}


class File(io.BytesIO):
    closings = 0

    def close(self) -> None:
        self.closings += 1
        super().close()


def given_to_server(
    policy: ServerPolicy, app: Any, extra: dict[str, Any], **options: Any
) -> tuple[Any, ScriptedWSGI]:
    server = ScriptedWSGI(hello, extra=extra)
    middleware = ResilienceMiddleware(app, policy, **options)
    return middleware(server.environ, server._start_response), server


def test_a_file_reaches_the_server_as_what_it_made_of_it_and_holds_its_slot_until_it_is_closed() -> None:
    policy, file = ServerPolicy(limit=1, queue=0), File(b"12345")
    body, server = given_to_server(policy, *files(file))
    assert type(body) is Wrapper
    assert body.filelike is file
    assert file.tell() == 0, "the server sends it, from where it stands"
    assert [call.status for call in server.calls] == ["200 OK"]
    assert slots_taken(policy) == 1
    assert list(body) == [b"12", b"34", b"5"]
    body.close()
    assert (file.closings, slots_taken(policy), outcomes(policy)) == (1, 0, {"completed": 1})
    body.close()
    assert slots_taken(policy) == 0


def test_a_file_that_nobody_closes_gives_its_slot_back_when_it_is_collected() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    app, extra = files(File(b"12345"))
    middleware = ResilienceMiddleware(app, policy)
    server = ScriptedWSGI(hello, extra=extra)
    middleware(server.environ, server._start_response)
    gc.collect()
    assert slots_taken(policy) == 1, "the collector takes no lock: the next request does the rest"
    again = ScriptedWSGI(hello, extra=extra)
    body: Any = middleware(again.environ, again._start_response)
    assert again.status == "200 OK"
    body.close()
    assert (slots_taken(policy), outcomes(policy)) == (0, {"completed": 2})


def test_a_file_whose_close_fails_gives_its_slot_back() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    app, extra = files(Chunks([], fail_close=True))
    body, _ = given_to_server(policy, app, extra)
    with pytest.raises(LookupError, match="close"):
        body.close()
    assert (slots_taken(policy), outcomes(policy)) == (0, {"error": 1})


def test_a_file_that_comes_after_the_deadline_is_closed_and_not_sent() -> None:
    policy, file = ServerPolicy(limit=1, queue=0), File(b"12345")
    clock = ManualClock()
    use_clock(policy, clock)
    app, extra = files(file)

    def late(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        clock.advance(60)
        return app(environ, start_response)

    body, server = given_to_server(policy, late, extra)
    assert server.status[:3] == "504"
    assert b"deadline_exceeded" in b"".join(body)
    body.close()
    assert (file.closings, slots_taken(policy), outcomes(policy)) == (1, 0, {"deadline": 1})


def plain(file: Any, size: int) -> FileWrapper:
    return FileWrapper(file, size)


class OfC:
    """A type that takes no attributes, as some servers' are."""

    __slots__ = ("file",)

    def __init__(self, file: Any, size: int) -> None:
        self.file = file

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.file)

    def close(self) -> None:
        self.file.close()


@pytest.mark.parametrize("wrapper", [Wrapper, OfC])
@pytest.mark.parametrize("reason", [CancelReason.SHUTDOWN, CancelReason.CLIENT_DISCONNECT])
def test_a_file_of_work_that_the_shutdown_has_cancelled_is_sent_whole(
    wrapper: Any, reason: CancelReason
) -> None:
    # As every other answer that is there in time: its head was sent, with its length.
    policy, file = ServerPolicy(limit=1, queue=0), File(b"12345")
    app, extra = files(file, wrapper)

    def told(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        context: Any = current()
        context.cancel(reason)
        return app(environ, start_response)

    body, server = given_to_server(policy, told, extra)
    assert server.status == "200 OK"
    assert b"".join(body) == b"12345"
    body.close()
    assert (file.closings, slots_taken(policy), outcomes(policy)) == (1, 0, {reason.value: 1})


@pytest.mark.parametrize(
    ("wrapper", "options"),
    [
        (OfC, {}),
        (plain, {}),  # what cannot be told from other iterables
        (Wrapper, {"routes": [RouteRule("/*", slot="head")]}),  # a stream, whose pieces are looked at
    ],
)
def test_a_file_that_cannot_be_handed_over_is_iterated(wrapper: Any, options: dict[str, Any]) -> None:
    policy, file = ServerPolicy(limit=1, queue=0, **options), File(b"12345")
    body, server = given_to_server(policy, *files(file, wrapper))
    assert server.status == "200 OK"
    assert isinstance(body, Body), "its pieces come by here"
    assert b"".join(body) == b"12345"
    body.close()
    assert (file.closings, slots_taken(policy), outcomes(policy)) == (1, 0, {"completed": 1})
