"""The processes of a step, as the lab starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from resilient_mw.lab.processes import Children
from tests.lab.chatty import LINES


async def test_a_server_that_talks_more_than_a_pipe_holds_goes_on_serving(
    no_process_left: Callable[[], None],
) -> None:
    async with Children() as children:
        child, hello = await children.start("tests.lab.chatty")
        async with asyncio.timeout(10):  # or it stands still, with nobody to read what it writes
            reader, writer = await asyncio.open_connection("127.0.0.1", hello["port"])
            assert await reader.read(4) == b"done"
        assert child.complaint().splitlines()[-1].startswith(f"line {LINES - 1} of")
        writer.close()
        await writer.wait_closed()
    no_process_left()


async def test_a_process_that_talks_to_nobody_is_ended_nevertheless(
    no_process_left: Callable[[], None],
) -> None:
    async with asyncio.timeout(10):  # or its end is waited for with what it wrote unread, which is for ever
        async with Children() as children:
            child, _ = await children.start("tests.lab.chatty", says_more=True)
            while not child._output._paused:  # type: ignore[attr-defined]  # noqa: ASYNC110  asyncio tells nobody
                await asyncio.sleep(0.01)
    no_process_left()
