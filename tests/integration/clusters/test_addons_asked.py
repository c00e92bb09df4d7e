"""Which add-ons a registration that is run once more brings in: those that were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplane.core.runs.plans import Completed, StepCall
from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import NOT_ASKED_FOR, AddonStatus, Cluster
from gpuplane.kit.clock import SystemClock
from gpuplane.kit.ids import new_id
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.nodefacts import NodeFacts
from gpuplane.loops.clusters.addons import make_step
from gpuplane.loops.clusters.catalogue import load_addons
from gpuplane.loops.clusters.tools import AddonSettings, ClusterTools
from tests.integration.clusters.worlds import PROJECT, TENANT, Shelf
from tests.integration.jobs.worlds import World


def a_status(cluster: Cluster, name: str, state: str, message: str = "") -> AddonStatus:
    return AddonStatus(cluster.id, name, state, name, name, name, "1.0", message, 1)


async def again(world: World, body: dict[str, Any] | None = None) -> list[str] | None:
    """Run the registration of `east` once more and end that run; return what it may bring in."""
    made = await world.ask("POST", "/clusters/east/registration", 202, json=body)
    found = await world.ask("GET", f"/runs/{made['workflow_id']}/steps/deploy_kueue")
    given: dict[str, list[str]] = found["input"]
    return given.get("addons")


async def test_without_a_word_it_keeps_to_what_was_asked_for_last(world: World) -> None:
    shelf = Shelf(world.server.database)
    cluster = await shelf.available()
    assert await again(world) is None
    assert await again(world, {"addons": []}) == []
    assert await again(world) == []
    assert await again(world, {"addons": ["kueue"]}) == ["kueue"]
    assert await again(world) == ["kueue"]
    # What is ours there stays up to date, whatever was asked for last.
    await shelf.do(clusters.note_addon, a_status(cluster, "nfd", "installed"))
    assert await again(world) == ["kueue", "nfd"]


async def test_of_one_registered_before_it_was_kept_the_outcome_tells_what_was_asked_for(
    world: World,
) -> None:
    shelf = Shelf(world.server.database)
    cluster = await shelf.available()
    for each in load_addons():
        left = a_status(cluster, each.name, "left_out", NOT_ASKED_FOR)
        await shelf.do(clusters.note_addon, left)
    assert await again(world) == []
    wanted = a_status(cluster, "hami", "left_out", "No node has NVIDIA devices.")
    await shelf.do(clusters.note_addon, wanted)
    assert await again(world) == ["hami"]


@pytest.mark.parametrize("path", ["/clusters", "/clusters/east/registration"])
async def test_an_add_on_that_there_is_none_of_is_refused_with_those_that_there_are(
    world: World, path: str
) -> None:
    await Shelf(world.server.database).available()
    body: dict[str, Any] = {"addons": ["kueue", "nosuch"]}
    if path == "/clusters":
        body |= {"name": "west", "kubeconfig": "x"}
    refused = await world.ask("POST", path, 422, json=body)
    assert (refused["field"], refused["code"]) == ("addons", "addon_unknown")
    assert "'nosuch'" in refused["detail"]
    for each in load_addons():
        assert each.name in refused["fix"]


def no_nodes(facts: NodeFacts) -> Any:
    raise AssertionError(f"no node is observed here: {facts.name}")


@pytest.mark.parametrize(
    ("state", "after"),
    [("installed", "installed"), ("present", "present"), ("failed", "left_out"), ("", "left_out")],
)
async def test_an_add_on_that_is_not_asked_for_stays_what_it_is_where_it_is_there(
    sqlite_migrated_url: str, tmp_path: Path, state: str, after: str
) -> None:
    database = Database(sqlite_migrated_url)
    try:
        shelf = Shelf(database)
        cluster = await shelf.available()
        if state:
            await shelf.do(clusters.note_addon, a_status(cluster, "kueue", state))
        keys = SealingKeys(tmp_path / "keys")
        # What the server allows does not add to what was asked for.
        settings = AddonSettings(names=("kueue",))
        tools = ClusterTools(
            database, SystemClock(), keys, tmp_path, no_nodes, addons=settings
        )  # fmt: skip
        call = StepCall(
            run_id=new_id(), step_id=new_id(), key="k", name="k", tenant_id=TENANT,
            project_id=PROJECT, idempotency_key="k", attempt=1, now=shelf.now,
            input={"cluster_id": str(cluster.id), "addons": []}, params={}, context={}, scope={},
            outputs={},
        )  # fmt: skip
        answer = await make_step("deploy_kueue")(tools, cluster, call.input, call)
        assert isinstance(answer, Completed)
        [kept] = await database.read(lambda s: clusters.list_addons(s, cluster.id))
        assert kept.state == after
        assert kept.message == (NOT_ASKED_FOR if after == "left_out" else "")
    finally:
        database.close()
