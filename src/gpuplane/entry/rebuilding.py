"""Rebuilds jobs from what runs on a cluster: the one place that joins backend and database."""

import asyncio

from gpuplane.backends.kubernetes.rebuilding import FoundAttempt, Running, load_running
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.core.ids import AttemptId, ClusterId, JobId, ProjectId, TenantId
from gpuplane.db.database import Database
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Rebuilt, RunningAttempt
from gpuplane.domains.queues import service as queues
from gpuplane.entry.refusals import CannotStart
from gpuplane.kit.clock import SystemClock
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import Connection
from gpuplane.loops.kueue.defaults import find_version, take_back_former
from gpuplane.loops.kueue.multikueue import take_back_workers

OWNER = "admin"
"""Whose the jobs are then: a cluster does not tell who submitted them."""


def rebuild_from(database: Database, keys: SealingKeys, name: str) -> Rebuilt:
    """Take what runs on a cluster into the database.

    Raises:
        ProductError: If there is no such cluster, or its credentials cannot be opened.
        KubeError: If it cannot be read.
        CannotStart: If the database was never started.
    """
    cluster = database.read_now(lambda s: clusters.get_cluster(s, name))
    connection = database.read_now(lambda s: clusters.open_connection(s, keys, cluster))
    found = asyncio.run(_look(connection))
    now = SystemClock().now_ms()

    def restore(session: WriteSession) -> Rebuilt:
        clusters.remember_former(session, cluster.id, found.cluster_ids, now)
        owner = identity.find_user_by_name(session, OWNER)
        if owner is None:
            raise CannotStart(f"There is no user {OWNER}.", "`gpuplane up` makes it, once.")
        told = [_told(each, cluster.name) for each in found.attempts]
        return jobs.restore_running(session, cluster.id, told, owner.id, now)

    done = database.write_now("jobs.restore_running", restore)
    asyncio.run(_take_back(database, connection, cluster.id, now))
    return done


async def _take_back(
    database: Database, connection: Connection, cluster_id: ClusterId, now: int
) -> None:
    """Declare the queues that the cluster had, and let it dispatch what it did."""
    cluster = await database.read(lambda s: clusters.get_cluster(s, cluster_id))
    if not queues.admits_itself(cluster):
        return
    async with KubeClient(connection) as client:
        version = await find_version(client)
        if version is not None:
            await take_back_former(client, database, cluster, version, now)
            await take_back_workers(client, database, cluster, version, now)


async def _look(connection: Connection) -> Running:
    async with KubeClient(connection) as client:
        return await load_running(client, KubernetesSettings().records_namespace)


def _told(each: FoundAttempt, cluster_name: str) -> RunningAttempt:
    return RunningAttempt(
        attempt_id=AttemptId(each.attempt_id),
        job_id=JobId(each.job_id),
        tenant_id=TenantId(each.tenant_id),
        tenant_name=each.tenant_name,
        project_id=None if each.project_id is None else ProjectId(each.project_id),
        project_name=each.project_name,
        epoch=each.epoch,
        spec=each.spec,
        made_at=each.made_at,
        local_queue=f"{cluster_name}/{each.queue_name}" if each.queue_name else "",
        cluster_queue=each.cluster_queue,
        waits=each.waits,
    )
