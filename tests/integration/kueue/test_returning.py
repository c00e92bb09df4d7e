"""A cluster that was deleted and registered again has what was declared of it before."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from gpuplane.core.ids import ClusterId
from gpuplane.core.quota.specs import (
    ClusterQueueSpec,
    CohortSpec,
    FlavorResource,
    LocalQueueSpec,
    ResourceGroup,
    ResourceQuota,
)
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterKey, Credential, Registration
from gpuplane.domains.queues import service as queues
from gpuplane.domains.runs.service import RunPolicy
from gpuplane.kit.ids import new_id
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import CLUSTER_QUEUE, COHORT, LOCAL_QUEUE, RESOURCE_FLAVOR, TOPOLOGY
from gpuplane.kube.kueue.names import HOLD_CHECK, ApiVersion
from gpuplane.kube.kueue.queues import cluster_queue_object, cohort_object, local_queue_object
from gpuplane.kube.tenancy import CLUSTER_LABEL
from gpuplane.loops.kueue.defaults import ensure_defaults
from tests.integration.jobs.worlds import H100
from tests.integration.kueue.conftest import FORMER, Kueue
from tests.integration.kueue.stored import Stored

V = ApiVersion.V1BETA2
GPUS = FlavorResource(H100, "nvidia.com/gpu")
TEAM = ClusterQueueSpec(
    "team",
    "all",
    (ResourceGroup(("nvidia.com/gpu",), (H100,)),),
    {GPUS: ResourceQuota(4000)},
)


def leave(stored: Stored, tenant: str, cluster_id: str = FORMER) -> None:
    """Put on the cluster what an earlier registration made there, its check lifted."""
    made = [
        (COHORT, cohort_object(CohortSpec("all"), V)),
        (CLUSTER_QUEUE, cluster_queue_object(TEAM, V)),
        (
            LOCAL_QUEUE,
            local_queue_object(LocalQueueSpec("old", tenant, "team"), f"tenant-{tenant}", V),
        ),
        (
            TOPOLOGY,
            {
                "metadata": {"name": "racks", "labels": {}},
                "spec": {"levels": [{"nodeLabel": "example.com/rack"}]},
            },
        ),
        (
            RESOURCE_FLAVOR,
            {"metadata": {"name": H100, "labels": {}}, "spec": {"topologyName": "racks"}},
        ),
    ]
    for kind, obj in made:
        obj["metadata"]["labels"][CLUSTER_LABEL] = cluster_id
        stored.put(kind.at("v1beta2"), obj)


async def returned(kueue: Kueue, client: KubeClient) -> None:
    await ensure_defaults(client, kueue.world.server.database, kueue.world.sim, 5)


async def test_what_an_earlier_registration_left_is_declared_again_and_has_our_check(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    leave(stored, "default")
    await returned(kueue, client)
    found = await kueue.world.ask("GET", "/clusters/sim/quotas")
    team = next(each for each in found["items"] if each["name"] == "team")
    assert (team["isDeclared"], team["cohort"], team["conflict"]) == (True, "all", None)
    doors = await kueue.world.ask("GET", "/clusters/sim/queues")
    old = next(each for each in doors["items"] if each["name"] == "old")
    assert (old["isDeclared"], old["conflict"]) == (True, None)
    shown = await kueue.world.ask("GET", "/clusters/sim/topologies")
    assert [(each["name"], each["flavors"]) for each in shown["items"]] == [("racks", [H100])]
    for kind, name, space in (
        (COHORT, "all", None),
        (CLUSTER_QUEUE, "team", None),
        (LOCAL_QUEUE, "old", "tenant-default"),
    ):
        live = stored.get(kind.at("v1beta2"), name, space)
        assert live is not None
        assert live["metadata"]["labels"][CLUSTER_LABEL] == str(kueue.world.sim)
    queue = stored.get(CLUSTER_QUEUE.at("v1beta2"), "team")
    assert queue is not None
    checks = queue["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert checks == [{"name": HOLD_CHECK}]


async def test_what_is_declared_already_stays_and_what_others_made_is_not_taken(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    leave(stored, "default", str(new_id()))
    q = replace(TEAM, name="q", cohort=None)
    made = cluster_queue_object(q, V)
    made["metadata"]["labels"][CLUSTER_LABEL] = FORMER
    stored.put(CLUSTER_QUEUE.at("v1beta2"), made)
    await returned(kueue, client)
    found = await kueue.world.ask("GET", "/clusters/sim/quotas")
    told = {each["name"]: each for each in found["items"]}
    assert (told["team"]["isDeclared"], told["team"]["standing"]) == (False, "foreign")
    quota = told["q"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    assert (quota["nominalQuota"], told["q"]["standing"]) == ("8", "pending")


async def test_a_local_queue_of_a_tenant_that_is_gone_stays_undeclared(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    leave(stored, "gone")
    await returned(kueue, client)
    declared = await kueue.world.server.database.read(
        lambda s: queues.load_declared(s, kueue.world.sim)
    )
    assert "old" not in [each.name for each in declared.local_queues]
    assert "team" in [each.name for each in declared.cluster_queues]


async def test_a_local_queue_that_somebody_made_is_adopted_and_then_written(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    theirs = local_queue_object(LocalQueueSpec("theirs", "", "q"), "tenant-default", V)
    theirs["metadata"]["labels"] = {}
    stored.put(LOCAL_QUEUE.at("v1beta2"), theirs)
    await returned(kueue, client)
    base = "/clusters/sim/queues"
    told = (await kueue.world.ask("GET", base))["items"]
    assert [each["standing"] for each in told if each["name"] == "theirs"] == ["foreign"]
    body = {"name": "theirs", "tenant": "default", "clusterQueue": "q", "jobTypes": ["batch"]}
    refused = await kueue.world.ask("POST", base, 409, json=body)
    assert "gpuplane queues adopt" in refused["fix"]
    adopted = await kueue.world.ask("POST", f"{base}/theirs/adopt?tenant=default")
    assert (adopted["isDeclared"], adopted["clusterQueue"]) == (True, "q")
    await returned(kueue, client)
    told = (await kueue.world.ask("GET", base))["items"]
    assert [each["standing"] for each in told if each["name"] == "theirs"] == ["pending"]
    live = stored.get(LOCAL_QUEUE.at("v1beta2"), "theirs", "tenant-default")
    assert live is not None
    assert live["metadata"]["labels"][CLUSTER_LABEL] == str(kueue.world.sim)
    await kueue.world.ask("POST", f"{base}/absent/adopt?tenant=default", 404)


def registration(kueue: Kueue, name: str, uid: str) -> Any:
    """Return what registers a cluster of a `kube-system` uid."""

    admin = kueue.world.server.admin

    def unit(session: Any) -> Cluster:
        before = clusters.ensure_cluster(
            session, ClusterId(new_id()), name=f"{name}-shape", kind="kubernetes",
            simulated=False, config={"uid": "", "admission": "kueue"}, now=1,
        )  # fmt: skip
        cluster = replace(before, id=ClusterId(new_id()), name=name, config={"uid": uid})
        asked = Registration(
            cluster,
            Credential(cluster.id, b"sealed", 1, "", None, 1, "test"),
            ClusterKey(new_id(), cluster.id, str(new_id()), "gpc_", 1, "test"),
            clusters.plan_registration(
                cluster.id,
                name,
                tenant_id=admin.tenant_id,
                project_id=admin.project_id,
                actor="test",
                addons=[],
            ),
        )
        return clusters.register(session, asked, RunPolicy(), 1)[0]

    return unit


async def test_a_cluster_registered_again_knows_every_id_it_had_and_no_others(
    kueue: Kueue,
) -> None:
    database = kueue.world.server.database
    ids: list[str] = []
    for name in ("one", "two", "three"):
        made = await database.write("tests.register", registration(kueue, name, "uid-1"))
        assert list(made.known_ids) == [str(made.id), *sorted(ids)]
        ids.append(str(made.id))
        await database.write("tests.remove", partial(clusters.remove, cluster_id=made.id, now=2))
    other = await database.write("tests.register", registration(kueue, "other", "uid-2"))
    assert other.known_ids == (str(other.id),)
