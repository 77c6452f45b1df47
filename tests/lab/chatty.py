"""A process that says its port as those of the lab do, talks more than a pipe holds, and then answers one caller."""

from __future__ import annotations

import socket
import sys

from resilient_mw.lab.processes import announce, exit_with_parent

LINES = 20_000


def main() -> None:
    exit_with_parent()
    with socket.create_server(("127.0.0.1", 0)) as server:
        announce({"port": server.getsockname()[1]})
        for stream in (sys.stdout, sys.stderr):
            for number in range(LINES):
                stream.write(f"line {number} of what a server has to say about a request\n")
            stream.flush()
        caller, _ = server.accept()
        with caller:
            caller.sendall(b"done")
            caller.recv(1)  # until the caller has gone


if __name__ == "__main__":
    main()
