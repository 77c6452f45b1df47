"""The checks of what a `ServerPolicy` says of tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilient_mw.core.checks import FIELD_NAME, require_function

if TYPE_CHECKING:
    from resilient_mw.admission.config import ServerPolicy


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
