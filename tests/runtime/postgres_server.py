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


@contextmanager
def running(binaries: Path) -> Iterator[int]:
    """Start a server and yield its port. It refuses to run as root, so root hands it to user postgres."""
    as_postgres = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="resilient-mw-postgres-", dir="/tmp"))
    try:
        if as_postgres:
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])

        def call(*command: str) -> None:
            done = subprocess.run(
                [*as_postgres, *command], cwd=folder, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr

        call(str(binaries / "initdb"), "-D", str(data), "-A", "trust", "--no-sync", "-U", "postgres")
        options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off -c max_connections=60"
        call(
            str(binaries / "pg_ctl"), "-w", "-D", str(data), "-o", options, "-l", str(folder / "log"), "start"
        )
        try:
            yield port
        finally:
            call(str(binaries / "pg_ctl"), "-w", "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
