"""Runs of pipelines started: by their users, and by calls from outside."""

from collections.abc import Sequence
from uuid import UUID

from fastapi import APIRouter, Request

from gpuplane.db.calls import Call, CallDep
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.pipelines import service
from gpuplane.domains.pipelines.schemas import (
    FiredOut,
    RunIn,
    run_out,
)
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.schemas import RunOut
from gpuplane.domains.secrets import service as secrets
from gpuplane.kit.access import Permission, counts_as_submit, requires
from gpuplane.kit.errors import NotFound, ProductError

router = APIRouter()

PROOFS = frozenset({"gpuplane-signature", "authorization"})
"""Headers of a call that its trigger's expressions do not see."""


@router.post("/pipelines/{pipeline_id}/runs", status_code=202)
@requires(Permission.RUN_WRITE)
@counts_as_submit
async def start_run(call: CallDep, pipeline_id: UUID, body: RunIn | None = None) -> RunOut:
    """Start a run."""
    return await _start(call, pipeline_id, body)


@router.post("/pipelines/{pipeline_id}/trigger", status_code=202)
@requires(Permission.RUN_WRITE)
@counts_as_submit
async def trigger_run(call: CallDep, pipeline_id: UUID, body: RunIn | None = None) -> RunOut:
    """Start a run; the same as `POST …/runs`."""
    return await _start(call, pipeline_id, body)


@router.post("/pipelines/{pipeline_id}/execute", status_code=202)
@requires(Permission.RUN_WRITE)
@counts_as_submit
async def execute_run(call: CallDep, pipeline_id: UUID, body: RunIn | None = None) -> RunOut:
    """Start a run; the same as `POST …/runs`."""
    return await _start(call, pipeline_id, body)


@router.post("/hooks/{trigger_id}", status_code=202)
@requires(Permission.PUBLIC)
async def call_webhook(call: CallDep, request: Request, trigger_id: UUID) -> FiredOut:
    """Start the runs of a trigger that is called: a signed webhook, a bucket's notification."""
    found = await call.read(lambda s: service.hook_of(s, trigger_id))
    if found is None:
        raise NotFound("There is no webhook of that id.", fix="Show the pipeline for its path.")
    raw = await request.body()
    headers = {key.lower(): value for key, value in request.headers.items()}
    proof = service.read_proof(found, headers, call.now)
    revealed = await call.database.write(
        "pipelines.reveal_webhook",
        lambda s: secrets.reveal_for_step(
            s, call.sealing, found.id, found.project_id, [proof.secret_name],
            f"trigger:{found.kind}", call.now,
        ),
    )  # fmt: skip
    service.check_proof(proof, revealed[proof.secret_name].value, raw)
    shown = {key: text for key, text in headers.items() if key not in PROOFS}
    names = {"body": service.read_body(raw), "headers": shown}
    policy = call.port("run_policy", runs.RunPolicy)
    await call.read(lambda s: service.prepare(s, found.pipeline_id))
    refused: list[ProductError] = []

    def shape(fired: Sequence[service.Fired]) -> FiredOut:
        refused[:] = [each.refusal for each in fired if each.refusal is not None]
        return _fired_out(fired)

    answer = await call.write(
        "pipelines.webhook",
        lambda s: service.fire_call(s, found, proof, names, policy, call.now),
        shape,
        202,
    )
    if refused and found.kind == "webhook":  # a bucket would send its notification again
        raise refused[0]
    return answer


def _fired_out(fired: Sequence[service.Fired]) -> FiredOut:
    started = [each.run.id for each in fired if each.run is not None]
    return FiredOut(run_id=started[0] if started else None, run_ids=started)


async def _start(call: Call, pipeline_id: UUID, body: RunIn | None) -> RunOut:
    asked = body or RunIn()
    policy = call.port("run_policy", runs.RunPolicy)

    def unit(session: WriteSession) -> runs.Run:
        record = service.get_pipeline(session, call.principal, pipeline_id, Permission.RUN_WRITE)
        wanted = service.Start(
            user_id=call.principal.user_id,
            actor=call.principal.name,
            parameters=asked.parameters,
            version=asked.version,
            dedup_id=asked.dedup_id,
            traceparent=call.traceparent,
            labels=record.labels,
            refuses_other=True,
            may_critical=call.principal.may(
                Permission.JOB_MANAGE, record.tenant_id, record.project_id
            ),
        )
        return service.start(session, record, wanted, policy, call.now)

    await call.read(lambda s: service.prepare(s, pipeline_id, asked.version))
    return await call.write("pipelines.start_run", unit, run_out, 202)
