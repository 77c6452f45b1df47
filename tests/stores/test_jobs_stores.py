"""Both stores of jobs keep the same promise; the one in a file keeps it across processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from resilient_mw.core.job_store import ClaimedJob, NewJob
from resilient_mw.idempotency.protocol import StoreUnavailable
from resilient_mw.stores.jobs_memory import MemoryJobStore
from resilient_mw.stores.jobs_sqlite import SQLiteJobStore

Store = MemoryJobStore | SQLiteJobStore
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryJobStore() if request.param == "memory" else SQLiteJobStore(tmp_path / "jobs.db")
    yield made
    made.close()


def new(name: str, priority: str = "normal", *, task: str = "mail", key: str | None = None) -> NewJob:
    return NewJob(id=name, task=task, payload="[1]", key=key or name, priority=priority)


def claim(store: Store, now: float, *, lease: float = 10.0, attempts: int = 3) -> ClaimedJob | None:
    return store.claim(now, now + lease, ("mail",), attempts)


def claimed(store: Store, now: float, **more: float) -> ClaimedJob:
    found = claim(store, now, **more)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_job_is_claimed_once_and_forgotten_when_it_is_done(store: Store) -> None:
    assert store.add(new("a"), 0.0, None) == "a"
    found = claimed(store, 1.0)
    assert (found.job, found.put_at, found.attempt) == (new("a"), 0.0, 1)
    assert claim(store, 1.0) is None
    assert store.done("a", found.token)
    assert not store.done("a", found.token)
    assert claim(store, 99.0) is None


def test_the_highest_class_comes_first_and_in_it_the_oldest(store: Store) -> None:
    for at, (name, priority) in enumerate(
        [("a", "sheddable"), ("b", "normal"), ("c", "normal"), ("d", "critical"), ("e", "foreign")]
    ):
        store.add(new(name, priority), float(at), None)
    assert [claimed(store, 9.0).job.id for _ in range(5)] == ["d", "b", "c", "a", "e"]


def test_a_job_whose_lease_is_over_is_delivered_again_with_its_key(store: Store) -> None:
    store.add(new("a", key="the key"), 0.0, None)
    first = claimed(store, 0.0)
    assert claim(store, 9.9) is None
    second = claimed(store, 10.0)
    assert (second.attempt, second.job.key) == (2, "the key")
    assert second.token > first.token
    assert not store.done("a", first.token)  # who comes late changes nothing
    assert not store.retry("a", first.token, 0.0)
    assert not store.give_up("a", first.token, "late")
    assert store.done("a", second.token)


def test_a_job_that_is_given_back_waits_for_its_time(store: Store) -> None:
    store.add(new("a"), 0.0, None)
    assert store.retry("a", claimed(store, 0.0).token, 5.0)
    assert claim(store, 4.9) is None
    assert claimed(store, 5.0).attempt == 2


def test_a_delivery_that_was_not_begun_does_not_count(store: Store) -> None:
    store.add(new("a"), 0.0, None)
    first = claimed(store, 0.0)
    assert store.retry("a", first.token, 0.0, delivered=False)
    second = claimed(store, 0.0)
    assert second.attempt == 1
    assert second.token > first.token


def test_a_job_is_not_delivered_for_ever(store: Store) -> None:
    store.add(new("a"), 0.0, None)
    for attempt in range(3):
        assert claimed(store, attempt * 10.0).attempt == attempt + 1
    assert claim(store, 30.0) is None
    assert store.dead() == [(new("a"), "delivered 3 times")]
    assert store.counts(30.0).dead == 1


def test_a_job_that_is_given_up_is_kept(store: Store) -> None:
    store.add(new("a"), 0.0, None)
    assert store.give_up("a", claimed(store, 0.0).token, "no such customer")
    assert claim(store, 99.0) is None
    assert store.dead() == [(new("a"), "no such customer")]


def test_a_class_is_bounded(store: Store) -> None:
    assert store.add(new("a"), 0.0, 1) == "a"
    assert store.add(new("b"), 0.0, 1) is None
    assert store.add(new("c", "critical"), 0.0, 1) == "c"
    assert claim(store, 0.0) is not None
    assert claim(store, 0.0) is not None
    assert store.add(new("b"), 0.0, 1) == "b"  # what is claimed does not wait


def test_the_same_task_and_key_is_the_same_job(store: Store) -> None:
    store.add(new("a", key="k"), 0.0, None)
    assert store.add(new("b", key="k"), 0.0, 1) == "a"
    assert store.add(new("c", key="k", task="other"), 0.0, None) == "c"
    assert store.done("a", claimed(store, 0.0).token)
    assert store.add(new("d", key="k"), 0.0, None) == "d"


def test_a_key_of_a_job_with_other_arguments_is_refused(store: Store) -> None:
    """To take it for the other one would lose it."""
    store.add(replace(new("a", key="k"), payload='[{"to": 1, "cc": 2}]'), 0.0, None)
    assert store.add(replace(new("b", key="k"), payload='[{"cc": 2, "to": 1}]'), 0.0, None) == "a"
    with pytest.raises(ValueError, match="key='k' of the job 'mail' is that of one with other arguments"):
        store.add(replace(new("c", key="k"), payload='[{"to": 1}]'), 0.0, None)
    assert store.done("a", claimed(store, 0.0).token)
    assert claim(store, 0.0) is None


def test_only_tasks_that_the_caller_knows_are_claimed(store: Store) -> None:
    store.add(new("a", task="other"), 0.0, None)
    assert claim(store, 0.0) is None
    assert store.claim(0.0, 1.0, (), 3) is None


def test_what_it_holds_can_be_asked(store: Store) -> None:
    for name in "abc":
        store.add(new(name), 2.0, None)
    store.add(new("d", "critical"), 3.0, None)
    assert claimed(store, 3.0).job.id == "d"
    counts = store.counts(5.0)
    assert (counts.waiting, counts.leased, counts.dead, counts.oldest) == ({"normal": 3}, 1, 0, 3.0)
    assert store.counts(13.0).waiting == {"normal": 3, "critical": 1}


def test_threads_never_share_a_job(store: Store) -> None:
    for number in range(40):
        store.add(new(f"job-{number}"), 0.0, None)
    found: list[str] = []

    def take() -> None:
        while (mine := claim(store, 0.0)) is not None:
            found.append(mine.job.id)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert len(found) == len(set(found)) == 40


def _take_all(path: str, send: Callable[[list[str]], None]) -> None:
    store = SQLiteJobStore(path, busy_timeout=30.0)
    found = []
    while (mine := claim(store, 0.0)) is not None:
        found.append(mine.job.id)
    send(found)


def test_processes_never_share_a_job(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    store = SQLiteJobStore(path)
    for number in range(24):
        store.add(new(f"job-{number}"), 0.0, None)
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe(duplex=False) for _ in range(2)]
    processes = [spawn.Process(target=_take_all, args=(path, sending.send)) for _, sending in pipes]
    try:
        for process in processes:
            process.start()
        found = [each for receiving, _ in pipes for each in receiving.recv()]
    finally:
        for process in processes:
            process.join(30)
            process.kill()
        store.close()
    assert len(found) == len(set(found)) == 24


def test_two_stores_of_one_file_add_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    stores = [SQLiteJobStore(path, busy_timeout=30.0) for _ in range(3)]
    errors: list[BaseException] = []

    def add(number: int) -> None:
        try:
            for each in range(20):
                stores[number].add(new(f"job-{number}-{each}"), 0.0, 1000)
        except StoreUnavailable as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert stores[0].counts(0.0).waiting == {"normal": 60}
    for store in stores:
        store.close()


CLAIM_AND_DIE = """
import os, signal, sys
from resilient_mw.stores.jobs_sqlite import SQLiteJobStore
store = SQLiteJobStore(sys.argv[1])
claim = store.claim(0.0, 10.0, ("mail",), 3)
assert claim is not None
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_who_is_killed_with_a_job_leaves_it_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SQLiteJobStore(path)
    store.add(new("a", key="the key"), 0.0, None)
    done = subprocess.run(
        [sys.executable, "-c", CLAIM_AND_DIE, str(path)],
        cwd=ROOT,
        check=False,
        timeout=60,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert claim(store, 9.0) is None
    again = claimed(store, 10.0)
    assert (again.attempt, again.job.key) == (2, "the key")
    store.close()


FORKED = """
import os, sys
from resilient_mw.core.job_store import NewJob
from resilient_mw.stores.jobs_sqlite import SQLiteJobStore
store = SQLiteJobStore(sys.argv[1])
store.add(NewJob(id="a", task="mail", payload="[]", key="a", priority="normal"), 0.0, None)
store._file._writer.acquire()  # as another thread of the parent may
child = os.fork()
if child == 0:
    os._exit(0 if store.claim(0.0, 10.0, ("mail",), 3) is not None else 1)
assert os.waitpid(child, 0)[1] == 0
store._file._writer.release()
assert store.claim(0.0, 10.0, ("mail",), 3) is None
assert store.counts(0.0).leased == 1
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_b94_a_forked_child_has_a_connection_and_a_lock_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "jobs.db")],
        cwd=ROOT,
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_what_was_given_up_can_be_delivered_again_by_hand(tmp_path: Path) -> None:
    store = SQLiteJobStore(tmp_path / "jobs.db")
    store.add(new("a"), 0.0, None)
    store.give_up("a", claimed(store, 0.0).token, "why")
    assert store.revive("a", 1.0)
    assert not store.revive("a", 1.0)
    assert claimed(store, 1.0).attempt == 1
    store.close()


def test_a_file_that_cannot_be_opened_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        SQLiteJobStore(tmp_path / "no such folder" / "jobs.db")
