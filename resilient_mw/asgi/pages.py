"""Draws the application's own pages for refusals, and answers in our own way where it cannot: it fails, or takes too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from inspect import isawaitable

from resilient_mw.core.pages import PageFunction, RefusalPage, RefusedRequest, checked_page
from resilient_mw.runtime.flush import Listeners
from resilient_mw.runtime.forks import after_fork

PAGE_WITHIN = 0.5
"""Seconds that a page which has to be awaited gets: an answer at the deadline is late by so much at most."""
MOST_PAGES = 100
"""Pages that are awaited at once. Refusals come by the thousand, and nothing else would bound what they hold."""
WHERE = "refusal_page"


class Pages:
    """What draws the pages of one middleware.

    Args:
        function: the application's.
        listeners: told of what goes wrong.
    """

    def __init__(self, function: PageFunction, listeners: Listeners) -> None:
        self._function = function
        self._listeners = listeners
        self._awaited: set[asyncio.Task[RefusalPage | None]] = set()
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child: what is awaited is the parent's."""
        self._awaited = set()

    async def draw(self, refused: RefusedRequest) -> RefusalPage | None:
        """Return the page of a refusal; None if our own answer is to be sent."""
        if len(self._awaited) >= MOST_PAGES:
            return None
        try:
            page = self._function(refused)
            return checked_page(await self._await(page) if isawaitable(page) else page)
        except Exception as error:  # noqa: BLE001  the user's function: whatever it raises, the caller gets an answer
            self._listeners.guest_failed(WHERE, error)
            return None

    async def _await(self, page: Awaitable[RefusalPage | None]) -> RefusalPage | None:
        """Return what is awaited, if it comes in time.

        It runs in a task of its own: a framework may shield it from cancellation, or run it in a thread.

        Raises:
            TimeoutError: it did not.
            Exception: what it raised.
        """
        task = asyncio.get_running_loop().create_task(_result(page))
        self._awaited.add(task)
        task.add_done_callback(self._over)
        try:
            await asyncio.wait({task}, timeout=PAGE_WITHIN)
        finally:
            ended = task.done()
            if not ended:
                task.cancel()
        if not ended:
            raise TimeoutError(f"no page within {PAGE_WITHIN:g} s")
        if task.cancelled():
            raise RuntimeError("the page was cancelled by its own code")
        return task.result()

    def _over(self, task: asyncio.Task[RefusalPage | None]) -> None:
        self._awaited.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it may be gone


async def _result(page: Awaitable[RefusalPage | None]) -> RefusalPage | None:
    return await page
