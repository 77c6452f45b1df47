"""`resilient-mw idempotency`: what an operator sees and does, on real stores."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilient_mw.cli import idempotency_keeper
from resilient_mw.cli.main import main
from resilient_mw.cli.words import clean, span
from resilient_mw.idempotency import About, Begun, Claim, StoredAnswer, StoreUnavailable
from resilient_mw.idempotency.scope import record_key
from resilient_mw.runtime.configuration import KEYS_STORE, load_policy
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
from tests.cli.conftest import Said
from tests.docs.pages import ROOT

PACKAGES = os.pathsep.join([str(ROOT), str(ROOT / "integrations")])
Run = Callable[..., Said]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs the command on `keys.db` in a folder of its own, and returns what was said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KEYS_STORE, "keys.db")

    def command(*arguments: str) -> Said:
        capsys.readouterr()
        with monkeypatch.context() as own:
            own.setattr(sys, "path", list(sys.path))
            own.setattr(sys, "dont_write_bytecode", True)
            own.delitem(sys.modules, "shop", raising=False)
            status = main(["idempotency", *arguments])
            sys.modules.pop("shop", None)
        return Said(status, *capsys.readouterr())

    return command


class Records:
    """The store of a test, and its records."""

    def __init__(self, path: Path) -> None:
        self.store = SQLiteIdempotencyStore(path, durable=False)

    def add(self, key: str, *, lease: float = 600.0, keep: float = 86_400.0, **about: str) -> Claim:
        shown = About(**{"key": key, "method": "POST", "route": "/payments", **about})
        record = record_key(key, caller="", method="POST", route=shown.route)
        claim = Claim(record=record, token=key[:60], lease=lease, keep=keep, about=shown)
        assert isinstance(self.store.begin(claim), Begun)
        return claim

    def unknown(self, key: str) -> Claim:
        claim = self.add(key)
        self.store.abandon(claim, "unknown")
        return claim

    def completed(self, key: str, body: bytes | None = b"{}", *headers: tuple[bytes, bytes]) -> Claim:
        claim = self.add(key)
        self.store.complete(claim, StoredAnswer(201, headers, body))
        return claim


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    made = Records(tmp_path / "keys.db")
    made.store.create()
    yield made
    made.store.close()


def rows(said: Said) -> list[dict[str, Any]]:
    assert said.status == 0, said.err
    found: list[dict[str, Any]] = said.json()["records"]
    return found


# -- list --------------------------------------------------------------------------------------------------------------


def test_the_list_shows_every_state(run: Run, records: Records) -> None:
    running, unknown, done = records.add("a", caller="ann"), records.unknown("b"), records.completed("c")
    said = run("list")
    assert said.status == 0
    head, *lines = said.out.splitlines()
    assert head.split() == [
        "record",
        "state",
        "age",
        "lease",
        "expires",
        "in",
        "method",
        "route",
        "caller",
        "key",
    ]
    shown = {line.split()[-1]: line for line in lines}
    assert shown["a"].split()[:2] == [running.record[:12], "running"]
    assert "10 min" in shown["a"] or "9 min" in shown["a"]
    assert "ann" in shown["a"]
    assert shown["b"].split()[:2] == [unknown.record[:12], "unknown"]
    assert shown["c"].split()[:2] == [done.record[:12], "completed"]
    assert rows(run("list", "--state", "unknown", "--json"))[0]["key"] == "b"
    assert [row["key"] for row in rows(run("list", "--state", "completed", "--json"))] == ["c"]
    assert run("list", "--state", "running", "--key", "z").out == "no records\n"


def test_pages_hold_every_record_once(run: Run, records: Records) -> None:
    keys = {f"key {number}" for number in range(23)}
    for key in keys:
        records.add(key)
    found, after, pages = [], "", 0
    while True:
        page = run("list", "--json", "--limit", "5", "--after", after).json()
        found += [row["key"] for row in page["records"]]
        pages += 1
        if page["next"] is None:
            break
        after = page["next"]
    assert (len(found), set(found), pages) == (23, keys, 5)
    assert "there may be more: --after " in run("list", "--limit", "5").out


def test_filters_look_at_all_records(run: Run, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilient_mw.cli.idempotency.SCANNED", 3)
    for number in range(20):
        records.add(
            f"k{number}", route="/refunds" if number % 5 == 0 else "/payments", caller=f"c{number % 2}"
        )
    assert [row["key"] for row in rows(run("list", "--json", "--key", "k7"))] == ["k7"]
    refunds = {"k0", "k5", "k10", "k15"}
    assert {row["key"] for row in rows(run("list", "--json", "--route", "/refunds"))} == refunds
    two = rows(run("list", "--json", "--route", "/refunds", "--caller", "c1"))
    assert {row["key"] for row in two} == {"k5", "k15"}
    page = run("list", "--json", "--route", "/refunds", "--limit", "3").json()
    (last,) = rows(run("list", "--json", "--route", "/refunds", "--after", page["next"]))
    assert {last["key"], *(row["key"] for row in page["records"])} == refunds


def test_what_strangers_wrote_does_nothing_to_the_terminal(run: Run, records: Records) -> None:
    records.add("\x1b[2Jkey\r\n\u202e" + "x" * 300, caller="\x07", route="/a\x9b")
    for said in (run("list"), run("show", records.store.records()[0].record[:8])):
        assert said.status == 0
        assert "\\x1b[2Jkey\\r\\n\\u202e" in said.out
        assert all(each.isprintable() or each == "\n" for each in said.out)


# -- show --------------------------------------------------------------------------------------------------------------


def test_an_answer_is_shown_only_where_it_is_asked_for(run: Run, records: Records) -> None:
    claim = records.completed("k", b"secret " * 500, (b"Location", b"/payments/" + b"7" * 500))
    plain = run("show", claim.record[:10])
    assert (plain.status, "secret" in plain.out, "/payments/7" in plain.out) == (0, False, False)
    assert "201, 1 header line, 3,500 bytes (--answer shows it)" in plain.out
    assert "secret" not in run("show", claim.record, "--json").out
    shown = run("show", claim.record, "--answer", "--bytes", "70")
    assert shown.out.count("secret") == 10
    assert "... 3,430 bytes more: --bytes" in shown.out
    (location,) = [line for line in shown.out.splitlines() if "Location" in line]
    assert len(location) < 220
    content = run("show", claim.record, "--answer", "--bytes", "70", "--json").json()
    assert content["answer"]["body"] == "secret " * 10
    assert (content["answer"]["bytes"], content["answer"]["truncated"]) == (3500, True)


@pytest.mark.parametrize(
    ("body", "text", "in_json"),
    [
        (None, "body not kept", None),
        (b"", "0 bytes", ""),
        ("gr\u00fc\u00dfe".encode(), "gr", "gr"),  # a character that is cut in two
        (b"\xff\xfe\x00", "3 bytes that are no text", None),
    ],
)
def test_every_body_can_be_shown(
    body: bytes | None, text: str, in_json: str | None, run: Run, records: Records
) -> None:
    claim = records.completed("k", body)
    most = "3"
    assert text in run("show", claim.record, "--answer", "--bytes", most).out
    answer = run("show", claim.record, "--answer", "--bytes", most, "--json").json()["answer"]
    assert answer["body"] == in_json
    assert answer.get("body_base64") == ("//4A" if body == b"\xff\xfe\x00" else None)


def test_a_record_is_named_by_its_first_digits(run: Run, records: Records) -> None:
    claim = records.completed("k")
    assert claim.record in run("show", claim.record[:6].upper()).out
    missing = "0" * 64 if not claim.record.startswith("0") else "1" * 64
    for given in (missing, missing[:6]):
        said = run("show", given)
        assert (said.status, said.out) == (1, "")
        assert "expired" in said.err
    said = run("show", "order-7")
    assert said.status == 2
    assert "list --key" in said.err


def test_first_digits_of_several_records_name_none(run: Run, records: Records) -> None:
    for last in "12":
        assert isinstance(records.store.begin(Claim(record="ab" * 31 + "0" + last, token=last)), Begun)
    said = run("release", "ababab", "--running")
    assert said.status == 2
    assert "several records begin with ababab" in said.err
    assert len(records.store.records()) == 2


# -- release -----------------------------------------------------------------------------------------------------------


def test_a_live_lease_is_released_only_by_name(run: Run, records: Records) -> None:
    claim = records.add("k")
    said = run("release", claim.record[:12])
    assert said.status == 1
    assert "say --running" in said.err
    assert records.store.look(claim.record) is not None
    said = run("release", claim.record[:12], "--running")
    assert said.status == 0
    assert "which was running: the next request with its key runs" in said.out
    assert records.store.look(claim.record) is None
    assert not records.store.complete(claim, StoredAnswer(201))
    assert run("release", claim.record).status == 1


def test_what_has_ended_is_released(run: Run, records: Records) -> None:
    for claim in (records.unknown("a"), records.completed("b")):
        content = run("release", claim.record, "--json").json()
        assert content == {"format": 1, "record": claim.record, "released": True}
    assert not records.store.records()


# -- purge -------------------------------------------------------------------------------------------------------------


class Expiring:
    """A store with so many expired records."""

    shared = "network"

    def __init__(self, number: int) -> None:
        self.left = number
        self.asked: list[int] = []

    def purge(self, limit: int, *, timeout: float) -> int:
        assert timeout == 2.0
        self.asked.append(limit)
        if len(self.asked) > 4:
            raise StoreUnavailable("postgresql://app:secret@db/shop went away")
        removed = min(limit, self.left)
        self.left -= removed
        return removed

    def close(self) -> None: ...


def purging(number: int, monkeypatch: pytest.MonkeyPatch) -> Expiring:
    store = Expiring(number)
    monkeypatch.setattr("resilient_mw.cli.idempotency.find_store", lambda _: store)
    return store


def test_a_purge_goes_on_until_nothing_is_left(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    store = purging(250, monkeypatch)
    said = run("purge", "--batch", "100", "--timeout", "2", "--progress")
    assert (said.status, said.out) == (0, "250 expired records removed\n")
    assert said.err.splitlines() == [
        "resilient-mw idempotency: 100 expired records removed so far",
        "resilient-mw idempotency: 200 expired records removed so far",
    ]
    assert store.asked == [100, 100, 100]
    store = purging(250, monkeypatch)
    said = run("purge", "--batch", "100", "--timeout", "2", "--limit", "150", "--json")
    assert (said.status, said.json(), said.err) == (0, {"format": 1, "removed": 150}, "")
    assert store.asked == [100, 50]


def test_a_purge_that_is_cut_off_says_what_it_did(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    purging(10_000, monkeypatch)
    said = run("purge", "--batch", "100", "--timeout", "2")
    assert (said.status, said.out) == (3, "400 expired records removed\n")
    assert "the store cannot be used: postgresql://db/shop went away" in said.err


def test_a_purge_removes_what_has_expired_and_nothing_else(run: Run, records: Records) -> None:
    alive = records.completed("alive")
    for number in range(30):
        records.completed(f"k{number}")
    with sqlite3.connect("keys.db") as connection:
        connection.execute(
            "UPDATE resilient_mw_idempotency SET expires = 1 WHERE record != ?", (alive.record,)
        )
    connection.close()
    assert run("purge", "--batch", "7").out == "30 expired records removed\n"
    assert [each.record for each in records.store.records()] == [alive.record]
    assert run("purge").out == "0 expired records removed\n"


# -- which store -------------------------------------------------------------------------------------------------------

MODULE = """
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.idempotency import IdempotencyPolicy
from resilient_mw.stores.faces import ThreadedIdempotencyStore
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
print("imported")
store = SQLiteIdempotencyStore("keys.db")
async_store = ThreadedIdempotencyStore(store)
memory = MemoryIdempotencyStore()
policy = IdempotencyPolicy(single_tenant=True)
async def plain(scope, receive, send): ...
class Outer:
    def __init__(self, app): self.app = app
app = Outer(IdempotencyMiddleware(plain, policy, store=store))
forgetful = Outer(IdempotencyMiddleware(plain, policy, store=memory))
two = Outer(IdempotencyMiddleware(IdempotencyMiddleware(plain, policy, store=memory), policy, store=store))
"""


@pytest.mark.parametrize(
    "target", ["keys.db", "sqlite:///keys.db", "shop:store", "shop:async_store", "shop:app"]
)
def test_a_store_may_be_named_in_many_ways(run: Run, records: Records, tmp_path: Path, target: str) -> None:
    (tmp_path / "shop.py").write_text(MODULE, encoding="utf-8")
    claim = records.completed("k")
    assert [row["key"] for row in rows(run("list", "--json", "--store", target))] == ["k"]
    assert run("show", claim.record[:9], "--store", target).status == 0
    assert run("release", claim.record[:9], "--store", target).status == 0
    assert run("purge", "--store", target).out == "0 expired records removed\n"


def test_the_store_may_be_named_before_the_command(run: Run, records: Records) -> None:
    records.add("k")
    assert [row["key"] for row in rows(run("--store", "sqlite:///keys.db", "list", "--json"))] == ["k"]
    assert "there is no file 'other.db'" in run("--store", "keys.db", "list", "--store", "other.db").err


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("shop:memory", "in the memory of each process"),
        ("shop:forgetful", "in the memory of each process"),
        ("shop:two", "has 2 stores of idempotency keys: name one of them"),
        ("shop:policy", "is a IdempotencyPolicy, neither a store of idempotency keys nor an application"),
        ("shop:stor", "did you mean 'store'?"),
        ("nowhere:store", "there is no module 'nowhere'"),
        ("nowhere.db", "there is no file 'nowhere.db'"),
        ("sqlite:///nowhere.db", "there is no file 'nowhere.db'"),
        ("sqlite://keys.db", "write sqlite:///keys.db"),
        ("shop.py", "'shop.py' cannot be read as a SQLite file"),
        ("other.db", "it is not the file of a store of idempotency keys"),
        ("postgre://app:secret@db/shop", "no store is registered for postgre://"),
    ],
)
def test_what_is_no_store(run: Run, records: Records, tmp_path: Path, target: str, complaint: str) -> None:
    (tmp_path / "shop.py").write_text(MODULE, encoding="utf-8")
    with sqlite3.connect("other.db") as connection:
        connection.execute("CREATE TABLE orders (id)")
    connection.close()
    before = sorted(each.name for each in tmp_path.iterdir())
    said = run("list", "--store", target)
    assert (said.status, said.out) == (2, "")
    assert complaint in said.err
    assert "Traceback" not in said.err
    assert "secret" not in said.err
    assert sorted(each.name for each in tmp_path.iterdir() if each.name != "__pycache__") == before


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["list", "--limit", "0"], ["list", "--timeout", "0"], ["list", "--state", "done"], ["show"], ["erase"],
        ["purge", "--batch", "x"],
    ],
)  # fmt: skip
def test_bad_usage(run: Run, records: Records, arguments: list[str]) -> None:
    said = run(*arguments)
    assert (said.status, said.out) == (2, "")
    assert "Traceback" not in said.err


def test_the_store_must_be_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS_STORE)
    said = run("list")
    assert said.status == 2
    assert f"Say --store STORE, or set {KEYS_STORE}" in said.err


def test_a_service_may_have_the_variable_too(run: Run) -> None:
    assert os.environ[KEYS_STORE]
    load_policy()


def test_a_store_that_is_busy_is_away(run: Run, records: Records) -> None:
    claim = records.add("k")
    with sqlite3.connect("keys.db", isolation_level=None) as connection:
        connection.execute("BEGIN IMMEDIATE")
        said = run("release", claim.record, "--running", "--timeout", "0.05")
        connection.execute("ROLLBACK")
    connection.close()
    assert (said.status, said.out) == (3, "")
    assert "the store cannot be used: keys.db: database is locked" in said.err
    assert records.store.look(claim.record) is not None


def test_who_interrupts_it_gets_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    purging(1, monkeypatch)
    monkeypatch.setattr(idempotency_keeper.Keeper, "ask", interrupted)
    said = run("purge")
    assert (said.status, said.out) == (130, "0 expired records removed\n")
    assert "interrupted" in said.err


def test_a_reader_who_has_seen_enough_gets_no_traceback(records: Records, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        finished = subprocess.run(
            [
                sys.executable,
                "-m",
                "resilient_mw.cli",
                "idempotency",
                "list",
                "--store",
                str(tmp_path / "keys.db"),
            ],
            env={**os.environ, "PYTHONPATH": PACKAGES},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_times_and_texts_are_for_people() -> None:
    assert [span(each) for each in (0.2, 119, 121, 7_300, 100_000, 400_000)] == [
        "0 s", "119 s", "2 min", "2 h", "28 h", "5 d",
    ]  # fmt: skip
    assert clean("abcdef", 6) == "abcdef"
    assert clean("abcdefg", 6) == "abc..."
    assert clean("\n" * 6, 6) == "\\n\\..."


def test_json_is_for_programs(run: Run, records: Records) -> None:
    records.completed("k")
    assert json.load(io.StringIO(run("list", "--json").out))["format"] == 1
