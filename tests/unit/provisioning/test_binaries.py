"""What the binary is told by its environment, and what is passed on of what it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuplane.provisioning.binaries import (
    environment_for,
    find_binary,
    run_binary,
    without_secrets,
)
from gpuplane.provisioning.errors import ProvisioningError, Reason


def test_credentials_of_clouds_are_passed_on_and_nothing_of_ours() -> None:
    given = {
        "AWS_SECRET_ACCESS_KEY": "s", "ARM_CLIENT_SECRET": "s", "GOOGLE_CREDENTIALS": "s",
        "HTTPS_PROXY": "p", "GPUPLANE_TOKEN": "ours", "TF_LOG": "TRACE", "TF_CLI_ARGS": "-x",
        "TF_VAR_a": "b", "LD_PRELOAD": "x", "KUBECONFIG": "k",
    }  # fmt: skip
    found = environment_for(given, {"TF_DATA_DIR": "/d"})
    assert set(given) & set(found) == {
        "AWS_SECRET_ACCESS_KEY", "ARM_CLIENT_SECRET", "GOOGLE_CREDENTIALS", "HTTPS_PROXY",
    }  # fmt: skip
    assert (found["TF_DATA_DIR"], found["TF_INPUT"]) == ("/d", "0")


def test_the_value_of_a_credential_is_taken_out_of_what_is_said() -> None:
    environment = {"AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_REGION": "eu-west-1"}
    said = without_secrets("denied: hush-hush in eu-west-1", environment)
    assert said == "denied: <AWS_SECRET_ACCESS_KEY> in eu-west-1"


def test_opentofu_is_taken_before_terraform_and_a_named_binary_before_both(tmp_path: Path) -> None:
    for name in ("tofu", "terraform", "mine"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    assert find_binary(None, str(tmp_path)).name == "tofu"
    assert find_binary("mine", str(tmp_path)).name == "mine"
    (tmp_path / "tofu").unlink()
    assert find_binary(None, str(tmp_path)).name == "terraform"


def test_a_machine_without_the_binary_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ProvisioningError) as refused:
        find_binary(None, str(tmp_path))
    assert refused.value.reason is Reason.NO_BINARY
    assert "OpenTofu" in refused.value.fix


def run(script: str, folder: Path, timeout_s: float = 60.0) -> tuple[int, bytes, str]:
    with (folder / "lock").open("w") as lock:
        ended = run_binary(
            ["/bin/sh", "-c", script],
            environment={"PATH": os.environ["PATH"], "MY_TOKEN": "hush-hush"},
            folder=folder,
            lock=lock.fileno(),
            timeout_s=timeout_s,
        )
    return ended.code, ended.stdout, ended.stderr


def test_a_command_ends_with_its_code_and_what_it_wrote(tmp_path: Path) -> None:
    assert run("echo out; echo said $MY_TOKEN >&2; exit 3", tmp_path) == (
        3, b"out\n", "said <MY_TOKEN>\n",
    )  # fmt: skip


def test_a_command_that_is_out_of_time_is_interrupted_and_may_finish_its_state(
    tmp_path: Path,
) -> None:
    script = "trap 'echo kept >state; exit 1' INT; while :; do :; done"
    with pytest.raises(ProvisioningError) as refused:
        run(script, tmp_path, timeout_s=2.0)
    assert refused.value.reason is Reason.TIMED_OUT
    assert (tmp_path / "state").read_text() == "kept\n"


def test_a_binary_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock, pytest.raises(ProvisioningError, match="cannot be"):
        run_binary(["/nonexistent"], environment={}, folder=tmp_path, lock=lock.fileno(),
                   timeout_s=5)  # fmt: skip
