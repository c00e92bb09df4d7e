"""The records of attempts in the cluster: read, and changed by compare and swap.

One ConfigMap an attempt in a namespace of ours, where tenants cannot write. Whoever changes it
last decides, so that a start and an eviction at the same moment, even from two processes, never
both happen.
"""

from collections.abc import Callable

from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.records import Record, encode_record, read_record
from gpuplane.backends.kubernetes.views import ClusterView
from gpuplane.core.ids import AttemptId
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import AlreadyThere, Conflict
from gpuplane.kube.kinds import CONFIG_MAP

SWAPS = 16
"""Tries of one change: each that fails means that somebody else's went through."""

Decide = Callable[[Record | None], Record | None]


class RecordStore:
    """Loads and changes records, and tells the view what it wrote."""

    def __init__(
        self, client: KubeClient, view: ClusterView, cluster_id: str, namespace: str
    ) -> None:
        """Make a store over one namespace."""
        self._client = client
        self._view = view
        self._cluster_id = cluster_id
        self._namespace = namespace

    async def load(self, attempt_id: AttemptId) -> tuple[Record | None, str]:
        """Return the record as the cluster has it now, and the version it was read at."""
        name = names.record_name(attempt_id)
        found = await self._client.find(CONFIG_MAP, name, self._namespace)
        if found is None:
            return None, ""
        version = str(found["metadata"]["resourceVersion"])
        return read_record(found.get("data")), version

    async def change(self, attempt_id: AttemptId, decide: Decide) -> Record | None:
        """Change a record by a pure decision; return it as it stands then.

        Args:
            decide: From the record that is there to the one to be; what it raises is raised and
                nothing is written. Asked again with the new record when another was faster.

        Raises:
            Conflict: If others were faster each time.
        """
        for _ in range(SWAPS):
            record, version = await self.load(attempt_id)
            wanted = decide(record)
            if wanted is None or wanted == record:
                if record is not None:
                    self._view.take_record(record, int(version))
                return record
            obj = encode_record(wanted, self._cluster_id, self._namespace)
            try:
                if record is None and not version:
                    made = await self._client.create(obj)
                else:
                    obj["metadata"]["resourceVersion"] = version
                    made = await self._client.replace(obj)
            except (AlreadyThere, Conflict):
                continue
            self._view.take_record(wanted, int(made["metadata"]["resourceVersion"]))
            return wanted
        raise Conflict(409, "Conflict", f"the record of attempt {attempt_id} changes all the time")

    async def sweep(self, record: Record) -> None:
        """Delete the record of a forgotten attempt for good."""
        await self._client.delete(CONFIG_MAP, names.record_name(record.id), self._namespace)
