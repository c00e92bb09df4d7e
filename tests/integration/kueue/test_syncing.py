"""Whose objects are written over: ours by any id the cluster had, and never others' checks."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import pytest

from gpuplane.core.ids import ClusterId
from gpuplane.core.quota.specs import CohortSpec
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.repository import jobs as rows
from gpuplane.domains.jobs.service import NewOffer
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.service import Seen
from gpuplane.kit.ids import new_id
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import COHORT
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.kube.kueue.queues import cohort_object
from gpuplane.kube.tenancy import CLUSTER_LABEL
from gpuplane.loops.kueue.syncing import keep_of_others, sync
from tests.integration.kueue.conftest import FORMER, Kueue
from tests.integration.kueue.stored import Stored

V = ApiVersion.V1BETA2
COHORTS = COHORT.at("v1beta2")
OWN = ClusterId(new_id())


def labelled(name: str, cluster_id: str, parent: str) -> dict[str, Any]:
    made = cohort_object(CohortSpec(name, parent), V)
    made["metadata"]["labels"][CLUSTER_LABEL] = cluster_id
    return made


async def shown(client: KubeClient, *wanted: CohortSpec) -> dict[str, Seen]:
    objects = [cohort_object(each, V) for each in wanted]
    found = await sync(client, V, OWN, objects, {}, 1, None, (str(OWN), FORMER))
    return {each.name: each for each in found}


async def test_what_was_made_under_a_former_id_is_ours_to_write_over(
    client: KubeClient, stored: Stored
) -> None:
    stored.put(COHORTS, labelled("all", FORMER, "before"))
    stored.put(COHORTS, labelled("theirs", str(new_id()), "before"))
    found = await shown(client, CohortSpec("all", "now"), CohortSpec("theirs", "now"))
    assert (found["all"].ours, found["all"].conflict) == (True, None)
    written = stored.get(COHORTS, "all")
    assert written is not None
    assert written["spec"]["parentName"] == "now"
    assert written["metadata"]["labels"][CLUSTER_LABEL] == str(OWN)
    told = found["theirs"].conflict
    assert told is not None
    assert told.reason == "NotOurs"


async def test_what_a_lost_database_declared_stays_until_it_is_declared_anew(
    client: KubeClient, stored: Stored
) -> None:
    stored.put(COHORTS, labelled("former", FORMER, "p"))
    stored.put(COHORTS, labelled("withdrawn", str(OWN), "p"))
    found = await shown(client)
    assert list(found) == ["former"]
    assert stored.deleted == [COHORTS.path(None, "withdrawn")]


def check_names(spec: dict[str, Any]) -> list[str]:
    return [each["name"] for each in spec["admissionChecksStrategy"]["admissionChecks"]]


@pytest.mark.parametrize(
    "theirs",
    [
        {"admissionChecksStrategy": {"admissionChecks": [{"name": "a", "onFlavors": ["f"]}]}},
        {"admissionChecks": ["a"]},
    ],
    ids=["strategy", "list"],
)
def test_checks_of_others_stay_where_only_v1beta1_is_served(theirs: dict[str, Any]) -> None:
    ours = {"admissionChecksStrategy": {"admissionChecks": [{"name": "gpuplane-hold"}]}}
    made = {
        "apiVersion": ApiVersion.V1BETA1.group_version,
        "kind": "ClusterQueue",
        "metadata": {"name": "q"},
        "spec": ours,
    }
    kept = keep_of_others(made, {"spec": theirs})["spec"]
    assert check_names(kept) == ["a", "gpuplane-hold"]
    assert kept.get("admissionChecks", []) == []
    again = keep_of_others(made, {"spec": kept})["spec"]
    assert check_names(again) == ["a", "gpuplane-hold"]
    # In v1beta2 each check has its own owner: those of others are not said again.
    newer = {**made, "apiVersion": ApiVersion.V1BETA2.group_version}
    assert keep_of_others(newer, {"spec": theirs})["spec"] == ours


@pytest.mark.parametrize("how", ["embedded", "frozen"])
async def test_a_turn_that_began_before_the_cluster_stopped_taking_work_offers_nothing_there(
    kueue: Kueue, how: str
) -> None:
    job = await kueue.world.submit(gpu_count=1)
    database, sim = kueue.world.server.database, kueue.world.sim
    found = await database.read(lambda s: rows.find_job(s, UUID(job["id"])))
    assert found is not None
    made = NewOffer(found.id, found.version, sim, "sim/main", "q")

    def stop(session: Any) -> None:
        if how == "frozen":
            clusters.freeze(session, sim, "moving", "test", 2)
            return
        config = {**clusters.get_cluster(session, sim).config, "admission": "embedded"}
        clusters.change(session, sim, {"config": config}, "test", 2)

    offer = partial(jobs.offer, new=[made], now=3)
    await database.write("tests.stop", stop)
    assert await database.write("tests.offer", offer) == 0
    assert await database.read(jobs.list_offers) == []


async def test_a_worker_joins_last_and_once_and_leaves_others_in_their_places(kueue: Kueue) -> None:
    database, now = kueue.world.server.database, 1

    def join(session: Any) -> list[list[str]]:
        ids = []
        for name, role in (("hub", "manager"), ("near", "worker"), ("far", "worker")):
            made = clusters.ensure_cluster(
                session, ClusterId(new_id()), name=name, kind="kubernetes", simulated=False,
                config={"admission": "kueue"}, now=now,
            )  # fmt: skip
            clusters.change(session, made.id, {"role": role}, "test", now)
            ids.append(made.id)
        told = []
        for each in (ids[2], ids[1], ids[2]):
            worker = clusters.get_cluster(session, each)
            told.append(queues.join_manager(session, ids[0], worker, "test", now))
        hub = clusters.get_cluster(session, ids[0])
        assert queues.is_manager(hub)
        assert not queues.is_manager(clusters.get_cluster(session, ids[1]))
        assert queues.dispatch_workers(hub) == ("far", "near")
        near, far = str(ids[1]), str(ids[2])
        assert told == [[far], [far, near], [far, near]]
        queues.leave_managers(session, "far", "test", now)
        hub = clusters.get_cluster(session, ids[0])
        assert queues.dispatch_workers(hub) == ("near",)
        assert queues.worker_places(hub) == ("", "near")
        far_again = clusters.get_cluster(session, ids[2])
        assert queues.join_manager(session, ids[0], far_again, "test", now) == ["", near, far]
        for name in ("far", "near", "near"):
            queues.leave_managers(session, name, "test", now)
        hub = clusters.get_cluster(session, ids[0])
        assert queues.worker_places(hub) == ()
        return told

    assert len(await database.write("tests.join", join)) == 3
