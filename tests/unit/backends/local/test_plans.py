from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuplane.backends.interface import BackendError
from gpuplane.backends.local.environments import compute_environment
from gpuplane.backends.local.folders import AttemptFolder
from gpuplane.backends.local.plans import check_plan, compute_payload, relative_path
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.backends.local.supervisor.collecting import matches
from gpuplane.backends.local.supervisor.plan import Plan
from gpuplane.core.workloads import HealthCheck, Mount
from tests.contract.builders import a_plan


def environment(inherited: dict[str, str], **fields: object) -> dict[str, str]:
    plan = a_plan(**fields)  # type: ignore[arg-type]  # passed through
    return compute_environment(
        plan,
        plan.replicas[0],
        {"TOKEN": "secret", "PATH": "/from/secret"},
        folder="/home/attempt/0",
        checkpoint_folder="/home/checkpoints",
        visible_devices="GPU-1",
        inherited=inherited,
        inherited_names=("TZ", "LANG"),
    )


def test_a_job_may_not_take_the_products_own_names() -> None:
    env = environment({}, env={"GPUPLANE_RANK": "9", "CUDA_VISIBLE_DEVICES": "0"})
    assert env["GPUPLANE_RANK"] == "0"
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1"


def test_the_later_entry_wins() -> None:
    env = environment({"PATH": "/control", "LANG": "de_DE.UTF-8"}, env={"LANG": "fr_FR.UTF-8"})
    assert env["LANG"] == "fr_FR.UTF-8"
    assert env["PATH"] == "/from/secret"


def test_only_named_variables_are_inherited() -> None:
    env = environment({"TZ": "UTC", "AWS_SECRET_ACCESS_KEY": "x"})
    assert env["TZ"] == "UTC"
    assert "AWS_SECRET_ACCESS_KEY" not in env


def test_the_resume_point_and_seed_reach_the_job() -> None:
    plan = replace(a_plan(seed=42), resume_from="/home/checkpoints/3")
    env = compute_environment(
        plan,
        plan.replicas[0],
        {},
        folder="/f",
        checkpoint_folder="",
        visible_devices="",
        inherited={},
        inherited_names=(),
    )
    assert (env["GPUPLANE_RESUME_FROM"], env["GPUPLANE_SEED"]) == ("/home/checkpoints/3", "42")
    assert "GPUPLANE_CHECKPOINT_DIR" not in env
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize(
    ("text", "path"), [("", ""), (".", ""), ("a/./b/", "a/b"), ("a//b", "a/b")]
)
def test_a_relative_path_is_made_plain(text: str, path: str) -> None:
    assert relative_path(text, "field") == path


@pytest.mark.parametrize("text", ["/a", "..", "a/../b", "a\0b"])
def test_a_path_that_could_leave_is_refused(text: str) -> None:
    with pytest.raises(BackendError, match="field"):
        relative_path(text, "field")


def test_a_plan_with_one_rank_twice_is_refused() -> None:
    plan = a_plan()
    with pytest.raises(BackendError, match="one rank twice"):
        check_plan(replace(plan, replicas=plan.replicas * 2), {})
    with pytest.raises(BackendError, match="no replica"):
        check_plan(replace(plan, replicas=()), {})


def test_the_payload_holds_every_field_that_a_supervisor_reads(tmp_path: Path) -> None:
    plan = a_plan(
        replica_count=2,
        mounts=(Mount("data-set", "/data"),),
        health=HealthCheck(path="/ok"),
        port=0,
    )
    plan = replace(plan, checkpoint_path="/checkpoints")
    folder = AttemptFolder(tmp_path, plan.ref.attempt_id)
    payload = compute_payload(
        plan,
        {"TOKEN": "s"},
        folder,
        LocalSettings(),
        "",
        {"data-set": Path("/v/data-set")},
        Path("/c"),
        {0: "GPU-1"},
    )
    read = Plan({**payload, "has_gpu_lock": False})
    assert [task.rank for task in read.replicas] == [0, 1]
    assert read.mounts == [("data", "/v/data-set"), ("checkpoints", "/c")]
    assert read.replicas[0].env["GPUPLANE_MOUNT_DATA_SET"] == "/v/data-set"
    assert read.replicas[0].env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert read.replicas[1].env["CUDA_VISIBLE_DEVICES"] == ""
    assert read.health is not None
    assert read.health["path"] == "/ok"


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.txt", "a.txt", True),
        ("*.txt", "d/a.txt", False),
        ("**/*.txt", "d/e/a.txt", True),
        ("**/*.txt", "a.txt", True),
        ("out", "out/a/b", True),
        ("out", "outer/a", False),
        ("out/*/last", "out/1/last", True),
        ("out/*/last", "out/1/2/last", False),
        ("?.bin", "ab.bin", False),
        ("[ab].bin", "a.bin", True),
    ],
)
def test_a_pattern_matches_part_by_part(pattern: str, path: str, fits: bool) -> None:
    assert matches(pattern.split("/"), path.split("/")) is fits
