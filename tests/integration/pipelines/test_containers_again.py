"""LOOP and PARALLEL that are retried: what completed in them stays, the rest is done anew."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.pipelines.worlds import World, a_job, a_pipeline, a_step

ONCE = (
    "import os, pathlib; mark = pathlib.Path(os.environ['MARK']); first = not mark.exists(); "
    "mark.touch(); raise SystemExit(3 if first else 0)"
)


def _call(world: World, **more: Any) -> dict[str, Any]:
    return a_step("call", "api_call", url=f"{world.receiver.url}/{{{{ item }}}}", **more)


def _again(how: str) -> dict[str, Any]:
    return {"retry": {"attempts": 2, "delay_seconds": 0}} if how == "by policy" else {}


@pytest.mark.parametrize("how", ["by policy", "by hand", "as a whole by hand"])
async def test_a_loop_calls_again_only_where_it_failed(any_world: World, how: str) -> None:
    any_world.receiver.answers = [(200, {}), (404, {}), (200, {}), (200, {"late": True})]
    inner = [_call(any_world, on_failure="continue")]
    document = a_pipeline(
        a_step("each", "loop", over=["a", "b", "c"], max_parallel=1, steps=inner, **_again(how)),
        a_step("after", depends_on=["each"], expression="steps.each.outputs.count"),
    )
    ended = await any_world.run(document)
    if how != "by policy":
        assert ended.status == "failed"
        step = "each" if how.startswith("as a whole") else "each/1/call"
        await any_world.post(f"/runs/{ended.run['id']}/steps/{ended.steps[step]['id']}/retry")
        ended = await any_world.ended(ended.run["id"])
    assert ended.status == "completed", ended.run
    assert [each.path for each in any_world.receiver.seen] == ["/a", "/b", "/c", "/b"]
    keys = [each.headers["idempotency-key"] for each in any_world.receiver.seen]
    assert len(set(keys)) == 4
    assert ended.output("each")["results"][1]["call"]["late"] is True
    assert ended.output("after")["result"] == 3


@pytest.mark.parametrize("how", ["by policy", "by hand"])
async def test_a_parallel_makes_another_job_only_for_the_branch_that_failed(
    world: World, how: str
) -> None:
    mark = str(world.folder / "mark")
    branches = [[a_job("good", "pass")], [a_job("bad", ONCE, env={"MARK": mark}), a_step("end")]]
    document = a_pipeline(a_step("both", "parallel", branches=branches, **_again(how)),
                          on_failure="continue")  # fmt: skip
    ended = await world.run(document)
    if how == "by hand":
        await world.post(f"/runs/{ended.run['id']}/rerun")
        ended = await world.ended(ended.run["id"])
    assert ended.status == "completed", ended.run
    names = sorted(job["source_id"] for job in (await world.get("/jobs"))["items"])
    assert len(names) == 3
    assert len(set(names)) == 2  # one step made two jobs, the other one


async def test_what_completed_in_a_loop_before_its_retry_is_undone_with_the_rest(
    world: World,
) -> None:
    world.receiver.answers = [(200, {}), (404, {}), (404, {})]
    undo = {"step_type": "api_call",
            "config": {"url": f"{world.receiver.url}/undo", "method": "POST"}}  # fmt: skip
    ended = await world.run(
        a_pipeline(
            a_step("each", "loop", over=["a", "b"], max_parallel=1,
                   steps=[_call(world, compensate=undo)], **_again("by policy")),
            on_failure="rollback",
        )
    )  # fmt: skip
    assert ended.status == "failed"
    assert [each.path for each in world.receiver.seen] == ["/a", "/b", "/b", "/undo"]
