"""How a step of a cluster's life answers when objects change under it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

from gpuplane.core.runs.plans import Answer, Completed, Failed, StepCall
from gpuplane.domains.clusters.service import Cluster
from gpuplane.kube.errors import Conflict, Unreachable
from gpuplane.loops.clusters.addons import tell_outcome
from gpuplane.loops.clusters.tools import TRIES, ClusterTools, step

CALL = cast(
    "StepCall", type("Call", (), {"input": {"cluster_id": "0190a000-0000-7000-8000-000000000001"}})
)


class Tools:
    """Tools of which only the cluster is asked for."""

    async def cluster(self, cluster_id: UUID) -> UUID:
        return cluster_id


async def answer_of(*errors: Exception) -> tuple[Answer, int]:
    """Run a step that meets these errors in turn; return its answer and how often it was tried."""
    left, tried = list(errors), 0

    async def work(
        tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
    ) -> Answer:
        nonlocal tried
        tried += 1
        if left:
            raise left.pop(0)
        return Completed({})

    run = step(cast("ClusterTools", Tools()), work)
    return await run(CALL), tried


def changed() -> Conflict:
    return Conflict(409, "Conflict", "the object has been modified")


async def test_a_step_under_which_an_object_changed_is_done_again_at_once() -> None:
    answer, tried = await answer_of(changed(), changed())
    assert isinstance(answer, Completed)
    assert tried == 3


async def test_objects_that_change_again_and_again_are_not_told_as_a_cluster_out_of_reach() -> None:
    answer, tried = await answer_of(*[changed() for _ in range(TRIES)])
    assert isinstance(answer, Failed)
    assert (answer.word, tried) == ("ObjectChanged", TRIES)
    assert "force" not in answer.message


async def test_a_cluster_out_of_reach_is_told_as_such_and_tried_later() -> None:
    answer, tried = await answer_of(Unreachable("no route"))
    assert isinstance(answer, Failed)
    assert (answer.word, tried) == ("ClusterUnreachable", 1)


def test_what_became_of_the_add_ons_is_one_sentence() -> None:
    told = tell_outcome({"prometheus": "left out. It was not asked for.", "dcgm": "installed."})
    assert told == "prometheus: left out. It was not asked for; dcgm: installed"
