"""The steps that delete a cluster: drained, left clean of what is ours, forgotten."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from gpuplane.backends.interface import AttemptRef, Phase, ReplicaObservation
from gpuplane.core.ids import ClusterId
from gpuplane.core.reasons import Word
from gpuplane.core.runs.plans import Answer, Completed, Failed, Sleeping, StepCall
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterState
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Attempt
from gpuplane.domains.jobs.service.rewrapping import OUTPUTS_CONTEXT
from gpuplane.domains.placements import service as placements
from gpuplane.kit.errors import ProductError
from gpuplane.kit.ids import new_id
from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import BadKubeconfig
from gpuplane.kube.errors import Conflict, Forbidden, KubeError, NotThere
from gpuplane.kube.kueue.holds import lift_hold
from gpuplane.loops.clusters.addons import KEY_SECRET
from gpuplane.loops.clusters.catalogue import find_addon
from gpuplane.loops.clusters.tools import ClusterTools
from gpuplane.loops.cordons import MISSING_RIGHT, lift_all
from gpuplane.loops.inventory import store_nodes

log = logging.getLogger("gpuplane.clusters")

LOOK_MS = 2_000
GIVE_UP_MS = 60_000
"""With force: what was not seen to end by then is taken as lost; the cluster may not answer."""
CALL_S = 30.0
CLUSTER_LABEL = "gpuplane.io/cluster-id"
OURS = (kinds.JOB_SET, kinds.JOB, kinds.DEPLOYMENT, kinds.SERVICE, kinds.CONFIG_MAP, kinds.SECRET)
"""Kinds of which objects with the cluster's label are ours, in the order in which they go."""

NOT_ITS_RUN = Failed("NotItsRun", "This run does not delete the cluster any more.", is_final=True)
REMOVED_STATES = (ClusterState.DRAINING, ClusterState.DELETING)


def is_its_run(cluster: Cluster, call: StepCall) -> bool:
    """Return whether a run is the one that deletes a cluster: not a copy, nor one before it."""
    return cluster.run_id == call.run_id and cluster.state in REMOVED_STATES


async def drain(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Move the work away, look again until none is left."""
    if not is_its_run(cluster, call):
        return NOT_ITS_RUN
    now = tools.clock.now_ms()
    began = int(call.state["began"]) if call.state else now
    until = began + int(given["wait_s"]) * 1000
    force = bool(given["force"])
    emptied = await tools.database.write(
        "jobs.empty_cluster",
        partial(
            jobs.empty_cluster,
            cluster_id=cluster.id,
            began=began,
            until=until,
            force=force,
            now=now,
        ),
    )
    if tools.ask_checkpoint is not None:
        for attempt in emptied.to_checkpoint:
            await tools.ask_checkpoint(attempt)
    gives_up = force and now - began > GIVE_UP_MS
    if gives_up and emptied.open:
        await _lose(tools, emptied.open, now)
    offers = () if gives_up else emptied.offers  # what is left of them is dropped at the end
    if emptied.open or offers:
        count = len(emptied.open) + len(offers)
        said = f"{count} {'job is' if count == 1 else 'jobs are'} there."
        return Sleeping(now + LOOK_MS, {"began": began}, said)
    await tools.database.write(
        "clusters.begin_removal", partial(clusters.begin_removal, cluster_id=cluster.id, now=now)
    )
    return Completed({"began": began})


async def _lose(tools: ClusterTools, attempts: tuple[Attempt, ...], now: int) -> None:
    """Take attempts as lost, as whoever forced the deletion was told."""
    seen = [
        ReplicaObservation(
            ref=AttemptRef(attempt.id, attempt.epoch),
            rank=replica.rank,
            phase=Phase.LOST,
            ended_at=now,
            reason=str(Word.END_NOT_SEEN),
            message="Its cluster was deleted by force and did not say how it ended.",
        )
        for attempt in attempts
        for replica in attempt.replicas
    ]
    await tools.database.write(
        "jobs.take_in",
        partial(
            jobs.take_in,
            seen=seen,
            seal=lambda text: tools.sealing.seal(text.encode(), OUTPUTS_CONTEXT),
            chance=lambda: 0.0,
            now=now,
        ),
    )


async def release(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Remove what is ours in the cluster, cordons too; add-ons stay, for others may use them."""
    if not is_its_run(cluster, call):
        return NOT_ITS_RUN
    try:
        async with asyncio.timeout(CALL_S), tools.client(cluster) as client:
            await lift_hold(client, cluster.known_ids)
            removed = await remove_ours(client, cluster.known_ids)
            uncordoned, warning = await _uncordon(client, cluster, given)
            prometheus = find_addon("prometheus")
            if prometheus is not None:
                await client.delete(kinds.SECRET, KEY_SECRET, prometheus.namespace)
    except (KubeError, ProductError, BadKubeconfig, TimeoutError, OSError) as error:
        if isinstance(error, Conflict) and not given["force"]:
            raise  # it answers, and others change what is there: tried again at once
        said = f"What is ours in {cluster.name} could not be removed: {error}"
        if given["force"]:
            return Completed({"removed": 0, "warning": said}, message=said)
        return Failed("ClusterUnreachable", f"{said} Delete it with force to forget it anyway.")
    known = await tools.database.read(lambda s: clusters.list_addons(s, cluster.id))
    left = sorted(each.name for each in known if each.state in ("installed", "adopted"))
    told: dict[str, Any] = {"removed": removed, "addons_left": left, "uncordoned": uncordoned}
    if warning:
        told["warning"] = warning
    return Completed(told, message=warning)


async def _uncordon(
    client: KubeClient, cluster: Cluster, given: Mapping[str, Any]
) -> tuple[list[str], str]:
    """Take our cordons off unless they are to stay; return of which nodes, and what hindered it."""
    if given.get("keep_cordons"):
        return [], ""
    try:
        return list(await lift_all(client, cluster.known_ids)), ""
    except Forbidden:
        said = f"{MISSING_RIGHT} Nodes that were cordoned here stay so: `kubectl uncordon` them."
        return [], said


async def remove_ours(client: KubeClient, ids: Collection[str]) -> int:
    """Delete what is ours by its label; return how much it was.

    Args:
        client: The cluster.
        ids: What the cluster's objects are labelled with: its id, and those it had before.
    """
    removed = 0
    for kind in OURS:
        for cluster_id in ids:
            try:
                listed = await client.list(kind, labels={CLUSTER_LABEL: cluster_id})
            except NotThere:
                break  # JobSet is served only where somebody installed it
            for found in listed:
                about = found["metadata"]
                await client.delete(kind, about["name"], about.get("namespace"))
                removed += 1
    return removed


async def retire_left(tools: ClusterTools) -> None:
    """End the time of devices that deleted clusters left behind, as it should have with them.

    Databases from before it was ended at the deletion have some, and what was held just then is
    given back later.
    """

    def left(session: ReadSession) -> list[tuple[ClusterId, int]]:
        gone = {each.id: each.deleted_at for each in clusters.list_deleted(session)}
        found = placements.count_unheld(session, list(gone))
        return [(key, at) for key in found if (at := gone[key]) is not None]

    for cluster_id, at in await tools.database.read(left):
        retire = partial(placements.retire_cluster, cluster_id=cluster_id, at=at)
        ended = await tools.database.write("clusters.retire_left", retire)
        log.info("the time of %d devices of deleted cluster %s was ended", len(ended), cluster_id)


async def forget(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Delete credentials, keys and offers, end its devices' time, cancel what waits for it."""
    if not is_its_run(cluster, call):
        return NOT_ITS_RUN
    now = tools.clock.now_ms()

    def unit(session: WriteSession) -> int:
        store_nodes(session, cluster.id, (), new_id, now)
        placements.retire_cluster(session, cluster.id, now)
        jobs.drop_offers(session, cluster.id)
        cancelled = jobs.end_pinned(session, cluster.id, cluster.name, now)
        clusters.remove(session, cluster.id, now)
        return cancelled

    cancelled = await tools.database.write("clusters.remove", unit)
    return Completed({"cancelled_jobs": cancelled})
