"""Jobs of a registered cluster run with the rights that registration checks, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpuplane.backends.interface import AttemptPlan, ReplicaPlan, Stream
from gpuplane.backends.kubernetes.chartplaces import ChartTools
from gpuplane.core.ids import GpuId, ReplicaId
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobType, ResourceRequest
from gpuplane.kit.ids import new_id
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.preflight import look_at
from tests.contract.builders import a_plan
from tests.contract.factories import replicas_of, until, until_over
from tests.contract.kubernetes import KubernetesFactory, ensure_process_node
from tests.kubernetes.accounts import account_of
from tests.kubernetes.backend.charting import a_release, deployment, write_chart
from tests.kubernetes.rigged import RunningCluster

SMALL = ResourceRequest(cpu_milli=100, memory_mib=64, ephemeral_mib=64)
NODES = ("process-h100-1", "process-h100-2")


@pytest.fixture
async def factory(
    rig: RunningCluster, namespace: str, tmp_path: Path
) -> AsyncIterator[KubernetesFactory]:
    async with KubeClient(rig.connection()) as admin:
        await ensure_process_node(admin)
        on = "clusterAccess.enabled=true"
        async with account_of(rig, admin, namespace, "cluster-access", on) as connection:
            async with KubeClient(connection) as client:
                found = await look_at(client, connection.server)
            assert found.missing == ()
            made = KubernetesFactory(tmp_path, connection)
            yield made
            await made.close()


def on_nodes(plan: AttemptPlan, nodes: Sequence[str]) -> AttemptPlan:
    replicas = (
        ReplicaPlan(ReplicaId(new_id()), rank, node, (GpuId(f"{node}/{rank}"),))
        for rank, node in enumerate(nodes)
    )
    return replace(plan, replicas=tuple(replicas))


async def test_a_job_and_a_gang_run_with_the_account_of_the_chart(
    factory: KubernetesFactory,
) -> None:
    backend = await factory.open()
    asked = replace(SMALL, gpu_count=1)
    command = ("/bin/sh", "-c", "echo hello")
    single = on_nodes(a_plan(resources=asked, command=command), NODES[:1])
    await backend.ensure_workload(single, {"TOKEN": "secret"})
    gang = on_nodes(a_plan(job_type=JobType.TRAINING, resources=asked, command=command), NODES)
    await backend.ensure_workload(gang, {})
    for plan, count in ((single, 1), (gang, 2)):
        ranks = await until_over(factory, backend, plan.ref)
        assert [each.reason for each in ranks] == [Word.COMPLETED] * count
        text = await backend.read_logs(plan.ref, 0, Stream.STDOUT, 0, 100)
        assert text.data == b"hello\n"


async def test_a_job_that_is_a_chart_runs_and_goes_with_the_account_of_the_chart(
    factory: KubernetesFactory, rig: RunningCluster, tmp_path: Path
) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "{{ .Release.Name }}"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"part-of": "web"}}},
    }
    stateful = deployment("db", ["/bin/sh", "-c", "exec sleep 600"])
    stateful["kind"] = "StatefulSet"
    stateful["spec"]["serviceName"] = "db"
    web = deployment("web", ["/bin/sh", "-c", "exec sleep 600"])
    write_chart(tmp_path, "shop", [web, stateful, budget])
    factory.charts = ChartTools(str(rig.binaries["helm"]), str(tmp_path), wait_s=60)
    backend = await factory.open()
    plan = a_release(factory.node_name)
    await backend.ensure_workload(plan, {"TOKEN": "secret"})
    await until(
        factory,
        backend,
        lambda now: [each for each in replicas_of(now, plan.ref) if each.ready],
        "both pods of the release are ready",
    )
    await backend.evict(plan.ref, 0.0, Word.CANCELLED)
    [over] = await until_over(factory, backend, plan.ref)
    assert over.reason == Word.CANCELLED
