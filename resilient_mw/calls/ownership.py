"""Retry ownership: one layer of a chain retries, and the others know."""

from __future__ import annotations

from dataclasses import dataclass

from resilient_mw.core.checks import require_header_name
from resilient_mw.core.headers.retry_owner import OWNER_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOwnership:
    """How a layer says that it retries, and how it hears it.

    By default it calls itself `caller`; a name of your own tells in the logs below who retried.

    Told to trusted dependencies only. Within a request whose caller says that he, or somebody above him, retries,
    nothing is retried here (but see `RetryPolicy.insist`), and his name and attempt are passed on unchanged.

    Attributes:
        owner: how this service calls itself.
        owner_header: the field that names who retries, in both directions.
        attempt_header: the field that counts his attempts, from 1.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    owner: str = "caller"
    owner_header: str = "X-Retry-Owner"
    attempt_header: str = "X-Retry-Attempt"

    def __post_init__(self) -> None:
        owner: object = self.owner
        if not isinstance(owner, str) or OWNER_NAME.fullmatch(owner) is None:
            raise ValueError(
                f"RetryOwnership.owner={owner!r} is not allowed: it must be 1 to 64 letters, digits and signs like - . _ : /"
            )
        require_header_name("RetryOwnership.owner_header", self.owner_header)
        require_header_name("RetryOwnership.attempt_header", self.attempt_header)
