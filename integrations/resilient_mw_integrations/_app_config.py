"""Extensions of Flask and Quart: what the configuration of an application says, and where it stands in the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.plain import from_plain, with_given
from resilient_mw.core.pages import PageFunction
from resilient_mw.idempotency.policy import IdempotencyPolicy
from resilient_mw.runtime.configuration import load_policy, note_sources

NAME = "resilience"
"""The name of the extension in `app.extensions`, where its middleware is."""
PREFIX = "RESILIENCE_"


class Extension:
    """What both extensions have in common.

    Args:
        policy: what the code says; None: it says nothing.
        pages: makes what draws the refusals of one application; None: nothing does.
        overrides: fields that nothing outside the code changes.
        keys: the policy of idempotency keys; None: they are not looked at.
        store: where their records are.

    Attributes:
        keys, store: as given.

    Raises:
        ValueError: two things would draw the same pages, or there are keys without a store.
    """

    def __init__(
        self,
        policy: ServerPolicy | None,
        pages: Callable[[Any], PageFunction] | None,
        overrides: Mapping[str, Any],
        keys: IdempotencyPolicy | None = None,
        store: Any = None,
    ) -> None:
        require_both(keys, store)
        self.keys = keys
        self.store = store
        if pages is not None and overrides.get("refusal_page") is not None:
            raise ValueError("error_pages=True is not allowed beside refusal_page: both draw the same pages")
        self._policy = policy
        self._pages = pages
        self._overrides = {**overrides}
        self._shared: ServerPolicy | None = None

    def policy_of(self, app: Any) -> ServerPolicy:
        """Return the policy in force for an application: to drain it, to reload it, for its snapshot.

        Raises:
            KeyError: the application is not protected.
        """
        policy: ServerPolicy = app.extensions[NAME].protection.policy
        return policy

    def values_for(self, app: Any) -> tuple[ServerPolicy, dict[str, Any]]:
        """Return policy and keywords for the middleware of one application.

        Raises:
            RuntimeError: it is protected already.
            ValueError: its configuration is not allowed.
        """
        if NAME in app.extensions:
            raise RuntimeError(
                f"the application {app.name!r} is protected already: call init_app once for it"
            )
        if self._pages is not None:
            return policy_for(app.config, self._policy), {**self._overrides, "refusal_page": self._pages(app)}
        policy = policy_for(app.config, self._policy)
        if policy is self._policy and self._shared is not None:
            return self._shared, {}
        return policy, self._overrides

    def protects(self, app: Any) -> None:
        """Note that the middleware of an application is made: others may share its limit and its queue."""
        if self._policy is not None and self._pages is None and not _said(app.config):
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
