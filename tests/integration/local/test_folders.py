"""What a job finds in its working directory, and what it leaves there for others."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from gpuplane.backends.interface import AttemptPlan, BackendError, Phase, ReplicaObservation
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import Mount
from tests.contract.builders import a_plan
from tests.integration.local.conftest import Machine
from tests.waiting import wait_until_async


class Archive:
    """Builds a tar.gz member by member, honest or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar = tarfile.open(path, "w:gz")  # noqa: SIM115 - closed by `done`

    def file(self, name: str, text: str = "", mode: int = 0o644) -> Archive:
        member = tarfile.TarInfo(name)
        member.size = len(text.encode())
        member.mode = mode
        self._tar.addfile(member, io.BytesIO(text.encode()))
        return self

    def link(self, name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Archive:
        member = tarfile.TarInfo(name)
        member.type = kind
        member.linkname = target
        self._tar.addfile(member)
        return self

    def device(self, name: str) -> Archive:
        member = tarfile.TarInfo(name)
        member.type = tarfile.CHRTYPE
        self._tar.addfile(member)
        return self

    def done(self) -> str:
        self._tar.close()
        return str(self.path)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "workspace.tar.gz")


async def run_with(local: Machine, archive: str, script: str, **plan: object) -> AttemptPlan:
    made = replace(
        a_plan(command=("/bin/sh", "-c", script), **plan),  # type: ignore[arg-type]  # passed through
        workspace_archive=archive,
    )
    await local.backend.ensure_workload(made, {})
    await local.end_of(made.ref)
    return made


async def test_a_job_starts_in_its_working_directory(local: Machine, archive: Archive) -> None:
    archive.file("src/train.sh", "#!/bin/sh\necho trained\n", mode=0o755).file("data.txt", "42")
    archive.link("latest", "data.txt").link("copy.txt", "data.txt", tarfile.LNKTYPE)
    plan = await run_with(
        local, archive.done(), "./train.sh; cat ../latest ../copy.txt", working_dir="src"
    )
    assert await local.text(plan.ref) == "trained\n4242"


async def test_every_rank_has_a_working_directory_of_its_own(
    local: Machine, archive: Archive
) -> None:
    path = archive.file("count", "0").done()
    plan = await run_with(local, path, "echo $RANK >>count; cat count", replica_count=2)
    assert await local.text(plan.ref, 0) == "00\n"
    assert await local.text(plan.ref, 1) == "01\n"


async def test_what_lies_in_the_archive_may_not_reach_outside(
    local: Machine, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    cases = {
        "absolute": lambda a: a.file(f"{outside}/x", "bad"),
        "climbing": lambda a: a.file("../../x", "bad"),
        "link out": lambda a: a.link("out", str(outside)),
        "climbing link": lambda a: a.link("deep/er/out", "../../../x"),
        "link over a link": lambda a: a.link("p/q/d", "../..").link("p/q/e", "d/.."),
        "through a link": lambda a: a.link("d", str(outside)).file("d/x", "bad"),
        "hard link out": lambda a: a.link("h", "../../../etc/passwd", tarfile.LNKTYPE),
        "hard link to nothing": lambda a: a.link("h", "missing", tarfile.LNKTYPE),
        "device": lambda a: a.device("null"),
    }
    for name, fill in cases.items():
        path = fill(Archive(tmp_path / f"{name}.tar.gz")).done()
        plan = await run_with(local, path, "echo ran")
        replica = await local.seen(plan.ref)
        assert (name, replica.reason) == (name, Word.START_FAILED)
        assert "workspace" in replica.message, name
        assert await local.text(plan.ref) == ""
    assert list(outside.iterdir()) == []


async def test_an_archive_that_is_none_is_a_failed_start(local: Machine, tmp_path: Path) -> None:
    path = tmp_path / "bad.tar.gz"
    path.write_bytes(b"this is no archive")
    plan = await run_with(local, str(path), "true")
    assert "not a tar archive" in (await local.seen(plan.ref)).message
    plan = await run_with(local, str(tmp_path / "missing.tar.gz"), "true")
    assert "missing.tar.gz" in (await local.seen(plan.ref)).message


async def test_an_archive_that_unpacks_to_too_much_is_a_failed_start(
    local: Machine, archive: Archive
) -> None:
    local.factory.settings = replace(local.factory.settings, max_workspace_bytes=1000)
    await local.reopen()
    plan = await run_with(local, archive.file("zeros", "0" * 2000).done(), "true")
    assert "more than 1000 bytes" in (await local.seen(plan.ref)).message


async def test_a_volume_is_found_at_its_path_and_outlives_the_attempt(local: Machine) -> None:
    mount = Mount("datasets", "/data")
    first = a_plan(command=("/bin/sh", "-c", "echo kept >data/file"), mounts=(mount,))
    await local.backend.ensure_workload(first, {})
    assert (await local.end_of(first.ref)).exit_code == 0
    await local.backend.forget(first.ref)
    script = ("/bin/sh", "-c", "cat data/file $GPUPLANE_MOUNT_DATASETS/file")
    second = replace(a_plan(command=script, mounts=(mount,)), tenant_id=first.tenant_id)
    await local.backend.ensure_workload(second, {})
    await local.end_of(second.ref)
    assert await local.text(second.ref) == "kept\nkept\n"
    other = a_plan(command=("/bin/sh", "-c", "ls data"), mounts=(mount,))
    await local.backend.ensure_workload(other, {})
    await local.end_of(other.ref)
    assert await local.text(other.ref) == ""


async def test_a_mount_over_a_file_of_the_workspace_is_a_failed_start(
    local: Machine, archive: Archive
) -> None:
    path = archive.file("data/file", "mine").done()
    plan = await run_with(local, path, "true", mounts=(Mount("datasets", "/data"),))
    assert "data exists in the workspace" in (await local.seen(plan.ref)).message


async def test_checkpoints_are_kept_for_the_next_attempt_of_the_job(local: Machine) -> None:
    script = (
        "echo step-3 >checkpoints/last; echo $GPUPLANE_CHECKPOINT_DIR/last >>$GPUPLANE_CHECKPOINTS"
    )
    first = replace(a_plan(command=("/bin/sh", "-c", script)), checkpoint_path="/checkpoints")
    await local.backend.ensure_workload(first, {})
    replica = await local.end_of(first.ref)
    assert replica.checkpoint is not None
    assert replica.checkpoint_at is not None
    again = a_plan(command=("/bin/sh", "-c", "cat $GPUPLANE_RESUME_FROM"))
    again = replace(
        again,
        job_id=first.job_id,
        tenant_id=first.tenant_id,
        attempt_number=2,
        checkpoint_path="/checkpoints",
        resume_from=replica.checkpoint,
    )
    await local.backend.ensure_workload(again, {})
    await local.end_of(again.ref)
    assert await local.text(again.ref) == "step-3\n"


async def test_progress_and_outputs_are_read_back(local: Machine) -> None:
    script = """
    echo 0.1 >>$GPUPLANE_PROGRESS
    echo '{"ratio": 0.5, "step": 7}' >>$GPUPLANE_PROGRESS
    echo '{"accuracy": 0.9, "name": "m"}' >$GPUPLANE_OUTPUTS
    """
    replica = await local.run(script)
    assert replica.progress_ratio == 0.5
    assert replica.outputs == {"accuracy": 0.9, "name": "m"}


async def test_progress_is_seen_while_the_job_runs(local: Machine) -> None:
    plan = await local.start("echo 0.25 >>$GPUPLANE_PROGRESS; echo up; sleep 600")
    await local.until_printed(plan.ref, "up")

    async def told() -> ReplicaObservation | None:
        replica = await local.seen(plan.ref)
        return None if replica.progress_ratio is None else replica

    replica = await wait_until_async(told, "the progress is seen")
    assert replica is not None
    assert (replica.phase, replica.progress_ratio) == (Phase.RUNNING, 0.25)


async def test_a_malformed_report_is_a_sentence_and_no_failure(local: Machine) -> None:
    script = """
    echo soon >>$GPUPLANE_PROGRESS
    echo '{"path": 7}' >>$GPUPLANE_CHECKPOINTS
    echo '[1, 2' >$GPUPLANE_OUTPUTS
    """
    replica = await local.run(script)
    assert replica.reason == Word.COMPLETED
    assert (replica.progress_ratio, replica.checkpoint, replica.outputs) == (None, None, None)
    for name in ("progress file", "checkpoints file", "outputs.json"):
        assert name in replica.message


async def test_the_artifacts_of_a_job_are_given_back(local: Machine) -> None:
    script = """
    mkdir -p out/deep; echo model >out/model.bin; echo log >out/deep/run.log
    echo no >other.txt; ln -s /etc/passwd out/link; echo x >metrics.json
    """
    plan = await local.start(script, artifacts=("out", "*.json"))
    replica = await local.end_of(plan.ref)
    listed = await local.backend.list_artifacts(plan.ref)
    assert listed == (("metrics.json", 2), ("out/deep/run.log", 4), ("out/model.bin", 6))
    assert "1 artifacts were left out" in replica.message
    assert await local.backend.read_artifact(plan.ref, "out/model.bin", 2, 3) == b"del"


async def test_artifacts_of_several_ranks_are_told_apart(local: Machine) -> None:
    plan = await local.start("echo $RANK >r.txt", artifacts=("r.txt",), replica_count=2)
    await local.end_of(plan.ref)
    assert await local.backend.list_artifacts(plan.ref) == (("0/r.txt", 2), ("1/r.txt", 2))
    assert await local.backend.read_artifact(plan.ref, "1/r.txt", 0, 10) == b"1\n"


async def test_artifacts_beyond_the_limit_are_left_out(local: Machine) -> None:
    local.factory.settings = replace(local.factory.settings, max_artifact_bytes=10)
    await local.reopen()
    plan = await local.start("echo 12345 >a; echo 1234567 >b", artifacts=("*",))
    replica = await local.end_of(plan.ref)
    assert await local.backend.list_artifacts(plan.ref) == (("a", 6),)
    assert "1 artifacts were left out" in replica.message


@pytest.mark.parametrize(
    "path", ["../state.json", "/etc/passwd", "out/../../../plan.json", "missing", "", "out"]
)
async def test_the_path_of_an_artifact_may_not_lead_elsewhere(local: Machine, path: str) -> None:
    plan = await local.start("mkdir out; echo x >out/x", artifacts=("out",))
    await local.end_of(plan.ref)
    with pytest.raises(BackendError):
        await local.backend.read_artifact(plan.ref, path, 0, 10)


async def test_a_forgotten_attempt_leaves_no_file_but_its_id(local: Machine) -> None:
    plan = await local.start("echo x >a", artifacts=("a",))
    await local.end_of(plan.ref)
    await local.backend.forget(plan.ref)
    left = [p for p in local.backend.root.rglob("*") if str(plan.ref.attempt_id) in str(p)]
    assert [path.parent.name for path in left] == ["forgotten"]


async def test_the_state_record_is_plain_json_with_its_version(local: Machine) -> None:
    plan = await local.start("echo 'ü\"\\'; exit 1")
    await local.end_of(plan.ref)
    text = (local.folder(plan.ref).path / "state.json").read_text(encoding="utf-8")
    state = json.loads(text)
    assert state["format"] == 1
    assert state["replicas"][0]["exit_code"] == 1
    assert LocalSettings().max_log_bytes > 0
