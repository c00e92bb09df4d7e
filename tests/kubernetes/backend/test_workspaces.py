"""A working directory is in the pod when the job starts, whatever its size within the limit."""

from __future__ import annotations

import os
import tarfile
from dataclasses import replace
from pathlib import Path

from gpuplane.backends.interface import Stream
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import ResourceRequest
from gpuplane.kube.kinds import CONFIG_MAP
from tests.contract.builders import a_plan
from tests.contract.factories import until_over
from tests.contract.kubernetes import KubernetesFactory

SMALL = ResourceRequest(cpu_milli=100, memory_mib=64, ephemeral_mib=64)


async def test_a_job_starts_in_the_working_directory_that_was_sent_in_pieces(
    factory: KubernetesFactory, backend: KubernetesBackend, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    (work / "src" / "hello.txt").write_text("hello from home\n")
    (work / "noise").write_bytes(os.urandom(1_200_000))  # cannot be packed into one piece
    archive = tmp_path / "work.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(work, ".")
    script = 'cat hello.txt; wc -c < "$GPUPLANE_WORKDIR/noise"'
    plan = a_plan(
        node_name=factory.node_name,
        resources=SMALL,
        command=("/bin/sh", "-c", script),
        working_dir="src",
    )
    await backend.ensure_workload(replace(plan, workspace_archive=str(archive)), {})
    [over] = await until_over(factory, backend, plan.ref)
    assert (over.reason, over.message) == (Word.COMPLETED, "")
    text = (await backend.read_logs(plan.ref, 0, Stream.STDOUT, 0, 1000)).data.decode()
    assert text.split() == ["hello", "from", "home", "1200000"]
    labels = {names.ATTEMPT_ID: str(plan.ref.attempt_id)}
    pieces = await backend.client.list(CONFIG_MAP, "tenant-default", labels)
    assert len(pieces) == 2


async def test_one_that_cannot_be_unpacked_says_so(
    factory: KubernetesFactory, backend: KubernetesBackend, tmp_path: Path
) -> None:
    archive = tmp_path / "work.tar.gz"
    archive.write_bytes(b"no archive at all")
    plan = a_plan(node_name=factory.node_name, resources=SMALL)
    await backend.ensure_workload(replace(plan, workspace_archive=str(archive)), {})
    [over] = await until_over(factory, backend, plan.ref)
    assert over.reason == Word.START_FAILED
    assert "unpacking the working directory ended with code" in over.message
