"""Priority: the caller's wish about the order of answers (RFC 9218).

A wish and no right: what a wish may change is decided by the policy, from the trust in the peer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from resilient_mw.core.headers.structured import parse_dictionary

# Room for a hundred extension members; reading this much takes about a millisecond at worst.
_MAX_LENGTH: Final = 1024
_LOWEST_URGENCY: Final = 7


@dataclass(frozen=True, slots=True)
class WirePriority:
    """A Priority field with its defaults filled in.

    Attributes:
        urgency: 0, the most urgent, to 7, background work. Default 3.
        incremental: Whether a part of the answer is of use before the rest is there. Default False.
    """

    urgency: int = 3
    incremental: bool = False


_DEFAULT: Final = WirePriority()
# What browsers really send, so that the common case costs a look-up.
_COMMON: Final[Mapping[str, WirePriority]] = MappingProxyType(
    {"": _DEFAULT, "i": WirePriority(incremental=True)}
    | {f"u={urgency}": WirePriority(urgency) for urgency in range(_LOWEST_URGENCY + 1)}
    | {f"u={urgency}, i": WirePriority(urgency, incremental=True) for urgency in range(_LOWEST_URGENCY + 1)}
)


def parse_priority(values: Sequence[str]) -> WirePriority:
    """Read Priority; what cannot be read counts as not said.

    The field lines form one dictionary, in which the last value of a key counts. Unknown keys, values of
    another type and values out of range are ignored one by one; a malformed field, or one of more than 1024
    characters, is ignored as a whole.

    Args:
        values: One entry per field line, latin-1 decoded; none if the field is absent.
    """
    if not values:
        return _DEFAULT
    field = values[0] if len(values) == 1 else ", ".join([value.strip(" \t") for value in values])
    common = _COMMON.get(field)
    if common is not None:
        return common
    field = field.strip(" \t")
    members = parse_dictionary(field) if len(field) <= _MAX_LENGTH else None
    if not members:
        return _DEFAULT
    urgency = members.get("u")
    incremental = members.get("i")
    return WirePriority(
        # A bare "u" is Boolean true, and True is an int.
        urgency=urgency if type(urgency) is int and 0 <= urgency <= _LOWEST_URGENCY else _DEFAULT.urgency,
        incremental=incremental if type(incremental) is bool else _DEFAULT.incremental,
    )
