"""Nominates workers for what a MultiKueue manager is to dispatch, best first.

One that hangs delays no other: who does not answer in its time is joined by the next, and one that
the manager is not connected with is not asked at all.
"""

import logging
from collections.abc import Iterable, Sequence

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict, KubeError, NotThere
from gpuplane.kube.kinds import MULTIKUEUE_CLUSTER, WORKLOAD
from gpuplane.kube.kueue.dispatching import (
    ADMISSION_MANAGER,
    decide_nomination,
    needs_worker,
    nomination_object,
)
from gpuplane.kube.kueue.multikueue import list_worker_names
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.kube.kueue.states import read_conditions
from gpuplane.loops.kueue.workloads import Followed

log = logging.getLogger("gpuplane.kueue")


class Nominations:
    """Remembers since when workers are nominated for each Workload of one manager."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[tuple[str, ...], int]] = {}

    async def run(
        self,
        client: KubeClient,
        version: ApiVersion,
        workers: Sequence[str],
        seen: Iterable[Followed],
        now: int,
    ) -> int:
        """Nominate who is to be asked next for each Workload that waits; return how many changed.

        Args:
            client: The manager.
            version: Of Kueue's API.
            workers: Its workers by their own names, best first; empty where one was deleted.
            seen: Its Workloads.
            now: The instant, ms since the epoch.
        """
        waiting = [each for each in seen if workers and needs_worker(each.state)]
        known = {each.state.uid for each in waiting}
        self._since = {uid: told for uid, told in self._since.items() if uid in known}
        if not waiting:
            return 0
        order = list_worker_names(workers)
        active = await _list_connected(client, version)
        changed = 0
        for each in waiting:
            nominated = each.state.nominated
            names, since = self._since.get(each.state.uid, ((), now))
            if names != nominated:
                since = now
            self._since[each.state.uid] = (nominated, since)
            wanted = decide_nomination(order, active, nominated, since, now)
            if wanted is not None:
                changed += await _write(client, version, each, wanted)
        return changed


async def _list_connected(client: KubeClient, version: ApiVersion) -> set[str]:
    found = await client.list(MULTIKUEUE_CLUSTER.at(str(version)))
    connected = set()
    for each in found:
        told = read_conditions((each.get("status") or {}).get("conditions")).get("Active")
        if told is not None and told.true:
            connected.add(each["metadata"]["name"])
    return connected


async def _write(
    client: KubeClient, version: ApiVersion, each: Followed, wanted: Sequence[str]
) -> bool:
    state = each.state
    kind = WORKLOAD.at(str(version))
    try:
        found = await client.find(kind, state.name, state.namespace)
        if found is None or found["metadata"]["resourceVersion"] != each.version:
            return False  # it moved on meanwhile: the next turn sees how
        made = nomination_object(found, wanted)
        await client.apply(made, force=True, subresource="status", manager=ADMISSION_MANAGER)
    except (Conflict, NotThere):
        return False
    except KubeError as error:
        log.warning("workers of %s were not nominated: %s", state.name, error)
        return False
    return True
