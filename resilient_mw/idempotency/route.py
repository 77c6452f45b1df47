"""The decorator by which an endpoint says how it treats idempotency keys."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from resilient_mw.core.idempotent import IdempotencyRule, OnUnknown, StoreDown, Wait
from resilient_mw.core.marks import Mark, marker

Target = TypeVar("Target")


def idempotent_route(
    *,
    required: bool = False,
    wait: Wait | None = None,
    on_unknown: OnUnknown | None = None,
    keep_statuses: Collection[int] | None = None,
    max_answer: int | None = None,
    lease: float | None = None,
    keep: float | None = None,
    canonical_json: int | None = None,
    store_down: StoreDown | None = None,
    in_transaction: bool | None = None,
    off: bool = False,
) -> Callable[[Target], Target]:
    """Say how an endpoint or a router treats idempotency keys. The order of decorators does not matter.

    It holds for every method of the endpoint but GET, HEAD, OPTIONS and TRACE: PUT and DELETE as well.

    Args:
        required: 400 without a key; by default a key is honoured where there is one.
        wait, on_unknown, keep_statuses, max_answer, lease, keep, canonical_json, store_down, in_transaction: as of `IdempotencyRule`.
        off: keys are not looked at.

    Raises:
        ValueError: naming the field, the value and what is allowed; `required` and `off` at once.
    """
    if required and off:
        raise ValueError("idempotent_route(required=True, off=True) is not allowed: it must be one of them")
    rule = IdempotencyRule(
        use="required" if required else "off" if off else "optional",
        wait=wait,
        on_unknown=on_unknown,
        keep_statuses=keep_statuses,
        max_answer=max_answer,
        lease=lease,
        keep=keep,
        canonical_json=canonical_json,
        store_down=store_down,
        in_transaction=in_transaction,
    )
    return marker(Mark(idempotency=rule))
