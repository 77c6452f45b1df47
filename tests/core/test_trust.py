"""Whose headers may lengthen a deadline."""

from __future__ import annotations

from typing import Any

import pytest

from resilient_mw.core.trust import MOST_REMEMBERED, PeerTrust


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("10.1.2.3", True),
        ("11.0.0.1", False),
        ("192.168.0.7", True),
        ("192.168.0.8", False),
        ("::1", True),
        ("::2", False),
        ("fd00::1", True),
        ("fd00::1%eth0", True),
        ("::ffff:10.1.2.3", True),  # an IPv4 peer on a socket that listens for both
        ("::ffff:11.1.2.3", False),
        ("", False),
        ("unix:", False),
        ("10.1.2.3:8080", False),
        ("10.1.2", False),
        ("010.1.2.3", False),
        ("10.1.2.3 ", False),
        ("localhost", False),
        (None, False),
    ],
)
def test_networks(peer: str | None, trusted: bool) -> None:
    trust = PeerTrust(["10.0.0.0/8", "192.168.0.7", "::1", "fd00::/8"])
    assert trust
    assert trust.trusts(peer) is trusted
    assert trust.trusts(peer) is trusted, "and the same when it is remembered"


def test_nobody_is_trusted_by_default() -> None:
    trust = PeerTrust(())
    assert not trust
    assert not trust.trusts("127.0.0.1")


def test_a_function_decides_each_time() -> None:
    asked: list[str] = []

    def decide(peer: str) -> Any:
        asked.append(peer)
        return len(asked) == 1 and "yes"

    trust = PeerTrust(decide)
    assert trust
    assert trust.trusts("a") is True
    assert trust.trusts("a") is False
    assert trust.trusts(None) is False
    assert asked == ["a", "a"]


def test_what_is_remembered_is_bounded() -> None:
    trust = PeerTrust(["10.0.0.0/8"])
    for number in range(3 * MOST_REMEMBERED):
        assert trust.trusts(f"10.0.{number // 256}.{number % 256}")
    assert len(trust._known) <= MOST_REMEMBERED


@pytest.mark.parametrize(
    "peers",
    [
        "10.0.0.0/8",
        ["10.0.0.0/33"],
        ["10.0.0.1/8"],
        ["proxy"],
        [""],
        [10],
        [None],
        [b"\x7f\x00\x00\x01"],
        10,
        None,
    ],
)
def test_what_is_no_network_is_an_error_that_names_it(peers: Any) -> None:
    with pytest.raises(ValueError, match="^trusted_peers=.* is not allowed: it must be a ") as caught:
        PeerTrust(peers)
    culprit = peers[0] if isinstance(peers, list) else peers
    assert repr(culprit) in str(caught.value)
