"""Tells of services that are at risk of the uptime target of their class, or beyond it."""

from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Job
from gpuplane.domains.jobs.rules.uptime import BREACHED, WHOLE, UptimeTargets, is_down, judge_uptime
from gpuplane.domains.jobs.service.telling import job_event


def look_at_uptime(session: WriteSession, job: Job, targets: UptimeTargets, now: int) -> None:
    """Tell once if a locked service that is down breaks its target; mark when to look again."""
    if not is_down(job):
        return
    runs = attempts_repository.list_runs(session, job.id, now)
    found = judge_uptime(job, runs, targets, now)
    repository.mark_warned(session, job.id, found.warned)
    if found.tell is None:
        return
    down_s, allowed_s = found.down_ms // 1000, found.allowed_ms // 1000
    days = targets.window_ms / 86_400_000
    percent = targets.by_priority[job.spec.priority] * 100 / WHOLE
    if found.tell == BREACHED:
        kind, said = "job.uptime_breached", f"misses its uptime target of {percent:g} %"
    else:
        kind, said = "job.uptime_risk", f"may miss its uptime target of {percent:g} %"
    events.record(
        session,
        job_event(
            job,
            kind,
            now,
            reason=job.reason,
            message=f"{job.name} was down for {down_s} s of the {allowed_s} s that {days:g} days "
            f"allow and {said}.",
            data={"down_s": down_s, "allowed_s": allowed_s, "target_percent": percent},
        ),
    )  # fmt: skip - the event reads as one line of facts
