"""Every field of a job is an option, and options make the body."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import BaseModel

from gpuplane.cli.client import Client
from gpuplane.cli.jobbodies import body_of, name_of
from gpuplane.cli.joboptions import JOB_OPTIONS, JobOption
from gpuplane.cli.settings import Target
from gpuplane.domains.jobs.schemas import JobIn

OTHERWISE = {
    "spec.command": "the words after --",
    "project_id": "--project takes an id too",
    "cluster_id": "--cluster takes an id too",
    "window.start": "--time-window",
    "window.end": "--time-window",
    "window.zone": "--time-window",
    "spec.chart.name": "`apply`: a chart says what runs, and is no command to `run`",
    "spec.chart.repo": "`apply`",
    "spec.chart.version": "`apply`",
    "spec.chart.values": "`apply`",
    "replicas.triggers": "`apply`: types and their metadata are no words of a command",
}
"""Fields that are set another way than by an option of their own."""
WHOLE = {"window"}
"""Options that set several fields at once."""


def leaves(model: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *typing.get_args(field.annotation))
        is_list = typing.get_origin(field.annotation) is list
        inner = [
            each
            for each in kinds
            if isinstance(each, type) and issubclass(each, BaseModel) and not is_list
        ]
        if inner:
            found |= leaves(inner[0], f"{prefix}{name}.")
        else:
            found.add(f"{prefix}{name}")
    return found


def a_client() -> Client:
    return Client(Target("http://127.0.0.1:9", "t"))


def parsed(*words: str) -> dict[str, Any]:
    command = click.Command("run", params=[*JOB_OPTIONS])
    with command.make_context("run", list(words)) as context:
        return body_of(a_client(), ["python3", "train.py"], context.params)


def test_every_field_of_a_job_has_an_option() -> None:
    options = {option.field for option in JOB_OPTIONS} - {""}
    fields = leaves(JobIn)
    assert fields - options - set(OTHERWISE) == set()
    assert options - fields - WHOLE == set()


def test_every_option_says_what_it_is_for() -> None:
    assert [option.name for option in JOB_OPTIONS if not option.help] == []
    assert all(isinstance(option, JobOption) for option in JOB_OPTIONS)


def test_a_plain_run_asks_for_little() -> None:
    body = parsed("--name", "x")
    assert body["name"] == "x"
    assert (body["cpu_cores"], body["memory_gb"], body["max_retries"]) == (1.0, 1.0, 0)
    assert body["spec"] == {"command": ["python3", "train.py"]}
    assert "gpu_count" not in body


def test_options_are_nested_where_they_belong() -> None:
    body = parsed(
        "--gpus", "8", "--gpu-model", "H100", "--replicas", "4", "--topology", "nvlink",
        "--memory", "512M", "--duration", "2h", "--retry-delay", "90", "--sim-duration", "5m",
    )  # fmt: skip
    assert (body["gpu_count"], body["gpu_type"]) == (8, "H100")
    assert body["replicas"] == {"count": 4}
    assert body["placement"]["topology"] == {"preference": "nvlink"}
    assert body["memory_gb"] == 0.5
    assert body["estimated_duration_seconds"] == 7_200
    assert body["retry"] == {"delay_seconds": 90}
    assert body["spec"]["simulated"] == {"duration_s": 300.0}


def test_notations_of_their_own_become_the_body() -> None:
    body = parsed(
        "-e", "A=1", "--secret", "api-key", "--secret", "cert:@tls/cert.pem",
        "--secret", "db:DATABASE", "--mount", "data:/data:ro", "--toleration", "gpu=a:NoSchedule",
        "--toleration", "spot", "--time-window", "22:00-06:00@Europe/Berlin", "--weekdays",
        "mon,tue", "-l", "team=vision", "--sim-output", "loss=0.5",
    )  # fmt: skip
    assert body["spec"]["env"] == {"A": "1"}
    assert body["spec"]["secrets"] == [
        {"name": "api-key", "env": "API_KEY"},
        {"name": "cert", "path": "tls/cert.pem"},
        {"name": "db", "env": "DATABASE"},
    ]
    assert body["spec"]["mounts"] == [{"name": "data", "path": "/data", "read_only": True}]
    assert body["placement"]["tolerations"] == [
        {"key": "gpu", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists", "value": "", "effect": ""},
    ]
    assert body["window"] == {"start": "22:00", "end": "06:00", "zone": "Europe/Berlin",
                              "weekdays": ["mon", "tue"]}  # fmt: skip
    assert body["labels"] == {"team": "vision"}
    assert body["spec"]["simulated"]["outputs"] == {"loss": 0.5}


def test_an_image_makes_a_container_and_a_share_makes_one_gpu() -> None:
    body = parsed("--image", "registry.example.com/app:1", "--gpu-share", "0.5")
    assert body["deployment_type"] == "docker"
    assert body["gpu_count"] == 1


def test_the_body_is_one_that_the_server_takes(tmp_path: Path) -> None:
    env = tmp_path / "env"
    env.write_text("# c\nexport B='x y'\n")
    body = parsed("--env-file", str(env), "--gpus", "1", "--checkpoint-interval", "10m",
                  "--budget", "12.50", "--not-preemptible", "--health-path", "/health",
                  "--type", "service", "--port", "0")  # fmt: skip
    assert JobIn.model_validate(body).spec.env == {"B": "x y"}


@pytest.mark.parametrize(
    ("command", "begins"),
    [
        (["python3", "/srv/train.py", "--lr", "1"], "python3-train-"),
        (["sh", "-c", "echo hi; exit 3"], "sh-"),
        (["./Größe"], "gr-e-"),
        (["--odd"], "job-"),
    ],
)
def test_a_job_is_named_after_its_command(command: list[str], begins: str) -> None:
    name = name_of(command, None)
    assert name.startswith(begins)
    assert JobIn.model_validate({"name": name}).name == name


def test_a_window_option_without_a_window_is_refused() -> None:
    with pytest.raises(click.UsageError, match="--time-window"):
        parsed("--weekdays", "mon")
