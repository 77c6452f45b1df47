"""SQLite as a store: several processes, a killed one, a forked one, a file that is busy, gone or of a later version."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilient_mw.idempotency import Begun, Found, State, StoredAnswer, StoreUnavailable
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore, schema
from resilient_mw.testing.idempotency_checks import StoreTests, begun, found, looked

TESTS = StoreTests()

PRELUDE = """
import os, sys
import resilient_mw
from resilient_mw.idempotency import Claim, StoredAnswer
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
store = SQLiteIdempotencyStore(sys.argv[1], durable=False)
def claim(number, **facts):
    return Claim(record=f"{number:064x}", token=f"{os.getpid()}-{number}", **facts)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteIdempotencyStore]:
    store = SQLiteIdempotencyStore(path)
    yield store
    store.close()


def start(script: str, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + script, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_b85_of_several_processes_one_begins(path: Path) -> None:
    """Each key once, whichever of four processes it comes to, the file and its table made by all of them at once."""
    script = """
sys.stdin.readline()
print(*(number for number in range(40) if type(store.begin(claim(number), timeout=30)).__name__ == "Begun"))
"""
    processes = [start(script, path) for _ in range(4)]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        texts = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    won = sorted(int(number) for text in texts for number in text.split())
    assert won == list(range(40))


def test_b86_what_a_killed_process_had_is_taken_after_the_lease(
    path: Path, store: SQLiteIdempotencyStore
) -> None:
    """Until then it is at work; nothing that the killed one has left in the file keeps anybody out."""
    process = start("print(store.begin(claim(1, lease=0.5)), flush=True); sys.stdin.readline()", path)
    try:
        assert process.stdout is not None
        assert "Begun" in process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        old = TESTS.claim(record=f"{1:064x}")
        TESTS.pass_time(0.6)
        assert found(store.begin(old)).state is State.UNKNOWN
        assert begun(store.begin(TESTS.again(old, take_unknown=True))).unknown
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not hasattr(sys, "getdlopenflags"), reason="only POSIX systems fork")
def test_a_forked_child_has_connections_of_its_own(path: Path, store: SQLiteIdempotencyStore) -> None:
    """Also when a thread of the parent was writing at the fork; the parent goes on with its own."""
    script = """
store.begin(claim(1))
with store._file.writing(5):
    if os.fork() == 0:
        os._exit(0 if store._file._writer.acquire(timeout=5) else 3)
status = os.wait()[1]
assert len(store._file._free) == 1
if os.fork() == 0:
    alone = store._file._free == []
    store.begin(claim(2), timeout=5)
    store.close()
    os._exit(0 if alone else 4)
status += os.wait()[1]
store.begin(claim(3))
print(status, store.complete(claim(1), StoredAnswer(200)))
"""
    process = start(script, path)
    text, _ = process.communicate(timeout=60)
    assert text.split() == ["0", "True"]
    assert [each.record[-1] for each in store.records()] == ["1", "2", "3"]


def test_a_file_that_another_one_writes_is_waited_for_within_the_time(
    path: Path, store: SQLiteIdempotencyStore
) -> None:
    claim = TESTS.claim()
    store.create()
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            store.begin(claim, timeout=0.3)
        assert store.look(claim.record) is None, "who only reads does not wait for a writer"
        other.execute("COMMIT")
    finally:
        other.close()
    assert isinstance(store.begin(claim, timeout=5), Begun)


def test_nobody_else_writes_between_a_look_and_a_write(path: Path, store: SQLiteIdempotencyStore) -> None:
    """The look is inside the transaction that writes, and keeps others out from its beginning."""
    other = SQLiteIdempotencyStore(path)
    other.create()
    with store._file.writing(5), pytest.raises(StoreUnavailable, match="locked"):
        other.begin(TESTS.claim(), timeout=0.3)
    other.close()


def test_a_writer_of_this_process_is_waited_for_within_the_time(store: SQLiteIdempotencyStore) -> None:
    with store._file.writing(5), pytest.raises(StoreUnavailable, match="busy"):
        store.begin(TESTS.claim(), timeout=0.3)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    store = SQLiteIdempotencyStore(tmp_path / "missing" / "keys.db")
    with pytest.raises(
        StoreUnavailable, match=r"unable to open database file: there is no folder .*missing$"
    ):
        store.begin(TESTS.claim())
    (tmp_path / "missing").mkdir()
    assert isinstance(store.begin(TESTS.claim()), Begun), "it is there now"
    store.close()


def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_text("this is no database, and long enough that nobody could think that it is one" * 100)
    store = SQLiteIdempotencyStore(path)
    with pytest.raises(StoreUnavailable):
        store.ping()
    store.close()


def test_an_answer_of_a_later_version_is_not_guessed(path: Path, store: SQLiteIdempotencyStore) -> None:
    """While versions are rolled out, an older one must not answer with bytes that it does not understand."""
    claim = TESTS.claim()
    store.begin(claim)
    store.complete(claim, StoredAnswer(200))
    with sqlite3.connect(path) as other:
        other.execute("UPDATE resilient_mw_idempotency SET answer = CAST(x'7f' || substr(answer, 2) AS BLOB)")
    other.close()
    with pytest.raises(StoreUnavailable, match="format 127"):
        store.begin(TESTS.again(claim))


@pytest.mark.parametrize(("durable", "level"), [(True, 2), (False, 1)])
def test_a_commit_is_on_the_disk(path: Path, durable: bool, level: int) -> None:
    store = SQLiteIdempotencyStore(path, durable=durable)
    store.begin(TESTS.claim())
    with store._file.reading(1) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_the_table_can_be_made_by_hand(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript(schema())
        connection.executescript(schema())
    connection.close()
    store = SQLiteIdempotencyStore(path)
    claim = TESTS.claim()
    store.begin(claim)
    assert isinstance(store.begin(TESTS.again(claim)), Found)
    store.close()


def test_a_failed_transition_leaves_nothing(path: Path, store: SQLiteIdempotencyStore) -> None:
    """What was written before the failure is rolled back, and the next one is not hindered."""
    claim = TESTS.claim()

    def interrupted() -> None:
        with store._file.writing(5) as connection:
            connection.execute(
                "INSERT INTO resilient_mw_idempotency VALUES "
                "(9, ?, 'running', '', '', NULL, 0, 0, 1e12, '', '', '', '', '', NULL)",
                (claim.record,),
            )
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert store.look(claim.record) is None
    assert isinstance(store.begin(claim, timeout=5), Begun)


def test_expired_records_are_removed_on_use(path: Path, store: SQLiteIdempotencyStore) -> None:
    for _ in range(5):
        claim = TESTS.claim(keep=0.01)
        store.begin(claim)
        store.complete(claim, StoredAnswer(200))
    TESTS.pass_time(0.1)
    alive = [TESTS.claim() for _ in range(3)]
    for claim in alive:
        store.begin(claim)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM resilient_mw_idempotency").fetchone() == (3,)
    other.close()
    assert all(looked(store, claim).state is State.RUNNING for claim in alive)


def test_the_table_has_no_room_for_a_second_record_of_a_key(
    path: Path, store: SQLiteIdempotencyStore
) -> None:
    """Whoever writes it: another version of this store, for one."""
    store.begin(TESTS.claim())
    columns = "record, state, token, completed_by, began, lease_until, expires, caller, about_key, about_method, about_route"
    with sqlite3.connect(path) as other, pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        other.execute(
            f"INSERT INTO resilient_mw_idempotency ({columns}, about_caller) "
            f"SELECT {columns}, about_caller FROM resilient_mw_idempotency"
        )
    other.close()
