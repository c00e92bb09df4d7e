"""Which run may do the steps that delete a cluster, on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from gpuplane.backends.interface import NodeObservation
from gpuplane.core.runs.plans import Answer, Completed, Failed, Skipped, StepCall
from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.errors import ClusterChanged, ClusterNotFound
from gpuplane.domains.clusters.service import Cluster, ClusterState
from gpuplane.kit.clock import SystemClock
from gpuplane.kit.errors import ProductError
from gpuplane.kit.ids import new_id
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.nodefacts import NodeFacts
from gpuplane.loops.clusters.deleting import drain, forget, release
from gpuplane.loops.clusters.tools import ClusterTools, Work, step
from gpuplane.loops.kueue.retiring import leave_managers
from tests.integration.clusters.worlds import PROJECT, TENANT, Shelf

STEPS: dict[str, Work] = {
    "drain": drain,
    "release": release,
    "leave_managers": leave_managers,
    "forget": forget,
}


@pytest.fixture
async def shelf(sqlite_migrated_url: str) -> AsyncIterator[Shelf]:
    """A database without a cluster."""
    database = Database(sqlite_migrated_url)
    try:
        yield Shelf(database)
    finally:
        database.close()


def no_nodes(facts: NodeFacts) -> NodeObservation:
    raise AssertionError(f"no node is observed here: {facts.name}")


def tools_of(shelf: Shelf, folder: Path) -> ClusterTools:
    return ClusterTools(
        shelf.database, SystemClock(), SealingKeys(folder / "keys"), folder, no_nodes
    )


def a_call(shelf: Shelf, name: str, cluster: Cluster, run_id: UUID) -> StepCall:
    given = {"cluster_id": str(cluster.id), "force": True, "wait_s": 0}
    return StepCall(
        run_id=run_id, step_id=new_id(), key=name, name=name, tenant_id=TENANT, project_id=PROJECT,
        idempotency_key=name, attempt=1, now=shelf.now, input=given, params={}, context={},
        scope={}, outputs={},
    )  # fmt: skip


async def do(shelf: Shelf, folder: Path, name: str, cluster: Cluster, run_id: UUID) -> Answer:
    """Do one step of a deletion as a run of this id does, with force."""
    call = a_call(shelf, name, cluster, run_id)
    return await STEPS[name](tools_of(shelf, folder), cluster, call.input, call)


@pytest.mark.parametrize(("error", "is_final"), [(ClusterChanged, False), (ClusterNotFound, True)])
async def test_a_step_that_somebody_changed_a_cluster_under_is_tried_again(
    shelf: Shelf, tmp_path: Path, error: type[ProductError], *, is_final: bool
) -> None:
    async def work(*_: object) -> Answer:
        raise error("It is not as it was.")

    cluster = await shelf.available()
    answer = await step(tools_of(shelf, tmp_path), work)(a_call(shelf, "s", cluster, new_id()))
    assert isinstance(answer, Failed)
    assert (answer.word, answer.is_final) == ("Refused", is_final)


@pytest.mark.parametrize("name", sorted(STEPS))
async def test_a_step_of_another_run_than_the_one_that_deletes_the_cluster_fails_for_good(
    shelf: Shelf, tmp_path: Path, name: str
) -> None:
    cluster, _ = await shelf.delete(await shelf.available())
    answer = await do(shelf, tmp_path, name, cluster, new_id())
    assert isinstance(answer, Failed)
    assert (answer.word, answer.is_final) == ("NotItsRun", True)
    assert (await shelf.cluster(cluster.id)).state is ClusterState.DRAINING


@pytest.mark.parametrize("name", sorted(STEPS))
async def test_a_step_of_a_cluster_that_is_not_being_deleted_any_more_fails_for_good(
    shelf: Shelf, tmp_path: Path, name: str
) -> None:
    cluster, run = await shelf.delete(await shelf.available())
    failed = await shelf.do(clusters.fail_run, cluster.id, run.id, "It was cancelled.", shelf.now)
    answer = await do(shelf, tmp_path, name, failed, run.id)
    assert isinstance(answer, Failed)
    assert (await shelf.cluster(cluster.id)).deleted_at is None


async def test_the_run_that_deletes_a_cluster_drains_and_forgets_it(
    shelf: Shelf, tmp_path: Path
) -> None:
    cluster, run = await shelf.delete(await shelf.available())
    assert isinstance(await do(shelf, tmp_path, "drain", cluster, run.id), Completed)
    cluster = await shelf.cluster(cluster.id)
    assert cluster.state is ClusterState.DELETING
    assert isinstance(await do(shelf, tmp_path, "forget", cluster, run.id), Completed)
    assert (await shelf.cluster(cluster.id)).deleted_at is not None


async def test_a_worker_that_nobody_reaches_leaves_its_manager_and_what_stays_is_named(
    shelf: Shelf, tmp_path: Path
) -> None:
    cluster, run = await shelf.delete(await shelf.available(), force=True)
    told = {"workers": [cluster.name], "queues": ["team"]}
    manager, _ = await shelf.register("hub", "hub")
    config = {**manager.config, "dispatch": told}
    await shelf.do(clusters.change, manager.id, {"config": config}, "ada", shelf.now)
    answer = await do(shelf, tmp_path, "leave_managers", cluster, run.id)
    assert isinstance(answer, Completed)
    assert answer.output["managers"] == ["hub"]
    for each in ("kueue-system/gpuplane-multikueue-token", "On hub may stay", "wNN-east"):
        assert each in answer.message
    left = await shelf.cluster(manager.id)
    assert left.config["dispatch"] == {"workers": [], "queues": ["team"]}
    again = await do(shelf, tmp_path, "leave_managers", cluster, run.id)
    assert isinstance(again, Skipped)


async def test_a_manager_that_nobody_reaches_names_what_stays_on_it_and_on_its_own_workers(
    shelf: Shelf, tmp_path: Path
) -> None:
    hub, run = await shelf.delete(await shelf.available(), force=True)
    other, _ = await shelf.register("hub", "hub")
    for name in ("own", "shared"):
        await shelf.register(name, name)
    for manager, workers in ((hub, ["own", "", "shared"]), (other, ["shared"])):
        config = {**manager.config, "dispatch": {"workers": workers, "queues": ["team"]}}
        await shelf.do(clusters.change, manager.id, {"config": config}, "ada", shelf.now)
    answer = await do(shelf, tmp_path, "leave_managers", await shelf.cluster(hub.id), run.id)
    assert isinstance(answer, Completed)
    assert answer.output["workers"] == ["own", "shared"]
    about, account = answer.output["warnings"]
    for each in ("On east may stay", "AdmissionCheck gpuplane-multikueue", "gpuplane-wNN-"):
        assert each in about
    assert account.startswith("On own stay ClusterRole"), "the other manager needs that on shared"
