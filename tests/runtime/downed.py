"""A dependency whose circuit is open, on a clock of its own."""

from __future__ import annotations

from typing import Any

from resilient_mw.calls.call import Call
from resilient_mw.calls.config import BreakerPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Failure, Head, Phase, Start
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.testing import ManualClock

OPEN_FOR = 5.0
TRIALS = 2
BREAKER = BreakerPolicy(window=4, minimum_calls=4, open_for=OPEN_FOR, open_jitter=0.0, trials=TRIALS)


class Downed:
    """A dependency of a name, with its owner and its clock. Alive as long as this is."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.clock = ManualClock()
        self.dependency = Dependency(
            name, f"http://{name}/*", **{"breaker": BREAKER, "retry": None, **fields}
        )
        self.owner = DependencyOwner(self.dependency, self.clock)
        self.dependency.owner.append(self.owner)

    def open(self) -> None:
        """Let it fail until its circuit opens."""
        while self.owner.snapshot().breaker != "open":
            self.attempt(failed=True)

    def attempt(self, *, failed: bool, took: float = 0.0) -> None:
        """Make one call."""
        call = self.begin()
        self.clock.advance(took)
        self.tell(call, failed=failed)

    def begin(self) -> Call:
        """Start a call that is let through."""
        call = Call(self.owner.state, "POST")
        assert isinstance(self.owner.begin(call)[-1], Start)
        return call

    def tell(self, call: Call, *, failed: bool) -> None:
        """End a call."""
        self.owner.tell(call, call.attempts, Failure(Phase.HEAD) if failed else Head(200))
        self.owner.end(call, None)
