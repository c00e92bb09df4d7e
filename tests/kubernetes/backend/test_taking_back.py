"""Two processes start one attempt at once, and one is refused: what the other let go stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplane.backends.interface import AttemptPlan
from gpuplane.backends.kubernetes import names, starting
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.backends.kubernetes.fencing import RecordStore
from gpuplane.backends.kubernetes.manifests.workloads import Workload, compute_workload
from gpuplane.backends.kubernetes.records import decide_accept, decide_start
from gpuplane.backends.kubernetes.served import Served
from gpuplane.backends.kubernetes.views import ClusterView
from gpuplane.core.workloads import ResourceRequest
from gpuplane.kube.errors import Invalid
from gpuplane.kube.kinds import JOB
from tests.contract.builders import a_plan
from tests.contract.kubernetes import SETTINGS

NOW = 1_767_323_045_000


def that_lasts() -> AttemptPlan:
    """Return the plan of a job that runs for long."""
    small = ResourceRequest(cpu_milli=100, memory_mib=64, ephemeral_mib=64)
    return a_plan(resources=small, command=("/bin/sh", "-c", "sleep 600"))


class Started:
    """One process at the moment its attempt is accepted, with a part that its cluster refuses."""

    def __init__(self, backend: KubernetesBackend, plan: AttemptPlan) -> None:
        self.client, self.plan, self.cluster_id = backend.client, plan, backend.cluster_id
        space = SETTINGS.records_namespace
        self.records = RecordStore(self.client, ClusterView(), self.cluster_id, space)

    def compute(self, *, is_refused: bool) -> Workload:
        made = compute_workload(self.plan, SETTINGS, self.cluster_id, (), Served(), None)
        labels = made.main["metadata"]["labels"]
        part = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "refused", "namespace": made.namespace, "labels": labels},
            "spec": {"ports": [{"port": 0}]},
        }
        return replace(made, owned=(*made.owned, part)) if is_refused else made

    async def accept(self, workload: Workload) -> None:
        name, kind = workload.main["metadata"]["name"], workload.main["kind"]
        await self.records.change(
            self.plan.ref.attempt_id,
            lambda found: decide_accept(
                found, self.plan.ref, NOW, namespace=workload.namespace, kind=kind, name=name,
                ranks=(0,),
            ),
        )  # fmt: skip

    async def make(self, workload: Workload) -> str:
        made = await starting.make(
            self.client, self.records, self.plan, workload, {}, self.cluster_id
        )
        return str(made["metadata"]["uid"])

    async def find_uid(self, workload: Workload) -> str | None:
        found = await self.client.find(JOB, workload.main["metadata"]["name"], workload.namespace)
        return None if found is None else str(found["metadata"]["uid"])


async def test_what_cannot_be_made_whole_is_taken_back_while_nobody_started_it(
    backend: KubernetesBackend,
) -> None:
    late = Started(backend, that_lasts())
    refused = late.compute(is_refused=True)
    await late.accept(refused)
    with pytest.raises(Invalid):
        await late.make(refused)
    assert await late.find_uid(refused) is None


async def test_what_another_process_let_go_meanwhile_is_not_taken_back(
    backend: KubernetesBackend,
) -> None:
    plan = that_lasts()
    early, late = Started(backend, plan), Started(backend, plan)
    whole, refused = early.compute(is_refused=False), late.compute(is_refused=True)
    await early.accept(whole)
    uid = await early.make(whole)
    await early.records.change(
        plan.ref.attempt_id, lambda found: decide_start(found, plan.ref, NOW)
    )
    with pytest.raises(Invalid):
        await late.make(refused)
    assert await late.find_uid(whole) == uid


async def test_an_eviction_leaves_alone_what_only_has_the_name_of_the_workload(
    backend: KubernetesBackend,
) -> None:
    plan = that_lasts()
    process = Started(backend, plan)
    workload = process.compute(is_refused=False)
    await process.accept(workload)
    labels = {**workload.main["metadata"]["labels"], names.ATTEMPT_ID: "somebody-elses"}
    workload.main["metadata"]["labels"] = labels
    uid = await process.make(workload)
    await backend.evict(plan.ref, 0, "Cancelled")
    assert await process.find_uid(workload) == uid
    await backend.client.delete(JOB, workload.main["metadata"]["name"], workload.namespace, uid=uid)
