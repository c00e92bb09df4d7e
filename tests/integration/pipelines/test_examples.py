"""The examples run as they stand, and are counted by the specification's metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from gpuplane.core.ids import JobId
from gpuplane.domains.jobs import service as jobs
from gpuplane.kit.sealing import SealingKeys
from tests.integration.pipelines.worlds import World, working_world
from tests.waiting import wait_until_async

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"
RAG: dict[str, Any] = json.loads((EXAMPLES / "rag.json").read_text())


@pytest.mark.parametrize("reranker", [True, False])
async def test_the_specifications_rag_example_runs_on_the_demo_cluster(
    tmp_path: Path, sealing_keys: SealingKeys, reranker: bool
) -> None:
    catalogue = str(EXAMPLES / "rag-catalogue.yaml")
    async with working_world(tmp_path, sealing_keys, catalogue=catalogue) as world:
        ended = await world.run(RAG, enable_reranker=reranker)
        assert ended.status == "completed", ended.run
        assert ended.steps["step-6"]["status"] == ("completed" if reranker else "skipped")
        made = {job["id"]: job for job in (await world.get("/jobs"))["items"]}
        assert len(made) == (5 if reranker else 4)
        assert {job["job_type"] for job in made.values()} == {"service"}
        llm = made[ended.output("step-4")["job_id"]]
        assert (llm["gpu_count"], llm["priority"]) == (2, "high")
        rag = await world.get(f"/jobs/{ended.output('step-7')['job_id']}")
        urls = [ended.output(key)["url"] for key in ("step-2", "step-3", "step-4")]
        env = rag["spec"]["env"]
        assert [env[f"{name}_URL"] for name in ("VECTOR_DB", "EMBEDDING", "LLM")] == urls
        assert env["RERANKER_URL"] == (ended.output("step-6")["url"] if reranker else "")
        message = ended.output("step-8")["message"]
        assert message == f"RAG system deployed! URL: {ended.output('step-7')['url']}"
        assert world.receiver.seen == []


async def test_the_rag_example_is_refused_with_reasons_where_nothing_provides_it(
    world: World,
) -> None:
    found = await world.refused(RAG)
    assert {field for field in found if "spec.steps" in field} == {
        "spec.steps[1].config.component_ref",
        "spec.steps[2].config.deployment_type",
        "spec.steps[3].config.deployment_type",
        "spec.steps[5].config.deployment_type",
        "spec.steps[6].config.component_ref",
    }


async def test_the_first_example_runs_and_is_counted_by_the_specifications_metrics(
    world: World,
) -> None:
    document = yaml.safe_load((EXAMPLES / "hello.yaml").read_text())
    ended = await world.run(document, who="you")
    assert ended.output("pipeline-outputs") == {"line": "Hello, you! has 8 letters."}
    pipeline_id = (await world.get("/pipelines"))["items"][0]["id"]
    wanted = (
        'pipeline_executions_total{status="success"} 1.0',
        f'pipeline_duration_seconds_count{{pipeline_id="{pipeline_id}",status="success"}} 1.0',
        'step_executions_total{status="success",step_type="function"} 1.0',
        'step_duration_seconds_count{status="success",step_type="job"} 1.0',
        'jobs_created_from_steps_total{step_type="job"} 1.0',
        'job_wait_time_seconds_count{source_type="PIPELINE"} 1.0',
    )

    async def counted() -> bool:
        text = (await world.http.get("/metrics")).text
        return all(line in text for line in wanted)

    await wait_until_async(counted, "every metric of the specification")


async def test_the_trace_of_the_call_is_carried_into_the_run_and_its_jobs(world: World) -> None:
    document = yaml.safe_load((EXAMPLES / "hello.yaml").read_text())
    saved = await world.save(document)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = await world.http.post(
        f"/api/v1/pipelines/{saved['pipeline']['id']}/runs", headers={"traceparent": trace}
    )
    ended = await world.ended(answer.json()["id"])
    assert ended.run["traceparent"].split("-")[1] == trace.split("-")[1]
    job_id = JobId(UUID(ended.output("count")["job_id"]))
    found = await world.control.database.read(lambda s: jobs.load_jobs(s, [job_id]))
    told = found[job_id].traceparent
    assert told is not None
    assert told.split("-")[1] == trace.split("-")[1]
