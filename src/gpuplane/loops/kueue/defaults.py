"""What a cluster with Kueue gets when it is registered: flavors, classes, a queue over it all."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gpuplane.core.ids import ClusterId
from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.queues import service as queues
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kueue.holds import start_queues
from gpuplane.kube.kueue.names import GROUP, ApiVersion, choose_version
from gpuplane.kube.tenancy import CLUSTER_LABEL
from gpuplane.loops.kueue.namespaces import write_namespaces
from gpuplane.loops.kueue.syncing import load_live, sync
from gpuplane.loops.kueue.wanting import load_wanted, wanted_objects


async def find_version(client: KubeClient) -> ApiVersion | None:
    """Return the version of Kueue's API to speak with a cluster, None where it serves none."""
    served = await client.discovery.served(GROUP)
    return None if served is None else choose_version(served.preferred, served.versions)


async def ensure_defaults(
    client: KubeClient, database: Database, cluster_id: ClusterId, now: int
) -> list[str]:
    """Write flavors, classes and a default ClusterQueue from the nodes stored; return names made.

    Idempotent: what is declared already stays as it is, and so does what an earlier registration
    of the same cluster left there, which is declared as it is found.
    """
    version = await find_version(client)
    if version is None:
        return []
    cluster = await database.read(lambda s: clusters.get_cluster(s, cluster_id))
    await take_back_former(client, database, cluster, version, now)
    await database.write(
        "queues.ensure_default_quotas",
        partial(queues.ensure_default_quotas, cluster_id=cluster_id, now=now),
    )
    cluster = await database.read(lambda s: clusters.get_cluster(s, cluster_id))
    wanted = await database.read(lambda s: load_wanted(s, cluster))
    known = await database.read(lambda s: queues.list_seen(s, cluster_id))
    before = {each.key: each for each in known}
    spaces = await write_namespaces(client, wanted.tenants.values())
    objects = wanted_objects(wanted, version)
    seen = await sync(client, version, cluster_id, objects, before, now, spaces, cluster.known_ids)
    await database.write(
        "queues.note_seen",
        partial(queues.note_seen, cluster_id=cluster_id, seen=seen, now=now),
    )
    return [
        f"{each.kind} {each.name}"
        for each in seen
        if each.ours and each.key not in before and each.conflict is None
    ]


async def take_back_former(
    client: KubeClient, database: Database, cluster: Cluster, version: ApiVersion, now: int
) -> list[str]:
    """Declare what carries a former id of a cluster, as it has it; return names of what was.

    It was deleted here and registered again: what was declared before goes on to hold, and queues
    that were stopped because nobody dispatched their work any more admit again.
    """
    former = set(cluster.known_ids) - {str(cluster.id)}
    if not former:
        return []
    live = await load_live(client, version)
    await start_queues(client, version, [each for each in live.values() if _is_of(each, former)])
    known = await database.read(lambda s: queues.list_seen(s, cluster.id))
    if known:  # seen when its former ids were not known yet
        seen = [
            replace(each, ours=each.ours or _is_of(live.get(each.key), former)) for each in known
        ]
        await database.write(
            "queues.note_seen",
            partial(queues.note_seen, cluster_id=cluster.id, seen=seen, now=now),
        )
    found = [queues.seen_of(each, former, now) for each in live.values() if _is_of(each, former)]
    return await database.write(
        "queues.take_back",
        partial(queues.take_back, cluster_id=cluster.id, found=found, now=now),
    )


def _is_of(obj: Mapping[str, Any] | None, former: Collection[str]) -> bool:
    return obj is not None and (obj["metadata"].get("labels") or {}).get(CLUSTER_LABEL) in former
