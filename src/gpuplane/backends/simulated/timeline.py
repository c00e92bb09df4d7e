"""The life of a simulated attempt as pure arithmetic: what is true of it at an instant.

Owns the record that is kept of an attempt and every rule of its course; all instants are fleet
milliseconds. Nothing here runs: state at an instant follows from the record and the fleet's
failures alone, which is why a control plane that was killed finds its attempts where they
would have been.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from gpuplane.backends.interface import Phase
from gpuplane.backends.simulated.fleet import Failure, FailureKind
from gpuplane.core.reasons import Word

RESTART_DELAY_MS = 1000
"""From the exit of a restarted workload to its next start; the local supervisor's first step."""
LABEL = "[simulated]"
"""Stands in every message and log line that a simulated workload leaves."""

PROGRESS_STEPS = 20
"""Progress is news this often in the course of the work ..."""
PROGRESS_GAP_MS = 15_000
"""... but never faster than this: 10,000 short jobs must not flood the control plane."""

_CHECKPOINT = re.compile(r"(?:^|/)simulated-(\d{1,15})ms$")


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """One replica: where it is and what it holds.

    Args:
        accepted_at: When it was added to an attempt that ran already; None for the first ones.
        running_at: When it then runs.
        stop_at: When it was asked to stop because fewer are wanted; `kill_at` is then set too.
    """

    rank: int
    node: str
    gpu_ids: tuple[str, ...] = ()
    gpu_milli: int = 1000
    mig_device: str | None = None
    accepted_at: int | None = None
    running_at: int | None = None
    stop_at: int | None = None
    kill_at: int | None = None

    @property
    def has_own(self) -> bool:
        """Return whether its life differs from that of the first ones."""
        return self.running_at is not None or self.stop_at is not None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """All that is kept of one attempt; the chances of its course are already drawn.

    Args:
        work_ms: How long it works from start to end; None means until it is stopped.
        done_ms: Work already behind it, from the checkpoint that it resumes.
        ends_together: Whether a failed GPU ends every replica (work that is one job) or only
            its own (a service).
        has_health: Whether its readiness is asked; else nothing is said about it.
        restarts: Whether its supervisor starts it again when it ends by itself.
        stop_delay_ms: From SIGTERM to exit.
        max_duration_ms: After so long it is asked to stop, with `grace_ms`.
        checkpoints: Whether it writes a checkpoint when asked.
        stop_at: When it was asked to stop; `kill_at` is then set too.
        lost_at: When its node was found to have left the fleet.
        forbidden: Evicted before it was started; it only remembers that.
        scale_number: Number of the last change of its replicas.
        startup_ms: From being accepted to running, for replicas that are added.
    """

    attempt_id: str
    epoch: int
    job_name: str
    replicas: tuple[ReplicaRecord, ...]
    accepted_at: int
    running_at: int
    work_ms: int | None
    done_ms: int = 0
    exit_code: int = 0
    log: tuple[str, ...] = ()
    has_health: bool = False
    port: int | None = None
    ends_together: bool = True
    restarts: bool = False
    stop_delay_ms: int = 0
    max_duration_ms: int | None = None
    grace_ms: int = 30_000
    checkpoints: bool = False
    checkpoint_every_ms: int = 0
    checkpoint_path: str = ""
    checkpoint_requests: tuple[int, ...] = ()
    artifacts: tuple[str, ...] = ()
    outputs: dict[str, object] = field(default_factory=dict)
    gpu_memory_mib: int | None = None
    gpu_utilization: float | None = None
    stop_at: int | None = None
    kill_at: int | None = None
    stop_reason: str = ""
    lost_at: int | None = None
    forbidden: bool = False
    scale_number: int = 0
    startup_ms: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """How and when a replica is over."""

    at: int
    phase: Phase
    reason: str
    message: str
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """What is true of one replica at one instant."""

    phase: Phase
    started_at: int | None
    ending: Ending | None
    restart_count: int
    progress_ratio: float | None
    progress_step: int
    checkpoint: str | None
    checkpoint_at: int | None


def parse_checkpoint_ms(name: str) -> int:
    """Return the work that a simulated checkpoint holds; 0 for any other name."""
    match = _CHECKPOINT.search(name)
    return int(match.group(1)) if match else 0


def course_of(record: AttemptRecord, replica: ReplicaRecord) -> AttemptRecord:
    """Return the record that the life of one replica follows from.

    One that was added later begins later; one that is not wanted any more ends by itself.
    """
    course = record
    if replica.running_at is not None:
        began = record.accepted_at if replica.accepted_at is None else replica.accepted_at
        course = replace(course, accepted_at=began, running_at=replica.running_at)
    asked = record.stop_at
    if replica.stop_at is not None and (asked is None or replica.stop_at < asked):
        course = replace(
            course,
            stop_at=replica.stop_at,
            kill_at=replica.kill_at,
            stop_reason=str(Word.SCALED_DOWN),
        )
    return course


def plan_endings(
    record: AttemptRecord, failures: dict[str, Sequence[Failure]], gpu_index: dict[str, int]
) -> tuple[Ending | None, ...]:
    """Return how each replica ends if nothing more is asked, in the order of the replicas.

    `failures` are the fleet's by node name, `gpu_index` the index of each GPU on its node.
    """
    if record.forbidden:
        message = f"{LABEL} was evicted before it started; it may never start"
        never = Ending(record.accepted_at, Phase.EXITED, record.stop_reason, message)
        return (never,) * len(record.replicas)
    courses = [course_of(record, replica) for replica in record.replicas]
    broken = [
        _find_gpu_failure(replica, course, failures, gpu_index)
        for replica, course in zip(record.replicas, courses, strict=True)
    ]
    if record.ends_together:
        first = _earliest(broken)
        broken = [first for _ in broken]
    return tuple(
        _earliest((_find_node_loss(replica, course, failures), gpu_end, _plan_own_end(course)))
        for replica, course, gpu_end in zip(record.replicas, courses, broken, strict=True)
    )


def compute_moment(record: AttemptRecord, ending: Ending | None, at: int) -> Moment:
    """Return what is true of a replica with this ending at this instant."""
    over = ending is not None and at >= ending.at
    until = ending.at if ending is not None and over else at
    started = until >= record.running_at and not (
        over and ending and ending.at <= record.running_at
    )
    if over and ending is not None:
        phase = ending.phase
    elif (term_at := find_term(record)) is not None and at >= term_at:
        phase = Phase.STOPPING
    elif not started or _is_between_laps(record, until):
        phase = Phase.STARTING
    else:
        phase = Phase.RUNNING
    checkpoint = _find_checkpoint(record, until) if started else None
    return Moment(
        phase=phase,
        started_at=record.running_at if started else None,
        ending=ending if over else None,
        restart_count=_count_laps(record, until) if started else 0,
        progress_ratio=compute_progress(record, until),
        progress_step=_count_progress_steps(record, until),
        checkpoint=None if checkpoint is None else _checkpoint_name(record, checkpoint),
        checkpoint_at=checkpoint,
    )


def find_next_change(
    record: AttemptRecord, endings: Sequence[Ending | None], at: int
) -> int | None:
    """Return the first instant later than `at` at which an observation of it differs."""
    ends = [ending.at for ending in endings if ending is not None]
    last = max(ends, default=at) if len(ends) == len(endings) else None
    if last is not None and at >= last:
        return None
    courses = [record, *(course_of(record, each) for each in record.replicas if each.has_own)]
    candidates: Iterable[int | None] = chain(
        ends,
        *((each.running_at, find_term(each), _find_next_lap(each, at)) for each in courses),
        (_find_next_checkpoint(record, at), _find_next_progress(record, at)),
    )
    later = [c for c in candidates if c is not None and c > at and (last is None or c <= last)]
    return min(later, default=None)


def compute_progress(record: AttemptRecord, at: int) -> float | None:
    """Return the share of the work that is done at an instant; None where there is no end."""
    if record.work_ms is None or record.restarts:
        return None
    if at < record.running_at:
        return 0.0
    if record.work_ms == 0:
        return 1.0
    return min(1.0, (record.done_ms + at - record.running_at) / record.work_ms)


def find_term(record: AttemptRecord) -> int | None:
    """Return when SIGTERM is or was sent: asked from outside, or at the longest duration."""
    timeout = None
    if record.max_duration_ms is not None:
        timeout = record.running_at + record.max_duration_ms
    return min((at for at in (record.stop_at, timeout) if at is not None), default=None)


def _plan_own_end(record: AttemptRecord) -> Ending | None:
    """Return the end that the attempt comes to without any failure of the fleet."""
    ends: list[Ending | None] = [_plan_natural_end(record), _plan_stop(record)]
    if record.lost_at is not None:
        message = f"{LABEL} the node is no longer part of the fleet"
        ends.append(Ending(record.lost_at, Phase.LOST, Word.NODE_LOST, message))
    return _earliest(ends)


def _plan_natural_end(record: AttemptRecord) -> Ending | None:
    """Return the end of the work; within a grace period it still counts as the stop."""
    if record.work_ms is None or record.restarts:
        return None
    at = record.running_at + max(0, record.work_ms - record.done_ms)
    code = record.exit_code
    reason: str = Word.COMPLETED if code == 0 else Word.NON_ZERO_EXIT
    term_at = find_term(record)
    if term_at is not None and at >= term_at:
        reason = _stop_reason(record)
    message = f"{LABEL} ended with exit code {code} as described"
    return Ending(at, Phase.EXITED, reason, message, exit_code=code)


def _plan_stop(record: AttemptRecord) -> Ending | None:
    """Return the end by SIGTERM, or by SIGKILL when the grace is over first."""
    term_at = find_term(record)
    if term_at is None:
        return None
    kills: list[int] = []
    if record.max_duration_ms is not None:
        kills.append(record.running_at + record.max_duration_ms + record.grace_ms)
    if record.kill_at is not None:
        kills.append(record.kill_at)
    kill_at = max(term_at, min(kills))
    gone_at = term_at + record.stop_delay_ms
    reason = _stop_reason(record)
    if term_at < record.running_at:
        return Ending(term_at, Phase.EXITED, reason, f"{LABEL} stopped before it started")
    if gone_at <= kill_at:
        return _signalled(gone_at, 15, reason, "stopped by SIGTERM")
    return _signalled(kill_at, 9, reason, "killed by SIGKILL, still there after the grace period")


def _stop_reason(record: AttemptRecord) -> str:
    """Return why SIGTERM was sent: what was asked, or the longest duration when that came first."""
    return record.stop_reason if record.stop_at == find_term(record) else Word.TIMED_OUT


def _signalled(at: int, number: int, reason: str, text: str) -> Ending:
    """Return an end by a signal, its exit code as shells and Kubernetes count it."""
    message = f"{LABEL} {text}"
    return Ending(at, Phase.EXITED, reason, message, exit_code=128 + number, signal=number)


def _find_gpu_failure(
    replica: ReplicaRecord,
    record: AttemptRecord,
    failures: dict[str, Sequence[Failure]],
    gpu_index: dict[str, int],
) -> Ending | None:
    indices = {gpu_index[gpu_id] for gpu_id in replica.gpu_ids if gpu_id in gpu_index}
    starts = [
        (at, failure.gpu_index)
        for failure in failures.get(replica.node, ())
        if failure.kind is FailureKind.GPU_FAILED and failure.gpu_index in indices
        if (at := failure.find_next_start(record.accepted_at)) is not None
    ]
    if not starts:
        return None
    at, index = min(starts)
    message = f"{LABEL} GPU {index} of node {replica.node} failed under rank {replica.rank}"
    exit_code = 1 if at > record.running_at else None
    return Ending(at, Phase.EXITED, Word.GPU_FAILED, message, exit_code=exit_code)


def _find_node_loss(
    replica: ReplicaRecord, record: AttemptRecord, failures: dict[str, Sequence[Failure]]
) -> Ending | None:
    at = min(
        (
            start
            for failure in failures.get(replica.node, ())
            if failure.kind is FailureKind.NODE_DOWN
            if (start := failure.find_next_start(record.accepted_at)) is not None
        ),
        default=None,
    )
    if at is None:
        return None
    return Ending(at, Phase.LOST, Word.NODE_LOST, f"{LABEL} node {replica.node} went down")


def _earliest(endings: Iterable[Ending | None]) -> Ending | None:
    """Return the first of the endings; of two at one instant the one named first."""
    return min((e for e in endings if e is not None), key=lambda e: e.at, default=None)


def _lap_ms(record: AttemptRecord) -> int | None:
    """Return the time from one start of a restarted workload to the next, or None."""
    if record.work_ms is None or not record.restarts:
        return None
    return record.work_ms + RESTART_DELAY_MS


def _count_laps(record: AttemptRecord, at: int) -> int:
    lap_ms = _lap_ms(record)
    return 0 if lap_ms is None else (at - record.running_at + RESTART_DELAY_MS) // lap_ms


def _is_between_laps(record: AttemptRecord, at: int) -> bool:
    lap_ms = _lap_ms(record)
    if lap_ms is None or record.work_ms is None:
        return False
    return (at - record.running_at) % lap_ms >= record.work_ms


def _find_next_lap(record: AttemptRecord, at: int) -> int | None:
    lap_ms = _lap_ms(record)
    if lap_ms is None or record.work_ms is None or at < record.running_at:
        return None
    lap_start = at - (at - record.running_at) % lap_ms
    exits_at = lap_start + record.work_ms
    return exits_at if exits_at > at else lap_start + lap_ms


def _progress_gap_ms(record: AttemptRecord) -> int | None:
    """Return how often progress is news, or None where there is none."""
    if record.work_ms is None or record.restarts:
        return None
    return max(PROGRESS_GAP_MS, record.work_ms // PROGRESS_STEPS)


def _count_progress_steps(record: AttemptRecord, at: int) -> int:
    gap_ms = _progress_gap_ms(record)
    return 0 if gap_ms is None else max(0, at - record.running_at) // gap_ms


def _find_next_progress(record: AttemptRecord, at: int) -> int | None:
    gap_ms = _progress_gap_ms(record)
    if gap_ms is None:
        return None
    return record.running_at + (_count_progress_steps(record, at) + 1) * gap_ms


def _find_checkpoint(record: AttemptRecord, at: int) -> int | None:
    """Return when the last checkpoint up to `at` was written, or None."""
    found = [asked for asked in record.checkpoint_requests if asked <= at]
    every = record.checkpoint_every_ms
    if every > 0 and (count := (at - record.running_at) // every) > 0:
        found.append(record.running_at + count * every)
    return max(found, default=None)


def _find_next_checkpoint(record: AttemptRecord, at: int) -> int | None:
    every = record.checkpoint_every_ms
    if every <= 0:
        return None
    count = max(0, at - record.running_at) // every
    return record.running_at + (count + 1) * every


def _checkpoint_name(record: AttemptRecord, at: int) -> str:
    name = f"simulated-{record.done_ms + at - record.running_at}ms"
    return f"{record.checkpoint_path.rstrip('/')}/{name}" if record.checkpoint_path else name
