"""What runs on a cluster, read from labels and annotations alone: for a database that was lost.

Owns the reading. What is made of it, and for which tenant, is decided where jobs are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec

from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.annotations import read_object
from gpuplane.backends.kubernetes.manifests.workloads import MANIFEST_FORMAT, QUEUE
from gpuplane.backends.kubernetes.records import STARTED, Record, read_record
from gpuplane.backends.kubernetes.shapes import instant_ms
from gpuplane.core.workloads import JobSpec
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import CONFIG_MAP, DEPLOYMENT, JOB, JOB_SET, LOCAL_QUEUE

OURS = "app.kubernetes.io/managed-by=gpuplane"


@dataclass(frozen=True, slots=True)
class FoundAttempt:
    """An attempt that was let go and is not over, as its workload tells it.

    Args:
        number: Of the attempt; `epoch` is what its record knows, at least as high.
        cluster_id: On the label: the id that the cluster had when it was started.
        made_at: When its workload was made, ms since the epoch.
        queue_name: The LocalQueue by which its Kueue admits it; empty where none does.
        cluster_queue: What that leads to, as its cluster says.
        waits: Whether its Kueue holds it back: nothing of it runs.
    """

    attempt_id: UUID
    job_id: UUID
    tenant_id: UUID
    tenant_name: str
    project_id: UUID | None
    project_name: str
    number: int
    epoch: int
    cluster_id: str
    spec: JobSpec
    made_at: int
    queue_name: str = ""
    cluster_queue: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """What a cluster says of itself.

    Args:
        attempts: Those of ours that run there, by id.
        cluster_ids: Which ids the cluster had when they were started, and when a manager's work
            was dispatched to it, which its manager tells.
    """

    attempts: tuple[FoundAttempt, ...]
    cluster_ids: frozenset[str]


def read_attempt(
    main: Mapping[str, Any],
    record: Record | None,
    cluster_queues: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> FoundAttempt | None:
    """Return the attempt of a workload, None where it is none that runs or cannot be read.

    Args:
        main: What makes its pods, or stands in line for it.
        record: Of the attempt.
        cluster_queues: What the LocalQueues of the cluster lead to, by namespace and name.
    """
    metadata = main["metadata"]
    labels = metadata.get("labels") or {}
    ids = {key: names.find_id(labels, key) for key in (names.ATTEMPT_ID, names.JOB_ID,
                                                       names.TENANT_ID)}  # fmt: skip
    attempt_id, job_id, tenant_id = ids.values()
    if record is None or not _runs(record):
        return None
    if not record.is_of(metadata.get("namespace", ""), metadata["name"]):
        return None  # anybody can put the labels of an attempt on an object of their own
    if record.is_dispatched:
        return None  # its manager has it, and tells again where it was dispatched to
    if attempt_id is None or job_id is None or tenant_id is None:
        return None
    try:
        told = read_object((metadata.get("annotations") or {}).get(names.MANIFEST))
        if told["format"] != MANIFEST_FORMAT:
            return None
        spec = msgspec.convert(told["spec"], JobSpec, strict=False)
        queue_name = str(labels.get(QUEUE, ""))
        return FoundAttempt(
            attempt_id=attempt_id,
            job_id=job_id,
            tenant_id=tenant_id,
            tenant_name=str(told["tenant"]),
            project_id=names.find_id(labels, names.PROJECT_ID),
            project_name=str(told["project"]),
            number=int(told["attempt"]),
            epoch=record.epoch,
            cluster_id=str(labels.get(names.CLUSTER, "")),
            spec=spec,
            made_at=instant_ms(metadata.get("creationTimestamp")) or 0,
            queue_name=queue_name,
            cluster_queue=cluster_queues.get((metadata.get("namespace", ""), queue_name), ""),
            waits=bool((main.get("spec") or {}).get("suspend")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _runs(record: Record) -> bool:
    return record.fate == STARTED and not record.is_over and not record.evict_reason


async def load_running(client: KubeClient, records_namespace: str) -> Running:
    """Return every attempt of ours that runs on a cluster, whatever ids the cluster had.

    Raises:
        KubeError: If the cluster cannot be read.
    """
    kept = await client.list(CONFIG_MAP, records_namespace, labels={names.RECORD: "attempt"})
    records: dict[str, Record] = {}
    former: set[str] = set()
    for each in kept:
        record = read_record(each.get("data"))
        if record is None:
            continue
        records[record.attempt_id] = record
        if record.is_dispatched and _runs(record):
            former.add(each["metadata"]["labels"].get(names.CLUSTER, ""))
    kinds = [(JOB, OURS), (DEPLOYMENT, OURS), (CONFIG_MAP, f"{OURS},{names.RELEASE}")]
    if await client.resolve(JOB_SET) is not None:
        kinds.append((JOB_SET, OURS))
    cluster_queues = await _load_cluster_queues(client)
    found = []
    for kind, labels in kinds:
        for main in await client.list(kind, labels=labels):
            attempt_id = (main["metadata"].get("labels") or {}).get(names.ATTEMPT_ID, "")
            attempt = read_attempt(main, records.get(attempt_id), cluster_queues)
            if attempt is not None:
                found.append(attempt)
    former |= {each.cluster_id for each in found}
    attempts = tuple(sorted(found, key=lambda each: each.attempt_id))
    return Running(attempts, frozenset(former - {""}))


async def _load_cluster_queues(client: KubeClient) -> dict[tuple[str, str], str]:
    """Return what each LocalQueue leads to, by namespace and name; nothing without a Kueue."""
    kind = await client.resolve(LOCAL_QUEUE)
    found = [] if kind is None else await client.list(kind)
    return {
        (each["metadata"]["namespace"], each["metadata"]["name"]): str(each["spec"]["clusterQueue"])
        for each in found
    }
