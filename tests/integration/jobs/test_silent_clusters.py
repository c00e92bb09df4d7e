"""What is told of jobs whose cluster has stopped to answer: as of then, and what follows."""

from __future__ import annotations

from functools import partial

import pytest

from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import ClusterState
from gpuplane.kit.clock import instant_to_text
from tests.integration.jobs.offers import offered
from tests.integration.jobs.worlds import World, runs_for

FIX = "Look at `gpuplane clusters health sim`."


async def look(world: World, state: ClusterState) -> str:
    """Store what a look at the cluster found; return since when it does not answer."""
    now = world.server.clock.now_ms()

    def note(session: WriteSession) -> None:
        cluster = clusters.get_cluster(session, world.sim)
        clusters.note_probe(session, cluster, state=state, reason="", notes=(), now=now)

    await world.server.database.write("tests.look", note)
    return instant_to_text(now)


lose = partial(look, state=ClusterState.NOT_AVAILABLE)
find_again = partial(look, state=ClusterState.AVAILABLE)


async def test_a_job_that_runs_is_told_as_of_when_its_cluster_was_last_heard_of(
    world: World,
) -> None:
    job = await world.submit(spec=runs_for(600))
    await world.turn(2)
    before = await world.ask("GET", f"/jobs/{job['id']}/why")
    since = await lose(world)
    why = await world.ask("GET", f"/jobs/{job['id']}/why")
    assert (why["status"], why["reason"]) == ("running", "ClusterNotAvailable")
    assert why["sentence"] == (
        f"Cluster sim has not answered since {since}. What is told of the job is as of then; "
        "as far as is known it goes on there."
    )
    assert why["fix"] == FIX
    assert why["explanation"] == [before["sentence"], *before["explanation"]]


async def test_lists_say_of_a_running_job_that_its_cluster_does_not_answer(world: World) -> None:
    job = await world.submit(spec=runs_for(600))
    await world.turn(2)
    await lose(world)
    row = (await world.ask("GET", "/jobs"))["items"][0]
    shown = await world.job(job["id"])
    for told in (row, shown):
        assert (told["status"], told["reason"]) == ("running", "ClusterNotAvailable")
        assert told["status_message"].startswith("Cluster sim has not answered since")
    await find_again(world)
    assert (await world.job(job["id"]))["reason"] == ""


async def test_a_stop_is_said_to_be_delivered_once_the_cluster_answers(world: World) -> None:
    job = await world.submit(spec=runs_for(600))
    await world.turn(2)
    await lose(world)
    await world.ask("DELETE", f"/jobs/{job['id']}")
    why = await world.ask("GET", f"/jobs/{job['id']}/why")
    assert (why["status"], why["condition"]) == ("running", "Stopping")
    assert why["sentence"].endswith(
        "its stop is delivered once sim answers, and it keeps its devices until then."
    )
    assert why["fix"] == FIX


async def test_a_job_that_is_over_is_told_as_ever_when_its_cluster_is_away(world: World) -> None:
    job = await world.submit(spec=runs_for(1))
    await world.turn(2)
    await world.after(5)
    before = await world.ask("GET", f"/jobs/{job['id']}/why")
    await lose(world)
    assert before["status"] == "completed"
    assert await world.ask("GET", f"/jobs/{job['id']}/why") == before


async def test_what_waits_for_the_kueue_of_a_silent_cluster_says_that_it_is_silent(
    kueue: World,
) -> None:
    job, _ = await offered(kueue)
    since = await lose(kueue)
    why = await kueue.ask("GET", f"/jobs/{job['id']}/why")
    assert (why["status"], why["reason"]) == ("queued", "WaitingForAdmission")
    assert why["sentence"].startswith(f"Cluster sim has not answered since {since}.")
    assert why["sentence"].endswith("whether it was admitted there is seen once sim answers.")
    assert why["fix"] == FIX


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (ClusterState.NOT_AVAILABLE, "Cluster sim has not answered since "),
        (ClusterState.DRAINING, "Cluster sim is being drained and takes no new work."),
        (ClusterState.DELETING, "Cluster sim is being deleted and takes no work any more."),
    ],
)
async def test_a_job_that_names_a_cluster_which_takes_no_work_is_told_why(
    world: World, state: ClusterState, told: str
) -> None:
    await look(world, state)
    job = await world.submit(spec=runs_for(600))
    await world.turn(2)
    why = await world.ask("GET", f"/jobs/{job['id']}/why")
    assert (why["status"], why["reason"]) == ("queued", "ClusterNotAvailable")
    assert why["sentence"].startswith(told)
    assert "clusters health" in why["fix"]
    asked = await world.ask("GET", f"/jobs/{job['id']}/why?change=true")
    assert (asked["reason"], asked["sentence"]) == (why["reason"], why["sentence"])


async def test_a_job_that_waited_for_a_silent_cluster_starts_once_that_answers(
    world: World,
) -> None:
    await lose(world)
    job = await world.submit(spec=runs_for(600))
    await world.turn(2)
    assert (await world.job(job["id"]))["reason"] == "ClusterNotAvailable"
    await find_again(world)
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "running"


async def test_nodes_of_a_silent_cluster_are_shown_as_they_were_last_seen(world: World) -> None:
    since = await lose(world)
    listed = (await world.ask("GET", "/clusters/sim/nodes"))["items"][0]
    one = await world.ask("GET", f"/clusters/sim/nodes/{listed['name']}")
    for node in (listed, one):
        assert (node["ready"], node["schedulable"]) == (True, False)
        assert node["not_seen_since"] == since
        assert node["message"].startswith(f"Cluster sim has not answered since {since}.")
    await find_again(world)
    again = await world.ask("GET", f"/clusters/sim/nodes/{listed['name']}")
    assert (again["schedulable"], again["not_seen_since"]) == (True, None)
