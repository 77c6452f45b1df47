"""Memory and memory pressure from made-up files of both versions of cgroups, and from those of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilient_mw.runtime.pressure import MemoryPressure

MIB = 2**20
UNLIMITED_V1 = "9223372036854771712"
STALLED = (
    "some avg10={} avg60=0.87 avg300=0.21 total=58761459\nfull avg10=99.00 avg60=0.50 avg300=0.10 total=1\n"
)
V2_MOUNT = (
    "30 23 0:26 {} /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
)
V1_MOUNTS = (
    "32 31 0:29 {0} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {0} /sys/fs/cgroup/memory rw,relatime shared:10 - cgroup cgroup rw,memory\n"
)
V1_CGROUP = "5:cpu,cpuacct:/elsewhere\n4:memory:{}\n1:name=systemd:/init.scope\n"
HYBRID_MOUNT = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
ROOT_MOUNT = "23 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"


def _write(root: Path, files: dict[str, str | int]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n" if isinstance(content, int) else content, encoding="utf-8")


def _v2(root: Path, files: dict[str, str | int], *, cgroup: str = "/", shown: str = "/") -> MemoryPressure:
    """A machine with version 2; `files` are named from the mount point."""
    _write(
        root,
        {"proc/self/mountinfo": ROOT_MOUNT + V2_MOUNT.format(shown), "proc/self/cgroup": f"0::{cgroup}\n"},
    )
    _write(root, {f"sys/fs/cgroup/{name}": content for name, content in files.items()})
    return MemoryPressure(root)


def _v1(root: Path, files: dict[str, str | int], *, cgroup: str = "/", shown: str = "/") -> MemoryPressure:
    _write(
        root,
        {
            "proc/self/mountinfo": ROOT_MOUNT + V1_MOUNTS.format(shown),
            "proc/self/cgroup": V1_CGROUP.format(cgroup),
        },
    )
    _write(root, {f"sys/fs/cgroup/memory/{name}": content for name, content in files.items()})
    return MemoryPressure(root)


# -- memory, version 2


def test_v2_memory_is_the_share_of_the_limit(tmp_path: Path) -> None:
    machine = _v2(tmp_path, {"memory.max": 400 * MIB, "memory.current": 100 * MIB})
    assert machine.memory() == 0.25


def test_v2_file_cache_that_nobody_touches_is_not_in_use(tmp_path: Path) -> None:
    stat = f"anon {50 * MIB}\nfile {60 * MIB}\nactive_file {10 * MIB}\ninactive_file {50 * MIB}\n"
    files: dict[str, str | int] = {"memory.max": 400 * MIB, "memory.current": 150 * MIB, "memory.stat": stat}
    assert _v2(tmp_path, files).memory() == 0.25


def test_v2_more_cache_than_memory_is_nothing_in_use(tmp_path: Path) -> None:
    """The two files are not read at one instant."""
    files: dict[str, str | int] = {
        "memory.max": 100,
        "memory.current": 50,
        "memory.stat": "inactive_file 60\n",
    }
    assert _v2(tmp_path, files).memory() == 0.0


def test_v2_max_is_no_limit(tmp_path: Path) -> None:
    assert _v2(tmp_path, {"memory.max": "max\n", "memory.current": 100 * MIB}).memory() is None


def test_v2_the_instant_the_kernel_begins_to_slow_us_down_is_a_limit_too(tmp_path: Path) -> None:
    files: dict[str, str | int] = {"memory.max": "max\n", "memory.high": 200, "memory.current": 100}
    assert _v2(tmp_path, files).memory() == 0.5
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("160\n", encoding="utf-8")
    assert MemoryPressure(tmp_path).memory() == 0.625


def test_v2_a_tighter_limit_above_ours_counts(tmp_path: Path) -> None:
    files: dict[str, str | int] = {
        "pod/app/memory.max": 1000, "pod/app/memory.current": 100,
        "pod/memory.max": 500, "pod/memory.current": 450,
        "other/memory.max": 100, "other/memory.current": 99,
    }  # fmt: skip
    assert _v2(tmp_path, files, cgroup="/pod/app").memory() == 0.9


def test_v2_a_limit_above_counts_where_ours_has_none(tmp_path: Path) -> None:
    files: dict[str, str | int] = {
        "pod/app/memory.max": "max\n", "pod/app/memory.current": 100,
        "pod/memory.max": 500, "pod/memory.current": 250,
    }  # fmt: skip
    assert _v2(tmp_path, files, cgroup="/pod/app").memory() == 0.5


def test_a_process_that_is_moved_is_found_again(tmp_path: Path) -> None:
    files: dict[str, str | int] = {
        "a/memory.max": 100, "a/memory.current": 10, "b/memory.max": 100, "b/memory.current": 70,
    }  # fmt: skip
    machine = _v2(tmp_path, files, cgroup="/a")
    assert machine.memory() == 0.1
    _write(tmp_path, {"proc/self/cgroup": "0::/b\n"})
    assert machine.memory() == 0.7


# -- memory, version 1


def test_v1_memory_is_the_share_of_the_limit_without_idle_cache(tmp_path: Path) -> None:
    stat = f"inactive_file 1\ntotal_inactive_file {50 * MIB}\n"
    files: dict[str, str | int] = {
        "memory.limit_in_bytes": 400 * MIB, "memory.usage_in_bytes": 150 * MIB, "memory.stat": stat,
    }  # fmt: skip
    assert _v1(tmp_path, files).memory() == 0.25


def test_v1_the_largest_number_is_no_limit(tmp_path: Path) -> None:
    files: dict[str, str | int] = {"memory.limit_in_bytes": UNLIMITED_V1, "memory.usage_in_bytes": 150 * MIB}
    assert _v1(tmp_path, files).memory() is None


def test_v1_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    files: dict[str, str | int] = {
        "pod/app/memory.limit_in_bytes": UNLIMITED_V1, "pod/app/memory.usage_in_bytes": 80,
        "pod/memory.limit_in_bytes": 100, "pod/memory.usage_in_bytes": 80,
        "memory.limit_in_bytes": UNLIMITED_V1, "memory.usage_in_bytes": 10**9,
    }  # fmt: skip
    assert _v1(tmp_path, files, cgroup="/pod/app").memory() == 0.8


def test_v1_a_container_sees_its_own_cgroup_at_the_mount_point(tmp_path: Path) -> None:
    """Without a namespace of its own it reads the name that the host knows."""
    files: dict[str, str | int] = {"memory.limit_in_bytes": 100, "memory.usage_in_bytes": 40}
    assert _v1(tmp_path, files, cgroup="/docker/c0ffee", shown="/docker/c0ffee").memory() == 0.4


def test_a_cgroup_below_the_shown_one_is_found(tmp_path: Path) -> None:
    files: dict[str, str | int] = {"app/memory.limit_in_bytes": 100, "app/memory.usage_in_bytes": 40}
    assert _v1(tmp_path, files, cgroup="/docker/c0ffee/app", shown="/docker/c0ffee").memory() == 0.4


@pytest.mark.parametrize(
    ("cgroup", "shown"), [("/../other", "/"), ("/docker/other", "/docker/c0ffee"), ("/dockerx", "/docker")]
)
def test_a_cgroup_that_cannot_be_seen_is_taken_for_the_shown_one(
    tmp_path: Path, cgroup: str, shown: str
) -> None:
    files: dict[str, str | int] = {
        "memory.max": 100, "memory.current": 40, "../other/memory.max": 100, "../other/memory.current": 90,
    }  # fmt: skip
    assert _v2(tmp_path, files, cgroup=cgroup, shown=shown).memory() == 0.4


def test_where_both_versions_are_mounted_the_one_with_the_controller_tells(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "proc/self/mountinfo": HYBRID_MOUNT + V1_MOUNTS.format("/"),
            "proc/self/cgroup": "4:memory:/app\n0::/unit\n",
            "sys/fs/cgroup/memory/app/memory.limit_in_bytes": 100,
            "sys/fs/cgroup/memory/app/memory.usage_in_bytes": 30,
            "sys/fs/cgroup/unified/unit/memory.pressure": STALLED.format("7.00"),
        },
    )
    machine = MemoryPressure(tmp_path)
    assert machine.memory() == 0.3
    assert machine.pressure() == pytest.approx(0.07)


# -- pressure


def test_the_pressure_of_our_cgroup_goes_before_that_of_the_machine(tmp_path: Path) -> None:
    _write(tmp_path, {"proc/pressure/memory": STALLED.format("60.00")})
    files: dict[str, str | int] = {
        "app/memory.pressure": STALLED.format("1.53"),
        "memory.pressure": STALLED.format("50"),
    }
    assert _v2(tmp_path, files, cgroup="/app").pressure() == pytest.approx(0.0153)


def test_no_pressure_in_our_cgroup_is_no_pressure(tmp_path: Path) -> None:
    _write(tmp_path, {"proc/pressure/memory": STALLED.format("60.00")})
    assert _v2(tmp_path, {"memory.pressure": STALLED.format("0.00")}).pressure() == 0.0


def test_without_a_file_of_our_own_the_machine_tells(tmp_path: Path) -> None:
    _write(tmp_path, {"proc/pressure/memory": STALLED.format("12.50")})
    assert _v2(tmp_path, {}).pressure() == 0.125
    assert _v1(tmp_path, {}).pressure() == 0.125


# -- what is not there, and what makes no sense


def test_a_system_without_any_of_it_tells_nothing(tmp_path: Path) -> None:
    machine = MemoryPressure(tmp_path / "missing")
    assert (machine.memory(), machine.pressure()) == (None, None)


GARBAGE = [
    "",
    "\n",
    "garbage",
    "-5\n",
    "1.5\n",
    "0\n",
    "١٢\n",
    "1 2\n",
    "\x00",
    "9" * 400,
    "nan\n",
    "\ufffd\n",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_a_limit_that_makes_no_sense_is_none(tmp_path: Path, garbage: str) -> None:
    assert _v2(tmp_path, {"memory.max": garbage, "memory.current": 5}).memory() is None


@pytest.mark.parametrize("garbage", [each for each in GARBAGE if each != "0\n"], ids=repr)
def test_a_usage_that_makes_no_sense_tells_nothing(tmp_path: Path, garbage: str) -> None:
    assert _v2(tmp_path, {"memory.max": 100, "memory.current": garbage}).memory() is None


@pytest.mark.parametrize(
    "garbage", [*GARBAGE, "inactive_file\n", "inactive_file x\n", "inactive_file -9\n"], ids=repr
)
def test_a_stat_that_makes_no_sense_counts_no_cache(tmp_path: Path, garbage: str) -> None:
    files: dict[str, str | int] = {"memory.max": 100, "memory.current": 50, "memory.stat": garbage}
    assert _v2(tmp_path, files).memory() == 0.5


@pytest.mark.parametrize(
    "garbage",
    [*GARBAGE, "full avg10=5.00\n", "some\n", "some avg10=\n", "some avg60=5.00 avg10=5\n",
     "some avg10=nan avg60=0\n", "some avg10=inf\n", "some avg10=-1.00\n", "some avg10=100.01\n", "some avg10=x\n"],
    ids=repr,
)  # fmt: skip
def test_pressure_that_makes_no_sense_tells_nothing(tmp_path: Path, garbage: str) -> None:
    assert _v2(tmp_path, {"memory.pressure": garbage}).pressure() is None


@pytest.mark.parametrize(
    "garbage",
    [*GARBAGE, "1 2 3 4\n", "1 2 3 / /a - cgroup2\n", " - \n", "1 2 3 / /\x00 - cgroup2 x rw\n"],
    ids=repr,
)
def test_mounts_that_make_no_sense_are_none(tmp_path: Path, garbage: str) -> None:
    _write(tmp_path, {"proc/self/mountinfo": garbage, "proc/self/cgroup": "0::/\n"})
    machine = MemoryPressure(tmp_path)
    assert (machine.memory(), machine.pressure()) == (None, None)


@pytest.mark.parametrize("garbage", [*GARBAGE, "0:\n", "0::\n", "::::\n", "7:memory:/app\n"], ids=repr)
def test_a_cgroup_that_makes_no_sense_is_taken_for_the_shown_one(tmp_path: Path, garbage: str) -> None:
    machine = _v2(tmp_path, {"memory.max": 100, "memory.current": 40})
    _write(tmp_path, {"proc/self/cgroup": garbage})
    assert machine.memory() == 0.4


def test_bytes_that_are_no_text_tell_nothing(tmp_path: Path) -> None:
    machine = _v2(tmp_path, {"memory.current": 40})
    for name in ("memory.max", "memory.pressure"):
        (tmp_path / "sys/fs/cgroup" / name).write_bytes(b"\xff\xfe\x80 \xc3")
    assert (machine.memory(), machine.pressure()) == (None, None)


def test_a_folder_in_the_place_of_a_file_tells_nothing(tmp_path: Path) -> None:
    machine = _v2(tmp_path, {"memory.max/x": 1, "memory.pressure/x": 1, "memory.current": 40})
    assert (machine.memory(), machine.pressure()) == (None, None)


def test_a_file_that_cannot_be_opened_tells_nothing(tmp_path: Path) -> None:
    machine = _v2(tmp_path, {"memory.current": 40})
    for name in ("memory.max", "memory.pressure"):
        (tmp_path / "sys/fs/cgroup" / name).symlink_to(name)  # to itself
    assert (machine.memory(), machine.pressure()) == (None, None)


def test_this_machine_tells_something_sensible_or_nothing() -> None:
    machine = MemoryPressure()
    for reading in (machine.memory(), machine.pressure()):
        assert reading is None or 0 <= reading <= 1.5
