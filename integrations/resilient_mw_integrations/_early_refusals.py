"""What a server's protocol can refuse before it makes a task: the middleware behind it, and the bytes of its answers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from operator import itemgetter
from typing import Any

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.answer import ASKING_FIELDS, ORIGIN, PreparedAnswer, prepare
from resilient_mw.core.headers.content_length import parse_content_length
from resilient_mw.core.headers.wish import DEADLINE_FIELDS, read_wish
from resilient_mw.core.rejection import REFUSAL_RULES, Reason
from resilient_mw.runtime import switch
from resilient_mw.runtime.protection import Protection

Fields = list[tuple[str, str]]

CONTENT_LENGTH = "content-length"
INTEREST = {name.encode("ascii"): name for name in (*ASKING_FIELDS, *DEADLINE_FIELDS, CONTENT_LENGTH)}
INTERESTING = frozenset(INTEREST)
NAME_OF = itemgetter(0)
ANYTHING = b"*/*"
"""The value of an `Accept` field that asks for nothing."""
RETRY_AFTER = [b"retry-after: %d\r\n\r\n" % seconds for seconds in range(128)]

CORS = "starlette.middleware.cors"
PASSING = {
    "starlette.applications",
    "starlette.middleware.errors",
    "starlette.middleware.gzip",
    "uvicorn.middleware.message_logger",
    "uvicorn.middleware.proxy_headers",
    CORS,
}
OWN_LAYERS = "fastapi."
"""Where the `__call__` of a layer may stand that is between the server and the middleware: each of these hands on every
request, under the path that it came with. Of any other layer nobody knows what it does with whom."""
MOST_LAYERS = 32

logger = logging.getLogger("resilient_mw")


class Front:
    """What all connections of one server share.

    Args:
        app: the application as the server calls it.
    """

    def __init__(self, app: object) -> None:
        self._app = app
        self._searching = True
        self._root_path: str | None = None
        self._behind_cors = False
        self._passing_origins = False
        self._policy: ServerPolicy | None = None
        self._protection: Protection | None = None
        self._heads: dict[Reason, bytes] = {}
        self._usual: dict[Reason, tuple[bytes, bytes]] = {}
        self._answers: dict[Reason, PreparedAnswer[bytes]] = {}
        self._common: object = None

    def may_refuse(self) -> bool:
        """Return whether it is worth asking for an answer: no, as long as there is room for everybody."""
        if self._searching:
            self._find()
        protection = self._protection
        if protection is None or protection.policy.refusal_page is not None:
            return False  # the middleware can ask the application for its page
        return protection.guard.may_refuse() and protection.started and not switch.DISABLED

    def answer(self, scope: Any, common: Sequence[tuple[bytes, bytes]]) -> tuple[Reason, bytes] | None:
        """Refuse a request if that is certain: return why, and the whole answer; None if it is not.

        Args:
            scope: the scope that the application would get.
            common: the header lines of every answer of this server. It makes a new list where they change.
        """
        protection = self._protection
        if protection is None:
            return None
        try:
            return self._answer(protection, scope, common)
        except Exception as error:  # noqa: BLE001  whatever our own code does, the middleware can still decide
            protection.guard.listeners.failed("refusing in the protocol", error)
            return None

    def _answer(
        self, protection: Protection, scope: Any, common: Sequence[tuple[bytes, bytes]]
    ) -> tuple[Reason, bytes] | None:
        guard, policy = protection.guard, protection.policy
        if policy is not self._policy:
            self._take(policy)  # there was a reload
        root_path = scope["root_path"] if self._root_path is None else self._root_path
        entry = protection.entry(scope["path"], root_path, scope["method"], scope)
        fields: Fields = []
        wish: float | None = None
        ignored: tuple[str, ...] = ()
        if not INTERESTING.isdisjoint(map(NAME_OF, scope["headers"])):
            fields = [
                (INTEREST[name], value.decode("latin-1"))
                for name, value in scope["headers"]
                if name in INTEREST and value != ANYTHING
            ]
            if fields:
                wish, ignored = read_wish(field for field in fields if field[0] in DEADLINE_FIELDS)
                if self._is_for_others(protection, entry, fields, wish):
                    return None
        now = guard.clock.now()
        refused = guard.refuse_surely(entry, now)
        if refused is None:
            return None
        reason, retry_after = refused
        if ignored:
            guard.ignored(ignored)
        if common is not self._common:
            self._prepare(common)
        end = b"\r\n" if retry_after is None else RETRY_AFTER[retry_after]
        if not fields and not policy.debug:
            head, body = self._usual[reason]
        else:
            budget = entry.budget if wish is None else entry.deadline.budget(wish, trusted=False)
            asking = [field for field in fields if field[0] in ASKING_FIELDS]
            lines, body = self._answers[reason].fitting(asking, guard.figures(entry, now + budget))
            head = b"".join((self._heads[reason], *lines))
        if scope["method"] == "HEAD":
            body = b""
        return reason, b"".join((head, end, body))

    def _is_for_others(
        self, protection: Protection, entry: RouteEntry, fields: Fields, wish: float | None
    ) -> bool:
        """Return whether a layer behind says more about a request than that there is no room for it."""
        if wish is not None and (wish < protection.policy.smallest_budget or wish == 0.0):
            return True  # It is too late for it, whatever the load.
        for name, value in fields:
            if name == ORIGIN and self._passing_origins:
                return True  # The CORS layer adds what lets the page read the answer.
            if name == CONTENT_LENGTH and entry.max_body is not None:
                size = parse_content_length([value])
                if size is not None and size > entry.max_body:
                    return True
        return False

    def _prepare(self, common: Sequence[tuple[bytes, bytes]]) -> None:
        lines = b"".join(b"%b: %b\r\n" % (name.lower(), value) for name, value in common)
        for reason, answer in self._answers.items():
            rule = REFUSAL_RULES[reason]
            status = HTTPStatus(rule.status)
            close = b"connection: close\r\n" if rule.close else b""
            head = b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) + lines + close
            usual, body = answer.usual()
            self._heads[reason] = head
            self._usual[reason] = (b"".join((head, *usual)), body)
        self._common = common

    def _find(self) -> None:
        """Look for the middleware behind layers that hand on every request."""
        layer, passing_origins = self._app, False
        for _ in range(MOST_LAYERS):
            deciding = getattr(type(layer), "__call__", None)  # noqa: B004  who wrote it is asked, not whether it is there
            if isinstance(layer, ResilienceMiddleware) and deciding is ResilienceMiddleware.__call__:
                self._found(layer.protection, passing_origins=passing_origins)
                return
            room = getattr(deciding, "__module__", "")
            if room not in PASSING and not room.startswith(OWN_LAYERS):
                break
            inside = vars(layer)
            passing_origins = passing_origins or room == CORS
            if "middleware_stack" in inside:
                if inside["middleware_stack"] is None:
                    return  # The framework makes its layers at the first message; the next request finds them.
                self._root_path = inside.get("root_path") or None  # FastAPI's own goes before the server's
            layer = inside.get("middleware_stack") or inside.get("app")
        self._searching = False
        logger.warning(
            "every refusal is left to the application: ResilienceMiddleware was looked for, and %r was found, of which nobody "
            "knows what it does with a request. Make ResilienceMiddleware the outermost layer",
            layer,
        )

    def _found(self, protection: Protection, *, passing_origins: bool) -> None:
        self._behind_cors = passing_origins
        self._searching = False
        self._protection = protection

    def _take(self, policy: ServerPolicy) -> None:
        """Prepare what a policy says of answers."""
        self._answers = prepare(policy.cors, _line)
        self._passing_origins = self._behind_cors and not policy.cors_origins
        self._common = None
        self._policy = policy


def _line(name: str, value: str) -> bytes:
    return f"{name.lower()}: {value}\r\n".encode("ascii")
