"""One run: payments through two servers, while clients leave, servers are killed and the store is stopped and started."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.clients import Client, Payment, Tally, told_of
from tests.torture.ledger import Entry, Ledger, SQLiteLedger
from tests.torture.places import Place
from tests.torture.services import Service
from tests.torture.transactions import TRANSACTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is made of.

    Attributes:
        form: `ask`, `refuse`, `sqlalchemy` or `psycopg`: see `tests.torture.app`.
        payments: how many.
        kill_every: payments after which a server is killed.
        stops: how often the store is stopped.
        away: seconds for which it stays away.
        lease: seconds after which a killed attempt counts as dead.
        clients: who make payments at one time.
        seed: of all that happens by chance; what the machine makes of it differs.
        within: seconds that all may take.
    """

    form: str
    payments: int = 10_000
    kill_every: int = 300
    stops: int = 8
    away: float = 1.0
    lease: float = 2.0
    clients: int = 32
    seed: int = 1
    within: float = 900.0


@dataclass(slots=True)
class Result:
    """What came of it."""

    plan: Plan
    store: str
    tally: Tally
    kills: int = 0
    stops: int = 0
    runs: int = 0
    cancelled: int = 0
    settled: int = 0
    doubles: int = 0
    losts: int = 0
    undecided: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def violations(self) -> int:
        """How often a promise was broken."""
        return self.doubles + self.losts + len(self.wrong)


Show = Callable[[Result, int], None]


class Run:
    """One run.

    Args:
        place: the store, started.
        ledger: where the payments are, empty.
        plan: of the run.
        folder: for logs.
        show: called now and then, with the result as it is by then and how many payments are through.
    """

    def __init__(self, place: Place, ledger: Ledger, plan: Plan, folder: Path, show: Show) -> None:
        self._place = place
        self._ledger = ledger
        self._plan = plan
        self._show = show
        self._events = folder / "events"
        self._events.touch()
        environment = {
            "TORTURE_FORM": plan.form,
            "TORTURE_STORE": f"{place.name} {place.where}",
            "TORTURE_LEDGER": str(folder / "ledger.sqlite"),
            "TORTURE_EVENTS": str(self._events),
            "TORTURE_LEASE": str(plan.lease),
        }
        self._services = [Service(folder, environment) for _ in range(2)]
        self._result = Result(plan, place.name, Tally())
        self._dice = random.Random(plan.seed)
        self._payments = [Payment(number, self._dice.randrange(1, 10_000)) for number in range(plan.payments)]

    async def run(self) -> Result:
        """Do it. The servers have ended afterwards, whatever happens."""
        plan, begun = self._plan, time.monotonic()
        try:
            for service in self._services:
                service.start()
            for service in self._services:
                await service.serves()
            trouble = [
                asyncio.create_task(each) for each in (self._kill(), self._interrupt(), self._progress())
            ]
            clients = asyncio.create_task(self._pay())
            try:
                # What makes trouble ends last; if it fails before, the run has failed.
                done, _ = await asyncio.wait(
                    (clients, *trouble), timeout=plan.within, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    self._result.wrong.append(f"the payments were not through in {plan.within:g} s")
                for task in done:
                    task.result()
            finally:
                for task in (clients, *trouble):
                    task.cancel()
                await asyncio.gather(clients, *trouble, return_exceptions=True)
        finally:
            for service in self._services:
                service.kill()
        self._result.seconds = time.monotonic() - begun
        self._judge(self._ledger.entries())
        return self._result

    async def _pay(self) -> None:
        plan, ports = self._plan, [service.port for service in self._services]
        payments: Iterator[Payment] = iter(self._payments)
        async with asyncio.TaskGroup() as group:
            for number in range(plan.clients):
                client = Client(
                    ports,
                    self._result.tally,
                    random.Random(plan.seed * 1000 + number),
                    settles=plan.form != "refuse",
                    patience=plan.lease * 2,
                )
                group.create_task(client.work(payments))

    async def _kill(self) -> None:
        """Kill one server after the other, each after so many payments."""
        for number in itertools.count(1):
            await self._through(number * self._plan.kill_every)
            service = self._services[number % 2]
            # In the middle of its work, and not only at the end of a payment.
            await asyncio.sleep(self._dice.random() * 0.02)
            service.kill()
            self._result.kills += 1
            service.start()
            await service.serves()

    async def _interrupt(self) -> None:
        """Stop the store and start it, spread over the run."""
        plan = self._plan
        for number in range(plan.stops):
            await self._through(int(plan.payments * (number + 0.5) / plan.stops))
            self._result.stops += 1
            interrupted = asyncio.create_task(asyncio.to_thread(self._place.interrupt, plan.away))
            try:
                await asyncio.shield(interrupted)
            except asyncio.CancelledError:
                await interrupted  # else it would be started after it was closed
                raise
        await asyncio.Event().wait()

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self._show(self._result, self._result.tally.through)

    async def _through(self, payments: int) -> None:
        while self._result.tally.through < payments:  # noqa: ASYNC110  clients must not wake anybody
            await asyncio.sleep(0.005)

    def _judge(self, entries: Iterable[Entry]) -> None:
        """Compare what clients were told with the ledger."""
        result = self._result
        result.wrong += result.tally.wrong
        letters = Counter(self._events.read_bytes())
        result.runs, result.cancelled = letters[ord("r")], letters[ord("c")]
        result.settled = letters[ord("d")] + letters[ord("u")]
        made: dict[str, list[Entry]] = {}
        for entry in entries:
            made.setdefault(entry.key, []).append(entry)
        for payment in self._payments:
            own = made.pop(payment.key, [])
            result.doubles += max(0, len(own) - 1)
            told = {told_of(answer) for answer in payment.answers}
            if not told:
                result.undecided += 1
            elif not own:
                result.losts += 1
            elif told - {(entry.id, entry.amount) for entry in own}:
                result.wrong.append(
                    f"payment {payment.number}: the clients were told {told}, the ledger has {own}"
                )
        if result.undecided and self._plan.form != "refuse":
            result.wrong.append(f"of {result.undecided} payments nobody was told anything")
        result.wrong += [f"nobody asked for the payment of key {key}" for key in made]


async def run(place: Place, plan: Plan, folder: Path, show: Show) -> Result:
    """Start what a run needs, run it, and end everything."""
    try:
        await asyncio.to_thread(place.start)
        elsewhere = SQLiteLedger(folder / "ledger.sqlite")
        ledger = place.ledger() if plan.form in TRANSACTIONS else elsewhere
        ledger.create()
        return await Run(place, ledger, plan, folder, show).run()
    finally:
        place.close()
