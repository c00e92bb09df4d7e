"""Every submit that cannot be meant is refused with a sentence that names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplane.domains.jobs.service import SubmitLimits
from gpuplane.kit.clock import instant_to_text
from gpuplane.kit.sealing import SealingKeys
from tests.integration.jobs.worlds import World, running_world, runs_for

PAST = "2020-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("fields", "field", "hint"),
    [
        ({"gpus": 1}, "gpus", "gpu_count"),
        ({"prioritty": "high"}, "prioritty", "priority"),
        ({"spec": {"comand": []}}, "spec.comand", "command"),
        ({"gpu_count": "two"}, "gpu_count", "quotes"),
        ({"spec": {"command": [""]}}, "spec.command", "program"),
        ({"spec": {"command": []}}, "spec", "list"),
        ({"spec": {"secrets": [{"name": "nobodys"}]}}, "spec.secrets[0].name", "secrets set"),
        ({"gpu_count": -1}, "gpu_count", ""),
        ({"gpu_count": 10**9}, "gpu_count", ""),
        ({"gpu_count": 1.5}, "gpu_count", ""),
        ({"cpu_cores": -0.5}, "cpu_cores", ""),
        ({"memory_gb": 10**12}, "memory_gb", ""),
        ({"cpu_cores": 65}, "cpu_cores", "at most 64"),
        ({"memory_gb": 513}, "memory_gb", "at most 512"),
        ({"gpu_count": 1, "resources": {"gpu_memory_gb": 90}}, "resources.gpu_memory_gb", "most"),
        (
            {"gpu_type": "T4", "gpu_count": 1, "resources": {"gpu_memory_gb": 17}},
            "resources.gpu_memory_gb",
            "at most 1",
        ),
        ({"gpu_type": "H1O0", "gpu_count": 1}, "gpu_type", "nvidia-h100-80gb"),
        ({"gpu_type": "H100", "gpu_count": 9}, "gpu_count", "at most 8"),
        ({"gpu_type": "A100", "gpu_count": 1}, "gpu_type", "nvidia-t4"),
        ({"gpu_type": "H100"}, "gpu_type", "gpu_count"),
        ({"gpu_count": 2, "resources": {"gpu_share": 0.5}}, "resources.gpu_share", "gpu_count 1"),
        ({"gpu_count": 1, "resources": {"gpu_share": 0}}, "resources.gpu_share", ""),
        ({"gpu_count": 4, "resources": {"mig_profile": "1g.10gb"}}, "resources.mig_profile", ""),
        ({"resources": {"mig_profile": "9g.1gb"}}, "resources.mig_profile", "1g.10gb"),
        (
            {"gpu_type": "T4", "resources": {"mig_profile": "1g.10gb"}},
            "resources.mig_profile",
            "nvidia-",
        ),
        (
            {"resources": {"ephemeral_storage_gb": 2000}},
            "resources.ephemeral_storage_gb",
            "",
        ),
        ({"replicas": {"count": 0}}, "replicas.count", ""),
        ({"replicas": {"count": 4, "minimum": 2}}, "replicas.minimum", "gang"),
        ({"replicas": {"count": 2, "max": 4}}, "replicas.max", ""),
        ({"replicas": {"scale_to_zero": True}}, "replicas.scale_to_zero", "service"),
        ({"replicas": {"triggers": [{"type": "cron"}]}}, "replicas.triggers", "service"),
        (
            {"job_type": "service", "replicas": {"triggers": [{"type": "cron"}]}},
            "replicas.triggers",
            "replicas.max",
        ),
        (
            {"job_type": "service", "replicas": {"max": 2, "triggers": [{"type": "cron"}]}},
            "replicas.triggers",
            "registered cluster",
        ),
        ({"array": {"size": 0}}, "array.size", ""),
        ({"array": {"size": 100_000}}, "array.size", "10000"),
        ({"deadline": PAST}, "deadline", "future"),
        ({"deadline": "tomorrow"}, "deadline", "RFC 3339"),
        ({"deadline": "2126-01-01T00:00:00"}, "deadline", "zone"),
        (
            {"deadline": "2126-01-01T00:00:00Z", "scheduled_start": "2126-01-02T00:00:00Z"},
            "scheduled_start",
            "",
        ),
        (
            {"window": {"start": "22:00", "end": "06:00", "zone": "Mars/Olympus"}},
            "window.zone",
            "",
        ),
        ({"window": {"start": "25:00", "end": "06:00", "zone": "UTC"}}, "window.start", "HH:MM"),
        ({"window": {"start": "09:00", "end": "09:00", "zone": "UTC"}}, "window", "never opens"),
        (
            {"window": {"start": "09:00", "end": "10:00", "zone": "UTC", "weekdays": []}},
            "window",
            "never opens",
        ),
        (
            {"window": {"start": "09:00", "end": "10:00", "zone": "UTC", "weekdays": ["fun"]}},
            "window.weekdays[0]",
            "",
        ),
        ({"spec": {"mounts": [{"name": "/etc", "path": "/x"}]}}, "spec.mounts[0]", "volume"),
        (
            {"spec": {"mounts": [{"host_path": "/etc", "path": "/x"}]}},
            "spec.mounts[0]",
            "volume",
        ),
        (
            {"spec": {"mounts": [{"name": "data", "path": "/a/../b"}]}},
            "spec.mounts[0].path",
            "",
        ),
        (
            {"spec": {"mounts": [{"name": "a", "path": "/d"}, {"name": "b", "path": "/d/"}]}},
            "spec.mounts",
            "its own path",
        ),
        ({"queue": "nope"}, "queue", "default on sim"),
        ({"spec": {"working_dir": "../.."}}, "spec.working_dir", ""),
        ({"spec": {"working_dir": "/etc"}}, "spec.working_dir", "relative"),
        ({"spec": {"artifacts": ["ok", "../../etc/passwd"]}}, "spec.artifacts[1]", ""),
        ({"spec": {"env": {"1A": "x"}}}, "spec.env", "digit"),
        ({"spec": {"env": {"CUDA_VISIBLE_DEVICES": "0"}}}, "spec.env", "control plane"),
        (
            {"spec": {"secrets": [{"name": "key", "value": "sk-123"}]}},
            "spec.secrets[0]",
            "secrets",
        ),
        ({"spec": {"health": {"path": "/"}}}, "spec.health", "service"),
        ({"spec": {"image": "repo/app:1"}}, "spec.image", "docker"),
        ({"deployment_type": "docker"}, "spec.image", ""),
        ({"deployment_type": "helm"}, "spec.chart", "values"),
        ({"deployment_type": "helm", "spec": {"chart": {"name": "a"}}}, "job_type", "service"),
        ({"spec": {"chart": {"name": "a"}}}, "spec.chart", "helm"),
        (
            {
                "deployment_type": "helm",
                "job_type": "service",
                "spec": {"chart": {"name": "./a"}},
            },
            "deployment_type",
            "registered cluster",
        ),
        ({"spec": {"chart": {"name": "../etc"}}}, "spec.chart.name", "oci"),
        ({"spec": {"chart": {"name": "a", "repo": "http://x"}}}, "spec.chart.repo", "https"),
        ({"spec": {"chart": {"name": "a", "version": "^1"}}}, "spec.chart.version", "1.12.0"),
        ({"deployment_type": "model"}, "deployment_type", "process"),
        ({"component_ref": "postgres"}, "component_ref", "spec"),
        ({"cluster": "nowhere"}, "cluster", "sim"),
        ({"project": "nowhere"}, "project", ""),
        ({"name": "Not A Name"}, "name", "not-a-name"),
        ({"name": "../etc"}, "name", ""),
        ({"labels": {"bad key!": "x"}}, "labels", ""),
        ({"deadline": "9999-12-31T23:59:59Z"}, "deadline", "9998"),
        ({"budget_limit": "-1"}, "budget_limit", ""),
        ({"budget_limit": "1.1234567"}, "budget_limit", "six decimals"),
        ({"priority": "urgent"}, "priority", ""),
        (
            {"estimated_duration_seconds": 100, "max_duration_seconds": 50},
            "max_duration_seconds",
            "",
        ),
        (
            {"retry": {"delay_seconds": 600, "max_delay_seconds": 60}},
            "retry.max_delay_seconds",
            "600",
        ),
        ({"checkpoint": {"storage_size": "lots"}}, "checkpoint.storage_size", ""),
        ({"checkpoint": {"checkpoint_path": "here"}}, "checkpoint.checkpoint_path", "absolute"),
        ({"after": [{"job_id": "00000000-0000-7000-8000-000000000000"}]}, "after[0].job_id", ""),
        (
            {"placement": {"topology": {"preference": "nvlink"}}},
            "placement.topology.preference",
            "",
        ),
        (
            {"placement": {"co_locate_with": ["00000000-0000-7000-8000-000000000000"]}},
            "placement.co_locate_with[0]",
            "",
        ),
        ({"source_type": "pipeline"}, "source_id", ""),
        ({"source_id": "x"}, "source_id", ""),
        (
            {
                "usecase_deployment_id": "00000000-0000-7000-8000-000000000000",
                "source_type": "pipeline",
            },
            "usecase_deployment_id",
            "",
        ),
        ({"idempotency_key": ""}, "idempotency_key", ""),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip - a table of refusals
async def test_a_field_that_cannot_hold_is_named_with_the_fix(
    world: World, fields: dict[str, Any], field: str, hint: str
) -> None:
    refused = await world.submit(422, **fields)
    assert refused["field"] == field
    assert refused["detail"].rstrip(")").endswith((".", "'"))
    assert hint in refused["detail"] + refused["fix"]
    assert (await world.ask("GET", "/jobs"))["items"] == []


async def test_a_window_that_opens_only_after_the_deadline_is_refused(world: World) -> None:
    now = world.server.clock.now_ms()

    start, end = instant_to_text(now + 7_200_000)[11:16], instant_to_text(now + 10_800_000)[11:16]
    refused = await world.submit(
        422,
        deadline=instant_to_text(now + 3_600_000),
        window={"start": start, "end": end, "zone": "UTC"},
        spec=runs_for(1),
    )
    assert (refused["field"], refused["code"]) == ("window", "job_invalid")


async def test_every_wrong_field_is_told_at_once(world: World) -> None:
    refused = await world.submit(422, gpu_count=-1, memory_gb="much", colour="red")
    assert {each["field"] for each in refused["errors"]} == {"gpu_count", "memory_gb", "colour"}


async def test_the_same_key_gives_the_same_job_and_another_body_is_refused(
    any_world: World,
) -> None:
    world = any_world
    first = await world.submit(idempotency_key="k1", spec=runs_for(1))
    second = await world.submit(idempotency_key="k1", spec=runs_for(1))
    assert first["id"] == second["id"]
    refused = await world.submit(409, idempotency_key="k1", spec=runs_for(2))
    assert refused["code"] == "idempotency_key_reused"
    array = await world.submit(idempotency_key="k2", array={"size": 3}, spec=runs_for(1))
    again = await world.submit(idempotency_key="k2", array={"size": 3}, spec=runs_for(1))
    assert array["array"] == again["array"]


async def test_the_same_idempotency_header_gives_the_same_answer(world: World) -> None:
    body = {"name": "job", "cluster": "sim", "spec": runs_for(1)}
    headers = {"Idempotency-Key": "abc"}
    answers = [await world.http.post("/api/v1/jobs", json=body, headers=headers) for _ in range(3)]
    assert {each.status_code for each in answers} == {201}
    assert len({each.json()["id"] for each in answers}) == 1
    other = await world.http.post("/api/v1/jobs", json={**body, "name": "x"}, headers=headers)
    assert other.status_code == 409


async def test_a_tenant_has_no_more_unfinished_jobs_than_its_limit(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    limits = SubmitLimits(unfinished_per_tenant=2)
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys, limits=limits) as world:
        await world.submit(spec=runs_for(1))
        await world.submit(spec=runs_for(1))
        refused = await world.submit(429, spec=runs_for(1))
        assert refused["code"] == "too_many_unfinished_jobs"


async def test_without_a_cluster_a_simulated_one_is_never_chosen(world: World) -> None:
    answer = await world.http.post("/api/v1/jobs", json={"name": "job", "spec": runs_for(1)})
    assert (answer.status_code, answer.json()["field"]) == (422, "cluster")


async def test_what_is_asked_comes_back_as_it_was_asked(world: World) -> None:
    asked: dict[str, Any] = {
        "name": "whole",
        "cluster": "sim",
        "job_type": "training",
        "gpu_type": "nvidia-h100-80gb",
        "gpu_count": 2,
        "cpu_cores": 3.5,
        "memory_gb": 12.5,
        "storage_gb": 7,
        "estimated_duration_seconds": 60,
        "max_duration_seconds": 120,
        "deadline": "2126-01-02T03:04:05.000Z",
        "deadline_action": "cancel",
        "priority": "high",
        "preemptible": False,
        "preempts_others": True,
        "max_retries": 5,
        "budget_limit": "12.50",
        "budget_action": "pause",
        "labels": {"team": "red"},
        "cost_centre": "cc 1",
        "data_classification": "internal",
        "queue": "default",
        "source_type": "pipeline",
        "pipeline_id": "00000000-0000-7000-8000-000000000001",
        "pipeline_step_id": "00000000-0000-7000-8000-000000000002",
        "resources": {
            "gpu_memory_gb": 70.0,
            "gpu_architecture": "hopper",
            "gpu_share": 1.0,
            "mig_profile": None,
            "rdma_fabric": "any",
            "ephemeral_storage_gb": 20.0,
        },
        "retry": {
            "delay_seconds": 10,
            "max_delay_seconds": 100,
            "jitter": 0.5,
            "on_preemption": False,
        },
        "checkpoint": {
            "enabled": True,
            "storage_class": "fast",
            "storage_size": "20Gi",
            "checkpoint_interval": 600,
            "max_checkpoints": 5,
            "checkpoint_path": "/ckpt",
        },
        "window": {
            "start": "22:00",
            "end": "06:30",
            "zone": "Europe/Berlin",
            "weekdays": ["mon", "fri"],
            "at_end": "checkpoint",
        },
    }  # fmt: skip - a whole body
    made = (await world.http.post("/api/v1/jobs", json={**asked, "spec": runs_for(9)})).json()
    assert {name: made[name] for name in asked} == asked
    assert (made["spec"]["command"], made["tenant"], made["user"]) == (
        ["train"],
        "default",
        world.server.admin.name,
    )  # fmt: skip - one comparison
    assert made["estimated_cost"] == "0.133333"
    assert await world.job(made["id"]) == made


async def test_a_training_job_writes_checkpoints_by_the_defaults_of_the_specification(
    world: World,
) -> None:
    made = await world.submit(job_type="training", spec=runs_for(1))
    assert made["checkpoint"] == {
        "enabled": True,
        "storage_class": "standard",
        "storage_size": "100Gi",
        "checkpoint_interval": 3600,
        "max_checkpoints": 3,
        "checkpoint_path": "/checkpoints",
    }
    assert made["resources"]["ephemeral_storage_gb"] == 100
    assert (made["max_retries"], made["priority"], made["budget_action"]) == (3, "normal", "warn")
