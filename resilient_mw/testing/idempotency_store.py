"""A conformance suite for stores of idempotency keys: derive a class, say how a store is made, run it with pytest.

Example:
    class TestMyStore(IdempotencyStoreSuite):
        @contextmanager
        def open_store(self):
            store = MyStore(...)
            yield store
            store.close()

Async stores are run through `blocking_face`; test them with `cancelled_begins_leave_nothing`, too. Durations are those of the store's own clock: `pass_time` waits for real, unless
the class says otherwise. The lease is `lease`; on a slow machine, make it longer.

What it cannot see: that the store uses one clock for all machines. A database's own clock is right, that of each client is not,
for a client whose clock is ahead would take keys that are alive.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.protocol import StoreUnavailable
from resilient_mw.idempotency.record import Found, Full, State
from resilient_mw.idempotency.scope import caller_key
from resilient_mw.testing.idempotency_checks import LONG, begun, every, found, looked, need, used
from resilient_mw.testing.idempotency_claims import ClaimTests
from resilient_mw.testing.idempotency_faces import blocking_face

__all__ = ["IdempotencyStoreSuite", "blocking_face", "used"]


class IdempotencyStoreSuite(ClaimTests):
    """The whole suite: who has a key, what is kept of it, and what operators do with it."""

    def test_a_completed_key_gives_its_answer(self) -> None:
        """To a repeat, and to one who looks."""
        with self.open_store() as store:
            claim = self.claim()
            store.begin(claim)
            answer = StoredAnswer(201, ((b"Location", b"/payments/1"),), b"{}")
            need(store.complete(claim, answer), "the claim has the record")
            record = found(store.begin(self.again(claim, take_unknown=True)))
            need(record.state is State.COMPLETED, f"it reads as {record.state}")
            need(record.answer == answer, f"{record.answer!r}")
            need(looked(store, claim).answer == answer, "one who looks sees it, too")
            need(store.complete(claim, answer), "the same attempt may say it again")
            need(not store.renew(claim), "there is no lease any more")
            need(not store.abandon(claim, "forget"), "what is completed cannot be given up")
            need(looked(store, claim).state is State.COMPLETED, "and stays")

    def test_answers_come_back_byte_by_byte(self) -> None:
        """Repeats, commas, latin-1, empty values, no body and large ones (B89)."""
        headers = (
            (b"set-cookie", b"a=1; expires=Wed, 21 Oct 2026 07:28:00 GMT"),
            (b"Set-Cookie", b"b=2"),
            (b"Link", b"</a>; rel=next, </b>; rel=prev"),
            (b"link", b"</c>"),
            (b"X-Latin", b"caf\xe9"),
            (b"X-Empty", b""),
        )
        with self.open_store() as store:
            for body in (b"", None, b"\x00\xff\r\n\x1f\x8b", bytes(range(256)) * 4096):
                claim = self.claim()
                store.begin(claim)
                answer = StoredAnswer(299, headers, body)
                need(store.complete(claim, answer), "the claim has the record")
                kept = looked(store, claim).answer
                need(
                    kept == answer,
                    f"a body of {None if body is None else len(body)} bytes came back as another",
                )
            claim = self.claim()
            store.begin(claim)
            store.complete(claim, StoredAnswer(204))
            need(looked(store, claim).answer == StoredAnswer(204), "no header line and no body")

    def test_records_expire(self) -> None:
        """Completed and unknown ones, to every transition; the key is new afterwards."""
        with self.open_store() as store:
            done, dark = self.claim(keep=self.lease), self.claim(keep=self.lease)
            fences = [begun(store.begin(claim)).fence for claim in (done, dark)]
            store.complete(done, StoredAnswer(200))
            store.abandon(dark, "unknown")
            later = self.claim(keep=LONG)
            begun(store.begin(later))
            store.complete(later, StoredAnswer(200))
            need(LONG / 2 < looked(store, later).expires_in <= LONG, "it says when")
            self.pass_time(self.lease * 1.5)
            for claim, fence in zip((done, dark), fences, strict=True):
                need(store.look(claim.record) is None, "an expired record is not seen")
                need(not store.release(claim.record, running=True), "nor released")
                need(claim.record not in every(store), "nor listed")
                again = begun(store.begin(self.again(claim)))
                need(not again.unknown and again.fence > fence, f"{again!r} follows fence {fence}")

    def test_an_expired_attempt_cannot_complete(self) -> None:
        """What is gone is gone, purged or not."""
        with self.open_store() as store:
            claim = self.claim(lease=self.lease, keep=self.lease)
            begun(store.begin(claim))
            self.pass_time(self.lease * 3)
            need(not store.complete(claim, StoredAnswer(200)), "its record has expired")
            need(not store.renew(claim), "and is not renewed")

    def test_a_caller_has_so_many_records_and_no_more(self) -> None:
        """Others are not concerned; a repeat is answered also then; an end makes room."""
        with self.open_store() as store:
            mine, other = (caller_key(self.new(who)) for who in ("me", "somebody"))
            claims = [self.claim(caller=mine, most=3) for _ in range(3)]
            for claim in claims:
                begun(store.begin(claim))
            full = store.begin(self.claim(caller=mine, most=3))
            need(isinstance(full, Full), f"{full!r}")
            need(isinstance(full, Full) and full.retry_after > 0, f"{full!r}")
            need(
                isinstance(store.begin(self.again(claims[0], caller=mine, most=3)), Found), "a repeat is told"
            )
            begun(store.begin(self.claim(caller=other, most=3)))
            store.abandon(claims[0], "forget")
            begun(store.begin(self.claim(caller=mine, most=3)))
            need(isinstance(store.begin(self.claim(caller=mine, most=3)), Full), "it is full again")
            store.abandon(claims[1], "unknown")
            begun(store.begin(self.again(claims[1], caller=mine, most=3, take_unknown=True)))

    def test_expired_records_do_not_count(self) -> None:
        """The bound is on live ones."""
        with self.open_store() as store:
            mine = caller_key(self.new("me"))
            claims = [self.claim(caller=mine, most=2, keep=self.lease) for _ in range(2)]
            for claim in claims:
                begun(store.begin(claim))
                store.complete(claim, StoredAnswer(200))
            self.pass_time(self.lease * 1.5)
            for _ in range(2):
                begun(store.begin(self.claim(caller=mine, most=2)))

    def test_releasing_by_hand(self) -> None:
        """Not what is at work, unless it is meant; its attempt cannot complete then."""
        with self.open_store() as store:
            claim = self.claim()
            begun(store.begin(claim))
            need(not store.release(claim.record), "it is at work")
            need(store.release(claim.record, running=True), "it is meant")
            need(not store.release(claim.record, running=True), "there is none any more")
            need(not store.complete(claim, StoredAnswer(200)), "its attempt has lost it")
            lapsed, _ = self.lapsed(store)
            need(store.release(lapsed.record), "a lapsed one is not at work")

    def test_listing(self) -> None:
        """By key, in pages, by the state as it reads, without answers."""
        with self.open_store() as store:
            running, done, dark = (self.claim() for _ in range(3))
            for claim in (running, done, dark):
                begun(store.begin(claim))
            store.complete(done, StoredAnswer(200, (), b"secret"))
            store.abandon(dark, "unknown")
            lapsed, _ = self.lapsed(store)
            states = {
                running.record: State.RUNNING,
                done.record: State.COMPLETED,
                dark.record: State.UNKNOWN,
                lapsed.record: State.UNKNOWN,
            }
            seen = every(store)
            need(list(seen) == sorted(seen), "they come by their keys")
            for key, state in states.items():
                need(seen[key].state is state, f"{seen[key]!r}")
                need(seen[key].answer is None, "answers are not listed")
                for wanted in State:
                    need((key in every(store, state=wanted)) is (wanted is state), f"{key} is not {wanted}")

    def test_purging(self) -> None:
        """Expired ones only, so many at a time, and how many it were."""
        with self.open_store() as store:
            store.purge()
            alive = self.claim()
            begun(store.begin(alive))
            for _ in range(5):
                claim = self.claim(keep=self.lease)
                begun(store.begin(claim))
                store.complete(claim, StoredAnswer(200))
            self.pass_time(self.lease * 1.5)
            first = store.purge(limit=3)
            need(first == 3, f"{first} of 5 were removed, 3 were wanted")
            need(store.purge(limit=3) == 2, "the rest")
            need(store.purge() == 0, "none is left")
            need(looked(store, alive).state is State.RUNNING, "the others are left alone")

    def test_creating_twice_and_at_one_time(self) -> None:
        """By as many processes as start at one time."""
        with self.open_store() as store:
            claim = self.claim()
            begun(store.begin(claim))
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda _: store.create(timeout=30), range(8)))
            store.ping()
            need(looked(store, claim).state is State.RUNNING, "nothing is lost by it")

    def test_a_closed_store_says_so(self) -> None:
        """By the one error that shells know."""
        with self.open_store() as store:
            store.close()
            try:
                store.begin(self.claim(), timeout=1)
            except StoreUnavailable:
                return
            raise AssertionError("a closed store must raise StoreUnavailable")
