"""What makes the pods of a Helm release, and whether it will make those that are missing.

A rank whose pod went is no loss while something of its chart makes another: a Deployment replaces
pods, a StatefulSet makes them one after the other. It is one when nothing does: somebody deleted
what made it, or scaled it down. The makers are asked only then, and never remembered.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.charts import HELPER, REPLICA
from gpuplane.backends.kubernetes.placing import waits
from gpuplane.backends.kubernetes.records import STARTED, Record
from gpuplane.backends.kubernetes.shapes import Main, Pod
from gpuplane.backends.kubernetes.sights import Sight, pods_by_rank, rank_of
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Forbidden, NotThere
from gpuplane.kube.kinds import DEPLOYMENT, REPLICA_SET, STATEFUL_SET

_KINDS = (DEPLOYMENT, STATEFUL_SET, REPLICA_SET)
"""What makes pods that run on; those that end by themselves are no replicas."""

_TEMPLATE = "pod-template-hash"
"""Label of the pods of a Deployment, and the end of their ReplicaSet's name."""


def list_missing(record: Record, main: Main | None, pods: Sequence[Pod]) -> tuple[int, ...]:
    """Return the ranks of a release that have no pod although it was installed whole.

    None of one that is evicted, stands in line, or is being installed.

    Args:
        record: Of an attempt.
        main: What the release hangs on.
        pods: Those of the attempt that are there.
    """
    if not record.is_release or record.fate != STARTED or record.evict_reason or record.is_over:
        return ()
    if main is None or main.metadata.deletion_timestamp or main.spec.suspend:
        return ()
    done = names.INSTALLED if record.has_stand_in else names.RELEASED
    if done not in main.metadata.annotations:
        return ()
    there = {rank_of(pod) for pod in pods if not pod.is_over}
    return tuple(rank for rank in record.open_ranks if rank not in there)


def plan_heirs(sight: Sight, *, is_long: bool) -> list[tuple[Pod, int]]:
    """Return running pods that have no rank, each with one whose pod went and which it takes over.

    A Deployment without GPUs starts a pod before the one goes that it replaces. All ranks were
    taken then, so that it was let go without one; pods that wait are given theirs with their place.

    Args:
        sight: Of an attempt.
        is_long: Whether ranks have been without a pod for so long that any pod may take over one
            whose pod nobody saw; else one of the same maker does.
    """
    there = [pod for pod in sight.pods if pod.metadata.uid not in sight.gone and not pod.is_over]
    missing = list_missing(sight.record, sight.main, there)
    without = [
        pod
        for pod in there
        if pod.metadata.labels.get(names.PART) == REPLICA
        and rank_of(pod) is None
        and not pod.metadata.deletion_timestamp
    ]
    if not missing or any(map(waits, without)):
        return []
    without.sort(key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
    last = pods_by_rank(sight)
    found = []
    for rank in missing:
        maker = _maker_of(last[rank]) if rank in last else None
        heirs = [pod for pod in without if (is_long if maker is None else _maker_of(pod) == maker)]
        if heirs:
            without.remove(heirs[0])
            found.append((heirs[0], rank))
    return found


def is_unmade(missing: Sequence[int], sight: Sight, makers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether nothing will make the pod of a rank that misses its own.

    Args:
        missing: Ranks without a pod.
        sight: Of their attempt; the pods that went tell what had made them.
        makers: What of its chart makes pods, as the cluster has it.
    """
    there = [pod for pod in sight.pods if pod.metadata.uid not in sight.gone and not pod.is_over]
    replicas = [pod for pod in there if not _is_helper(pod.metadata.labels)]
    # What ends is made again, and what belongs to nobody any more stands for nothing wanted.
    made = sum(
        not pod.metadata.deletion_timestamp and bool(pod.metadata.owner_references)
        for pod in replicas
    )
    coming = max(0, sum(map(_wanted, makers)) - made)
    without = [pod for pod in replicas if rank_of(pod) is None]
    last = pods_by_rank(sight)
    making = {(each["kind"], each["metadata"]["name"]) for each in makers if _wanted(each)}
    ends = sum(rank in last and _maker_of(last[rank]) not in making for rank in missing)
    # One that nobody saw go may be any that runs: a Deployment replaced it beforehand.
    unseen = sum(rank not in last for rank in missing)
    spare = coming + sum(map(waits, without))
    return ends > spare or unseen > coming + len(without)


async def list_makers(client: KubeClient, record: Record) -> list[dict[str, Any]]:
    """Return what makes the pods of a release, as the cluster has it now.

    Raises:
        KubeError: If the cluster cannot be asked.
    """
    found: list[dict[str, Any]] = []
    for kind in _KINDS:
        try:
            found += await client.list(
                kind, record.namespace, {names.ATTEMPT_ID: record.attempt_id}
            )
        except (Forbidden, NotThere):
            continue  # what may not be read was not installed by this account either
    return found


def _wanted(maker: Mapping[str, Any]) -> int:
    """Return how many pods of replicas an object keeps; those of others' are counted there."""
    metadata = maker["metadata"]
    labels = metadata.get("labels") or {}
    if names.PART not in labels or _is_helper(labels) or metadata.get("deletionTimestamp"):
        return 0
    if any(owner.get("kind") == "Deployment" for owner in metadata.get("ownerReferences") or ()):
        return 0
    replicas = (maker.get("spec") or {}).get("replicas", 1)
    return replicas if isinstance(replicas, int) else 1


def _maker_of(pod: Pod) -> tuple[str, str]:
    """Return (kind, name) of what made a pod: the Deployment where its ReplicaSet has one."""
    owner = next(iter(pod.metadata.owner_references), None)
    if owner is None:
        return "", ""
    mark = pod.metadata.labels.get(_TEMPLATE)
    if owner.kind == "ReplicaSet" and mark and owner.name.endswith(f"-{mark}"):
        return "Deployment", owner.name.removesuffix(f"-{mark}")
    return owner.kind, owner.name


def _is_helper(labels: Mapping[str, str]) -> bool:
    return labels.get(names.PART) == HELPER
