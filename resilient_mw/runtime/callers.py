"""Whether the caller of a request that a thread works on has gone, as far as its server lets anybody know.

Nobody is told: somebody has to look. waitress has a function for it, which sees something only with
`channel_request_lookahead=1`. gunicorn hands its socket over. It is only asked whether the peer has hung up: nothing is read
from it, so bytes of a pipelined request and those of TLS stay where they are, and where the system has POLLRDHUP they hide nothing.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

LOOK_EVERY = 0.1
"""Seconds between two looks at the same caller: each is a system call."""

Gone = Callable[[], bool]
"""Tells whether the caller has gone. A caller who has shut down only his writing side counts as gone, as everywhere."""

POLLRDHUP: int = getattr(select, "POLLRDHUP", 0)


def gone_of(environ: Mapping[str, Any]) -> Gone | None:
    """Return what tells whether the caller of a request has gone; None: its server lets nobody know."""
    told = environ.get("waitress.client_disconnected")
    if told is not None:
        return partial(_safely, told)
    connection = environ.get("gunicorn.socket")
    if connection is None:
        return None
    return partial(_safely, partial(_hung_up if POLLRDHUP else _at_its_end, connection))


def _safely(look: Callable[[], object]) -> bool:
    try:
        return bool(look())
    except (OSError, ValueError):  # the server has closed the connection meanwhile
        return True


def _hung_up(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection.fileno(), POLLRDHUP)
    return bool(poll.poll(0))


def _at_its_end(connection: socket.socket) -> bool:
    """Return whether the end of the stream is all that is left to read: what systems without POLLRDHUP can tell."""
    try:  # past TLS, which would not let anybody peek
        return not socket.socket.recv(connection, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
