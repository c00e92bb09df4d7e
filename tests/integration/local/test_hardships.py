"""A disk that refuses, a start that hangs, GPUs that belong to another home."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from gpuplane.backends.interface import BackendError, Phase, ReplicaPlan
from gpuplane.backends.local.backend import LocalBackend
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.core.ids import GpuId, ReplicaId
from gpuplane.core.reasons import Word
from gpuplane.kit.clock import SystemClock
from gpuplane.kit.ids import new_id
from gpuplane.nvml.devices import NvmlSession
from tests.contract.builders import a_plan
from tests.integration.local.conftest import Machine, until_dead
from tests.unit.nvml.fake import FakeGpu, FakeNvml
from tests.waiting import wait_until_async


async def test_the_end_of_a_job_waits_for_a_disk_that_takes_it(local: Machine) -> None:
    plan = await local.start("echo up; while [ ! -e ../go ]; do sleep 0.01; done; exit 3")
    await local.until_printed(plan.ref, "up")
    folder = local.folder(plan.ref).path
    state = local.state(plan.ref)
    away = folder.with_name("away")
    folder.rename(away)  # from here on no record can be written
    (away / "0" / "go").touch()
    await until_dead(state["replicas"][0]["pid"])
    away.rename(folder)
    replica = await local.end_of(plan.ref)
    assert (replica.phase, replica.exit_code, replica.reason) == (
        Phase.EXITED,
        3,
        Word.NON_ZERO_EXIT,
    )


async def test_a_home_that_cannot_be_written_is_a_backend_error(local: Machine) -> None:
    attempts = local.backend.root / "attempts"
    attempts.rmdir()
    attempts.write_text("a file in its place")
    plan = a_plan()
    with pytest.raises(BackendError, match="refuses"):
        await local.backend.ensure_workload(plan, {})
    with pytest.raises(BackendError, match="refuses"):
        await local.backend.evict(plan.ref, 0.0, Word.CANCELLED)
    attempts.unlink()
    await local.backend.ensure_workload(plan, {})
    assert (await local.end_of(plan.ref)).reason == Word.COMPLETED


async def test_a_start_that_hangs_can_be_evicted(local: Machine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "archive.tar")  # to open it waits for ever
    plan = replace(a_plan(), workspace_archive=str(tmp_path / "archive.tar"))
    await local.backend.ensure_workload(plan, {})
    await wait_until_async(lambda: bool(local.state(plan.ref)), "the first record is written")
    assert (await local.seen(plan.ref)).phase is Phase.STARTING
    await local.backend.evict(plan.ref, 0.0, Word.CANCELLED)
    replica = await local.end_of(plan.ref)
    assert (replica.phase, replica.reason) == (Phase.EXITED, Word.CANCELLED)
    assert replica.started_at is None


async def test_a_start_that_hangs_ends_with_its_time(local: Machine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "archive.tar")
    plan = replace(
        a_plan(max_duration_s=1, grace_s=0), workspace_archive=str(tmp_path / "archive.tar")
    )
    await local.backend.ensure_workload(plan, {})
    assert (await local.end_of(plan.ref)).reason == Word.TIMED_OUT


async def test_a_supervisor_that_does_not_react_is_killed_by_a_later_eviction(
    local: Machine,
) -> None:
    local.factory.settings = replace(local.factory.settings, stuck_s=0.05)
    await local.reopen()
    plan = await local.start("echo up; sleep 600")
    await local.running(plan.ref)
    state = local.state(plan.ref)
    os.kill(state["supervisor_pid"], signal.SIGSTOP)
    await local.backend.evict(plan.ref, 0.0, Word.CANCELLED)
    assert (await local.seen(plan.ref)).phase is Phase.RUNNING

    async def ended_by_asking_again() -> bool:
        await local.backend.evict(plan.ref, 0.0, Word.CANCELLED)
        return (await local.seen(plan.ref)).phase is Phase.LOST

    await wait_until_async(ended_by_asking_again, "the attempt is over")
    await until_dead(state["replicas"][0]["pid"], state["supervisor_pid"])


async def test_a_supervisor_that_cannot_start_is_a_backend_error(
    local: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    plan = a_plan()
    with pytest.raises(BackendError, match="no supervisor can be started"):
        await local.backend.ensure_workload(plan, {})
    assert [r for r in (await local.backend.observe()).replicas if r.ref == plan.ref] == []


async def test_the_gpus_of_a_running_job_stay_with_its_home(tmp_path: Path) -> None:
    nvml = FakeNvml(FakeGpu("GPU-1"))
    settings = LocalSettings(node_name="machine", lock_folder=tmp_path / "locks", cgroup_base="")

    def a_home(name: str) -> LocalBackend:
        return LocalBackend(tmp_path / name, SystemClock(), settings, NvmlSession(lambda: nvml))

    first = a_home("one")
    plan = a_plan(command=("/bin/sh", "-c", "ls /proc/self/fd; exec sleep 600"))
    gpu = ReplicaPlan(ReplicaId(new_id()), 0, "machine", (GpuId("GPU-1"),))
    plan = replace(plan, replicas=(gpu,))
    await first.ensure_workload(plan, {})
    async for chunk in first.follow_logs(plan.ref, [0], 0, 0):
        assert chunk.data.split() == [b"0", b"1", b"2", b"3"]  # the lock is not the job's
        break
    first.close()  # the control plane is gone, its job runs on

    second = a_home("two")
    [withheld] = (await second.observe()).nodes[0].gpus
    assert not withheld.healthy
    assert str(tmp_path / "one") in withheld.message
    notes = (await second.probe()).notes
    assert any("withheld" in note and str(tmp_path / "one") in note for note in notes)
    with pytest.raises(BackendError, match="withheld"):
        await second.ensure_workload(replace(plan, ref=a_plan().ref), {})

    again = a_home("one")
    assert (await again.observe()).nodes[0].gpus[0].healthy
    await again.evict(plan.ref, 0.0, Word.CANCELLED)
    await wait_until_async(lambda: _is_over(again), "the job is over")
    again.close()

    async def granted() -> bool:
        return (await second.observe()).nodes[0].gpus[0].healthy

    await wait_until_async(granted, "the second home gets the GPUs")
    second.close()


async def _is_over(backend: LocalBackend) -> bool:
    return all(r.phase is Phase.EXITED for r in (await backend.observe()).replicas)


async def test_a_home_with_a_very_long_path_works(tmp_path: Path) -> None:
    home = tmp_path / ("h" * 100) / ("i" * 100)
    backend = LocalBackend(
        home, SystemClock(), LocalSettings(lock_folder=tmp_path / "locks", cgroup_base="")
    )
    plan = a_plan(command=("/bin/sh", "-c", "echo up; exec sleep 600"))
    await backend.ensure_workload(plan, {})
    async with asyncio.timeout(20):
        async for chunk in backend.follow_logs(plan.ref, [0], 0, 0):
            assert chunk.data == b"up\n"
            break
    result = await backend.exec(plan.ref, 0, ["echo", "beside"], b"", 20)
    assert result.stdout == b"beside\n"
    await backend.evict(plan.ref, 0.0, Word.CANCELLED)
    await wait_until_async(lambda: _is_over(backend), "it is over")
    backend.close()
