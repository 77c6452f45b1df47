"""The middleware's answers as OpenAPI responses: a table of what can be answered, and for which operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.admission.policy_checks import ADMISSION, DEADLINES, QUOTAS
from resilient_mw.admission.routing import RouteEntries, RouteTable
from resilient_mw.core.priority import EXEMPT
from resilient_mw.core.problem import PROBLEM_MEDIA_TYPE
from resilient_mw.core.rejection import REFUSAL_HEADER, REFUSAL_RULES, Reason, RetryAfter
from resilient_mw.core.routes import PathIndex, Route, RouteResolver

SCHEMA = "RefusalProblem"
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a document, and how its requests are treated.

    Attributes:
        path: the whole path template, mounts included.
        method: in upper case.
        entry: how the middleware treats it.
        policy: under which policy.
    """

    path: str
    method: str
    entry: RouteEntry
    policy: ServerPolicy


@dataclass(frozen=True, slots=True)
class DocumentedAnswer:
    """One status that the middleware answers with.

    Attributes:
        status: the status.
        description: what it means, for the document.
        reasons: the reasons that an operation may get it for; none: it is not documented there.
        headers: more header fields of the answer, by name: OpenAPI header objects.
    """

    status: int
    description: str
    reasons: Callable[[Operation], Iterable[Reason]]
    headers: Mapping[str, Mapping[str, Any]] | None = None


def _overloaded(operation: Operation) -> Iterable[Reason]:
    policy, entry = operation.policy, operation.entry
    if ADMISSION in policy.shadowed:
        return
    yield from (
        Reason.QUEUE_FULL,
        Reason.PUSHED_OUT,
        Reason.QUEUE_TIMEOUT,
        Reason.PREDICTED_LATE,
        Reason.DRAINING,
    )
    if policy.overload is not None and entry.priority == policy.classes[-1].name:
        yield Reason.OVERLOADED
    if policy.tenant is not None:
        yield Reason.TENANT_SHARE
    if entry.stream is not None:
        yield Reason.STREAM_LIMIT
    if entry.needs is not None:
        yield Reason.DEPENDENCY_UNAVAILABLE
    if policy.quota_store_away == "closed" and _quota(operation):
        yield Reason.QUOTA_UNKNOWN


def _late(operation: Operation) -> Iterable[Reason]:
    if DEADLINES in operation.policy.shadowed:
        return ()
    return (
        Reason.EXPIRED_ON_ARRIVAL,
        Reason.INSUFFICIENT_BUDGET,
        Reason.EXPIRED_IN_QUEUE,
        Reason.DEADLINE_EXCEEDED,
    )


def _quota(operation: Operation) -> Iterable[Reason]:
    policy = operation.policy
    if policy.tenant is None or QUOTAS in policy.shadowed:
        return ()
    index: PathIndex[None] = PathIndex()
    for quota in policy.quotas:
        path = quota.path or "/*"
        index.add(path.removesuffix("/*"), None, below=path.endswith("/*"))
    return (Reason.QUOTA_EXCEEDED,) if index.candidates(operation.path) else ()


def _too_large(operation: Operation) -> Iterable[Reason]:
    return () if operation.entry.max_body is None else (Reason.BODY_TOO_LARGE,)


ANSWERS: tuple[DocumentedAnswer, ...] = (
    DocumentedAnswer(503, "Not served now: the service is full, overloaded or about to stop", _overloaded),
    DocumentedAnswer(504, "The deadline passed, or too little of it was left", _late),
    DocumentedAnswer(
        429,
        "The caller's quota is used up",
        _quota,
        headers={
            "RateLimit": {
                "description": "The quota that was used up: what is left of it, and the seconds until there is more",
                "schema": {"type": "string"},
            },
            "RateLimit-Policy": {"description": "The quotas that count", "schema": {"type": "string"}},
        },
    ),
    DocumentedAnswer(413, "The request body is too large", _too_large),
)
"""What can be answered in the application's place. More answers are more lines here."""

REASON_SCHEMA: dict[str, Any] = {
    "type": "string",
    "description": "Why. Stable: match on it, not on the title",
}
PROBLEM_SCHEMA: dict[str, Any] = {
    "title": SCHEMA,
    "description": "Problem details (RFC 9457) of a request that was answered in the application's place",
    "type": "object",
    "required": ["type", "title", "status", "reason"],
    "properties": {
        "type": {"type": "string", "description": "A stable identifier of the reason", "format": "uri"},
        "title": {"type": "string", "description": "What happened, in a few words"},
        "status": {"type": "integer", "description": "The HTTP status"},
        "reason": REASON_SCHEMA,
        "instance": {"type": "string", "description": "What names the request in logs: its trace, or its id"},
    },
}


def add_answers(
    document: dict[str, Any],
    policy: ServerPolicy,
    resolver: RouteResolver,
    prefix: str = "",
    answers: Iterable[DocumentedAnswer] = ANSWERS,
) -> None:
    """Add what the middleware may answer to an OpenAPI document, in place. A second time it adds nothing.

    Args:
        document: the document.
        policy: the policy.
        resolver: knows the application's routes.
        prefix: what stands before the document's paths in those of the application.
        answers: the table.
    """
    routes = routes_of(resolver)
    table = RouteTable(policy, RouteEntries(policy))
    table.bind(_Known(routes))
    documented = False
    for path, item in document.get("paths", {}).items():
        whole = f"{prefix.rstrip('/')}{path}"
        for method in METHODS:
            if method not in item:
                continue
            name = method.upper()
            entry = table.entry(whole, name, {"method": name})
            documented |= _document(item[method], Operation(whole, name, entry, policy), answers)
    if documented:
        document.setdefault("components", {}).setdefault("schemas", {}).setdefault(SCHEMA, PROBLEM_SCHEMA)


def routes_of(resolver: RouteResolver) -> dict[tuple[str, str], Route]:
    """Return the routes by template, as documents write it, and method; `ANY` for one that takes any."""
    return {
        (_label(route.template), method): route for route in resolver.routes() for method in _methods(route)
    }


def _document(target: dict[str, Any], operation: Operation, answers: Iterable[DocumentedAnswer]) -> bool:
    """Add the answers of one operation; return whether there are any."""
    if operation.entry.priority == EXEMPT:
        return False
    added = False
    for answer in answers:
        reasons = tuple(answer.reasons(operation))
        if not reasons:
            continue
        responses = target.setdefault("responses", {})
        response = responses.setdefault(str(answer.status), {"description": answer.description})
        if "$ref" in response:
            continue  # the user's own, and what it refers to may stand elsewhere, too
        added = True
        headers = response.setdefault("headers", {})
        for name, header in _headers(answer, reasons).items():
            headers.setdefault(name, header)
        schema = {"$ref": f"#/components/schemas/{SCHEMA}"}
        content = response.setdefault("content", {})
        content.setdefault(PROBLEM_MEDIA_TYPE, {"schema": schema})
    return added


def _headers(answer: DocumentedAnswer, reasons: Iterable[Reason]) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    rules = {reason: REFUSAL_RULES[reason] for reason in reasons}
    if any(rule.retry_after is not RetryAfter.NEVER for rule in rules.values()):
        headers["Retry-After"] = {
            "description": "Whole seconds after which to come back",
            "schema": {"type": "integer", "minimum": 0},
        }
    not_begun = [reason.value for reason, rule in rules.items() if not rule.executed]
    if not_begun:
        headers[REFUSAL_HEADER] = {
            "description": "Why. Only where the work was not begun, so that the request may be sent again",
            "schema": {"type": "string", "enum": not_begun},
        }
    headers.update(answer.headers or {})
    return headers


class _Known:
    """Routes by template and method, for a table that is asked about templates."""

    def __init__(self, routes: Mapping[tuple[str, str], Route]) -> None:
        self._routes = routes

    def resolve(self, path: str, scope: Mapping[str, Any]) -> Route | None:
        """Return the route of a template."""
        return self._routes.get((path, scope["method"])) or self._routes.get((path, ANY))

    def routes(self) -> Iterator[Route]:
        """Return all of them."""
        return iter(self._routes.values())


ANY = ""
"""Stands for the methods of a route that takes any."""


def _methods(route: Route) -> Iterable[str]:
    return (ANY,) if route.methods is None else route.methods


def _label(template: str) -> str:
    """Return a template without its convertors, as documents write it."""
    return re.sub(r":[^{}/]*}", "}", template)
