"""A PostgreSQL server of one's own for a test session: on loopback, in a temporary directory."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def find_binaries() -> Path | None:
    """Return the directory that holds `initdb` and `pg_ctl`, or None."""
    found = shutil.which("initdb")
    candidates = [Path(found).resolve().parent] if found else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    return None


class PostgresServer:
    """One server on loopback that can be stopped and started again on the same port."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.binaries = binaries
        self.folder = folder
        self.data = folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def make(self) -> None:
        self.call("initdb", "-D", str(self.data), "-A", "trust", "--no-sync", "-U", "postgres")

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k {self.folder} -c fsync=off -c max_connections=60"
        log = str(self.folder / "log")
        self.call("pg_ctl", "-w", "-D", str(self.data), "-o", options, "-l", log, "start")

    def stop(self) -> None:
        self.call("pg_ctl", "-w", "-D", str(self.data), "-m", "immediate", "stop")

    def call(self, name: str, *arguments: str) -> None:
        """Run a command of the server. It refuses to run as root, so root hands it to user postgres."""
        as_postgres = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*as_postgres, str(self.binaries / name), *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def serving(binaries: Path) -> Iterator[PostgresServer]:
    """Start a server and yield it; whoever has stopped it starts it again."""
    folder = Path(tempfile.mkdtemp(prefix="resilient-mw-postgres-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
        server = PostgresServer(binaries, folder)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(binaries: Path) -> Iterator[int]:
    """Start a server and yield its port."""
    with serving(binaries) as server:
        yield server.port
