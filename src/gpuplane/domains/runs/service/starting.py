"""Starting runs: checked whole, stored whole, or not at all."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from gpuplane.core.lifecycle.runs import RunCondition, RunStatus
from gpuplane.core.runs.boards import Run, Step, link_steps, new_step
from gpuplane.core.runs.checking import PlanFault, find_plan_faults
from gpuplane.core.runs.plans import Limit, RunPlan
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.runs.errors import PlanRefused, TooManyRuns
from gpuplane.domains.runs.repository import boards as repository
from gpuplane.domains.runs.repository import listing, places
from gpuplane.domains.runs.rules import RunView
from gpuplane.domains.runs.service.policies import DEFAULT_POLICY, RUNS, RunPolicy
from gpuplane.kit.errors import FieldError, ProductError
from gpuplane.kit.ids import new_id

COUNTED_ALONE = 1_000
"""So close to its limit a project's runs are counted by one transaction at a time: more than all
others together may be adding just then."""
LIMITED_MESSAGE = "It waits for other runs of the same key."


def start_run(
    session: WriteSession, plan: RunPlan, now: int, policy: RunPolicy = DEFAULT_POLICY
) -> RunView:
    """Store a run whose first steps are due at once; the run of the same deduplication id if any.

    Raises:
        PlanRefused: If the plan cannot be run; tells each place.
        TooManyRuns: If the project has as many open runs as it may.
    """
    (outcome,) = start_runs(session, (plan,), now, policy)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def start_runs(
    session: WriteSession,
    plans: Sequence[RunPlan],
    now: int,
    policy: RunPolicy = DEFAULT_POLICY,
) -> list[RunView | Exception]:
    """Store many runs at once; each has an outcome: itself, or why it is refused (see above)."""
    outcomes: list[RunView | Exception] = []
    known: dict[tuple[UUID, str], RunView] = {}
    added: list[tuple[Run, RunPlan]] = []
    steps: list[Step] = []
    room: dict[UUID, int] = {}
    for plan in plans:
        key = None if plan.dedup_id is None else (plan.project_id, plan.dedup_id)
        same = None if key is None else known.get(key) or listing.find_by_dedup(session, *key)
        if same is not None:
            outcomes.append(same)
            continue
        try:
            refuse_plan(plan, now, policy)
            if plan.project_id not in room:
                room[plan.project_id] = count_room(session, plan.project_id, policy)
            refuse_too_many(room[plan.project_id], policy)
        except ProductError as error:
            outcomes.append(error)
            continue
        room[plan.project_id] -= 1
        run, own = _prepare(session, plan, now)
        added.append((run, plan))
        steps += own
        view = view_of(run, plan)
        outcomes.append(view)
        if key is not None:
            known[key] = view
    repository.insert_runs(session, added)
    repository.insert_steps(session, steps)
    if added:
        session.wake(RUNS)
    return outcomes


def refuse_plan(plan: RunPlan, now: int, policy: RunPolicy) -> None:
    """Raise PlanRefused if a plan cannot be run; tells each place."""
    refuse_faults(find_plan_faults(plan, policy.rules))
    if plan.deadline_at is not None and plan.deadline_at <= now:
        refuse_faults([PlanFault("deadline_at", "The deadline has passed.")])


def _prepare(session: WriteSession, plan: RunPlan, now: int) -> tuple[Run, list[Step]]:
    """Return the rows of a run that may be started."""
    run = new_run(plan, now)
    steps = [new_step(run.id, place, spec) for place, spec in enumerate(plan.steps, 1)]
    link_steps(steps, now)
    hold_if_limited(session, plan, run, steps)
    return run, steps


def hold_if_limited(session: WriteSession, plan: RunPlan, run: Run, steps: Sequence[Step]) -> None:
    """Let a new run wait for its places if it may not have all of them now."""
    if plan.limits and not take_places(session, run, plan.limits):
        run.condition, run.message = RunCondition.LIMITED, LIMITED_MESSAGE
        for step in steps:
            step.held_at, step.due_at = step.due_at, None


def refuse_faults(faults: Sequence[PlanFault]) -> None:
    """Raise PlanRefused if there is any fault."""
    if not faults:
        return
    first = faults[0]
    raise PlanRefused(
        f"{first.place}: {first.reason}",
        field=first.place,
        fix=first.fix,
        errors=tuple(FieldError(each.place, each.reason, each.fix) for each in faults),
    )


def count_room(session: WriteSession, project_id: UUID, policy: RunPolicy) -> int:
    """Return how many runs a project may still start; exact, whoever else is starting some."""
    room = policy.open_runs - listing.count_open(session, project_id)
    if room <= COUNTED_ALONE and session.dialect == "postgresql":
        listing.lock_open(session, project_id)
        room = policy.open_runs - listing.count_open(session, project_id)
    return room


def refuse_too_many(room: int, policy: RunPolicy) -> None:
    """Raise TooManyRuns if a project has as many open runs as it may."""
    if room < 1:
        raise TooManyRuns(
            f"The project has {policy.open_runs} runs that are not over.",
            fix="Wait for some to end, or cancel those that are not needed.",
            retry_after_s=30,
        )


def new_run(plan: RunPlan, now: int) -> Run:
    """Return the row of a run that has not begun."""
    count = len(plan.steps)
    return Run(
        id=new_id(),
        tenant_id=plan.tenant_id,
        project_id=plan.project_id,
        kind=plan.kind,
        name=plan.name,
        source_id=plan.source_id,
        created_by=plan.created_by,
        status=RunStatus.PENDING,
        condition=RunCondition.NONE,
        on_failure=plan.on_failure,
        max_parallel=plan.max_parallel,
        timeout_ms=plan.timeout_ms,
        deadline_at=plan.deadline_at,
        expires_at=plan.deadline_at,
        created_at=now,
        started_at=None,
        ended_at=None,
        step_count=count,
        next_seq=count + 1,
        left=count,
        failed=0,
        completed=0,
        active=0,
        output_bytes=0,
        verdict="",
        undoes=False,
        error="",
        message="",
        told_at=0,
    )


def take_places(session: WriteSession, run: Run, limits: Sequence[Limit]) -> bool:
    """Write a run's places; whether it holds all of them at once (or waits for all)."""
    wanted = {places.PlaceKey(run.project_id, "run", each.key): each.count for each in limits}
    places.lock_places(session, wanted)
    free = all(
        sum(place.held for place in places.load_places(session, key)) < count
        for key, count in wanted.items()
    )
    for key, count in sorted(wanted.items()):
        places.insert_place(session, key, places.Place(run.id, run.id, count, free))
    return free


def view_of(run: Run, plan: RunPlan, forked_from: UUID | None = None) -> RunView:
    """Return a run that was just stored as people see it."""
    shared: dict[str, Any] = {
        name: getattr(run, name) for name in RunView.__slots__ if hasattr(run, name)
    }
    return RunView(
        **shared,
        source_version=plan.source_version,
        trigger=plan.trigger,
        dedup_id=plan.dedup_id,
        params=plan.params,
        context=plan.context,
        limits=plan.limits,
        traceparent=plan.traceparent,
        forked_from=forked_from,
    )
