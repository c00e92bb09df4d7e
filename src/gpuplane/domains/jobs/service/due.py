"""Applies what time does to jobs: gates, deadlines, budgets, windows, drains, breached targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuplane.core.amounts import money_words
from gpuplane.core.ids import JobId
from gpuplane.core.lifecycle.jobs import HOLDING, Condition, JobStatus, StopIntent
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import Priority
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.billing import service as billing
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Attempt, Job
from gpuplane.domains.jobs.rules.due import (
    CURRENCY_TOLD,
    Deed,
    Due,
    compute_next_due,
    judge_due,
    judge_move,
    mark_asked,
)
from gpuplane.domains.jobs.rules.uptime import UptimeTargets
from gpuplane.domains.jobs.service.damage import set_damaged_aside
from gpuplane.domains.jobs.service.gating import look_at_gates
from gpuplane.domains.jobs.service.holding import may_be_stopped
from gpuplane.domains.jobs.service.scaling import send_away
from gpuplane.domains.jobs.service.stopping import end_without_attempt, request_stop
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.domains.jobs.service.uptime import look_at_uptime
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.nodes.service import Node

RISK_RATIO = 0.8
"""A wait is at risk of its target from this share of it on (spec scenario 14)."""
DUE_BATCH = 500
"""Jobs looked at by one unit of work: bounds how long it holds the writer."""
WAITS_TOLD = 200
"""Waits told by one unit of work."""


@dataclass(frozen=True, slots=True)
class WaitTargets:
    """How long jobs of a class should wait at most (p99), in milliseconds; 0 for no target."""

    by_priority: Mapping[Priority, int] = field(
        default_factory=lambda: {
            Priority.CRITICAL: 300_000,
            Priority.HIGH: 1_800_000,
            Priority.NORMAL: 7_200_000,
        }
    )


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at due jobs did.

    Args:
        looked: How many jobs were looked at.
        to_checkpoint: Running attempts to be asked for a checkpoint by their backends.
    """

    looked: int = 0
    to_checkpoint: tuple[Attempt, ...] = ()


def list_due(session: ReadSession, now: int, limit: int = DUE_BATCH) -> list[JobId]:
    """Return jobs whose instant has come, longest due first."""
    return repository.list_due_ids(session, now, limit)


def next_due_at(session: ReadSession) -> int | None:
    """Return when the next job is due, None for never."""
    return repository.next_due_at(session)


def look_at(
    session: WriteSession,
    job_ids: Sequence[JobId],
    now: int,
    uptimes: UptimeTargets | None = None,
) -> Looked:
    """Do to these jobs what the time does to them; again changes nothing."""
    locked = repository.lock_jobs(session, job_ids)
    damaged = [job_id for job_id in job_ids if job_id not in locked]
    if damaged:
        set_damaged_aside(session, damaged, now)
    attempts = attempts_repository.load_attempts(
        session, [job.current_attempt_id for job in locked.values() if job.current_attempt_id]
    )
    with_budget = [
        job.id
        for job in locked.values()
        if job.status is JobStatus.RUNNING
        and job.spec.budget_limit_micro is not None
        and "budget" not in job.warned
    ]
    costs = billing.actual_costs(session, with_budget, now)
    to_checkpoint: list[Attempt] = []
    for job in locked.values():
        attempt = None
        if job.current_attempt_id is not None:
            attempt = attempts.get(job.current_attempt_id)
        totals = costs[job.id].totals if job.id in costs else {}
        spent = totals.get(job.currency, 0)
        others = {name: micro for name, micro in totals.items() if name != job.currency and micro}
        look_at_uptime(session, job, uptimes or UptimeTargets(), now)
        for due in judge_due(job, attempt, spent, now, others=others):
            if due.deed is Deed.TELL_CURRENCY:
                _tell_currency(session, job, others, now)
            _apply(session, job.id, attempt, due, spent, now)
            if due.deed is Deed.ASK_CHECKPOINT and attempt is not None:
                to_checkpoint.append(attempt)
        after = repository.find_job(session, job.id)
        if after is not None:
            _look_again(session, after, now)
    return Looked(len(locked), tuple(to_checkpoint))


def set_aside(session: WriteSession, job_id: JobId, sentence: str, until: int, now: int) -> None:
    """Look at a job later that cannot be looked at now, and say so: one bad row stops no loop."""
    repository.set_due(session, [job_id], until)
    events.record(
        session,
        events.NewEvent(
            kind="alarm.job_set_aside",
            at=now,
            subject_kind="job",
            subject_id=job_id,
            message=sentence,
        ),
    )  # fmt: skip - the event reads as one line of facts


def tell_waits(session: WriteSession, targets: WaitTargets, now: int) -> int:
    """Tell of each queued job whose wait is at risk of its target or beyond it; return how many."""
    told = 0
    for job, target, mark in find_waits(session, targets, now):
        waited_s = (now - (job.queued_at or now)) // 1000
        if mark == "queue_wait":
            kind, said = "job.wait_target_breached", f"waits longer than its target of {target} s"
        else:
            kind, said = "job.wait_target_at_risk", f"may miss its target of {target} s"
        repository.mark_warned(session, job.id, [*job.warned, mark])
        events.record(
            session,
            job_event(
                job,
                kind,
                now,
                reason=job.reason,
                message=f"{job.name} has waited {waited_s} s and {said}.",
                data={"waited_s": waited_s, "target_s": target},
            ),
        )  # fmt: skip - the event reads as one line of facts
        told += 1
    return told


def find_waits(session: ReadSession, targets: WaitTargets, now: int) -> list[tuple[Job, int, str]]:
    """Return (job, target in s, mark) of the waits that are to be told now."""
    found: list[tuple[Job, int, str]] = []
    for priority, target in targets.by_priority.items():
        if target <= 0:
            continue
        breached, at_risk = now - target, now - int(target * RISK_RATIO)
        waits = (
            ("queue_wait", (0, breached + 1)),
            ("queue_wait_risk", (breached + 1, at_risk + 1)),
        )
        for mark, queued in waits:
            jobs = repository.list_waiting(session, str(priority), queued, mark, WAITS_TOLD)
            found += [(job, target // 1000, mark) for job in jobs]
    return found


def drain_node(session: WriteSession, node: Node, now: int) -> Looked:
    """Move a draining node's work away: ask for checkpoints, wait, then stop and queue again.

    Of a service whose replicas Kueue admits one by one, those on the node alone stop.
    """
    began = node.drain_started_at
    if began is None:
        return Looked()
    if _may_come_back(session, node):
        return Looked()
    until = began + (node.drain_wait_s or 0) * 1000
    to_checkpoint: list[Attempt] = []
    open_ones = attempts_repository.list_open_on_node(session, node.id)
    for attempt in open_ones:
        job = repository.find_job(session, attempt.job_id)
        if job is None or attempt.state == "stopping":
            continue
        step = judge_move(job, began, until, now)
        if step is None:
            continue
        if step.deed is Deed.ASK_CHECKPOINT:
            repository.mark_warned(session, job.id, mark_asked(job.warned, began))
            to_checkpoint.append(attempt)
        elif attempt.by_pod:
            send_away(session, attempt, node.id, now)
        else:
            request_stop(
                session,
                job,
                StopIntent.REQUEUE,
                Word.DRAINED,
                f"{node.name} is being drained; it is moved.",
                now,
            )  # fmt: skip - the call reads as one line
    if not open_ones:
        nodes.end_drain(session, node, now)
    return Looked(len(open_ones), tuple(to_checkpoint))


def _may_come_back(session: ReadSession, node: Node) -> bool:
    """Return whether what is moved away from a node could be put there again.

    Where Kueue admits, kube-scheduler knows of no mark of ours: its cluster has the cordon first.
    """
    cluster = clusters.get_cluster(session, node.cluster_id)
    is_closed = node.details.unschedulable or not node.present
    return cluster.admits_by_kueue and not is_closed


def clear_reserved(session: WriteSession, job_ids: Sequence[JobId], now: int) -> int:
    """Preempt jobs that hold devices which a reservation is entitled to now; return how many.

    Work that may not be preempted keeps its devices until its end.
    """
    asked = 0
    for job in repository.lock_jobs(session, job_ids).values():
        is_stopping = job.condition is Condition.STOPPING
        if job.status in HOLDING and may_be_stopped(job) and not is_stopping:
            asked += request_stop(
                session,
                job,
                StopIntent.PREEMPT,
                Word.RESERVED,
                "A reservation of its devices began.",
                now,
            )  # fmt: skip - the call reads as one line
    return asked


def _apply(
    session: WriteSession,
    job_id: JobId,
    attempt: Attempt | None,
    due: Due,
    spent_micro: int,
    now: int,
) -> None:
    job = repository.find_job(session, job_id)
    if job is None:
        return
    match due.deed:
        case Deed.LOOK_AT_GATES:
            look_at_gates(session, job, now)
        case Deed.FAIL_START:
            request_stop(
                session,
                job,
                StopIntent.FAIL,
                Word.START_TIMEOUT,
                _why_not_started(job, attempt),
                now,
                grace_s=0,
            )  # fmt: skip - the call reads as one line
        case Deed.FAIL_DURATION:
            request_stop(
                session,
                job,
                StopIntent.FAIL,
                Word.TIMED_OUT,
                f"It ran longer than {job.spec.max_duration_s} s.",
                now,
            )  # fmt: skip - the call reads as one line
        case Deed.FAIL_UNREACHABLE:
            request_stop(
                session,
                job,
                StopIntent.FAIL,
                Word.NODE_LOST,
                "Its node could not be reached for too long; it is stopped once it is seen again.",
                now,
                grace_s=0,
            )  # fmt: skip - the call reads as one line
        case Deed.STOP_AGAIN if attempt is not None:
            attempts_repository.ask_evict_again(session, attempt.id)
            session.wake("dispatcher")
        case Deed.TELL_DEADLINE | Deed.CANCEL_DEADLINE:
            _miss_deadline(session, job, now, cancels=due.deed is Deed.CANCEL_DEADLINE)
        case Deed.TELL_BUDGET | Deed.PAUSE_BUDGET | Deed.CANCEL_BUDGET:
            _spend_budget(session, job, due.deed, spent_micro, now)
        case Deed.ASK_CHECKPOINT:
            repository.mark_warned(session, job.id, mark_asked(job.warned, due.at))
        case Deed.STOP_WINDOW:
            request_stop(
                session,
                job,
                StopIntent.REQUEUE,
                Word.WINDOW_CLOSED,
                "Its time window closed; it goes on when the window opens again.",
                now,
            )  # fmt: skip - the call reads as one line


def _why_not_started(job: Job, attempt: Attempt | None) -> str:
    """Return that it did not start in time, and what was last said of what it waited for."""
    said = job.status_message if job.reason == Word.NOT_HANDED_OVER else ""
    told = (each.message for each in attempt.replicas if each.message) if attempt else iter(())
    said = said or next(told, "")
    return f"It was admitted and not seen running in time. {said}".rstrip()


def _miss_deadline(session: WriteSession, job: Job, now: int, *, cancels: bool) -> None:
    repository.mark_warned(session, job.id, [*job.warned, "deadline"])
    events.record(
        session,
        job_event(
            job,
            "job.deadline_missed",
            now,
            reason=str(Word.DEADLINE_MISSED),
            message=f"{job.name} missed its deadline.",
            data={"deadline": job.spec.deadline, "action": str(job.spec.deadline_action)},
        ),
    )  # fmt: skip - the event reads as one line of facts
    if not cancels:
        return
    fresh = repository.find_job(session, job.id) or job
    message = "It missed its deadline."
    if fresh.status in HOLDING:
        request_stop(session, fresh, StopIntent.CANCEL, Word.DEADLINE_MISSED, message, now)
    else:
        end_without_attempt(session, fresh, JobStatus.CANCELLED, Word.DEADLINE_MISSED, message, now)


def _tell_currency(session: WriteSession, job: Job, others: Mapping[str, int], now: int) -> None:
    """Say once which costs a budget does not count: they are in a currency that it is not in."""
    costs = ", ".join(f"{money_words(micro)} {name}" for name, micro in sorted(others.items()))
    told = repository.find_job(session, job.id) or job
    repository.mark_warned(session, job.id, [*told.warned, CURRENCY_TOLD])
    events.record(
        session,
        job_event(
            job,
            "job.budget_not_counting",
            now,
            message=f"It has cost {costs}, which its budget of "
            f"{money_words(job.spec.budget_limit_micro or 0)} {job.currency} does not count.",
            data={"others_micro": dict(others), "currency": job.currency},
        ),
    )  # fmt: skip - the event reads as one line of facts


def _spend_budget(session: WriteSession, job: Job, deed: Deed, spent_micro: int, now: int) -> None:
    limit = job.spec.budget_limit_micro or 0
    message = (
        f"It has cost {money_words(spent_micro)} {job.currency} of a budget of "
        f"{money_words(limit)}."
    )
    if deed is Deed.TELL_BUDGET:
        repository.mark_warned(session, job.id, [*job.warned, "budget"])
    events.record(
        session,
        job_event(
            job,
            "job.budget_exceeded",
            now,
            reason=str(Word.BUDGET_EXCEEDED),
            message=message,
            data={
                "spent_micro": spent_micro,
                "limit_micro": limit,
                "action": str(job.spec.budget_action),
            },
        ),
    )  # fmt: skip - the event reads as one line of facts
    if deed is Deed.TELL_BUDGET:
        return
    intent = StopIntent.PAUSE if deed is Deed.PAUSE_BUDGET else StopIntent.CANCEL
    request_stop(session, job, intent, Word.BUDGET_EXCEEDED, message, now)


def _look_again(session: WriteSession, job: Job, now: int) -> None:
    """Set the next instant of a job that was looked at, so that it is not due for ever."""
    if job.due_at is None or job.due_at > now:
        return
    if job.status in (JobStatus.PENDING, JobStatus.PREEMPTED):
        job = replace(job, due_at=None)
    repository.set_due(session, [job.id], compute_next_due(job, now))
