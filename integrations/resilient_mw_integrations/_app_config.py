"""Extensions of Flask and Quart: what the configuration of an application says, and where it stands in the order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, Unpack

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.overrides import PolicyOverrides
from resilient_mw.admission.plain import from_plain, with_given
from resilient_mw.core.pages import PageFunction
from resilient_mw.idempotency.policy import IdempotencyPolicy
from resilient_mw.runtime.configuration import load_policy, note_sources

NAME = "resilience"
"""The name of the extension in `app.extensions`, where its middleware is."""
PREFIX = "RESILIENCE_"
AppT = TypeVar("AppT")
StoreT = TypeVar("StoreT")


class Extension(ABC, Generic[AppT, StoreT]):
    """What both extensions have in common.

    Attributes:
        keys: the policy of idempotency keys; None: they are not looked at.
        store: where their records are.
    """

    def __init__(
        self,
        app: AppT | None = None,
        policy: ServerPolicy | None = None,
        *,
        error_pages: bool = False,
        idempotency: IdempotencyPolicy | None = None,
        store: StoreT | None = None,
        **overrides: Unpack[PolicyOverrides],
    ) -> None:
        """Take what applications are protected by.

        Args:
            app: the application; None: call `init_app`.
            policy: the policy. None: one is loaded from `app.config`, a file and the environment, in this order.
            error_pages: whether refusals and 504s are drawn by the application's own error handlers, those of 503, 504, 429 and
                so on, where it has them.
            idempotency: the policy of idempotency keys; None: they are not looked at.
            store: where their records are.
            **overrides: fields of `ServerPolicy` that nothing outside the code changes.

        Raises:
            TypeError: an override names no field of the policy.
            ValueError: a value is not allowed; the text names its source, the field and the range. Or two things would draw the
                same pages, or there are keys without a store.
        """
        require_both(idempotency, store)
        if error_pages and overrides.get("refusal_page") is not None:
            raise ValueError("error_pages=True is not allowed beside refusal_page: both draw the same pages")
        self.keys = idempotency
        self.store = store
        self._policy = policy
        self._error_pages = error_pages
        self._overrides: dict[str, Any] = {**overrides}
        self._shared: ServerPolicy | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: AppT) -> None:
        """Protect an application.

        Call it after other middlewares have been put around the application, so that this one is the outermost.

        One object may protect several applications. They share one limit and one queue if they are given a policy and neither
        their configuration nor `error_pages` makes a difference; else each has its own.

        Raises:
            RuntimeError: it is protected already.
            ValueError: its configuration is not allowed.
        """
        policy, overrides = self._values_for(app)
        self._put_around(app, policy, overrides)
        self._note_shared(app)

    @abstractmethod
    def _put_around(self, app: AppT, policy: ServerPolicy, overrides: dict[str, Any]) -> None:
        """Put the middlewares around an application, and keep the outer one in its `extensions`."""

    @abstractmethod
    def _pages_of(self, app: AppT) -> PageFunction:
        """Return what draws the refusals of an application by its error handlers."""

    def policy_of(self, app: Any) -> ServerPolicy:
        """Return the policy in force for an application: to drain it, to reload it, for its snapshot.

        Raises:
            KeyError: the application is not protected.
        """
        policy: ServerPolicy = app.extensions[NAME].protection.policy
        return policy

    def _values_for(self, app: Any) -> tuple[ServerPolicy, dict[str, Any]]:
        """Return policy and keywords for the middleware of one application.

        Raises:
            RuntimeError: it is protected already.
            ValueError: its configuration is not allowed.
        """
        if NAME in app.extensions:
            raise RuntimeError(
                f"the application {app.name!r} is protected already: call init_app once for it"
            )
        policy = policy_for(app.config, self._policy)
        if self._error_pages:
            return policy, {**self._overrides, "refusal_page": self._pages_of(app)}
        if policy is self._policy and self._shared is not None:
            return self._shared, {}
        return policy, self._overrides

    def _note_shared(self, app: Any) -> None:
        """Note that the middleware of an application is made: others may share its limit and its queue."""
        if self._policy is not None and not self._error_pages and not _said(app.config):
            self._shared = self.policy_of(app)


def require_both(keys: IdempotencyPolicy | None, store: object) -> None:
    """Raise a ValueError unless there are a policy of idempotency keys and a store, or neither."""
    if (keys is None) is not (store is None):
        raise ValueError(
            f"idempotency={keys!r} with store={store!r} is not allowed: keys have a policy and a store, or neither"
        )


def policy_for(config: Mapping[str, Any], policy: ServerPolicy | None) -> ServerPolicy:
    """Return the policy of one application.

    Args:
        config: its configuration; `RESILIENCE_LIMIT` is the field `limit`.
        policy: what the code says, which the configuration changes; None: the configuration decides where neither a file nor
            a variable says anything else.

    Returns:
        `policy` itself if the configuration says nothing.

    Raises:
        ValueError: a key is no field, or a value is not allowed.
    """
    values = _said(config)
    if policy is not None and not values:
        return policy
    given = from_plain(values, lambda field: f"app.config['{PREFIX}{field.upper()}']")
    base = policy or ServerPolicy()
    sources = {field: each.source for field, each in given.items()}
    made = note_sources(with_given(base, given), sources, base)
    return load_policy(policy=made) if policy is None else made


def _said(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key.removeprefix(PREFIX).lower(): value for key, value in config.items() if key.startswith(PREFIX)
    }
