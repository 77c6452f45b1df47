"""The sum of worker threads: whether a server that has so many can hold what a policy admits and lets wait. Pure."""

from __future__ import annotations

from dataclasses import dataclass

ONE_THREAD = (
    "{source} gives this process one worker thread: requests come one after the other, so there is nothing to admit, to "
    "order or to refuse here, and health checks wait in front of it with everybody else. Deadlines, the time that a proxy "
    "measured (X-Request-Start) and the calls to dependencies are still guarded. For admission use a worker with threads, "
    "such as gunicorn's gthread with --threads {needed}"
)
TOO_FEW = (
    "{source} gives this process {threads} worker threads, but limit={limit}, queue={queue} and spare_threads={spare} need "
    "{needed}: requests wait in front of the threads, where nothing orders or refuses them, health checks among them. "
    "Start {needed} threads, or {instead}"
)
SHORTENED = (
    "queue={queue} is shortened to {room}: limit={limit} and spare_threads={spare} leave no more of the {threads} worker "
    "threads ({source})"
)


@dataclass(frozen=True, slots=True)
class ThreadSum:
    """Threads that there are, and threads that are needed: each request that runs or waits holds one.

    Attributes:
        threads: worker threads of the process.
        limit: slots of the policy.
        queue: the length of the wait queue that was asked for.
        spare: threads that are to be left for health checks and refusals.
    """

    threads: int
    limit: int
    queue: int
    spare: int

    @property
    def needed(self) -> int:
        """Threads with which nothing waits in front of them."""
        return self.limit + self.queue + self.spare

    @property
    def room(self) -> int:
        """The longest wait queue, of at most what was asked for, for which there are threads."""
        return max(0, min(self.queue, self.threads - self.limit - self.spare))

    def complaint(self, source: str, *, fitted: bool) -> str | None:
        """Return what is wrong and what to change; None: there are enough threads.

        Args:
            source: who says how many threads there are.
            fitted: whether the queue has been shortened to `room`.
        """
        if self.threads == 1:
            return self._say(ONE_THREAD, source)
        if self.threads >= self.limit + self.spare + (self.room if fitted else self.queue):
            return None
        if self.threads >= self.limit + self.spare:
            instead = f"set queue={self.room}, which fit_queue=True does by itself"
        elif self.threads > self.spare:
            instead = f"set limit={self.threads - self.spare} and queue=0"
        else:
            instead = "lower spare_threads, limit and queue"
        return self._say(TOO_FEW, source, instead=instead)

    def told(self, source: str) -> str:
        """Return what a queue that has been shortened says of itself."""
        return self._say(SHORTENED, source)

    def _say(self, text: str, source: str, instead: str = "") -> str:
        return text.format(
            source=source, threads=self.threads, limit=self.limit, queue=self.queue, spare=self.spare,
            needed=self.needed, room=self.room, instead=instead,
        )  # fmt: skip
