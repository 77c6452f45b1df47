"""Whose word counts: the peers whose headers may do more than shorten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

MOST_REMEMBERED = 1024


class PeerTrust:
    """Decides whether a peer is trusted, by network or by the user's own function.

    Args:
        peers: networks such as `"10.0.0.0/8"` or `"::1"`, or a function of the peer's address.

    Raises:
        ValueError: something is no network, naming it.
    """

    __slots__ = ("_known", "_networks", "_predicate")

    def __init__(self, peers: Sequence[str] | Callable[[str], bool]) -> None:
        self._predicate: Callable[[str], bool] | None = None
        self._networks: list[IPv4Network | IPv6Network] = []
        self._known: dict[str, bool] = {}
        if callable(peers):
            self._predicate = peers
            return
        if isinstance(peers, str) or not isinstance(peers, Iterable):
            raise ValueError(
                f"trusted_peers={peers!r} is not allowed: it must be a sequence of networks or a function"
            )
        if peers:
            from ipaddress import ip_network  # loaded only by those who name networks

            for peer in peers:
                try:
                    self._networks.append(ip_network(_text(peer)))
                except ValueError as error:
                    raise ValueError(
                        f"trusted_peers={peer!r} is not allowed: it must be a network such as '10.0.0.0/8' ({error})"
                    ) from None

    def __bool__(self) -> bool:
        """Return whether anybody can be trusted at all."""
        return self._predicate is not None or bool(self._networks)

    def trusts(self, peer: str | None) -> bool:
        """Return whether the peer at this address is trusted; an unknown or unreadable address is not.

        A user's function is asked each time; what networks say is remembered for the last 1,024 peers.
        """
        if peer is None:
            return False
        if self._predicate is not None:
            return bool(self._predicate(peer))
        if not self._networks:
            return False
        known = self._known.get(peer)
        if known is None:
            known = self._in_networks(peer)
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[peer] = known
        return known

    def _in_networks(self, peer: str) -> bool:
        from ipaddress import ip_address

        try:
            address = ip_address(peer)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any(
            address in network or (mapped is not None and mapped in network) for network in self._networks
        )


def _text(peer: object) -> str:
    # ip_network() would read a number or bytes as an address, too.
    return peer if isinstance(peer, str) else repr(peer)
