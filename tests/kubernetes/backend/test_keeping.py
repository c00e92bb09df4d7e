"""How long pods that ended are kept, and what of them outlasts them, by a clock that is moved."""

from __future__ import annotations

from dataclasses import replace

from gpuplane.backends.interface import AttemptPlan, Stream
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import DeploymentType, JobSpec, ResourceRequest
from gpuplane.kube.kinds import JOB, POD
from tests.contract.builders import a_plan
from tests.contract.factories import until_over
from tests.contract.kubernetes import KubernetesFactory, MovedClock
from tests.waiting import wait_until_async

SMALL = ResourceRequest(cpu_milli=100, memory_mib=64, ephemeral_mib=64)
HOUR_MS = 3_600_000


def a_failure(factory: KubernetesFactory, **labels: str) -> AttemptPlan:
    """Return the plan of a job that says why and fails."""
    plan = a_plan(node_name=factory.node_name, resources=SMALL, log=["last words"], exit_code=3)
    spec = JobSpec("j", plan.job_type, DeploymentType.DOCKER, labels=labels)
    return replace(plan, spec=spec)


async def count_left(backend: KubernetesBackend, plan: AttemptPlan) -> int:
    """Return how many Jobs and pods of an attempt there are."""
    labels = {names.ATTEMPT_ID: str(plan.ref.attempt_id)}
    found = [await backend.client.list(kind, labels=labels) for kind in (JOB, POD)]
    return sum(map(len, found))


async def test_pods_that_failed_go_after_a_day_with_debug_after_a_week_and_their_output_stays(
    factory: KubernetesFactory,
) -> None:
    clock = MovedClock()
    factory.clock = clock
    backend = await factory.open()
    plain, debug = a_failure(factory), a_failure(factory, debug="true")
    for plan in (plain, debug):
        await backend.ensure_workload(plan, {})
    for plan in (plain, debug):
        [over] = await until_over(factory, backend, plan.ref)
        assert (over.reason, over.exit_code) == (Word.NON_ZERO_EXIT, 3)

    clock.ahead_ms = 25 * HOUR_MS

    async def plain_is_gone() -> bool:
        return await count_left(backend, plain) == 0

    await wait_until_async(plain_is_gone, "the failed job went after a day")
    assert await count_left(backend, debug) == 2

    clock.ahead_ms = 8 * 24 * HOUR_MS

    async def debug_is_gone() -> bool:
        return await count_left(backend, debug) == 0

    await wait_until_async(debug_is_gone, "the one to be looked at went after a week")
    for plan in (plain, debug):
        kept = await backend.read_logs(plan.ref, 0, Stream.STDOUT, 0, 100)
        assert kept.data == b"last words\n"
        [told] = await until_over(factory, backend, plan.ref)
        assert told.exit_code == 3
