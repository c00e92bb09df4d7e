"""HTTP of runs: looking at them, and what people do to them. Others start them."""

from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query

from gpuplane.core.lifecycle.runs import RunStatus, StepStatus
from gpuplane.db.calls import Call, CallDep
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.runs import service
from gpuplane.domains.runs.schemas import (
    EventIn,
    EventTakenOut,
    ForkIn,
    RunOut,
    StepName,
    StepOut,
)
from gpuplane.domains.runs.service import RunFilter, RunPolicy, RunView, StepFilter, StepView
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Cursor, InstantIn, Limit, PageOut, page_request
from gpuplane.kit.pagination import DEFAULT_LIMIT

router = APIRouter(tags=["runs"])

KIND_RIGHTS = {"cluster.": Permission.CLUSTER_MANAGE}
"""What a run's verbs need beside `run:write`, by how its kind begins: its steps act on more than
the project that it was started in."""

Verb = Callable[..., RunView]
"""What is done to a run: called with session, run id and instant, `actor` and `policy`."""


@router.get("/runs")
@requires(Permission.RUN_READ)
async def list_runs(
    call: CallDep,
    status: Annotated[list[RunStatus] | None, Query(max_length=6)] = None,
    kind: Annotated[str | None, Query(max_length=100)] = None,
    source_id: UUID | None = None,
    project_id: UUID | None = None,
    trigger: Annotated[str | None, Query(max_length=100)] = None,
    created_since: InstantIn | None = None,
    created_until: InstantIn | None = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> PageOut[RunOut]:
    """List runs, newest first."""
    wanted = RunFilter(
        tuple(each.value for each in status or ()), kind, source_id, project_id, trigger,
        created_since, created_until,
    )  # fmt: skip
    page = page_request(limit, cursor, sort=service.SORT_RUNS)
    found = await call.read(lambda s: service.list_runs(s, call.principal, wanted, page))
    return PageOut.of(found, _run_out)


@router.get("/runs/{run_id}")
@requires(Permission.RUN_READ)
async def get_run(call: CallDep, run_id: UUID) -> RunOut:
    """Return one run."""
    return _run_out(await call.read(lambda s: service.get_run(s, run_id, call.principal)))


@router.get("/runs/{run_id}/steps")
@requires(Permission.RUN_READ)
async def list_steps(
    call: CallDep,
    run_id: UUID,
    status: Annotated[list[StepStatus] | None, Query(max_length=7)] = None,
    parent: Annotated[int | None, Query(ge=0, le=2**24, description="0 for the top.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> PageOut[StepOut]:
    """List the steps of a run in their order, parts of steps and compensations among them."""
    wanted = StepFilter(tuple(each.value for each in status or ()), parent)
    page = page_request(limit, cursor, sort=service.SORT_STEPS)

    def query(session: ReadSession) -> PageOut[StepOut]:
        service.get_run(session, run_id, call.principal)
        return PageOut.of(service.list_steps(session, run_id, wanted, page), _step_out)

    return await call.read(query)


@router.get("/runs/{run_id}/steps/{step}")
@requires(Permission.RUN_READ)
async def get_step(call: CallDep, run_id: UUID, step: StepName) -> StepOut:
    """Return one step by its id, or by its key where that holds no `/`."""

    def query(session: ReadSession) -> StepView:
        service.get_run(session, run_id, call.principal)
        return service.get_step(session, run_id, step)

    return _step_out(await call.read(query))


@router.post("/runs/{run_id}/cancel")
@requires(Permission.RUN_WRITE)
async def cancel_run(call: CallDep, run_id: UUID) -> RunOut:
    """Cancel what is not over of a run; what completed stays."""
    return await _do(call, "runs.cancel", run_id, service.cancel_run)


@router.post("/runs/{run_id}/pause")
@requires(Permission.RUN_WRITE)
async def pause_run(call: CallDep, run_id: UUID) -> RunOut:
    """Begin no more steps of a run until it is resumed."""
    return await _do(call, "runs.pause", run_id, service.pause_run)


@router.post("/runs/{run_id}/resume")
@requires(Permission.RUN_WRITE)
async def resume_run(call: CallDep, run_id: UUID) -> RunOut:
    """Let a paused run go on."""
    return await _do(call, "runs.resume", run_id, service.resume_run)


@router.post("/runs/{run_id}/rerun")
@requires(Permission.RUN_WRITE)
async def rerun(call: CallDep, run_id: UUID) -> RunOut:
    """Run again what failed or was cancelled in a run that is over, and keep what completed."""
    return await _do(call, "runs.rerun", run_id, service.rerun_from_failure)


@router.post("/runs/{run_id}/fork", status_code=201)
@requires(Permission.RUN_WRITE)
async def fork_run(call: CallDep, run_id: UUID, body: ForkIn) -> RunOut:
    """Start a new run from a step, with the outputs of what lies before it."""

    def fork(session: WriteSession, run_id: UUID, now: int, **who: Any) -> RunView:
        return service.fork_run(session, run_id, body.step, now, params=body.params, **who)

    return await _do(call, "runs.fork", run_id, fork, 201)


@router.post("/runs/{run_id}/steps/{step}/retry")
@requires(Permission.RUN_WRITE)
async def retry_step(call: CallDep, run_id: UUID, step: StepName) -> RunOut:
    """Run a failed or cancelled step again; by its id, or by its key where that holds no `/`."""

    def retry(session: WriteSession, run_id: UUID, now: int, **who: Any) -> RunView:
        return service.retry_step(session, run_id, step, now, **who)

    return await _do(call, "runs.retry_step", run_id, retry)


@router.post("/runs/{run_id}/events")
@requires(Permission.RUN_WRITE)
async def send_event(call: CallDep, run_id: UUID, body: EventIn) -> EventTakenOut:
    """Send an event to a run; one that no step awaits yet is kept for the first that will."""
    policy = call.port("run_policy", RunPolicy)
    now = call.now

    def unit(session: WriteSession) -> int:
        _refuse_unless_theirs(session, call, run_id)
        return service.deliver_to_run(session, run_id, body.name, body.payload, now, policy)

    return await call.write("runs.deliver", unit, lambda count: EventTakenOut(delivered=count))


async def _do(call: Call, name: str, run_id: UUID, verb: Verb, status: int = 200) -> RunOut:
    """Do something to a run that the caller may change."""
    policy = call.port("run_policy", RunPolicy)
    now = call.now

    def unit(session: WriteSession) -> RunView:
        _refuse_unless_theirs(session, call, run_id)
        return verb(session, run_id, now, actor=call.principal.name, policy=policy)

    return await call.write(name, unit, _run_out, status)


def _refuse_unless_theirs(session: ReadSession, call: Call, run_id: UUID) -> None:
    """Refuse who may not change a run, by where it lies and by what its kind acts on."""
    run = service.get_run(session, run_id, call.principal, Permission.RUN_WRITE)
    for beginning, right in KIND_RIGHTS.items():
        if run.kind.startswith(beginning):
            call.principal.require(right, what="run")


def _run_out(run: RunView) -> RunOut:
    shown: dict[str, Any] = {name: getattr(run, name) for name in RunOut.model_fields}
    return RunOut(**shown | {"params": dict(run.params)})


def _step_out(step: StepView) -> StepOut:
    names = [name for name in StepOut.model_fields if name != "cache"]
    shown: dict[str, Any] = {name: getattr(step, name) for name in names}
    return StepOut(**shown | {"needs": list(step.needs), "cache": step.cache_note})
