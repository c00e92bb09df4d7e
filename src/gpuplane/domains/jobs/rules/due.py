"""What time alone does to a job: pure judgement of everything that has a deadline.

The monitor asks this of jobs whose instant has come; what is returned is applied guarded by the
version the job was read at. Asking again after applying returns nothing new.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.lifecycle.jobs import HOLDING, TERMINAL, Condition, JobStatus
from gpuplane.core.scheduling.windows import WITHOUT_END, find_current_window
from gpuplane.core.workloads import BudgetAction, DeadlineAction, JobType, WindowEnd
from gpuplane.domains.jobs.rules.uptime import look_instant
from gpuplane.domains.jobs.rules.values import Attempt, Job

DEADLINE_GRACE_MS = 30_000
"""Spec scenario 13, clock skew: a deadline is enforced this long after it."""
START_TIMEOUT_MS = 600_000
"""An admitted job that is not seen running within ten minutes has failed to start."""
BUDGET_LOOK_MS = 5_000
"""How often the spending of a running job with a budget is looked at."""
UNREACHABLE_MS = 600_000
"""A job whose node cannot be reached for ten minutes is asked to stop; it keeps its devices
until it is seen to be over or its node is provably fenced."""
CHECKPOINT_WAIT_MS = 300_000
"""How long a job may take to write the checkpoint it was asked for before it is moved."""
STOP_MARGIN_MS = 60_000
"""How long after its grace period a stopping attempt is asked again."""
CURRENCY_TOLD = "budget_currency"
"""Mark that costs which a budget does not count were told."""
ASKED = "checkpoint_asked:"
"""Prefix of the mark that a checkpoint was asked for, followed by the instant it was for."""


class Deed(StrEnum):
    """What is to be done with a job because of the time."""

    LOOK_AT_GATES = "look_at_gates"
    FAIL_START = "fail_start"
    FAIL_DURATION = "fail_duration"
    FAIL_UNREACHABLE = "fail_unreachable"
    STOP_AGAIN = "stop_again"
    TELL_DEADLINE = "tell_deadline"
    CANCEL_DEADLINE = "cancel_deadline"
    TELL_BUDGET = "tell_budget"
    TELL_CURRENCY = "tell_currency"
    PAUSE_BUDGET = "pause_budget"
    CANCEL_BUDGET = "cancel_budget"
    ASK_CHECKPOINT = "ask_checkpoint"
    STOP_WINDOW = "stop_window"


@dataclass(frozen=True, slots=True)
class Due:
    """One thing to do, and the instant it is for."""

    deed: Deed
    at: int


def judge_due(
    job: Job,
    attempt: Attempt | None,
    spent_micro: int,
    now: int,
    *,
    others: Collection[str] = (),
) -> tuple[Due, ...]:
    """Return what the time does to a job now, most final first.

    Args:
        job: The job.
        attempt: Its current attempt, if it holds devices.
        spent_micro: What it has cost until now, in micro-units of its currency.
        now: The instant.
        others: Other currencies in which it has cost something: its budget does not count them,
            since no rate is known, so they are told once.
    """
    if job.status in TERMINAL:
        return ()
    found: list[Due] = []
    late = _judge_deadline(job, now)
    if late is not None:
        found.append(late)
    if job.condition is Condition.STOPPING:
        if attempt is not None and _is_stop_overdue(attempt, now):
            found.append(Due(Deed.STOP_AGAIN, now))
        return tuple(found)
    if job.status in HOLDING:
        if others and job.spec.budget_limit_micro is not None and CURRENCY_TOLD not in job.warned:
            found.append(Due(Deed.TELL_CURRENCY, now))
        found += _judge_holding(job, spent_micro, now)
    elif job.status in (JobStatus.PENDING, JobStatus.PREEMPTED):
        found.append(Due(Deed.LOOK_AT_GATES, now))
    return tuple(found)


def _judge_deadline(job: Job, now: int) -> Due | None:
    deadline = job.spec.deadline
    if deadline is None or "deadline" in job.warned or now < deadline + DEADLINE_GRACE_MS:
        return None
    if job.spec.deadline_action is DeadlineAction.CANCEL:
        return Due(Deed.CANCEL_DEADLINE, deadline)
    return Due(Deed.TELL_DEADLINE, deadline)


def _judge_holding(job: Job, spent_micro: int, now: int) -> list[Due]:
    found: list[Due] = []
    started = job.admitted_at
    if job.status is JobStatus.SCHEDULED and started is not None:
        if now >= started + START_TIMEOUT_MS:
            found.append(Due(Deed.FAIL_START, started + START_TIMEOUT_MS))
        return found
    most = job.spec.max_duration_s
    if most is not None and job.actual_start is not None:
        end = job.actual_start + most * 1000
        if now >= end:
            found.append(Due(Deed.FAIL_DURATION, end))
    if job.condition is Condition.UNREACHABLE and job.condition_at is not None:
        if now >= job.condition_at + UNREACHABLE_MS:
            found.append(Due(Deed.FAIL_UNREACHABLE, job.condition_at + UNREACHABLE_MS))
        return found
    budget = _judge_budget(job, spent_micro, now)
    if budget is not None:
        found.append(budget)
    window = _judge_window(job, now)
    if window is not None:
        found.append(window)
    return found


def _judge_budget(job: Job, spent_micro: int, now: int) -> Due | None:
    limit = job.spec.budget_limit_micro
    if limit is None or spent_micro < limit or "budget" in job.warned:
        return None
    deeds = {
        BudgetAction.WARN: Deed.TELL_BUDGET,
        BudgetAction.PAUSE: Deed.PAUSE_BUDGET,
        BudgetAction.CANCEL: Deed.CANCEL_BUDGET,
    }
    return Due(deeds[job.spec.budget_action], now)


def _judge_window(job: Job, now: int) -> Due | None:
    end = window_end_of(job)
    if end is None or now < end:
        return None
    window = job.spec.window
    if window is not None and window.at_end is WindowEnd.CHECKPOINT:
        return judge_move(job, end, end + CHECKPOINT_WAIT_MS, now)
    return Due(Deed.STOP_WINDOW, end)


def judge_move(job: Job, asked_for: int, wait_until: int, now: int) -> Due | None:
    """Return the next step of moving a job away with a checkpoint: ask, wait, stop.

    Training and batch work without checkpoints may end while it is waited; a service never ends,
    so one without checkpoints has nothing to wait for.

    Args:
        job: The running job.
        asked_for: The instant the move is for: the end of a window or the start of a drain.
        wait_until: When it is stopped even without a checkpoint.
        now: The instant.

    Returns:
        ASK_CHECKPOINT, STOP_WINDOW, or None while there is something to wait for.
    """
    if now >= wait_until:
        return Due(Deed.STOP_WINDOW, asked_for)
    if not writes_checkpoints(job):
        is_endless = job.spec.job_type is JobType.SERVICE
        return Due(Deed.STOP_WINDOW, asked_for) if is_endless else None
    if f"{ASKED}{asked_for}" not in job.warned:
        return Due(Deed.ASK_CHECKPOINT, asked_for)
    if job.last_checkpoint_at is not None and job.last_checkpoint_at >= asked_for:
        return Due(Deed.STOP_WINDOW, asked_for)
    return None


def writes_checkpoints(job: Job) -> bool:
    """Return whether a job says that it writes checkpoints when it is asked to."""
    return job.spec.checkpoint is not None and job.spec.checkpoint.enabled


def mark_asked(warned: Sequence[str], asked_for: int) -> list[str]:
    """Return a job's marks with the one that a checkpoint was asked for, in place of an older."""
    kept = [each for each in warned if not each.startswith(ASKED)]
    return [*kept, f"{ASKED}{asked_for}"]


def window_end_of(job: Job) -> int | None:
    """Return when the window in which a job started closes, unless it may finish beyond it."""
    window = job.spec.window
    if window is None or window.at_end is WindowEnd.FINISH or job.admitted_at is None:
        return None
    span = find_current_window(window, job.admitted_at)
    return None if span is None or span[1] == WITHOUT_END else span[1]


def _is_stop_overdue(attempt: Attempt, now: int) -> bool:
    if attempt.stop_deadline is None or attempt.evict_sent_at is None:
        return False
    since = max(attempt.stop_deadline, attempt.evict_sent_at)
    return now >= since + STOP_MARGIN_MS


def compute_next_due(job: Job, now: int) -> int | None:
    """Return the next instant at which something may happen to the job by time alone.

    Args:
        job: The job; its `due_at` counts while it waits for a gate.
        now: The instant; what lies before it is due now.
    """
    if job.status in TERMINAL:
        return None
    spec = job.spec
    instants: list[int] = []
    if job.status in (JobStatus.PENDING, JobStatus.PREEMPTED):
        is_paused = job.condition is Condition.PAUSED
        if job.due_at is not None and not is_paused:
            instants.append(job.due_at)
        if spec.scheduled_start is not None and spec.scheduled_start > now and not is_paused:
            instants.append(spec.scheduled_start)
    if spec.deadline is not None and "deadline" not in job.warned:
        instants.append(spec.deadline + DEADLINE_GRACE_MS)
    if job.condition is Condition.STOPPING:
        since = now if job.condition_at is None else job.condition_at
        instants.append(max(now, since + spec.execution.grace_s * 1000) + STOP_MARGIN_MS)
    elif job.status is JobStatus.SCHEDULED and job.admitted_at is not None:
        instants.append(job.admitted_at + START_TIMEOUT_MS)
    elif job.status is JobStatus.RUNNING:
        instants += _running_instants(job, now)
    uptime = look_instant(job, now)
    if uptime is not None:
        instants.append(uptime)
    return min(instants, default=None)


def _running_instants(job: Job, now: int) -> list[int]:
    spec = job.spec
    instants: list[int] = []
    if job.actual_start is not None and spec.max_duration_s is not None:
        instants.append(job.actual_start + spec.max_duration_s * 1000)
    if spec.budget_limit_micro is not None and "budget" not in job.warned:
        instants.append(now + BUDGET_LOOK_MS)
    if job.condition is Condition.UNREACHABLE and job.condition_at is not None:
        instants.append(job.condition_at + UNREACHABLE_MS)
    end = window_end_of(job)
    if end is not None:
        asked = f"{ASKED}{end}" in job.warned
        instants.append(min(now + BUDGET_LOOK_MS, end + CHECKPOINT_WAIT_MS) if asked else end)
    return instants
