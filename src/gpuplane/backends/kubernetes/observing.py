"""What is seen of an attempt, from its record, its pods and its workload: pure.

An end is told only once the record holds it: then it can no longer change, and whoever looks
afterwards, from whatever process, sees the same. Until then a pod that has ended is stopping.

Kubernetes tells instants in whole seconds: a start counts from the beginning of its second, an
end to the end of its own.
"""

from collections.abc import Mapping
from uuid import UUID

from gpuplane.backends.interface import AUTOSCALER, AttemptRef, Phase, ReplicaObservation
from gpuplane.backends.kubernetes import causes, names
from gpuplane.backends.kubernetes.manifests.services import url_of
from gpuplane.backends.kubernetes.records import NEVER, STARTED, Outcome, Record
from gpuplane.backends.kubernetes.shapes import Main, Pod
from gpuplane.backends.kubernetes.sights import (
    VANISHED_MS,
    NodeState,
    Sight,
    conditions_of,
    gpus_of,
    is_held_back,
    is_well,
    pods_by_rank,
    pods_there,
    started_at,
)
from gpuplane.core.ids import AttemptId, GpuId
from gpuplane.core.reasons import Word
from gpuplane.kube.webhooks import told

HPA = "kube-controller-manager"
"""Field manager under which HorizontalPodAutoscalers write: no other of its controllers moves the
number of replicas of a Deployment."""
KEDA = "keda"
"""How the field manager of KEDA's operator begins, which goes to none and back by itself."""


def observe_attempt(sight: Sight) -> tuple[ReplicaObservation, ...]:
    """Return what is seen of every rank of an attempt, by rank."""
    record = sight.record
    if record.fate == NEVER:
        return _forbidden(record)
    by_rank = {} if is_held_back(sight) else pods_by_rank(sight)
    return tuple(
        _ended(record, rank, record.outcomes[str(rank)])
        if str(rank) in record.outcomes
        else _live(sight, rank, by_rank.get(rank))
        for rank in record.ranks
    )


def _forbidden(record: Record) -> tuple[ReplicaObservation, ...]:
    return tuple(
        ReplicaObservation(
            ref=record.ref,
            rank=rank,
            phase=Phase.EXITED,
            ended_at=record.at,
            reason=record.evict_reason or str(Word.CANCELLED),
            message="was evicted before it started; it may never start",
            forbids=True,
        )
        for rank in record.ranks or (0,)
    )


def _ended(record: Record, rank: int, outcome: Outcome) -> ReplicaObservation:
    return ReplicaObservation(
        ref=record.ref,
        rank=rank,
        phase=Phase(outcome.phase),
        started_at=outcome.started_at,
        ended_at=outcome.ended_at,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        reason=outcome.reason,
        message=outcome.message,
        restart_count=outcome.restart_count,
        outputs=outcome.outputs,
        progress_ratio=outcome.progress_ratio,
        checkpoint=outcome.checkpoint,
        checkpoint_at=outcome.ended_at if outcome.checkpoint else None,
        port=record.port,
        node_name=outcome.node_name,
        gpu_ids=tuple(GpuId(each) for each in outcome.gpu_ids),
        for_attempt=AttemptId(UUID(outcome.for_attempt)) if outcome.for_attempt else None,
    )


def _live(sight: Sight, rank: int, pod: Pod | None) -> ReplicaObservation:
    record = sight.record
    stopping = bool(record.evict_reason)
    if pod is None:
        phase = Phase.STOPPING if stopping else Phase.STARTING
        trouble = find_main_trouble(sight) or sight.trouble or _trouble_of_others(sight, None)
        return _blank(record.ref, rank, phase, trouble)
    container = pod.main
    running = container.state.running if container is not None else None
    started = started_at(pod)
    ended = container.state.terminated if container is not None else None
    if pod.is_over or pod.metadata.uid in sight.gone or ended is not None:
        phase, message = Phase.STOPPING, ""
    elif running is not None:
        node = sight.nodes.get(pod.spec.node_name)
        phase, message = _phase_of_running(pod, node)
    else:
        ending = stopping or bool(pod.metadata.deletion_timestamp)
        phase, message = (Phase.STOPPING if ending else Phase.STARTING), causes.why_waiting(pod)
    has_url = record.port is not None and phase is Phase.RUNNING
    service = record.service or record.name
    url = url_of(service, record.namespace, record.port or 0) if has_url else None
    if has_url:
        url, message = sight.route[0] or url, message or sight.route[1]
    ready = container.ready if container is not None and record.port is not None else None
    if container is not None and has_url:
        message = message or causes.why_unready(container)
    if record.is_release:
        message = message or _trouble_of_others(sight, pod)
        ready = all(is_well(each) for each in pods_there(sight))
    return ReplicaObservation(
        ref=record.ref,
        rank=rank,
        phase=phase,
        started_at=started,
        message=message,
        ready=ready,
        port=record.port,
        url=url,
        restart_count=container.restart_count if container is not None else 0,
        node_name=pod.spec.node_name,
        gpu_ids=gpus_of(pod),
    )


def _trouble_of_others(sight: Sight, pod: Pod | None) -> str:
    """Return why the first of a release's other pods does not run, empty where all do."""
    if not sight.record.is_release:
        return ""
    for each in sorted(pods_there(sight), key=lambda one: one.metadata.name):
        if each is not pod and not each.is_over and (why := causes.why_waiting(each)):
            return f"{each.metadata.name}: {why}"
    return ""


def _phase_of_running(pod: Pod, node: NodeState | None) -> tuple[Phase, str]:
    if node is None:
        return Phase.UNREACHABLE, f"node {pod.spec.node_name} is gone from the cluster"
    if not node.ready:
        return Phase.UNREACHABLE, f"node {pod.spec.node_name} does not report"
    if pod.metadata.deletion_timestamp:
        return Phase.STOPPING, ""
    return Phase.RUNNING, ""


def find_main_trouble(sight: Sight) -> str:
    """Return why the controller of a workload makes no pods, in its words; empty if it does."""
    for condition in conditions_of(sight):
        if condition.type in ("ReplicaFailure", "FailureTarget") and condition.status == "True":
            return f"{condition.reason}: {told(condition.message)}"
    return ""


def _blank(ref: AttemptRef, rank: int, phase: Phase, message: str) -> ReplicaObservation:
    return ReplicaObservation(ref=ref, rank=rank, phase=phase, message=message)


def find_wanted(sight: Sight) -> int | None:
    """Return how many replicas the Deployment of a service that scales asks for; None of others.

    One that was not let go yet asks for none, and says nothing. What Kueue admits is followed
    whatever the job may have at most: it runs there.
    """
    record, main = sight.record, sight.main
    scales = record.most is not None or record.by_pod
    if not scales or record.fate != STARTED or record.evict_reason or main is None:
        return None
    metadata = main.metadata
    if names.RELEASED not in metadata.annotations or metadata.deletion_timestamp:
        return None
    asked = main.spec.replicas
    if asked is None or record.by_pod or record.most is None:
        return asked
    return min(asked, record.most)


def find_scaler(main: Main | None) -> str:
    """Return who wrote the number of replicas of a Deployment last; see `ScaleObservation.by`."""
    owners = [
        each
        for each in (main.metadata.managed_fields if main is not None else ())
        if each.fields is not None
        and each.fields.spec is not None
        and each.fields.spec.replicas is not None
    ]
    last = max(owners, key=lambda each: each.time, default=None)
    if last is None:
        return ""
    is_automatic = last.manager == HPA or last.manager.startswith(KEDA)
    return AUTOSCALER if is_automatic else last.manager


def has_vanished(sight: Sight, now: int) -> bool:
    """Return whether somebody deleted the Deployment of a service that was scaled to zero.

    One that has replicas tells it by them, and one whose pods Kueue admits by the rank to come.
    """
    record = sight.record
    if record.most is None or record.by_pod or record.fate != STARTED or record.evict_reason:
        return False
    is_without = all(str(rank) in record.outcomes for rank in record.staying)
    return is_without and sight.main is None and now - record.at >= VANISHED_MS


def find_scaled_away(sight: Sight, by_rank: Mapping[int, Pod]) -> frozenset[int]:
    """Return the ranks whose pods a scaler took away: as many as are there beyond what it wants.

    A pod that went and is to come again is none of them: its Deployment wants as many as before.
    """
    wanted = find_wanted(sight)
    if wanted is None:
        return frozenset()
    left = [rank for rank in sight.record.staying if str(rank) not in sight.record.outcomes]
    without = [
        rank
        for rank in sorted(left, reverse=True)
        if (pod := by_rank.get(rank)) is None or pod.is_over or pod.metadata.uid in sight.gone
    ]
    return frozenset(without[: max(0, len(left) - wanted)])
