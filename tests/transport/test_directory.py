from __future__ import annotations

from random import Random

import httpx

from resilient_mw import Dependency
from resilient_mw.calls.match import target
from resilient_mw.transport.prepare import Directory

DEPENDENCIES = [
    Dependency("item", "http://shop/items/7"),
    Dependency("items", ["http://shop/items/*", "https://shop:8443/items/*"]),
    Dependency("shop", "http://shop/*"),
    Dependency("other", "http://other/*"),
    Dependency("late", "http://late/a/*"),
]


def test_it_finds_what_the_rules_say_however_often_it_is_asked() -> None:
    directory, random = Directory(DEPENDENCIES), Random(5)
    seen = set()
    for _ in range(3_000):
        place = random.choice(
            [
                "http://shop",
                "http://SHOP:80",
                "https://shop:8443",
                "https://shop",
                "http://other.",
                "http://late",
            ]
        )
        path = random.choice(
            ["", "/", "/items", "/items/", "/items/7", "/items/7?x=1", "/items/8", "/a/b", "/a"]
        )
        url = httpx.URL(place + path)
        asked = target(url.scheme, url.raw_host.decode(), url.port, url.raw_path.partition(b"?")[0].decode())
        expected = next((each.name for each in DEPENDENCIES if each.matches(asked)), None)
        owner = directory.find(url)
        assert (None if owner is None else owner.dependency.name) == expected
        seen.add(expected)
    assert seen == {"item", "items", "shop", "other", "late", None}


def test_a_crawler_does_not_fill_the_memory() -> None:
    directory = Directory(DEPENDENCIES)
    for number in range(3 * Directory.MOST_ORIGINS):
        assert directory.find(httpx.URL(f"http://x{number}.example/")) is None
    assert len(directory._origins) <= Directory.MOST_ORIGINS
    owner = directory.find(httpx.URL("http://other/"))
    assert owner is not None
    assert owner.dependency.name == "other"
