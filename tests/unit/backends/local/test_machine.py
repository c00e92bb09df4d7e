from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuplane.backends.local import machine
from gpuplane.backends.local.cgroups import CgroupSupport, describe, find_support
from gpuplane.backends.local.gpus import GpuView
from gpuplane.backends.local.promises import promise_notes
from gpuplane.backends.local.supervisor import cgroup


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of a machine with 16 GB, whose process lies in the cgroup /app/web."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("1:cpu:/x\n0::/app/web\n")
    return tmp_path / "proc"


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    (tmp_path / "cg" / "app" / "web").mkdir(parents=True)
    return tmp_path / "cg"


def test_without_limits_a_machine_is_what_is_built_in(proc: Path, cgroups: Path) -> None:
    assert machine.memory_mib(proc, cgroups) == 16_384
    assert machine.cpu_milli(proc, cgroups) == len(os.sched_getaffinity(0)) * 1000


def test_the_tightest_limit_above_this_process_counts(proc: Path, cgroups: Path) -> None:
    (cgroups / "app" / "memory.max").write_text("4294967296\n")
    (cgroups / "app" / "web" / "memory.max").write_text("max\n")
    (cgroups / "app" / "cpu.max").write_text("50000 100000\n")
    (cgroups / "app" / "web" / "cpu.max").write_text("max 100000\n")
    assert machine.memory_mib(proc, cgroups) == 4096
    assert machine.cpu_milli(proc, cgroups) == 500


def test_without_cgroup_v2_there_is_no_support(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("30 1 0:26 / /sys rw - sysfs sysfs rw\n")
    (tmp_path / "cgroup").write_text("1:cpu:/\n")
    found = find_support("x", tmp_path / "mountinfo", tmp_path / "cgroup")
    assert found == CgroupSupport()


def test_a_folder_where_no_process_may_enter_is_no_support(tmp_path: Path) -> None:
    base = tmp_path / "fs"
    base.mkdir()
    (tmp_path / "mountinfo").write_text(f"30 1 0:26 / {base} rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "cgroup").write_text("0::/\n")
    # A plain folder takes the write but is no cgroup; it offers no controller and no kill.
    found = find_support("x", tmp_path / "mountinfo", tmp_path / "cgroup")
    assert (found.has_cpu, found.has_memory) == (False, False)


def test_a_folder_chosen_by_a_setting_says_what_it_grants(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert describe(str(tmp_path)) == CgroupSupport(str(tmp_path), True, True)
    assert describe("") == CgroupSupport()
    assert describe(str(tmp_path / "missing")) == CgroupSupport()


def test_limits_are_written_in_the_units_of_the_kernel(tmp_path: Path) -> None:
    path = cgroup.make(str(tmp_path), "attempt/0", cpu_milli=2500, memory_mib=512)
    assert path == f"{tmp_path}/attempt/0"
    assert Path(path, "cpu.max").read_text() == "250000 100000"
    assert Path(path, "memory.max").read_text() == str(512 << 20)
    assert Path(path, "memory.oom.group").read_text() == "1"


def test_without_a_cgroup_limits_are_silently_left_out() -> None:
    assert cgroup.make(None, "attempt/0", 1000, 512) == ""
    assert cgroup.make("/proc/nowhere", "attempt/0", 1000, 512) == ""
    assert not cgroup.was_out_of_memory("")


def test_a_kill_for_want_of_memory_is_told_by_the_kernels_count(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 0\n")
    assert not cgroup.was_out_of_memory(str(tmp_path))
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert cgroup.was_out_of_memory(str(tmp_path))


@pytest.mark.parametrize(
    ("support", "sentence"),
    [
        (CgroupSupport("/x", True, True), "CPU and memory limits are enforced by cgroup v2."),
        (CgroupSupport("/x", False, True), "CPU limits are not enforced here"),
        (CgroupSupport("/x", True, False), "Memory limits are not enforced here"),
        (CgroupSupport(), "Only if both its supervisor and its guard are killed"),
        (CgroupSupport("/x"), "ends with it, by cgroup v2."),
    ],
)
def test_what_is_enforced_is_said_and_what_is_not_too(
    support: CgroupSupport, sentence: str
) -> None:
    notes = promise_notes(support, GpuView(), is_event_driven=True)
    assert any(sentence in note for note in notes)
    assert "without isolation" in notes[0]


def test_a_machine_without_inotify_says_so() -> None:
    notes = promise_notes(CgroupSupport(), GpuView(), is_event_driven=False)
    assert "inotify" in notes[-1]
