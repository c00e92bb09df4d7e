"""What a job reports in the moment of its end is not lost: by itself and when it is evicted."""

from __future__ import annotations

from gpuplane.backends.interface import Phase
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import ResourceRequest
from tests.contract.builders import a_plan
from tests.contract.factories import until_over, until_phase
from tests.contract.kubernetes import KubernetesFactory

SMALL = ResourceRequest(cpu_milli=100, memory_mib=64, ephemeral_mib=64)
REPORT = 'echo {ratio} >> "$GPUPLANE_PROGRESS"; echo {path} >> "$GPUPLANE_CHECKPOINTS"'


async def test_a_report_of_the_last_moment_is_told_with_the_end(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    script = REPORT.format(ratio="0.96", path="/c/5") + "; exit 3"
    plan = a_plan(
        node_name=factory.node_name, resources=SMALL, command=("/bin/sh", "-c", script)
    )  # fmt: skip
    await backend.ensure_workload(plan, {})
    [seen] = await until_over(factory, backend, plan.ref)
    assert (seen.reason, seen.exit_code) == (Word.NON_ZERO_EXIT, 3)
    assert (seen.progress_ratio, seen.checkpoint) == (0.96, "/c/5")


async def test_a_checkpoint_that_is_written_because_of_an_eviction_is_told(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    report = REPORT.format(ratio="0.5", path="/c/late")
    script = f"trap '{report}; exit 0' TERM; while :; do sleep 0.1; done"
    plan = a_plan(
        node_name=factory.node_name, resources=SMALL, command=("/bin/sh", "-c", script)
    )  # fmt: skip
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    await backend.evict(plan.ref, 20.0, Word.PREEMPTED)
    [seen] = await until_over(factory, backend, plan.ref)
    assert seen.reason == Word.PREEMPTED
    assert (seen.progress_ratio, seen.checkpoint) == (0.5, "/c/late")
