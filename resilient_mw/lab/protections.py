"""What an application process of the lab has of ours: the transport of its client, and the policy of its middleware.

The processes of a step that goes without do not import this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from resilient_mw import BreakerPolicy, Dependency, PriorityClass, RetryPolicy, RouteRule, ServerPolicy
from resilient_mw.lab.settings import STATE_PATH, AppSettings
from resilient_mw_integrations.httpx import ResilientTransport


class Protections:
    """The protections of one application process, made from the arguments that the step gives."""

    def __init__(self, settings: AppSettings) -> None:
        self.dependencies = [_dependency(name, arguments) for name, arguments in settings.calls.items()]
        self.policy = None if settings.policy is None else _policy(settings.policy)

    def transport(self, limits: httpx.Limits) -> ResilientTransport:
        """Return the transport of the application's client."""
        return ResilientTransport(self.dependencies, limits=limits, trust_env=False)

    def state(self, busy_peak: int) -> dict[str, Any]:
        """Return what the lab asks for: what is in hand, was busy, became of the calls, and how circuits changed."""
        snapshots = [each.snapshot() for each in self.dependencies]
        classes = () if self.policy is None else self.policy.snapshot().classes
        return {
            "in_hand": sum(each.slots + each.queued for each in classes if each.priority != "exempt"),
            "busy_peak": busy_peak,
            "calls": {
                snapshot.dependency: _calls(snapshot.calls, snapshot.attempts, snapshot.refused)
                for snapshot in snapshots
            },
            "transitions": {
                snapshot.dependency: [
                    (change.at, change.before, change.after) for change in snapshot.recent_transitions
                ]
                for snapshot in snapshots
            },
        }


def _calls(calls: int, attempts: Mapping[str, int], refused: Mapping[str, int]) -> dict[str, int]:
    errors = sum(count for outcome, count in attempts.items() if outcome != "2xx")
    return {"calls": calls, "errors": errors, "refused": sum(refused.values())}


def _dependency(name: str, arguments: Mapping[str, Any]) -> Dependency:
    made = dict(arguments)
    for field, policy in (("retry", RetryPolicy), ("breaker", BreakerPolicy)):
        if made.get(field) is not None:
            made[field] = policy(**made[field])
    return Dependency(name, **made)


def _policy(arguments: Mapping[str, Any]) -> ServerPolicy:
    made = dict(arguments)
    if "classes" in made:
        made["classes"] = [PriorityClass(**each) for each in made["classes"]]
    asked = RouteRule(STATE_PATH, priority="exempt")
    made["routes"] = [asked, *(RouteRule(**each) for each in made.get("routes", ()))]
    return ServerPolicy(**made)
