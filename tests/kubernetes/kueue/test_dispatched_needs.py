"""What a dispatched job needs is on the worker before it starts, and of every kind it may be."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from typing import Any

from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs import service as jobs
from gpuplane.kube.kinds import CONFIG_MAP, JOB, PERSISTENT_VOLUME_CLAIM, SECRET
from tests.kubernetes.kueue.dispatching import (
    IN_TURN,
    Worker,
    command,
    dispatch,
    dispatch_to,
)
from tests.kubernetes.kueue.test_instances import FLAVOR, INSTANCES, cut
from tests.kubernetes.kueue.worlds import KueueWorld

ASKED = "$(cat hello.txt) $TOKEN $RANK of $WORLD_SIZE by ${MASTER_ADDR%%-*}"

pytestmark = IN_TURN


def packed() -> bytes:
    """Return a working directory with one file."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        entry = tarfile.TarInfo("hello.txt")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"hello"))
    return target.getvalue()


async def upload(world: KueueWorld, tenant: str) -> str:
    """Upload a working directory as a tenant does; return its digest."""
    digest = (await world.ask("POST", "/workspaces", 201, content=packed()))["digest"]

    def unit(session: WriteSession) -> None:
        found = identity.find_tenant_by_name(session, tenant)
        assert found is not None
        theirs = replace(world.server.admin, tenant_id=found.id)
        jobs.store_workspace(session, theirs, digest, len(packed()), 1)

    await world.server.database.write("tests.upload", unit)
    return str(digest)


async def project_of(world: KueueWorld, tenant: str) -> str:
    """Return the id of a tenant's project."""

    def unit(session: ReadSession) -> str:
        found = identity.find_tenant_by_name(session, tenant)
        assert found is not None
        project = identity.find_project_in(session, found.id, "default")
        assert project is not None
        return str(project.id)

    return await world.server.database.read(unit)


async def test_a_training_on_two_nodes_has_its_secret_files_and_checkpoints_on_the_worker(
    world: KueueWorld, near: Worker
) -> None:
    tenant = await world.tenant("acme")
    await dispatch(world, [near], tenant, 2)
    secret = {"name": "token", "value": "s3cret", "project_id": await project_of(world, tenant)}
    await world.ask("POST", "/secrets", 201, json=secret)
    digest = await upload(world, tenant)
    body = command(f'echo "{ASKED}"; echo kept > /checkpoints/$RANK; sleep 600')
    body["spec"] |= {"workspace_digest": digest, "secrets": [{"name": "token", "env": "TOKEN"}]}
    made = await world.submit(
        tenant,
        name="train",
        job_type="training",
        replicas={"count": 2},
        checkpoint={"storage_size": "1Gi"},
        **body,
    )
    await world.until(lambda: world.has_status(made["id"], "running"), "both ranks run")
    for rank in (0, 1):
        logs = await world.ask("GET", f"/jobs/{made['id']}/logs?rank={rank}")
        assert logs["text"] == f"hello s3cret {rank} of 2 by train\n"
    space = f"tenant-{tenant}"
    labels = {"gpuplane.io/job-id": made["id"]}
    assert len(await near.client.list(SECRET, space, labels)) == 1
    [claim] = await near.client.list(PERSISTENT_VOLUME_CLAIM, space, labels)
    assert claim["status"]["phase"] == "Bound"
    for kind in (SECRET, CONFIG_MAP, PERSISTENT_VOLUME_CLAIM):
        assert await world.client.list(kind, space, labels) == []  # nothing of it runs there

    await world.ask("DELETE", f"/jobs/{made['id']}")
    await world.until(lambda: world.has_status(made["id"], "cancelled"), "it is cancelled")

    async def is_gone() -> bool:
        left: list[dict[str, Any]] = []
        for kind in (JOB, SECRET, CONFIG_MAP):
            left += await near.client.list(kind, space, labels)
        return not left

    await world.until(is_gone, "what it needed is taken away with it")


async def test_a_job_on_a_mig_instance_is_dispatched_and_booked_on_the_worker(
    world: KueueWorld, near: Worker
) -> None:
    tenant = await world.tenant("acme")
    quota = {"name": INSTANCES, "nominalQuota": 1}
    groups = [
        [{"coveredResources": [INSTANCES], "flavors": [{"name": each, "resources": [quota]}]}]
        for each in ("any", FLAVOR)
    ]
    await dispatch_to(world, [near], tenant, groups)
    made = await world.submit(tenant, **cut("part"), queue="main")
    await world.until(lambda: world.has_status(made["id"], "running"), "it has its instance")
    job = await world.job(made["id"])
    assert job["cluster_id"] == str(near.cluster_id)
    [attempt] = (await world.ask("GET", f"/jobs/{made['id']}/attempts"))["items"]
    assert "/2g.10gb@" in attempt["replicas"][0]["mig_device"]
    await world.ask("DELETE", f"/jobs/{made['id']}")
    await world.until(lambda: world.has_status(made["id"], "cancelled"), "it is cancelled")
