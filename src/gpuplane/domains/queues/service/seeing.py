"""What clusters that admit by themselves show of their queues, kept beside what was declared."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.ids import ClusterId
from gpuplane.core.mig.profiles import resource_of_profile
from gpuplane.core.quota.quantities import quantity_text
from gpuplane.core.quota.specs import (
    CPU,
    GPU,
    MEMORY,
    ClusterQueueSpec,
    CohortSpec,
    FlavorResource,
    ResourceGroup,
    ResourceQuota,
)
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.queues import repository
from gpuplane.domains.queues.rules import encode_cluster_queue, encode_cohort
from gpuplane.domains.queues.rules.seen import Seen, SeenKind
from gpuplane.kube.kueue.flavors import (
    PRODUCT_LABEL,
    LabelledGpus,
    plan_flavors,
    resource_of,
)
from gpuplane.kube.kueue.queues import read_cluster_queue, read_cohort, read_local_queue
from gpuplane.kube.kueue.states import QueueState, read_conditions, read_queue_state
from gpuplane.kube.tenancy import CLUSTER_LABEL

ADMISSION = "admission"
KUEUE = "kueue"
DEFAULT_NAME = "default"
ANY_FLAVOR = "any"


def admits_itself(cluster: Cluster) -> bool:
    """Return whether a cluster admits by its own Kueue."""
    return bool(cluster.config.get(ADMISSION) == KUEUE)


def list_seen(
    session: ReadSession, cluster_id: ClusterId, kind: SeenKind | None = None
) -> list[Seen]:
    """Return what was last seen on a cluster, by kind, namespace and name."""
    return repository.list_seen(session, cluster_id, kind)


def note_seen(session: WriteSession, cluster_id: ClusterId, seen: Sequence[Seen], now: int) -> int:
    """Store a whole look at a cluster; return how many objects are news.

    What others changed, and every new conflict, is told as an event.
    """
    before = {each.key: each for each in repository.list_seen(session, cluster_id)}
    current = {each.key: each for each in seen}
    news = [
        each
        for key, each in current.items()
        if key not in before or replace(before[key], seen_at=each.seen_at) != each
    ]
    gone = [key for key in before if key not in current]
    repository.store_seen(session, cluster_id, news)
    repository.forget_seen(session, cluster_id, gone)
    told = []
    for each in news:
        old = before.get(each.key)
        if each.conflict is not None and (old is None or old.conflict != each.conflict):
            said = f"{each.kind} {each.name} was not written: {each.conflict.message}"
            told.append(_event(cluster_id, "queue.conflict", each, said, now))
        elif each.made_again:
            said = f"Somebody deleted {each.kind} {each.name} on the cluster; it was made again."
            told.append(_event(cluster_id, "queue.made_again", each, said, now))
        elif old is not None and old.spec != each.spec and not each.ours:
            said = f"Somebody changed {each.kind} {each.name} on the cluster."
            told.append(_event(cluster_id, "queue.changed_elsewhere", each, said, now))
    events.record_many(session, told)
    return len(news) + len(gone)


def seen_of(found: Mapping[str, Any], ids: Collection[str], now: int) -> Seen:
    """Return an object of Kueue as it is kept; what cannot be read is said in its notes.

    Args:
        found: The object.
        ids: What the cluster is known by here, and was before a lost database was rebuilt.
        now: The instant.
    """
    kind = SeenKind(found["kind"])
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    made = Seen(
        kind,
        metadata.get("namespace", ""),
        metadata["name"],
        labels.get(CLUSTER_LABEL) in ids,
        {},
        seen_at=now,
    )
    try:
        return _read(made, kind, found)
    except (KeyError, ValueError) as error:
        said = f"It cannot be read: {error}"
        return replace(made, spec={"raw": found.get("spec") or {}}, notes=(said,))


def ensure_default_quotas(session: WriteSession, cluster_id: ClusterId, now: int) -> list[str]:
    """Declare one ClusterQueue over everything a cluster has, if none is declared; return names."""
    if repository.list_cluster_queues(session, cluster_id):
        return []
    present = [each for each in nodes.list_nodes(session, cluster_id) if each.present]
    if not present:
        return []
    cluster = clusters.get_cluster(session, cluster_id)
    amounts = {
        CPU: sum(each.cpu_milli for each in present),
        MEMORY: sum(each.memory_mib for each in present),
    }
    flavors = plan_flavors(
        LabelledGpus(gpu.model, node.labels) for node in present for gpu in node.gpus if gpu.present
    )
    # A queue that names a flavor which is not there admits nothing at all.
    models = {
        each.name: _count_devices(present, each.name)
        for each in flavors
        if each.name in cluster.gpu_shapes and PRODUCT_LABEL in each.node_labels
    }
    # The resource of another vendor tells its nodes apart by itself.
    for model, (_, count) in cluster.gpu_shapes.items():
        resource = resource_of(model)
        if resource != GPU:
            amounts[resource] = amounts.get(resource, 0) + count
    groups = [ResourceGroup(tuple(amounts), (ANY_FLAVOR,))]
    quotas = {
        FlavorResource(ANY_FLAVOR, name): ResourceQuota(amount) for name, amount in amounts.items()
    }
    if models:
        cut = sorted({name for counts in models.values() for name in counts} - {GPU})
        groups.append(ResourceGroup((GPU, *cut), tuple(models)))
        quotas |= {
            FlavorResource(model, name): ResourceQuota(counts[name])
            for model, counts in models.items()
            for name in (GPU, *cut)
        }
    spec = ClusterQueueSpec(DEFAULT_NAME, None, tuple(groups), quotas)
    repository.insert_cluster_queue(session, cluster_id, spec, now)
    session.wake("kueue", "scheduler")
    return [DEFAULT_NAME]


def _count_devices(present: Sequence[Node], model: str) -> Counter[str]:
    """Return how much of a model there is, by resource: whole GPUs in milli, MIG instances each."""
    found: Counter[str] = Counter()
    for gpu in (gpu for node in present for gpu in node.gpus):
        if not gpu.present or gpu.model != model:
            continue
        found[GPU] += 0 if gpu.mig_enabled else WHOLE_GPU_MILLI
        found.update(resource_of_profile(profile) for profile, _ in gpu.mig_instances)
    return found


def _read(made: Seen, kind: SeenKind, found: Mapping[str, Any]) -> Seen:
    if kind is SeenKind.CLUSTER_QUEUE:
        reading = read_cluster_queue(found)
        assert isinstance(reading.spec, ClusterQueueSpec)
        state = encode_state(read_queue_state(found))
        kept = encode_cluster_queue(reading.spec)
        return replace(made, spec=kept, state=state, notes=reading.notes)
    if kind is SeenKind.COHORT:
        reading = read_cohort(found)
        assert isinstance(reading.spec, CohortSpec)
        return replace(made, spec=encode_cohort(reading.spec), notes=reading.notes)
    if kind is SeenKind.LOCAL_QUEUE:
        door = read_local_queue(found)
        kept = {
            "tenant": door.tenant,
            "clusterQueue": door.cluster_queue,
            "jobTypes": sorted(door.job_types),
            "highestPriority": door.highest_priority,
        }
        return replace(made, spec=kept, state=encode_state(read_queue_state(found)))
    if kind is SeenKind.PRIORITY_CLASS:
        return replace(made, spec={"value": found.get("value", 0)})
    active = read_conditions((found.get("status") or {}).get("conditions")).get("Active")
    state = {} if active is None else {"active": active.true, "message": active.message}
    return replace(made, spec=found.get("spec") or {}, state=state)


def encode_state(state: QueueState) -> dict[str, Any]:
    """Return the state of a queue as it is kept and shown."""
    return {
        "active": state.active,
        "reason": state.reason,
        "message": state.message,
        "pending": state.pending,
        "reserving": state.reserving,
        "admitted": state.admitted,
        "weightedShare": state.weighted_share,
        "used": [
            {
                "flavor": pair.flavor,
                "resource": pair.resource,
                "total": used.total,
                "borrowed": used.borrowed,
                "totalText": quantity_text(pair.resource, used.total),
                "borrowedText": quantity_text(pair.resource, used.borrowed),
            }
            for pair, used in sorted(state.used.items())
        ],
    }


def _event(cluster_id: ClusterId, kind: str, seen: Seen, message: str, now: int) -> NewEvent:
    return NewEvent(
        kind=kind,
        at=now,
        cluster_id=cluster_id,
        subject_kind=str(seen.kind),
        subject_id=seen.name,
        message=message,
    )
