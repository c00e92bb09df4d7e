"""How the ranks of an attempt ended, as far as that is seen and not recorded yet: pure.

Kubernetes tells instants in whole seconds: an end counts to the end of its own.
"""

import re
from typing import Any

from gpuplane.backends.interface import Phase
from gpuplane.backends.kubernetes import causes
from gpuplane.backends.kubernetes.annotations import find_object
from gpuplane.backends.kubernetes.observing import find_scaled_away
from gpuplane.backends.kubernetes.records import LASTING, STARTED, Outcome
from gpuplane.backends.kubernetes.reports import last_report
from gpuplane.backends.kubernetes.shapes import Condition, Pod, instant_ms
from gpuplane.backends.kubernetes.sights import (
    DELETED,
    SECOND_MS,
    VANISHED_MS,
    Sight,
    conditions_of,
    gpus_of,
    is_held_back,
    pods_by_rank,
    pods_there,
    started_at,
)
from gpuplane.core.reasons import Word
from gpuplane.kube.kueue.names import MULTIKUEUE_CONTROLLER

VERDICT_MS = 10_000
"""How long the end of a pod that was deleted waits for its Job's controller to say why."""
_EXIT_CODE = re.compile(r"failed with exit code (\d+)")
"""How the Job controller tells why its podFailurePolicy failed a Job (Kubernetes v1.34)."""
POD_DELETED = "its pod was deleted on the cluster by somebody else"


def compute_outcomes(sight: Sight, now: int) -> dict[int, Outcome]:
    """Return the ends that are seen and not recorded yet, by rank.

    Args:
        now: For an end that nothing dates, ms since the epoch.
    """
    record = sight.record
    if record.fate != STARTED or record.is_over:
        return {}
    if is_held_back(sight) or _is_going(sight):
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


def _is_going(sight: Sight) -> bool:
    """Return whether something of an evicted release is there: pods without a rank run too."""
    record = sight.record
    if not (record.is_release and record.evict_reason):
        return False
    return sight.main is not None or any(not pod.is_over for pod in pods_there(sight))


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
    return find_object(ended.message)
