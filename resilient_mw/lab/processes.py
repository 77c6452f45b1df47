"""The processes of a step: start them, hear on which port they listen, and leave none behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

import resilient_mw

START_TIME = 30.0
"""Seconds that a process may take to say that it is ready; a busy machine is slow to import a framework."""

OPEN_FILES = 8192
CHUNK = 65_536


class LabError(Exception):
    """The lab itself could not do its work: a process did not start, or died."""


# --- in the child ---


def exit_with_parent() -> None:
    """End this process when standard input is closed: its other end belongs to the one that started it.

    It holds also when that process is killed and cannot clean up.
    """

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, name="exit-with-parent", daemon=True).start()


def allow_many_connections() -> None:
    """Raise the limit of open files of this process: every user of the load holds a connection of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def announce(message: dict[str, Any]) -> None:
    """Say something to the process that started this one: a line of JSON on standard output."""
    sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
    sys.stdout.flush()


# --- in the parent ---


class Child:
    """A process of ours that speaks lines of JSON."""

    def __init__(self, module: str, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self.module = module
        self.process = process
        self._output = cast("asyncio.StreamReader", process.stdout)  # a pipe, see Children.start
        self._errors = errors
        self._unheard: asyncio.Task[None] | None = None

    async def hear(self) -> dict[str, Any]:
        """Return its next message.

        Raises:
            LabError: it ended, or wrote something else.
        """
        line = await self._output.readline()
        if not line:
            await self.process.wait()
            raise LabError(f"{self.module} ended without an answer: {self.complaint()}")
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:
            raise LabError(f"{self.module} said {line!r}, which is no message of the lab") from None
        return message

    def ignore(self) -> asyncio.Task[None]:
        """Read what it writes from now on, and forget it: a server that nobody reads stands still when its pipe is full.

        Returns:
            What has ended when it can write no more.
        """
        if self._unheard is None:
            self._unheard = asyncio.create_task(self._to_the_end())
        return self._unheard

    async def _to_the_end(self) -> None:
        while await self._output.read(CHUNK):
            pass

    def complaint(self) -> str:
        """Return the last lines that it wrote to standard error."""
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace").strip()
        return "\n".join(text.splitlines()[-12:]) or "it said nothing"

    def kill(self) -> None:
        """End it, unless it has ended, and the workers that a server has forked in it."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # it leads a session of its own

    async def gone(self) -> None:
        """Wait until it has ended, and free what belongs to it."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        with contextlib.suppress(TimeoutError):  # a process that it left behind may hold the other end
            async with asyncio.timeout(1.0):
                await self.ignore()  # then the pipe is closed, which the wait below waits for as well
        await self.process.wait()
        self._errors.close()


def _roots() -> list[str]:
    """Return the folders of both packages: in a source tree they are two."""
    integrations = find_spec("resilient_mw_integrations")
    places = [*resilient_mw.__path__, *((integrations and integrations.submodule_search_locations) or ())]
    return list(dict.fromkeys(str(Path(each).parent) for each in places))


class Children:
    """The processes of one step. Leaving the block, in whichever way, ends all of them."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Killed, not asked: they hold nothing that is worth a clean end, and a server that is asked would
        # first finish the very queue that a step has built up. All first, so that nothing that happens in a
        # wait spares one.
        for child in self._children:
            child.kill()
        for child in self._children:
            await child.gone()

    async def start(
        self, module: str, *arguments: str, says_more: bool = False
    ) -> tuple[Child, dict[str, Any]]:
        """Start a module as a process of its own and return it with its first message.

        Args:
            module, arguments: what to start.
            says_more: whether there will be further messages, which the caller hears; else what it writes is ignored.

        Raises:
            LabError: it ended or kept silent.
        """
        path = os.pathsep.join(filter(None, (*_roots(), os.environ.get("PYTHONPATH"))))
        errors = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed by Child.gone
        try:
            process = await asyncio.create_subprocess_exec(
                # -P: what lies in the current directory is not imported by accident.
                *(sys.executable, "-P", "-m", module, *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path},
                # Ctrl-C in a terminal reaches the lab alone, which then ends its processes in order.
                start_new_session=True,
            )
        except BaseException:
            errors.close()
            raise
        child = Child(module, process, errors)
        self._children.append(child)
        try:
            async with asyncio.timeout(START_TIME):
                hello = await child.hear()
        except TimeoutError:
            raise LabError(f"{module} was not ready within {START_TIME:.0f} s: {child.complaint()}") from None
        if not says_more:
            child.ignore()
        return child, hello
