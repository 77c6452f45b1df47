"""Policies of extensions: what the configuration of a Flask or Quart application says, and where it stands in the order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.plain import from_plain, with_given
from resilient_mw.runtime.configuration import load_policy, note_sources

PREFIX = "RESILIENCE_"


def policy_for(config: Mapping[str, Any], policy: ServerPolicy | None) -> ServerPolicy:
    """Return the policy of one application.

    Args:
        config: its configuration; `RESILIENCE_LIMIT` is the field `limit`.
        policy: what the code says, which the configuration changes; None: the configuration says what is loaded where neither a
            file nor a variable says anything else.

    Returns:
        `policy` itself if the configuration says nothing.

    Raises:
        ValueError: a key is no field, or a value is not allowed.
    """
    values = {
        key.removeprefix(PREFIX).lower(): value for key, value in config.items() if key.startswith(PREFIX)
    }
    if policy is not None and not values:
        return policy
    given = from_plain(values, lambda field: f"app.config['{PREFIX}{field.upper()}']")
    base = policy or ServerPolicy()
    sources = {field: each.source for field, each in given.items()}
    made = note_sources(with_given(base, given), sources, base)
    return load_policy(policy=made) if policy is None else made
