"""The checks of what a `ServerPolicy` says of tenants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from resilient_mw.admission.head_rule import LONGEST_NAME, bounded_name
from resilient_mw.core.checks import FIELD_NAME, require_function
from resilient_mw.core.quotas import Quota

if TYPE_CHECKING:
    from resilient_mw.admission.config import ServerPolicy

AWAY = ("local", "open", "closed")


def check_tenants(policy: ServerPolicy) -> None:
    """Check the fields about tenants.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    tenant = policy.tenant
    if isinstance(tenant, str):
        if not tenant or not FIELD_NAME.issuperset(tenant):
            raise ValueError(
                f"tenant={tenant!r} is not allowed: it must be the name of a header, of ASCII letters, digits or '-'"
            )
    elif tenant is not None and not callable(tenant):
        raise ValueError(
            f"tenant={tenant!r} is not allowed: it must be the name of a header, or a function of the request's head"
        )
    elif tenant is not None:
        require_function("tenant", tenant, "the request's head")
    _check_labels(policy.tenant_labels)
    _check_quotas(policy)
    for name, value in (("tenant_labels", policy.tenant_labels), ("quotas", policy.quotas)):
        if value and tenant is None:
            raise ValueError(
                f"{name}={value!r} is not allowed without tenant, which must say who the tenants are"
            )


def _check_labels(labels: object) -> None:
    if isinstance(labels, str) or not isinstance(labels, Sequence):
        raise ValueError(f"tenant_labels={labels!r} is not allowed: it must be a sequence of names")
    for label in labels:
        if not isinstance(label, str) or not label or label == "other" or bounded_name(label) != label:
            raise ValueError(
                f"tenant_labels={label!r} is not allowed: it must be a tenant's name of at most {LONGEST_NAME} characters, "
                "and not 'other', the label of all that are not named"
            )
    if len(set(labels)) != len(labels):
        raise ValueError(f"tenant_labels={labels!r} is not allowed: it must hold each name once")


def _check_quotas(policy: ServerPolicy) -> None:
    quotas: object = policy.quotas
    if isinstance(quotas, str) or not isinstance(quotas, Sequence):
        raise ValueError(f"quotas={quotas!r} is not allowed: it must be a sequence of Quota objects")
    for quota in quotas:
        if not isinstance(quota, Quota):
            raise ValueError(
                f"quotas={quota!r} is not allowed: it must be a Quota such as Quota('100/minute')"
            )
    names = [quota.name for quota in policy.quotas]
    if len(set(names)) != len(names):
        raise ValueError(
            f"quotas={quotas!r} is not allowed: it must hold each name once, so that each counts apart"
        )
    store: object = policy.quota_store
    parts = ("local", "timeout", "hit", "hit_soon")
    if store is not None and (isinstance(store, type) or not all(hasattr(store, part) for part in parts)):
        raise ValueError(
            f"quota_store={store!r} is not allowed: it must be None or a QuotaStore, such as RedisQuotas of "
            "resilient_mw_integrations.limits"
        )
    if policy.quota_store_away not in AWAY:
        raise ValueError(
            f"quota_store_away={policy.quota_store_away!r} is not allowed: it must be one of {list(AWAY)}"
        )
