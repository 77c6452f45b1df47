"""FastAPI: the deadline as a dependency, and the middleware's answers in the OpenAPI document.

Routes and marks are those of `resilient_mw_integrations.starlette`, which knows FastAPI's routers as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from starlette.applications import Starlette

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.core.deadline import Deadline
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.idempotency.policy import IdempotencyPolicy
from resilient_mw.runtime.configuration import load_policy
from resilient_mw.runtime.context import RequestContext, current
from resilient_mw.runtime.operations import Operations
from resilient_mw_integrations._openapi import ANSWERS, DocumentedAnswer, add_answers
from resilient_mw_integrations._openapi_keys import key_answers
from resilient_mw_integrations.starlette import AppRoutes, idempotency_refused
from resilient_mw_integrations.starlette.pages import RequestRefused, handled_by

__all__ = [
    "ANSWERS",
    "CurrentBudget",
    "CurrentContext",
    "CurrentDeadline",
    "DocumentedAnswer",
    "RequestRefused",
    "current_budget",
    "current_context",
    "current_deadline",
    "document_refusals",
    "handled_by",
    "idempotency_refused",
]

NO_POLICY = (
    "the OpenAPI document says nothing of refusals: no ResilienceMiddleware was added to the application, so its policy is "
    "not known. Give it to document_refusals(app, policy)"
)


# They are async so that FastAPI does not take a thread for each of them.
async def current_context() -> RequestContext:
    """Return the context of this request, as a dependency: `context: Annotated[RequestContext, Depends(current_context)]`."""
    return current()


async def current_deadline() -> Deadline:
    """Return the instant after which this request's answer is worthless, as a dependency."""
    return current().deadline


async def current_budget() -> float:
    """Return the seconds that this request has left when its dependencies are found, as a dependency."""
    return current().remaining()


CurrentContext = Annotated[RequestContext, Depends(current_context)]
CurrentDeadline = Annotated[Deadline, Depends(current_deadline)]
CurrentBudget = Annotated[float, Depends(current_budget)]


class _Documented:
    """What `app.openapi` is once refusals are documented."""

    def __init__(
        self,
        app: FastAPI,
        policy: ServerPolicy | None,
        within: Starlette,
        prefix: str,
        answers: tuple[DocumentedAnswer, ...],
    ) -> None:
        before = vars(app).get("openapi", app.openapi)
        self.before: Any = before.before if isinstance(before, _Documented) else before
        self._policy = policy
        self._within = within
        self._prefix = prefix
        self._answers = answers

    def __call__(self) -> dict[str, Any]:
        document: dict[str, Any] = self.before()
        policy = _policy_of(self._within) if self._policy is None else self._policy
        resolver = AppRoutes(self._within)
        keys = _keys_of(self._within)
        answers = self._answers if keys is None else (*self._answers, *key_answers(keys, resolver))
        if policy is None and keys is not None:
            add_answers(document, ServerPolicy(), resolver, self._prefix, key_answers(keys, resolver))
            return document
        if policy is None:
            warnings.warn(NO_POLICY, ResilienceWarning, stacklevel=2)
            return document
        owner = policy.owner[0] if policy.owner else None
        if isinstance(owner, Operations):
            policy = owner.policy  # the one that is in force, after a reload
        add_answers(document, policy, resolver, self._prefix, answers)
        return document


def document_refusals(
    app: FastAPI,
    policy: ServerPolicy | None = None,
    *,
    within: Starlette | None = None,
    prefix: str = "",
    more: Iterable[DocumentedAnswer] = (),
) -> None:
    """Have an application's OpenAPI document say what the middleware may answer in its place.

    Each operation gets the answers that its own rules can lead to: none where it is exempt, 429 where a quota counts it,
    413 where its body is bounded, and 400, 409 and 422 where an `IdempotencyMiddleware` that was added to it takes a key. What
    the application documents itself is kept, and what of ours is missing beside it is added.
    May be called at any time before the document is first asked for, and again.

    Args:
        app: the application.
        policy: its policy; None: that of the middleware that was added to it.
        within: for a sub-application: the one that mounts it, whose middleware, marks and paths count.
        prefix: the path under which that one mounts it.
        more: answers beside those of `ANSWERS`.
    """
    app.openapi = _Documented(  # type: ignore[method-assign]
        app, policy, within or app, prefix, (*ANSWERS, *more)
    )


def _policy_of(app: Starlette) -> ServerPolicy | None:
    """Return the policy of the outermost middleware of ours that was added to an application."""
    for each in app.user_middleware:
        if isinstance(each.cls, type) and issubclass(each.cls, ResilienceMiddleware):
            overrides = dict(each.kwargs)
            given: Any = each.args[0] if each.args else overrides.pop("policy", None)
            policy: ServerPolicy = load_policy() if given is None else given
            return policy.with_changes(overrides)
    return None


def _keys_of(app: Starlette) -> IdempotencyPolicy | None:
    """Return the policy of the middleware of idempotency keys that was added to an application."""
    for each in app.user_middleware:
        if isinstance(each.cls, type) and issubclass(each.cls, IdempotencyMiddleware):
            policy: Any = each.args[0] if each.args else each.kwargs.get("policy")
            return policy if isinstance(policy, IdempotencyPolicy) else None
    return None
