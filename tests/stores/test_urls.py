"""Stores by their URL: SQLite's own, and those that are registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
from resilient_mw.stores.urls import open_store, without_user


class Point:
    """An entry point."""

    name = "cupboard"
    value = "cupboards:Store"

    def __init__(self, load: Any) -> None:
        self.load = load


def registered(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    def points(*, group: str) -> list[Point]:
        assert group == "resilient_mw.stores"
        return [Point(load)]

    monkeypatch.setattr("importlib.metadata.entry_points", points)


def test_a_scheme_is_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []

    def make(url: str) -> MemoryIdempotencyStore:
        urls.append(url)
        return MemoryIdempotencyStore()

    registered(monkeypatch, lambda: make)
    assert isinstance(open_store("cupboard://kitchen/3"), MemoryIdempotencyStore)
    assert urls == ["cupboard://kitchen/3"]
    with pytest.raises(ValueError, match="no store is registered for cupbord://: did you mean cupboard://"):
        open_store("cupbord://kitchen/3")
    with pytest.raises(ValueError, match=r"known here: cupboard.*, sqlite"):
        open_store("shelf://kitchen/3")


def test_what_a_scheme_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise ModuleNotFoundError("No module named 'cupboards'")

    registered(monkeypatch, load)
    with pytest.raises(
        ValueError, match=r"cannot be loaded \(No module named 'cupboards'\).* 'cupboards:Store' needs"
    ):
        open_store("cupboard://kitchen")


def test_a_url_that_a_package_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(url: str) -> Any:
        raise LookupError(f"no shelf in {url}")

    registered(monkeypatch, lambda: make)
    with pytest.raises(ValueError, match="the URL cannot be used: no shelf in cupboard://kitchen"):
        open_store("cupboard://kitchen")


def test_a_file_by_relative_and_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = SQLiteIdempotencyStore("my keys.db")
    made.create()
    made.close()
    for url in (
        "my keys.db",
        "sqlite:///my keys.db",
        "sqlite:///my%20keys.db",
        f"sqlite:///{tmp_path}/my keys.db",
    ):
        store = open_store(url)
        assert store.records() == []
        store.close()


def test_a_password_is_not_shown() -> None:
    assert (
        without_user("x postgresql://app:se@cret@db/shop y redis://:pw@c")
        == "x postgresql://db/shop y redis://c"
    )
    assert without_user("nobody@home at http://a/b@c") == "nobody@home at http://a/b@c"
