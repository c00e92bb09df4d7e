"""What real processes are measured to use of the GPUs that NVML tells of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuplane.backends.interface import Phase, ReplicaObservation, ReplicaPlan
from gpuplane.backends.local.backend import LocalBackend
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.core.ids import GpuId, ReplicaId
from gpuplane.core.reasons import Word
from gpuplane.kit.clock import SystemClock
from gpuplane.kit.ids import new_id
from gpuplane.nvml.devices import NvmlSession
from tests.contract.builders import a_plan
from tests.unit.nvml.fake import FakeGpu, FakeNvml
from tests.waiting import wait_until_async


async def test_the_use_of_whole_gpus_is_told_while_a_job_runs_and_with_its_end(
    tmp_path: Path,
) -> None:
    used = FakeGpu("GPU-1", used_mib=70_000, gpu_percent=75)
    nvml = FakeNvml(used, FakeGpu("GPU-2", used_mib=5, gpu_percent=1))
    settings = LocalSettings(node_name="machine", lock_folder=tmp_path / "locks", cgroup_base="")

    def a_home() -> LocalBackend:
        return LocalBackend(tmp_path / "home", SystemClock(), settings, NvmlSession(lambda: nvml))

    async def seen(backend: LocalBackend) -> ReplicaObservation:
        (replica,) = (await backend.observe_replicas_since("")).replicas
        return replica

    first = a_home()
    gpu = ReplicaPlan(ReplicaId(new_id()), 0, "machine", (GpuId("GPU-1"),))
    plan = replace(a_plan(command=("/bin/sh", "-c", "exec sleep 600")), replicas=(gpu,))
    await first.ensure_workload(plan, {})

    async def is_measured() -> bool:
        return (await seen(first)).gpu_utilization_permille is not None

    await wait_until_async(is_measured, "the job's GPU is measured")
    running = await seen(first)
    assert running.phase is Phase.RUNNING
    assert (running.gpu_memory_peak_mib, running.gpu_utilization_permille) == (70_000, 750)
    first.close()

    again = a_home()  # whose GPUs they are is in the attempt's folder

    async def is_measured_again() -> bool:
        return (await seen(again)).gpu_memory_peak_mib is not None

    await wait_until_async(is_measured_again, "the job is measured by the next control plane")
    await again.evict(plan.ref, 0.0, Word.CANCELLED)

    async def is_over() -> bool:
        return (await seen(again)).phase is Phase.EXITED

    await wait_until_async(is_over, "the job is over")
    assert (await seen(again)).gpu_memory_peak_mib == 70_000
    again.close()
