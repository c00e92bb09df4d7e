"""Endpoints about this server itself: health, readiness, metrics, loops, version, the caller."""

import asyncio
import platform
from collections.abc import Mapping
from typing import Any, cast

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from sqlalchemy import literal, select

from gpuplane import __version__
from gpuplane.db.calls import Call, CallDep
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Body, InstantOut
from gpuplane.kit.errors import ProductError
from gpuplane.kit.loops import LoopState

DATABASE_CHECK_S = 2.0
FAILING_AFTER = 3
"""Failures in a row after which a loop is reported as failing."""

probe_router = APIRouter(tags=["operations"])
api_router = APIRouter(tags=["operations"])


class HealthOut(Body):
    """The process serves."""

    status: str = "ok"


class NotReadyOut(Body):
    """One part that is not ready, and why."""

    part: str
    reason: str


class ReadyOut(Body):
    """Whether work is taken, and what stands in its way."""

    ready: bool
    not_ready: list[NotReadyOut]
    loops: dict[str, str]


class LoopOut(Body):
    """One loop of this process."""

    name: str
    state: str
    period_s: float
    turns: int
    failures: int
    consecutive_failures: int
    last_started: InstantOut | None
    last_finished: InstantOut | None
    last_duration_s: float | None
    last_error: str | None
    extra: dict[str, Any]


class LoopsOut(Body):
    """Every loop of this process."""

    items: list[LoopOut]


class GrantOut(Body):
    """One role held: on the platform, a tenant or a project."""

    role: str
    tenant_id: str | None
    project_id: str | None
    extra: list[str]


class WhoAmIOut(Body):
    """The caller as this server knows it."""

    user_id: str
    name: str
    tenant_id: str
    project_id: str
    token_id: str | None
    scopes: list[str] | None
    grants: list[GrantOut]
    permissions: list[str]
    """What the caller may do somewhere."""


class VersionOut(Body):
    """What runs here."""

    version: str
    python: str
    database: str


@probe_router.get("/health", summary="Whether the process serves")
@requires(Permission.PUBLIC)
async def health() -> HealthOut:
    """Answer 200 whenever the process serves at all."""
    return HealthOut()


@probe_router.get("/ready", summary="Whether work is taken", responses={503: {"model": ReadyOut}})
@requires(Permission.PUBLIC)
async def ready(call: CallDep) -> ReadyOut:
    """Answer 200 when database and loops work, else 503 with what does not."""
    states = _states(call)
    found = {name: _state_of(state, call.now) for name, state in sorted(states.items())}
    not_ready = [
        NotReadyOut(part=f"loop {name}", reason=f"The loop is {state}.")
        for name, state in found.items()
        if state in ("failing", "stalled")
    ]
    reason = await _database_trouble(call)
    if reason is not None:
        not_ready.append(NotReadyOut(part="database", reason=reason))
    body = ReadyOut(ready=not not_ready, not_ready=not_ready, loops=found)
    if body.ready:
        return body
    answer = JSONResponse(body.model_dump(), status_code=503, headers={"Retry-After": "1"})
    return cast("ReadyOut", answer)  # a ready-made response is passed through as it is


@probe_router.get("/metrics", summary="Metrics in the Prometheus format", response_class=Response)
@requires(Permission.PUBLIC)
async def metrics(call: CallDep) -> Response:
    """Return every metric of this process."""
    registry = call.port("registry", CollectorRegistry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@api_router.get("/loops", summary="The loops of this server")
@requires(Permission.CLUSTER_READ)
async def list_loops(call: CallDep) -> LoopsOut:
    """Return how each loop of this process is doing."""
    items = [
        LoopOut(
            name=state.name,
            state=_state_of(state, call.now),
            period_s=state.period_s,
            turns=state.turns,
            failures=state.failures,
            consecutive_failures=state.consecutive_failures,
            last_started=state.last_started,
            last_finished=state.last_finished,
            last_duration_s=state.last_duration_s,
            last_error=None if state.last_error is None else state.last_error[:200],
            extra=state.extra,
        )
        for _, state in sorted(_states(call).items())
    ]
    return LoopsOut(items=items)


@api_router.get("/whoami", summary="The caller")
@requires(Permission.KNOWN)
async def who_am_i(call: CallDep) -> WhoAmIOut:
    """Return who the token belongs to and what it may do."""
    principal = call.principal
    return WhoAmIOut(
        user_id=str(principal.user_id),
        name=principal.name,
        tenant_id=str(principal.tenant_id),
        project_id=str(principal.project_id),
        token_id=None if principal.token_id is None else str(principal.token_id),
        scopes=None if principal.scopes is None else sorted(principal.scopes),
        grants=[
            GrantOut(
                role=grant.role.value,
                tenant_id=None if grant.tenant_id is None else str(grant.tenant_id),
                project_id=None if grant.project_id is None else str(grant.project_id),
                extra=sorted(grant.extra),
            )
            for grant in principal.grants
        ],
        permissions=[one.value for one in Permission if principal.may_anywhere(one)],
    )


@api_router.get("/version", summary="What runs here")
@requires(Permission.PUBLIC)
async def version(call: CallDep) -> VersionOut:
    """Return the version of the product."""
    return VersionOut(
        version=__version__,
        python=platform.python_version(),
        database=call.database.url.get_backend_name(),
    )


def _states(call: Call) -> Mapping[str, LoopState]:
    return cast("Mapping[str, LoopState]", call.ports["loop_states"])


def _state_of(state: LoopState, now: int) -> str:
    if state.consecutive_failures >= FAILING_AFTER:
        return "failing"
    if state.is_stalled(now):
        return "stalled"
    if state.running:
        return "running"
    return "idle" if state.turns else "starting"


async def _database_trouble(call: Call) -> str | None:
    """Return why the database does not answer, or None."""
    try:
        async with asyncio.timeout(DATABASE_CHECK_S):
            await call.read(lambda session: session.scalar(select(literal(1))))
    except TimeoutError:
        return f"The database has not answered within {DATABASE_CHECK_S:g} s."
    except ProductError as error:
        return error.detail
    return None
