"""Which answers are kept, for how long, and for whom."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw import Dependency
from resilient_mw.calls import Fallback
from resilient_mw.calls.fallback import Kept, LastGood, may_keep

STALE = Fallback(stale_for=60)


def kept(
    asked: dict[str, str] | None = None,
    told: dict[str, str] | None = None,
    *,
    method: str = "GET",
    status: int = 200,
    policy: Fallback = STALE,
) -> Kept | None:
    return may_keep(policy, method, status, asked=asked or {}, told=told or {}, now=100.0)


@pytest.mark.parametrize(
    ("told", "may"),
    [
        ({}, True),
        ({"cache-control": "max-age=1"}, True),
        ({"cache-control": "no-store"}, False),
        ({"cache-control": 'max-age=5, Private="x"'}, False),
        ({"cache-control": "no-cache"}, False),
        ({"cache-control": "must-revalidate"}, False),
        ({"cache-control": "proxy-revalidate"}, False),
        ({"vary": "*"}, False),
        ({"vary": "Accept, *"}, False),
        ({"set-cookie": "a=b"}, False),
    ],
)
def test_what_an_answer_says_about_being_kept(told: dict[str, str], may: bool) -> None:
    assert (kept(told=told) is not None) is may


@pytest.mark.parametrize(
    ("asked", "may"),
    [({}, True), ({"range": "bytes=0-1"}, False), ({"cache-control": "no-store"}, False)],
)
def test_what_a_request_says_about_it(asked: dict[str, str], may: bool) -> None:
    assert (kept(asked) is not None) is may


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_writes_are_never_kept(method: str) -> None:
    assert kept(method=method) is None


@pytest.mark.parametrize("status", [201, 204, 206, 301, 404, 500])
def test_only_good_answers_are_kept(status: int) -> None:
    assert kept(status=status) is None


@pytest.mark.parametrize("name", ["authorization", "cookie", "x-api-key", "proxy-authorization"])
def test_an_answer_to_somebody_is_kept_only_if_it_is_public(name: str) -> None:
    assert kept({name: "me"}) is None
    public = kept({name: "me"}, {"cache-control": "public, max-age=1"})
    assert public is not None
    assert public.public


@pytest.mark.parametrize("name", ["authorization", "cookie"])
def test_somebody_gets_nothing_that_was_answered_to_nobody(name: str) -> None:
    store, found = LastGood(STALE), kept()
    assert found is not None
    store.keep("x", found)
    assert store.find("x", 100, {name: "me"}) is None
    assert store.find("x", 100, {}) is found


def test_vary_has_to_agree() -> None:
    store, found = LastGood(STALE), kept({"accept": "text/html"}, {"vary": "Accept, Accept-Language"})
    assert found is not None
    store.keep("x", found)
    assert store.find("x", 100, {"accept": "text/html"}) is found
    assert store.find("x", 100, {"accept": "text/plain"}) is None
    assert store.find("x", 100, {"accept": "text/html", "accept-language": "de"}) is None


def test_the_age_limit_counts_from_where_the_answer_was_made() -> None:
    found = kept(told={"age": "20"})
    assert found is not None
    store = LastGood(STALE)
    store.keep("x", found)
    assert store.find("x", 140) is found
    assert store.find("x", 140.1) is None
    assert len(store) == 0


def test_the_answer_can_ask_for_less_than_the_limit_and_not_for_more() -> None:
    for control, until in (("max-age=5, stale-if-error=10", 115), ("max-age=5, stale-if-error=999", 160)):
        found = kept(told={"cache-control": control})
        assert found is not None
        store = LastGood(STALE)
        store.keep("x", found)
        assert store.find("x", until) is found
        assert store.find("x", until + 0.1) is None


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 400), st.booleans()), max_size=60),
    st.integers(1, 5),
)
def test_the_bounds_hold_whatever_is_kept(steps: list[tuple[int, int, bool]], entries: int) -> None:
    store = LastGood(Fallback(stale_for=1, entries=entries, max_bytes=1024))
    sizes: dict[int, int] = {}
    for key, size, keep in steps:
        if keep:
            store.keep(key, Kept("x", 0, size))
            sizes[key] = size
        else:
            store.forget(key)
        assert len(store) <= entries
        assert 0 <= store.size <= 1024
        alive = [key for key in sizes if store.find(key, 0) is not None]
        assert store.size == sum(sizes[key] for key in alive)
        assert all(sizes[key] <= 128 for key in alive)


def test_many_small_answers_are_bounded_by_their_bytes() -> None:
    store = LastGood(Fallback(stale_for=1, entries=1000, max_bytes=1024))
    for key in range(20):
        store.keep(key, Kept("x", 0, 100))
        assert store.size <= 1024
    assert len(store) == 10
    assert store.find(10, 0) is not None
    assert store.find(9, 0) is None


def test_the_least_recently_used_one_goes_first() -> None:
    store = LastGood(Fallback(stale_for=1, entries=2))
    store.keep("a", Kept("a", 0))
    store.keep("b", Kept("b", 0))
    assert store.find("a", 0) is not None
    store.keep("c", Kept("c", 0))
    assert store.find("b", 0) is None
    assert store.find("a", 0) is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "has no answer"),
        ({"stale_for": 0}, "stale_for"),
        ({"stale_for": math.inf}, "stale_for"),
        ({"function": 5}, "function=5"),
        ({"value": 1, "entries": 0}, "entries"),
        ({"value": 1, "max_bytes": 1}, "max_bytes"),
        ({"value": 1, "credentials": "cookie"}, "credentials"),
    ],
)
def test_a_wrong_fallback_fails_when_it_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Fallback(**options)


def test_none_is_a_value() -> None:
    assert Fallback(value=None).value is None
    with pytest.raises(ValueError, match="fallback=5"):
        Dependency("prices", fallback=5)  # type: ignore[arg-type]
