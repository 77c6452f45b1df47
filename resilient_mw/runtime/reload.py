"""Puts another policy in force while requests run: everything is checked and made first, then it takes the old one's place."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.reload import check_reload
from resilient_mw.runtime.forks import renew_lock

if TYPE_CHECKING:
    from resilient_mw.runtime.operations import Operations

_one_at_a_time = threading.Lock()
renew_lock(__name__, "_one_at_a_time")


def reload(guard: Operations, policy: ServerPolicy | None, changes: Mapping[str, Any]) -> ServerPolicy:
    """Put a policy in force; see `ServerPolicy.reload`.

    What a request reads of the old policy and of the new one fits together whatever the order: classes and their ranks stay,
    and everything else is read on its own.

    Args:
        guard: whose policy it is to be.
        policy: the new one; None: the one that is in force.
        changes: fields that differ from it.

    Raises:
        ValueError: it differs in something that cannot be reloaded, a route does not fit it, or it is in force somewhere else.
    """
    with _one_at_a_time, ExitStack() as starts:
        before = guard.policy
        named = after = (before if policy is None else policy).with_changes(changes)
        if after.owner and after.owner[0] is not guard:
            raise ValueError(f"the policy {after.name!r} is in force for another middleware: make a new one")
        if after.threads is None and before.threads is not None:
            after = after.with_changes({"threads": before.threads})  # the server has as many as before
        check_reload(before, after)
        protections = guard.lifecycle.applications()
        for each in protections:
            starts.enter_context(each.starting)  # nobody binds routes to what is about to go
            each.check(after)
        entries = guard.change(after)
        for each in protections:
            each.change(after, entries)
        for speaker in (named, after):
            if not speaker.owner:
                speaker.owner.append(guard)
        return after
