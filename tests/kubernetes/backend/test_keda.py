"""What scales a service is taken by KEDA's own definitions of its kinds, field by field."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpuplane.backends.interface import AttemptPlan, ScalerDecides
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.core.workloads import (
    DeploymentType,
    JobSpec,
    JobType,
    ReplicaRequest,
    ResourceRequest,
    ScaleTrigger,
)
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.errors import Invalid
from gpuplane.kube.kinds import DEPLOYMENT, HORIZONTAL_POD_AUTOSCALER, SCALED_OBJECT
from gpuplane.kube.tenancy import namespace_of
from rig.binaries import KEDA, Binaries, BinariesUnavailable, ensure_binaries
from rig.rigs import Rig, RigPlan, running_rig
from tests.contract.builders import a_plan
from tests.contract.kubernetes import KubernetesFactory
from tests.waiting import wait_until_async

ROOM = ResourceRequest(cpu_milli=100, memory_mib=64, ephemeral_mib=64)
CRON = ScaleTrigger(
    "cron",
    (
        ("desiredReplicas", "2"),
        ("end", "59 23 * * *"),
        ("start", "0 0 * * *"),
        ("timezone", "Etc/UTC"),
    ),
)


@pytest.fixture(scope="module")
def own(rig_binaries: Binaries) -> Iterator[Rig]:
    """A cluster that knows KEDA's kinds, with a node whose pods really run."""
    try:
        ensure_binaries(more=(KEDA,))
    except BinariesUnavailable as error:
        pytest.skip(str(error))
    plan = RigPlan(nodes=[], process_nodes=[("cpu", 1)], kueue=False, keda=True)
    with running_rig(plan) as rig:
        yield rig


@pytest_asyncio.fixture
async def backend(own: Rig, tmp_path: Path) -> AsyncIterator[KubernetesBackend]:
    """The opened backend; what a test leaves is deleted."""
    made = KubernetesFactory(tmp_path, read_kubeconfig(own.manager.kubeconfig.read_text()))
    yield await made.open()
    await made.close()


def a_service(least: int, *triggers: ScaleTrigger) -> AttemptPlan:
    """Return a service of one replica that has between so many and three."""
    plan = a_plan(
        node_name="process-cpu-1",
        job_type=JobType.SERVICE,
        resources=ROOM,
        command=("sleep", "600"),
    )
    asked = ReplicaRequest(1, 1, 3, scale_to_zero=least == 0, triggers=triggers)
    kinds = JobType.SERVICE, DeploymentType.DOCKER
    spec = JobSpec(plan.job_name, *kinds, resources=ROOM, replicas=asked)
    return replace(plan, spec=spec, scales=(least, 3))


async def scaled(backend: KubernetesBackend, plan: AttemptPlan) -> dict[str, Any]:
    """Start a service, and return the ScaledObject that the cluster then has of it."""
    await backend.ensure_workload(plan, {})
    namespace = namespace_of(plan.tenant_name)
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    found = await backend.client.find(SCALED_OBJECT, name, namespace)
    assert found is not None, "it was applied under the validation of KEDA's definitions"
    ours = {names.ATTEMPT_ID: str(plan.ref.attempt_id)}
    assert await backend.client.list(HORIZONTAL_POD_AUTOSCALER, namespace, ours) == []
    target = found["spec"]["scaleTargetRef"]
    deployment = await backend.client.find(DEPLOYMENT, target["name"], namespace)
    assert deployment is not None
    [owner] = found["metadata"]["ownerReferences"]
    assert owner["uid"] == deployment["metadata"]["uid"]
    return found


@pytest.mark.parametrize(
    ("least", "triggers", "told"),
    [
        (1, (), (1, 3, "cpu")),
        (0, (), (1, 3, "cpu")),  # by CPU use alone KEDA never goes to none, and refuses it
        (0, (CRON,), (0, 3, "cron")),
    ],
)
async def test_a_cluster_takes_what_scales_a_service_by_kedas_own_definitions(
    backend: KubernetesBackend,
    least: int,
    triggers: tuple[ScaleTrigger, ...],
    told: tuple[int, int, str],
) -> None:
    plan = a_service(least, *triggers)
    spec = (await scaled(backend, plan))["spec"]
    [trigger] = spec["triggers"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], trigger["type"]) == told
    assert spec["initialCooldownPeriod"] == spec["cooldownPeriod"], "or the first goes at once"
    again = await scaled(backend, plan)  # a restart applies it once more
    assert again["spec"] == spec
    with pytest.raises(ScalerDecides, match="ScaledObject"):
        await backend.set_wanted(plan.ref, 2)
    await backend.evict(plan.ref, 0, "Cancelled")
    namespace = namespace_of(plan.tenant_name)

    async def is_gone() -> bool:
        return not await backend.client.list(SCALED_OBJECT, namespace)

    await wait_until_async(is_gone, "it went with its Deployment")


async def test_a_field_that_kedas_definitions_do_not_have_is_refused_by_the_cluster(
    backend: KubernetesBackend,
) -> None:
    plan = a_service(1)
    found = await scaled(backend, plan)
    wrong = {"spec": {"maxReplicaCount": "many"}}
    with pytest.raises(Invalid):
        await backend.client.patch(
            SCALED_OBJECT, found["metadata"]["name"], wrong, found["metadata"]["namespace"]
        )
    await backend.evict(plan.ref, 0, "Cancelled")
