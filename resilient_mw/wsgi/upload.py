"""Small request bodies are read before their request takes a slot: a slow upload keeps a thread busy, and no slot.

Some servers (waitress) begin a request when they have its body. Others (gunicorn, granian) hand the connection over, and a
caller on a slow line would hold a slot for as long as he sends, in which nothing is worked on.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.edge import is_too_large
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.core.headers.content_length import parse_content_length
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.thread_gate import CallerLeft

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

READ_FIRST = 1_048_576
"""Bytes of the largest body that is read before: it is kept in memory.

It is not a field of the policy, since no application has a reason of its own for another value. Each thread of the
server has one request in hand, so memory is bounded by their number. A smaller one would have forms and JSON hold slots while they
arrive; what is larger is a file, to be taken in parts by the application, or to be buffered on disk by a proxy. How large a body
may be at all is the application's to say: `max_body`.
"""


def receive(guard: Guard, environ: WSGIEnvironment, entry: RouteEntry, now: float) -> Decision | None:
    """Read the body of a request that has just arrived in time, if that is for us to do.

    One that cannot get in anyway is refused without: nobody reads for nothing.

    Args:
        guard: decides.
        environ: the request, in which `wsgi.input` is replaced by what was read.
        entry: how the request is treated.
        now: the instant of its arrival.

    Returns:
        The refusal; None: it goes on, later than it was.

    Raises:
        CallerLeft: the body ended before its time.
    """
    size = parse_content_length((environ["CONTENT_LENGTH"],))
    stream = environ.get("wsgi.input")
    if not size or size > READ_FIRST or stream is None or guard.models:
        return None
    if "waitress.client_disconnected" in environ or type(stream) is io.BytesIO:
        return None  # it is here
    if is_too_large(entry, (environ["CONTENT_LENGTH"],)):
        return None
    if guard.may_refuse():
        refused = guard.refuse_surely(entry, now)
        if refused is not None:
            return Decision(reason=refused[0], retry_after=refused[1])
    parts = []
    left = size
    try:
        while left and (part := stream.read(left)):
            parts.append(part)
            left -= len(part)
    except OSError as error:
        guard.left(entry)
        raise CallerLeft from error
    if left:
        guard.left(entry)
        raise CallerLeft
    environ["wsgi.input"] = io.BytesIO(b"".join(parts))
    return None
