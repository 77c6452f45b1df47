from __future__ import annotations

import asyncio
from typing import Any

import pytest

from resilient_mw.testing import ScriptedASGI


async def stream(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"x-a", b"1"), (b"x-b", b"1"), (b"X-B", b"2")],
        }
    )
    for number in range(3):
        await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        parts.append(message["body"])
        more = message["more_body"]
    text = f"{scope['method']} {scope['path']} {scope['root_path']} {dict(scope['headers'])} {scope['http_version']}"
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"/".join([text.encode(), *parts])})


async def test_the_request_is_what_was_asked_for() -> None:
    server = await ScriptedASGI(
        echo, method="PUT", path="/a", root_path="/r", headers=[("X-A", "1")], body=[b"one", b"two"],
        extra={"http_version": "2"},
    ).run()  # fmt: skip
    assert server.status == 201
    assert server.body == b"PUT /a /r {b'x-a': b'1'} 2/one/two"
    assert server.complete


async def test_the_answer_is_recorded() -> None:
    server = await ScriptedASGI(stream).run()
    assert len(server.messages) == 5
    assert server.body == b"012"
    assert server.header("X-A") == "1"
    assert server.header("X-B") is None
    assert server.headers[0] == (b"x-a", b"1")
    assert server.complete
    assert (server.error, server.cancelled) == (None, False)


async def test_a_stalled_send_returns_when_told_to() -> None:
    server = ScriptedASGI(stream, stall_at=2)
    running = asyncio.create_task(server.run())
    await asyncio.wait_for(server.stalled.wait(), 5)
    await asyncio.sleep(0.01)
    assert len(server.messages) == 3
    assert not running.done()
    server.go_on()
    await running
    assert server.complete


async def test_the_caller_leaves_at_a_step() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["type"])
        listening = asyncio.create_task(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0.01)
        assert not listening.done()
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        seen.append((await listening)["type"])
        seen.append((await receive())["type"])

    server = await ScriptedASGI(app, disconnect_at=1).run()
    assert seen == ["http.request", "http.disconnect", "http.disconnect"]
    assert not server.complete


async def test_the_caller_leaves_before_anything_is_read() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["type"])

    server = ScriptedASGI(app, body=[b"lost"])
    server.disconnect()
    await server.run()
    assert seen == ["http.disconnect"]
    with pytest.raises(LookupError, match="not started"):
        _ = server.status


async def test_the_server_cancels_at_a_step() -> None:
    server = await ScriptedASGI(stream, cancel_at=1).run()
    assert server.cancelled
    assert len(server.messages) == 2
    assert not server.complete


async def test_the_server_cancels_while_a_send_stalls() -> None:
    server = ScriptedASGI(stream, stall_at=0)
    server.cancel()  # nothing runs yet
    running = asyncio.create_task(server.run())
    await asyncio.wait_for(server.stalled.wait(), 5)
    server.cancel()
    await running
    assert server.cancelled


async def test_errors_of_the_application_are_raised_and_kept() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        raise ValueError("mine")

    server = ScriptedASGI(app)
    with pytest.raises(ValueError, match="mine") as raised:
        await server.run()
    assert server.error is raised.value
    assert server.status == 500


async def test_an_application_that_hangs_is_cancelled() -> None:
    cancelled: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    with pytest.raises(TimeoutError, match=r"not ended after 0.02 s; it sent \[\]"):
        await ScriptedASGI(app).run(within=0.02)
    assert cancelled == [True]
