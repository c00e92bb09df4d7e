"""How long a service was down, and whether its class allows that: pure judgement.

What is remembered of it between two looks are marks among a job's once-only warnings. Owns those
marks; never reads the database.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.workloads import JobType, Priority
from gpuplane.domains.jobs.rules.values import Job

Span = tuple[int, int]
"""From an instant until another."""

RISK, BREACHED = "uptime_risk", "uptime"
"""The marks of what was told."""
LOOK_AT = "uptime_at:"
"""Prefix of the mark of the next look at a service that is down; 0 when there is none."""
RETRY_AT = "retry_at:"
"""Prefix of the mark of a service's next try, which its next look must not take for its own."""
PAUSE = "paused:"
"""Prefix of the mark of a time in which nobody wanted the service to run."""
MAX_PAUSES = 100
"""Pauses kept of a service; more are made fewer by joining the oldest two."""
LEAST_STEP_MS = 1_000
"""The nearest next look: down time that leaves the window may put a threshold off for ever."""
WHOLE = 1_000_000


@dataclass(frozen=True, slots=True)
class UptimeTargets:
    """How much of a rolling window services of a class should run.

    Args:
        by_priority: The target of a class in parts of a million; 0 for no target.
        window_ms: The length of the window.
    """

    by_priority: Mapping[Priority, int] = field(
        default_factory=lambda: {
            Priority.CRITICAL: 999_900,
            Priority.HIGH: 999_000,
            Priority.NORMAL: 995_000,
        }
    )
    window_ms: int = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class Uptime:
    """What was found of a service.

    Args:
        down_ms: How long it was down within the window.
        allowed_ms: How long it may be down within a window.
        tell: `uptime_risk` or `uptime` when that is to be told now.
        warned: The marks to store.
    """

    down_ms: int
    allowed_ms: int
    tell: str | None
    warned: tuple[str, ...]


def is_down(job: Job) -> bool:
    """Return whether a job is a service that was admitted before and should run but does not."""
    return (
        job.spec.job_type is JobType.SERVICE
        and job.attempt_count > 0
        and job.condition is not Condition.PAUSED
        and job.status
        in (JobStatus.PENDING, JobStatus.QUEUED, JobStatus.SCHEDULED, JobStatus.PREEMPTED)
    )


def judge_uptime(job: Job, runs: Sequence[Span], targets: UptimeTargets, now: int) -> Uptime:
    """Return how long a service was down, what to tell of it, and when to look again.

    While it runs nothing is looked at, so what was told is forgotten when it next goes down with
    less down time than that. A service with a time window of its own has no target.

    Args:
        job: The service.
        runs: When its attempts ran; one that still runs ends at `now` or later.
        targets: What its class should reach.
        now: The instant.
    """
    since = now - targets.window_ms
    pauses = [span for span in _pauses(job.warned) if span[1] > since]
    kept = [each for each in job.warned if not _is_own(each)]
    kept += [_pause_mark(span) for span in pauses]
    target = targets.by_priority.get(job.spec.priority, 0)
    if target <= 0 or job.spec.window is not None or not runs:
        return Uptime(0, 0, None, (*kept, f"{LOOK_AT}0"))
    since = max(since, min(started for started, _ in runs))
    down = compute_down_ms([*runs, *pauses], since, now)
    allowed = max(0, WHOLE - target) * targets.window_ms // WHOLE
    told: list[str] = []
    tell, look_at = None, 0
    for mark, limit in ((RISK, max(1, allowed * 8 // 10)), (BREACHED, max(1, allowed))):
        if down < limit:
            look_at = now + max(LEAST_STEP_MS, limit - down)
            break
        told.append(mark)
        tell = None if mark in job.warned else mark
    return Uptime(down, allowed, tell, (*kept, *told, f"{LOOK_AT}{look_at}"))


def compute_down_ms(up: Iterable[Span], since: int, now: int) -> int:
    """Return how much of the time from `since` until `now` no span covers, in milliseconds."""
    down, covered = 0, since
    for begin, end in sorted(up):
        if begin >= now:
            break
        down += max(0, begin - covered)
        covered = max(covered, min(end, now))
    return down + max(0, now - covered)


def look_instant(job: Job, now: int) -> int | None:
    """Return when a service that is down must be looked at; now when it went down just now."""
    if not is_down(job):
        return None
    at = _value(job.warned, LOOK_AT)
    return now if at is None else at or None


def retry_instant(job: Job) -> int | None:
    """Return when a job that backs off is tried again."""
    marked = _value(job.warned, RETRY_AT)
    return job.due_at if marked is None else marked


def mark_down(warned: Sequence[str], retry_at: int | None) -> list[str]:
    """Return the marks of a service whose attempt is over: it is looked at at once."""
    kept = [each for each in warned if not each.startswith((LOOK_AT, RETRY_AT))]
    return kept if retry_at is None else [*kept, f"{RETRY_AT}{retry_at}"]


def mark_pause(warned: Sequence[str], since: int, until: int) -> list[str]:
    """Return a service's marks with a time in which nobody wanted it to run."""
    spans = sorted([*_pauses(warned), (since, until)])
    while len(spans) > MAX_PAUSES:
        spans[:2] = [(spans[0][0], max(spans[0][1], spans[1][1]))]
    kept = [each for each in warned if not each.startswith((PAUSE, LOOK_AT))]
    return kept + [_pause_mark(span) for span in spans]


def forget_look(warned: Sequence[str]) -> list[str]:
    """Return a job's marks without that of its next look: it is looked at at once."""
    return [each for each in warned if not each.startswith(LOOK_AT)]


def keep_told(warned: Sequence[str]) -> list[str]:
    """Return those of a job's marks that outlive a manual retry: what was told, and pauses."""
    return [each for each in warned if each in (RISK, BREACHED) or each.startswith(PAUSE)]


def _is_own(mark: str) -> bool:
    return mark in (RISK, BREACHED) or mark.startswith((LOOK_AT, PAUSE))


def _pause_mark(span: Span) -> str:
    return f"{PAUSE}{span[0]}-{span[1]}"


def _pauses(warned: Sequence[str]) -> list[Span]:
    found = [each.removeprefix(PAUSE).split("-") for each in warned if each.startswith(PAUSE)]
    return [(int(since), int(until)) for since, until in found]


def _value(warned: Sequence[str], prefix: str) -> int | None:
    found = (each.removeprefix(prefix) for each in warned if each.startswith(prefix))
    value = next(found, None)
    return None if value is None else int(value)
