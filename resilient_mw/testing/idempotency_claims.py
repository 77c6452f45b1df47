"""The tests of who has a key: one at a time, for a lease, and never again once somebody else has it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.record import Begun, Found, State
from resilient_mw.testing.idempotency_checks import LONG, StoreTests, begun, found, looked, need


class ClaimTests(StoreTests):
    """Who has a key."""

    def test_a_new_key_begins_and_a_repeat_finds_it_at_work(self) -> None:
        """First come, first run; the second one is told how long the lease lasts."""
        with self.open_store() as store:
            first = self.claim(fingerprint="f" * 64)
            outcome = begun(store.begin(first))
            need(not outcome.unknown, "a new key is not unknown")
            record = found(store.begin(self.again(first)))
            need(record.state is State.RUNNING, "its attempt is at work")
            need(0 < record.lease_left <= LONG, f"the lease has {record.lease_left} s left")
            need(0 <= record.age < LONG / 2, f"it is {record.age} s old")
            need(record.fingerprint == "f" * 64, "the fingerprint is kept")
            need(record.fence == outcome.fence, "the fence is that of the attempt")
            need(record.about == first.about, "what operators are shown is kept")
            need(record.record == first.record, "the record says its key")
            need(record.answer is None, "there is no answer yet")

    def test_of_many_at_one_time_one_begins(self) -> None:
        """A unique insert decides, not a look before it (B85)."""
        with self.open_store() as store:
            first = self.claim()
            start = threading.Barrier(self.rivals)

            def rival(_: int) -> object:
                start.wait(30)
                return store.begin(self.again(first), timeout=30)

            with ThreadPoolExecutor(self.rivals) as pool:
                outcomes = list(pool.map(rival, range(self.rivals)))
            winners = [each for each in outcomes if isinstance(each, Begun)]
            losers = [each for each in outcomes if isinstance(each, Found)]
            need(len(winners) == 1, f"{len(winners)} attempts have begun")
            need(len(losers) == self.rivals - 1, f"{outcomes!r}")

    def test_of_many_that_take_over_one_does(self) -> None:
        """The same where the key is unknown."""
        with self.open_store() as store:
            old, _ = self.lapsed(store)

            def rival(_: int) -> object:
                return store.begin(self.again(old, lease=LONG, take_unknown=True), timeout=30)

            with ThreadPoolExecutor(8) as pool:
                outcomes = list(pool.map(rival, range(8)))
            need(sum(isinstance(each, Begun) for each in outcomes) == 1, f"{outcomes!r}")

    def test_a_lapsed_lease_reads_as_unknown_and_can_be_taken(self) -> None:
        """Who takes over gets a higher fence, and only one who may (B86)."""
        with self.open_store() as store:
            old, fence = self.lapsed(store)
            record = found(store.begin(self.again(old)))
            need(record.state is State.UNKNOWN, f"it reads as {record.state}")
            need(record.lease_left == 0, "no lease is left")
            taken = begun(store.begin(self.again(old, lease=LONG, take_unknown=True)))
            need(taken.unknown, "the one who takes it is told")
            need(taken.fence > fence, f"fence {taken.fence} follows {fence}")
            need(looked(store, old).state is State.RUNNING, "it is at work again")

    def test_the_late_write_of_the_old_attempt_is_refused(self) -> None:
        """Complete, renew and abandon: none of them touches what is somebody else's."""
        with self.open_store() as store:
            old, _ = self.lapsed(store)
            new = self.again(old, lease=LONG, take_unknown=True)
            begun(store.begin(new))
            need(not store.complete(old, StoredAnswer(200, (), b"old")), "a late answer is refused")
            need(not store.renew(old), "a late renewal is refused")
            need(not store.abandon(old, "forget"), "a late end is refused")
            need(not store.abandon(old, "unknown"), "a late end is refused")
            need(looked(store, old).state is State.RUNNING, "the new attempt has it")
            need(store.complete(new, StoredAnswer(200, (), b"new")), "and completes it")
            need(not store.complete(old, StoredAnswer(200, (), b"old")), "also after that")
            need(looked(store, old).answer == StoredAnswer(200, (), b"new"), "its answer stands")

    def test_a_slow_attempt_completes_late_if_nobody_came(self) -> None:
        """The token holds until somebody takes it."""
        with self.open_store() as store:
            old, _ = self.lapsed(store)
            need(store.renew(old), "it may renew, late")
            need(looked(store, old).state is State.RUNNING, "and is at work again")
            self.pass_time(self.lease * 1.5)
            need(store.complete(old, StoredAnswer(200)), "it may complete, late")

    def test_renewing_keeps_it(self) -> None:
        """A handler of three leases runs once."""
        with self.open_store() as store:
            claim = self.claim(lease=self.lease * 4)
            begun(store.begin(claim))
            for _ in range(3):
                self.pass_time(self.lease * 2)
                need(store.renew(claim), "it has its record")
            record = found(store.begin(self.again(claim, take_unknown=True)))
            need(record.state is State.RUNNING, f"it reads as {record.state}")

    def test_forgetting_frees_the_key(self) -> None:
        """At once, and for one attempt."""
        with self.open_store() as store:
            claim = self.claim()
            first = begun(store.begin(claim))
            need(store.abandon(claim, "forget"), "the claim has the record")
            need(store.look(claim.record) is None, "the record is gone")
            need(not store.abandon(claim, "forget"), "an end happens once")
            need(not store.complete(claim, StoredAnswer(200)), "its answer is not kept")
            second = begun(store.begin(self.again(claim)))
            need(not second.unknown, "nothing is unknown of it")
            need(second.fence > first.fence, f"fence {second.fence} follows {first.fence}")

    def test_an_unknown_end_is_kept_and_settled(self) -> None:
        """It blocks who may not take it; who takes it completes it, or leaves it as it was."""
        with self.open_store() as store:
            claim = self.claim(fingerprint="a" * 64)
            begun(store.begin(claim))
            need(store.abandon(claim, "unknown"), "the claim has the record")
            need(found(store.begin(self.again(claim))).state is State.UNKNOWN, "it says so")
            need(not store.complete(claim, StoredAnswer(200)), "its own answer comes too late")
            taker = self.again(claim, take_unknown=True)
            need(begun(store.begin(taker)).unknown, "who takes it is told")
            need(store.abandon(taker, "unknown"), "and may leave it so")
            settler = self.again(claim, take_unknown=True)
            need(begun(store.begin(settler)).unknown, "for the next one")
            need(store.complete(settler, StoredAnswer(201)), "who settles it")
            need(looked(store, claim).answer == StoredAnswer(201), "for good")

    def test_another_request_cannot_take_over(self) -> None:
        """Its fingerprint is another one, so the work would be, too."""
        with self.open_store() as store:
            claim = self.claim(fingerprint="a" * 64)
            begun(store.begin(claim))
            store.abandon(claim, "unknown")
            record = found(store.begin(self.again(claim, fingerprint="b" * 64, take_unknown=True)))
            need(record.fingerprint == "a" * 64, "it is told which one it is")
            need(record.state is State.UNKNOWN, "nothing was changed")

    def test_a_fingerprint_that_comes_with_the_answer(self) -> None:
        """The body of a large request is hashed while it streams; what was known first stands."""
        with self.open_store() as store:
            claim = self.claim()
            begun(store.begin(claim))
            need(looked(store, claim).fingerprint is None, "it is not known yet")
            store.complete(claim, StoredAnswer(200), fingerprint="c" * 64)
            need(looked(store, claim).fingerprint == "c" * 64, "now it is")
            known = self.claim(fingerprint="d" * 64)
            begun(store.begin(known))
            store.complete(known, StoredAnswer(200), fingerprint="e" * 64)
            need(looked(store, known).fingerprint == "d" * 64, "what was known stands")
