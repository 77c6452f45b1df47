"""The two server processes: started, killed and started again on their ports."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.servers.processes import free_port

ROOT = Path(__file__).parents[2]


class Service:
    """One server process.

    Args:
        folder: for its log.
        environment: what `tests.torture.app` reads.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.port = free_port()
        self.log = folder / f"server-{self.port}.log"
        self._environment = os.environ | environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. It ends with this one, whatever ends that."""
        command = ["uvicorn", "tests.torture.app:app", "--port", str(self.port), "--no-access-log"]
        more = ["--log-level", "warning", "--no-proxy-headers", "--timeout-graceful-shutdown", "1"]
        path = os.pathsep.join([str(ROOT), str(ROOT / "integrations")])
        with self.log.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command, *more], cwd=ROOT, stdin=subprocess.PIPE, stdout=stream, stderr=stream,
                env=self._environment | {"PYTHONPATH": path, "TORTURE_WATCH": "1"}, start_new_session=True,
            )  # fmt: skip

    async def serves(self, within: float = 60.0) -> None:
        """Wait until it answers.

        Raises:
            RuntimeError: it has ended, with what it wrote.
            TimeoutError: it does not.
        """
        async with asyncio.timeout(within):
            while True:
                if self._process is None or self._process.poll() is not None:
                    wrote = self.log.read_text(errors="replace")[-4000:]
                    if "address already in use" not in wrote:
                        raise RuntimeError(f"a server has ended by itself:\n{wrote}")
                    # While it was away, somebody's connection was given its port to call from.
                    self.log.write_text("")
                    self.kill()
                    await asyncio.sleep(0.2)
                    self.start()
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        """End the process as the kernel does when memory is short. Safe to repeat."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
