"""Memory use and memory pressure, as Linux tells them in files.

Everything is None where the system does not say it: another system, no limit, pressure information switched off, a
file that cannot be read or understood. Reading costs a few small files each time, so once a second is plenty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
UNLIMITED = 2**60
"""Bytes from which on a limit is none: version 1 writes the largest number of pages that it can count."""


@dataclass(frozen=True, slots=True)
class _Names:
    """What the files of one version of the memory controller are called."""

    limits: tuple[str, ...]
    usage: str
    cache: str


# From memory.high on the kernel slows a cgroup down, long before it kills at memory.max.
_VERSION_2 = _Names(("memory.max", "memory.high"), "memory.current", "inactive_file")
_VERSION_1 = _Names(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True, slots=True)
class _Mount:
    """Where a hierarchy of cgroups can be seen.

    Attributes:
        controller: `memory` for version 1; empty for version 2, as in `/proc/self/cgroup`.
        shown: the cgroup that stands at `point`.
        point: the folder.
    """

    controller: str
    shown: str
    point: Path


class MemoryPressure:
    """Reads the memory of the cgroup that this process is in.

    Args:
        root: where `/proc` and `/sys` are found. Mount points are looked up once, the cgroup at every reading: a
            service manager may move a process after it has started.
    """

    __slots__ = ("_memory", "_root", "_unified")

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        mounts = tuple(_mounts(root))
        self._unified = next((mount for mount in mounts if not mount.controller), None)
        # A controller belongs to one hierarchy at a time: where version 1 has it, version 2 has not.
        self._memory = next((mount for mount in mounts if mount.controller), self._unified)

    def memory(self) -> float | None:
        """Return memory in use / limit; None if there is no limit.

        In use is what cannot simply be dropped: without file cache that was not touched for long. A cgroup above ours
        may have the tighter limit, shared with others: the fullest one counts.
        """
        if self._memory is None:
            return None
        names = _VERSION_1 if self._memory.controller else _VERSION_2
        shares = [_share(folder, names) for folder in self._folders(self._memory)]
        return max((share for share in shares if share is not None), default=None)

    def pressure(self) -> float | None:
        """Return the share, 0 to 1, of the last 10 s in which at least one task stood still for want of memory.

        Of our cgroup, or else of the whole machine.
        """
        if self._unified is not None:
            ours = _stalled(_text(next(self._folders(self._unified)) / "memory.pressure"))
            if ours is not None:
                return ours
        return _stalled(_text(self._root / "proc/pressure/memory"))

    def _folders(self, mount: _Mount) -> Iterator[Path]:
        """Yield the folder of our cgroup and those above it, as far as they can be seen from here."""
        below = _below(_cgroup(self._root, mount.controller), mount.shown)
        for depth in range(len(below), -1, -1):
            yield mount.point.joinpath(*below[:depth])


def _mounts(root: Path) -> Iterator[_Mount]:
    """Yield the mounts of cgroups that matter; see proc_pid_mountinfo(5)."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(), tail.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        point = root / fields[4].lstrip("/")
        if kind[0] == "cgroup2":
            yield _Mount("", fields[3], point)
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield _Mount("memory", fields[3], point)


def _cgroup(root: Path, controller: str) -> str:
    """Return the cgroup of this process in one hierarchy; the topmost if it is not told."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, cgroup = rest.partition(":")
        if controller in controllers.split(","):
            return cgroup
    return "/"


def _below(cgroup: str, shown: str) -> tuple[str, ...]:
    """Return the path from the cgroup that a mount shows to ours; nothing if ours lies outside it."""
    ours, top = Path(cgroup), Path(shown)
    if ".." in ours.parts or not ours.is_relative_to(top):
        return ()
    return ours.relative_to(top).parts


def _share(folder: Path, names: _Names) -> float | None:
    limits = [_bytes(_text(folder / name)) for name in names.limits]
    limit = min((each for each in limits if each), default=UNLIMITED)
    if limit >= UNLIMITED:
        return None
    usage = _bytes(_text(folder / names.usage))
    if usage is None:
        return None
    return max(0, usage - _cache(_text(folder / "memory.stat"), names.cache)) / limit


def _cache(stat: str, name: str) -> int:
    for line in stat.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _bytes(value) or 0
    return 0


def _stalled(text: str) -> float | None:
    """Return the share in a line such as `some avg10=1.53 avg60=0.87 avg300=0.21 total=58761459`."""
    for line in text.splitlines():
        if line.startswith("some avg10="):
            try:
                percent = float(line.removeprefix("some avg10=").partition(" ")[0])
            except ValueError:
                return None
            return percent / 100 if 0 <= percent <= 100 else None
    return None


def _bytes(text: str) -> int | None:
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 30 else None


def _text(path: Path) -> str:
    """Return what a file says; nothing if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # ValueError: a path that no system can have
        return ""
