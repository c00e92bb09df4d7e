"""What is seen of an attempt, from its record, its pods and its workload: pure.

An end is told only once the record holds it: then it can no longer change, and whoever looks
afterwards, from whatever process, sees the same. Until then a pod that has ended is stopping.

Kubernetes tells instants in whole seconds: a start counts from the beginning of its second, an
end to the end of its own.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuplane.backends.interface import AUTOSCALER, AttemptRef, Phase, ReplicaObservation
from gpuplane.backends.kubernetes import causes, names
from gpuplane.backends.kubernetes.manifests.services import url_of
from gpuplane.backends.kubernetes.records import LASTING, NEVER, STARTED, Outcome, Record
from gpuplane.backends.kubernetes.reports import last_report
from gpuplane.backends.kubernetes.shapes import Condition, Main, Pod, instant_ms
from gpuplane.core.ids import GpuId
from gpuplane.core.reasons import Word
from gpuplane.kube.kueue.names import MULTIKUEUE_CONTROLLER
from gpuplane.kube.webhooks import told

SECOND_MS = 1000
VANISHED_MS = 20_000
"""How long after its workload was let go a replica without one is still thought to be coming: with
the settler's look it is told within 30 s that what should run does not."""
VERDICT_MS = 10_000
"""How long the end of a pod that was deleted waits for its Job's controller to say why."""

HPA = "kube-controller-manager"
"""Field manager under which HorizontalPodAutoscalers write: no other of its controllers moves the
number of replicas of a Deployment."""
KEDA = "keda"
"""How the field manager of KEDA's operator begins, which goes to none and back by itself."""

_ENDS = frozenset({"Complete", "Failed"})
_EXIT_CODE = re.compile(r"failed with exit code (\d+)")
"""How the Job controller tells why its podFailurePolicy failed a Job (Kubernetes v1.34)."""

DELETED = "its workload was deleted on the cluster by somebody else"
POD_DELETED = "its pod was deleted on the cluster by somebody else"


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is known of the node of a pod."""

    ready: bool = True
    conditions: tuple[Condition, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sight:
    """All that a cluster shows of one attempt.

    Args:
        pods: Its pods, those among them that are gone as they were last seen.
        gone: Uids of pods that are no longer there.
        main: Its workload, None where there is none.
        part: The Job that a JobSet made, which alone says why its pods were ended.
        nodes: By name; a node that is not in it is gone.
        trouble: Why no pod of it could be made, as its controller tells it.
        route: (URL, trouble) of its Route; both empty where there is none or nothing is said yet.
    """

    record: Record
    pods: tuple[Pod, ...] = ()
    gone: frozenset[str] = frozenset()
    main: Main | None = None
    part: Main | None = None
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    trouble: str = ""
    route: tuple[str, str] = ("", "")


def observe_attempt(sight: Sight) -> tuple[ReplicaObservation, ...]:
    """Return what is seen of every rank of an attempt, by rank."""
    record = sight.record
    if record.fate == NEVER:
        return _forbidden(record)
    by_rank = {} if _is_held_back(sight) else pods_by_rank(sight)
    return tuple(
        _ended(record, rank, record.outcomes[str(rank)])
        if str(rank) in record.outcomes
        else _live(sight, rank, by_rank.get(rank))
        for rank in record.ranks
    )


def pods_by_rank(sight: Sight) -> dict[int, Pod]:
    """Return the pod that stands for each rank: the one that is there, else the last that was."""
    found: dict[int, Pod] = {}
    if sight.record.by_pod:
        by_uid = {pod.metadata.uid: pod for pod in sight.pods}
        given = {int(rank): each.uid for rank, each in sight.record.pods.items()}
        return {rank: by_uid[uid] for rank, uid in given.items() if uid in by_uid}
    ordered = sorted(
        (pod for pod in sight.pods if not _is_of_earlier(sight, pod)),
        key=lambda pod: (
            pod.metadata.uid not in sight.gone,
            pod.metadata.creation_timestamp,
            pod.metadata.name,
        ),
    )
    for pod in ordered:
        rank = rank_of(pod)
        if rank is not None:
            found[rank] = pod
    return found


def _is_of_earlier(sight: Sight, pod: Pod) -> bool:
    """Return whether a pod was taken away when its workload was held back, and it was let go since.

    How it ended says nothing of the workload, whose pods come again: Kueue took its quota back.
    """
    if pod.metadata.uid not in sight.gone and not pod.metadata.deletion_timestamp:
        return False
    told = None if sight.main is None else find_suspended(sight.main)
    if told is None:
        return False
    if told.status == "True":
        return True  # it is let go, and its controller has not come to it yet
    resumed, made = instant_ms(told.last_transition_time), pod.metadata.creation_timestamp
    return resumed is not None and (instant_ms(made) or 0) < resumed


def find_suspended(main: Main) -> Condition | None:
    """Return what the controller of a workload says of its being held back, None if it never was.

    Jobs and JobSets have it as soon as they were once held back, with when that last changed.
    """
    return next((each for each in main.status.conditions if each.type == "Suspended"), None)


def conditions_of(sight: Sight) -> list[Condition]:
    """Return what is said of a workload: first by the Job of a JobSet, which knows more of it."""
    told = (sight.part, sight.main)
    return [each for main in told if main is not None for each in main.status.conditions]


def rank_of(pod: Pod) -> int | None:
    """Return the rank of a pod, None while it has none."""
    labels = pod.metadata.labels
    if names.PART in labels:  # an indexed Job of a chart numbers its pods for itself
        told = labels.get(names.RANK, "")
        return int(told) if told.isdigit() else None
    text = labels.get(names.RANK) or labels.get(names.INDEX)
    text = text or pod.metadata.annotations.get(names.INDEX)
    return int(text) if text is not None and text.isdigit() else None


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
    if record.is_release:
        message = message or _trouble_of_others(sight, pod)
        ready = all(is_well(each) for each in _there(sight))
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


def _there(sight: Sight) -> list[Pod]:
    return [pod for pod in sight.pods if pod.metadata.uid not in sight.gone]


def is_well(pod: Pod) -> bool:
    """Return whether a pod of a release does what it should: it is ready, or has done its work."""
    statuses = pod.status.container_statuses
    if pod.status.phase == "Succeeded":
        return True
    return bool(statuses) and all(each.ready for each in statuses)


def _trouble_of_others(sight: Sight, pod: Pod | None) -> str:
    """Return why the first of a release's other pods does not run, empty where all do."""
    if not sight.record.is_release:
        return ""
    for each in sorted(_there(sight), key=lambda one: one.metadata.name):
        if each is not pod and not each.is_over and (why := causes.why_waiting(each)):
            return f"{each.metadata.name}: {why}"
    return ""


def gpus_of(pod: Pod) -> tuple[GpuId, ...]:
    """Return the GPUs that a pod's annotation names, none where it has none."""
    text = pod.metadata.annotations.get(names.GPU_IDS, "")
    return tuple(GpuId(each) for each in text.split(",") if each)


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


def started_at(pod: Pod) -> int | None:
    """Return when the job's container of a pod started last, ms since the epoch."""
    container = pod.main
    for state in (container.state, container.last_state) if container is not None else ():
        if state.running is not None:
            return instant_ms(state.running.started_at)
        if state.terminated is not None:
            return instant_ms(state.terminated.started_at)
    return None


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


def compute_outcomes(sight: Sight, now: int) -> dict[int, Outcome]:
    """Return the ends that are seen and not recorded yet, by rank.

    Args:
        now: For an end that nothing dates, ms since the epoch.
    """
    record = sight.record
    if record.fate != STARTED or record.is_over:
        return {}
    if _is_held_back(sight) or _is_going(sight):
        return {}
    by_rank = pods_by_rank(sight)
    away = find_scaled_away(sight, by_rank)
    found: dict[int, Outcome] = {}
    for rank in record.ranks:
        if str(rank) in record.outcomes:
            continue
        pod = by_rank.get(rank)
        if rank in away:
            found[rank] = _scaled_away(pod, now)
            continue
        outcome = (
            _without_pod(sight, now)
            if pod is None
            else _of_pod(sight, pod, is_gone=pod.metadata.uid in sight.gone, now=now)
        )
        if outcome is not None:
            found[rank] = outcome
    return found


def _scaled_away(pod: Pod | None, now: int) -> Outcome:
    """Return the end of a rank that is not wanted any more."""
    container = None if pod is None else pod.main
    ended = container.state.terminated if container is not None else None
    finished = instant_ms(ended.finished_at) if ended is not None else None
    return Outcome(
        phase=str(Phase.EXITED),
        reason=str(Word.SCALED_DOWN),
        ended_at=now if finished is None else min(now, finished + SECOND_MS - 1),
        message="fewer replicas are wanted",
        started_at=None if pod is None else started_at(pod),
        exit_code=None if ended is None else ended.exit_code,
        restart_count=container.restart_count if container is not None else 0,
        node_name="" if pod is None else pod.spec.node_name,
        gpu_ids=() if pod is None else tuple(gpus_of(pod)),
    )


def _of_pod(sight: Sight, pod: Pod, *, is_gone: bool, now: int) -> Outcome | None:
    record, main = sight.record, sight.main
    if record.kind in LASTING and not record.evict_reason:
        # Its pods come again, unless somebody took away what makes them.
        return _without_pod(sight, now) if main is None and is_gone else None
    container = pod.main
    ended = container.state.terminated if container is not None else None
    if not is_gone and not pod.is_over:
        return None
    finished = instant_ms(ended.finished_at) if ended is not None else None
    if _awaits_verdict(sight, pod) and now - (finished or now) < VERDICT_MS:
        return None
    node = sight.nodes.get(pod.spec.node_name)
    cause = causes.why_ended(pod, node.conditions if node else (), node.annotations if node else {})
    # To the end of its second, but never after an instant at which it was seen to be over.
    ended_at = now if finished is None else finished + SECOND_MS - 1
    phase = Phase.EXITED
    word, message = cause.word, cause.message
    if is_gone and not pod.is_over:
        phase = Phase.EXITED if ended is not None else Phase.LOST
        if ended is None:
            word, message = Word.NODE_LOST, "its pod was deleted, and how it ended was not seen"
    if _is_deleted_alone(sight, pod, cause, is_gone=is_gone):
        phase, word, message = Phase.LOST, Word.DELETED, POD_DELETED
    was_cut = ended is None or cause.signal is not None
    if main is None and was_cut and (is_gone or pod.metadata.deletion_timestamp):
        phase, word, message = Phase.LOST, Word.DELETED, DELETED
    stopped = _stop_reason(sight, finished)
    reason = str(stopped[0]) if stopped else str(word)
    if stopped:
        phase, message = Phase.EXITED, stopped[1]
    elif main is not None and is_gone and cause.signal is not None:
        message = message or "was ended with the other ranks"
    last = last_report(pod)
    return Outcome(
        phase=str(phase),
        reason=reason,
        ended_at=ended_at,
        message=message,
        started_at=started_at(pod),
        exit_code=cause.exit_code,
        signal=cause.signal,
        restart_count=container.restart_count if container is not None else 0,
        outputs=_outputs(pod) if cause.exit_code == 0 else None,
        progress_ratio=last.progress_ratio,
        checkpoint=last.checkpoint,
        node_name=pod.spec.node_name,
        gpu_ids=tuple(gpus_of(pod)),
    )


def _is_held_back(sight: Sight) -> bool:
    """Return whether a workload waits for its quota: Kueue suspends what it takes back again."""
    main = sight.main
    if main is None or not main.spec.suspend or sight.record.evict_reason:
        return False
    # What another cluster ran is held back here to its end.
    return not any(each.type in _ENDS and each.status == "True" for each in main.status.conditions)


def _is_going(sight: Sight) -> bool:
    """Return whether something of an evicted release is there: pods without a rank run too."""
    record = sight.record
    if not (record.is_release and record.evict_reason):
        return False
    return sight.main is not None or any(not pod.is_over for pod in _there(sight))


def _awaits_verdict(sight: Sight, pod: Pod) -> bool:
    """Return whether a controller ended a pod and has not said why yet: it deletes pods first."""
    main = sight.main
    if not pod.metadata.deletion_timestamp or main is None or sight.record.evict_reason:
        return False
    said = ("Complete", "Completed", "Failed", "FailureTarget", "SuccessCriteriaMet")
    return main.kind in ("Job", "JobSet") and not any(
        each.type in said and each.status == "True" for each in conditions_of(sight)
    )


def _is_deleted_alone(sight: Sight, pod: Pod, cause: causes.Cause, *, is_gone: bool) -> bool:
    """Return whether somebody deleted the pod of a Job that wants it still.

    Controllers end the other pods of a gang by deleting them, and nobody the only pod of a Job;
    what does it for a node that is lost or drained says so on the pod.
    """
    node = sight.nodes.get(pod.spec.node_name)
    if sight.main is None or len(sight.record.ranks) != 1 or node is None or not node.ready:
        return False
    if any(each.type == "DisruptionTarget" for each in pod.status.conditions):
        return False
    if is_gone and not pod.is_over and (pod.main is None or pod.main.state.terminated is None):
        return True  # it was seen to run, and then it was not there
    return bool(pod.metadata.deletion_timestamp) and cause.word == Word.SIGNALLED


def _stop_reason(sight: Sight, finished: int | None) -> tuple[str, str] | None:
    """Return (word, sentence) where something else than the job ended it."""
    record = sight.record
    if record.evict_reason and record.evict_at is not None:
        # One that had ended before it was asked to keeps its own reason.
        if finished is None or finished + SECOND_MS > record.evict_at:
            return record.evict_reason, "was evicted"
        return None
    for condition in conditions_of(sight):
        over_time = condition.reason == "DeadlineExceeded" and condition.status == "True"
        if condition.type in ("Failed", "FailureTarget") and over_time:
            return str(Word.TIMED_OUT), condition.message or "ran longer than it may"
    return None


def _without_pod(sight: Sight, now: int) -> Outcome | None:
    """Return the end of a rank that has no pod and will get none, None while it may get one."""
    record, main = sight.record, sight.main
    if record.evict_reason:
        return Outcome(str(Phase.EXITED), record.evict_reason, now, "was evicted")
    if main is None:
        if now - record.at < VANISHED_MS:
            return None
        return Outcome(str(Phase.LOST), str(Word.DELETED), now, DELETED)
    stopped = _stop_reason(sight, None)
    if stopped:
        return Outcome(str(Phase.EXITED), stopped[0], now, stopped[1])
    for condition in conditions_of(sight):
        if condition.status != "True":
            continue
        if condition.type in ("Complete", "Completed"):  # of a Job, of a JobSet
            at = min(now, (instant_ms(condition.last_transition_time) or now) + SECOND_MS - 1)
            return Outcome(str(Phase.EXITED), str(Word.COMPLETED), at, exit_code=0)
        if condition.type == "Failed":
            text = f"{condition.reason}: {condition.message}".rstrip(": ")
            told = _EXIT_CODE.search(condition.message)
            if condition.reason == "PodFailurePolicy" and told is not None:
                at = min(now, (instant_ms(condition.last_transition_time) or now) + SECOND_MS - 1)
                word, code = str(Word.NON_ZERO_EXIT), int(told[1])
                return Outcome(str(Phase.EXITED), word, at, text, exit_code=code)
            return _failed_without_pod(sight, condition, text, now)
    return None


def _failed_without_pod(sight: Sight, failed: Condition, text: str, now: int) -> Outcome:
    """Return the end of a rank whose Job failed, and whose pod went before it was looked at.

    The Job of one pod never deletes it, so somebody did: by hand or by an eviction. Other pods of a
    gang go with the first that fails, and of a Job that was dispatched all are on its worker.
    """
    is_elsewhere = sight.main is not None and sight.main.spec.managed_by == MULTIKUEUE_CONTROLLER
    if is_elsewhere or len(sight.record.ranks) > 1:
        said = f"its pod is gone, and how it ended was not seen ({text})"
        return Outcome(str(Phase.LOST), str(Word.END_NOT_SEEN), now, said)
    since = instant_ms(failed.last_transition_time)
    at = now if since is None else min(now, since + SECOND_MS - 1)
    said = f"its pod was deleted or evicted on the cluster while nobody looked ({text})"
    return Outcome(str(Phase.LOST), str(Word.DELETED), at, said)


def _outputs(pod: Pod) -> dict[str, Any] | None:
    """Return what a replica wrote to its outputs: one JSON object, whole."""
    container = pod.main
    ended = container.state.terminated if container is not None else None
    if ended is None or not ended.message.lstrip().startswith("{"):
        return None
    try:
        read = json.loads(ended.message)
    except ValueError:
        return None
    return read if isinstance(read, dict) else None
