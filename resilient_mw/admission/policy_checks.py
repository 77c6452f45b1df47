"""The checks of a `ServerPolicy`: a wrong number fails when the policy is made, and says what is allowed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from resilient_mw.admission.overload_policy import OverloadPolicy
from resilient_mw.admission.tenant_checks import check_tenants
from resilient_mw.core.checks import (
    require_field_name,
    require_flag,
    require_integer,
    require_name,
    require_number,
)
from resilient_mw.core.cors import Cors
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.routes import RouteRule
from resilient_mw.core.trust import PeerTrust

if TYPE_CHECKING:
    from resilient_mw.admission.config import ServerPolicy


ADMISSION, DEADLINES, QUOTAS = "admission", "deadlines", "quotas"
DEFENCES = frozenset({ADMISSION, DEADLINES, QUOTAS})
"""What can be in shadow mode."""


def check_policy(policy: ServerPolicy) -> None:
    """Check every field.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """
    if policy.limit != "auto" and (
        isinstance(policy.limit, (str, bool)) or not isinstance(policy.limit, int)
    ):
        raise ValueError(
            f"limit={policy.limit!r} is not allowed: it must be 'auto' or a whole number of at least 1"
        )
    if policy.limit != "auto":
        require_integer("limit", policy.limit, low=1)
    if policy.queue is not None:
        require_integer("queue", policy.queue, low=0)
    _check_threads(policy)
    require_number("max_wait", policy.max_wait, low=0, high=3600)
    require_number("wait_share", policy.wait_share, low=0, high=1)
    require_integer("exempt_limit", policy.exempt_limit, low=1)
    require_number("smallest_budget", policy.smallest_budget, low=0, high=60)
    _check_deadlines(policy)
    require_name("name", policy.name)
    _check_classes(policy)
    for path in _sequence("exempt_paths", policy.exempt_paths, "paths"):
        if not isinstance(path, str) or not path.startswith("/"):
            raise ValueError(f"exempt_paths={path!r} is not allowed: it must be a path that starts with '/'")
    for rule in _sequence("routes", policy.routes, "RouteRule objects"):
        if not isinstance(rule, RouteRule):
            raise ValueError(f"routes={rule!r} is not allowed: it must be a RouteRule")
        policy.check_mark(rule.mark, repr(rule))
    for listener in _sequence("listeners", policy.listeners, "functions"):
        if not callable(listener):
            raise ValueError(f"listeners={listener!r} is not allowed: it must be a function of an event")
    _check_edge(policy)
    Cors(policy.cors_origins, policy.cors_credentials)
    _check_page(policy.refusal_page)
    require_flag("debug", policy.debug)
    _check_shadow(policy.shadow)
    _check_overload(policy.overload)
    require_number("ramp", policy.ramp, low=0, high=3600)
    require_number("drain_delay", policy.drain_delay, low=0, high=3600)
    require_number("drain_timeout", policy.drain_timeout, low=0, high=86_400)
    require_number("blocked_after", policy.blocked_after, low=0.1, high=3600)
    check_tenants(policy)


def _check_threads(policy: ServerPolicy) -> None:
    if policy.threads is not None:
        require_integer("threads", policy.threads, low=1)
    require_integer("spare_threads", policy.spare_threads, low=0)
    require_flag("fit_queue", policy.fit_queue)


def _check_deadlines(policy: ServerPolicy) -> None:
    require_number("deadline_default", policy.deadline_default, low=0.001, high=86_400)
    require_number("deadline_minimum", policy.deadline_minimum, low=0, high=86_400)
    require_number("deadline_maximum", policy.deadline_maximum, low=0.001, high=86_400)
    for name, limit in (
        ("deadline_default", "deadline_maximum"),
        ("deadline_minimum", "deadline_maximum"),
        ("smallest_budget", "deadline_default"),  # or every caller who sends no budget would be refused
    ):
        value, most = getattr(policy, name), getattr(policy, limit)
        if value > most:
            raise ValueError(f"{name}={value!r} is not allowed: it must be at most {limit}, {most!r}")


def _check_edge(policy: ServerPolicy) -> None:
    trust = PeerTrust(policy.trusted_peers)
    require_integer("trusted_hops", policy.trusted_hops, low=0, high=16)
    if policy.trusted_hops and not trust:
        raise ValueError(
            f"trusted_hops={policy.trusted_hops!r} is not allowed without trusted_peers, which must hold the proxies"
        )
    if policy.max_body is not None:
        require_integer("max_body", policy.max_body, low=0)
    if policy.websocket_limit is not None:
        require_integer("websocket_limit", policy.websocket_limit, low=1)
    require_integer("stream_limit", policy.stream_limit, low=1)
    if policy.deadline_response_header is not None:
        require_field_name("deadline_response_header", policy.deadline_response_header)


def _check_classes(policy: ServerPolicy) -> None:
    for each in _sequence("classes", policy.classes, "PriorityClass objects"):
        if not isinstance(each, PriorityClass):
            raise ValueError(f"classes={each!r} is not allowed: it must be a PriorityClass")
    names = [each.name for each in policy.classes]
    if not names or len(set(names)) != len(names):
        raise ValueError(
            f"classes={names!r} is not allowed: it must hold at least one PriorityClass, each name once"
        )
    if policy.default_class not in names:
        raise ValueError(f"default_class={policy.default_class!r} is not allowed: it must be one of {names}")
    for each in policy.classes:
        others = sum(other.reserved for other in policy.classes if other is not each)
        if others >= policy.slots:
            raise ValueError(
                f"classes reserve {others} of {policy.slots} slots against {each.name!r}, which could never run: "
                "reserve less or raise the limit"
            )


def _check_overload(overload: object) -> None:
    if overload is not None and not isinstance(overload, OverloadPolicy):
        raise ValueError(f"overload={overload!r} is not allowed: it must be an OverloadPolicy or None")


def _check_page(page: object) -> None:
    if page is not None and not callable(page):
        raise ValueError(
            f"refusal_page={page!r} is not allowed: it must be a function of a RefusedRequest, or None"
        )


def _check_shadow(shadow: object) -> None:
    if isinstance(shadow, bool):
        return
    names = shadow if isinstance(shadow, Collection) and not isinstance(shadow, str) else [shadow]
    known = sum(isinstance(each, str) and each in DEFENCES for each in names)
    if isinstance(shadow, str) or known < len(names):
        raise ValueError(
            f"shadow={shadow!r} is not allowed: it must be True, False, or some of {sorted(DEFENCES)}"
        )


def _sequence(field: str, values: object, what: str) -> Sequence[object]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{field}={values!r} is not allowed: it must be a sequence of {what}")
    return values
