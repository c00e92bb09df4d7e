"""JOB: submits a job, follows it to its end or until it is healthy, and stops it with its run."""

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from gpuplane.core.ids import JobId, ProjectId, TenantId, UserId
from gpuplane.core.lifecycle.jobs import TERMINAL, JobStatus
from gpuplane.core.runs.plans import Answer, Awaiting, Completed, Failed, StepCall
from gpuplane.core.workloads import DeploymentType, JobType, Priority, SourceType
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Job
from gpuplane.domains.jobs.service.submission import Submission
from gpuplane.domains.pipelines.documents.configs import JobConfig
from gpuplane.domains.pipelines.expressions import canonical
from gpuplane.domains.pipelines.rules import merge
from gpuplane.domains.pipelines.steps.names import rendered
from gpuplane.domains.pipelines.steps.tools import JobAsk, StepTools
from gpuplane.kit.access import Grant, Principal, Role
from gpuplane.kit.clock import instant_to_text
from gpuplane.kit.errors import ProductError, TooManyRequests, Unavailable

OUTPUTS_FILE = "outputs.json"
NO_TEXT = "This must be text."
"""What a backend says of the file where a job leaves its outputs begins with its name."""
LOOK_MS = 2_000
"""How long a change of a job may go unheard."""
OWN = frozenset(
    "component_ref optimize_with_budsim readiness_timeout_seconds keep_after time_window_start"
    " time_window_end time_window_zone spec".split()
)
"""Fields of a JOB step that are no fields of a job."""
_NO_NAME = re.compile(r"[^a-z0-9]+")


class Cannot(Exception):
    """What is asked has no provider here; the text is a sentence with the reason."""


class Jobs:
    """The handler of JOB."""

    def __init__(self, tools: StepTools) -> None:
        self._tools = tools

    async def __call__(self, call: StepCall) -> Answer:
        """Submit the job, or look how it is."""
        config = rendered(call, JobConfig)
        if call.state is None:
            return await self._submit(call, config)
        return await self._look(call, config, UUID(call.state["job_id"]))

    async def _submit(self, call: StepCall, config: JobConfig) -> Answer:
        try:
            ask = self._tools.read_job(body_of(call, config, self._tools))
            self._check_class(call, ask)
        except Cannot as refusal:
            return Failed("NoProvider", str(refusal), is_final=True)
        except ProductError as refusal:
            where = f"config.{refusal.field}: " if refusal.field else ""
            told = refusal.detail.removeprefix(f"{refusal.field}: ")
            # What was written plainly was looked at when it was saved: this is an expression's.
            cure = "Use string(...) in the expression." if told.startswith(NO_TEXT) else refusal.fix
            return Failed(refusal.code, f"{where}{told} {cure}".strip(), is_final=True)
        try:
            made = await self._tools.database.write(
                "pipelines.submit_job", lambda s: self._store(s, call, ask)
            )
        except (TooManyRequests, Unavailable) as refusal:
            wait = (refusal.retry_after_s or 60) * 1000
            return Failed(refusal.code, refusal.detail, retry_after_ms=wait)
        except ProductError as refusal:
            return Failed(refusal.code, f"{refusal.detail} {refusal.fix}".strip(), is_final=True)
        return self._awaiting(call, made, f"{made.name} was submitted.")

    def _check_class(self, call: StepCall, ask: JobAsk) -> None:
        if ask.spec.priority is Priority.CRITICAL and not call.context.get("may_critical"):
            raise Cannot("Whoever started the run may not use the priority class critical.")

    def _store(self, session: WriteSession, call: StepCall, ask: JobAsk) -> Job:
        submission = Submission(
            spec=ask.spec,
            tenant_id=TenantId(call.tenant_id),
            project_id=ProjectId(call.project_id),
            user_id=UserId(UUID(str(call.context["user_id"]))),
            actor=str(call.context.get("started_by") or "pipeline"),
            cluster=ask.cluster,
            source_type=str(SourceType.PIPELINE),
            source_id=str(call.step_id),
            idempotency_key=self._key(call),
            array_size=ask.array_size,
            array_limit=ask.array_limit,
            traceparent=call.traceparent,
        )
        return jobs.submit(session, submission, self._tools.submit_limits, call.now)[0]

    def _awaiting(self, call: StepCall, job: Job, message: str) -> Answer:
        state = {"job_id": str(job.id), "since": (call.state or {}).get("since") or job.admitted_at}
        return Awaiting(f"job:{job.id}", None, call.now + LOOK_MS, state, message)

    async def _look(self, call: StepCall, config: JobConfig, job_id: UUID) -> Answer:
        found = await self._tools.database.read(
            lambda s: jobs.load_jobs(s, [JobId(job_id)]).get(JobId(job_id))
        )
        if found is None:
            return Failed("JobGone", f"The job {job_id} is not kept any more.", is_final=True)
        if found.job_type is JobType.SERVICE:
            return await self._look_at_service(call, config, found)
        if found.status is JobStatus.COMPLETED:
            problem = "" if found.outputs else await self._outputs_problem(call, found)
            if problem:
                return Failed(
                    "OutputsRefused",
                    f"The job {found.name} completed, and what it wrote cannot be taken: {problem}",
                    is_final=True,
                    detail={"job_id": str(found.id)},
                )
            return Completed(outputs_of(found), message=f"{found.name} completed.")
        if found.status in TERMINAL:
            return _ended(found)
        return self._awaiting(call, found, f"{found.name} is {found.status}.")

    async def _outputs_problem(self, call: StepCall, job: Job) -> str:
        """Return why a job's outputs were not taken; empty where it wrote none."""
        _, attempts = await self._tools.database.read(
            lambda s: jobs.list_attempts(s, principal_of(call), job.id)
        )
        told = [replica.message for replica in attempts[-1].replicas if replica.rank == 0]
        return next((each for each in told if OUTPUTS_FILE in each), "") if attempts else ""

    async def _look_at_service(self, call: StepCall, config: JobConfig, job: Job) -> Answer:
        if job.status is JobStatus.RUNNING:
            return Completed(outputs_of(job), message=f"{job.name} is healthy.")
        if job.status in TERMINAL:
            return _ended(job)
        since = (call.state or {}).get("since") or job.admitted_at
        waited_ms = call.now - since if since is not None else 0
        if waited_ms >= config.readiness_timeout_seconds * 1000:
            await self._cancel(call, JobId(job.id))
            return Failed(
                "NotReady",
                f"{job.name} was not healthy within {config.readiness_timeout_seconds:g} s.",
                detail={"job_id": str(job.id)},
            )
        return self._awaiting(call, job, f"{job.name} is {job.status}; it is not healthy yet.")

    async def stop(self, call: StepCall) -> Answer:
        """Cancel the job of a step that is stopped, also one whose submit was not noted."""
        if call.state is not None:
            await self._cancel(call, JobId(UUID(call.state["job_id"])))
            return Completed()
        tenant, key = TenantId(call.tenant_id), self._key(call)
        made = await self._tools.database.read(lambda s: jobs.find_submitted(s, tenant, key))
        if made is not None:
            await self._cancel(call, made.id)
        return Completed()

    def _key(self, call: StepCall) -> str:
        """Return the key of the try's job: a step tried again makes another job."""
        return f"{call.idempotency_key}/{call.attempt}"

    async def _cancel(self, call: StepCall, job_id: JobId) -> None:
        principal = principal_of(call)

        def unit(session: WriteSession) -> None:
            job = jobs.load_jobs(session, [job_id]).get(job_id)
            if job is not None and job.status not in TERMINAL:
                jobs.cancel(session, principal, job_id, call.now)

        await self._tools.database.write("pipelines.cancel_job", unit)


def principal_of(call: StepCall) -> Principal:
    """Return who acts for a run: whoever started it, with rights in its project alone."""
    tenant, project = TenantId(call.tenant_id), ProjectId(call.project_id)
    return Principal(
        user_id=UserId(UUID(str(call.context["user_id"]))),
        name=str(call.context.get("started_by") or "pipeline"),
        tenant_id=tenant,
        project_id=project,
        grants=(Grant(Role.OPERATOR, tenant, project),),
    )


def body_of(call: StepCall, config: JobConfig, tools: StepTools) -> dict[str, Any]:
    """Return the body of the job that a step asks for.

    Raises:
        Cannot: If it refers to something that nobody provides here.
    """
    asked = {**asked_of(config), "name": job_name(call)}
    if config.spec is not None and not isinstance(config.spec, dict):
        raise Cannot("config.spec: This must be an object.")
    spec = dict(config.spec or {})
    reason = provider_refusal(config, spec, tools)
    if reason is not None:
        raise Cannot(reason)
    body = complete(config, spec, asked, tools)
    if config.time_window_start is not None:
        body["window"] = {
            "start": config.time_window_start,
            "end": config.time_window_end,
            "zone": config.time_window_zone,
        }
    body.setdefault("priority", call.context.get("priority") or "normal")
    deadline = call.deadline_at if call.deadline_at is not None else call.context.get("deadline")
    if deadline is not None:
        body.setdefault("deadline", instant_to_text(deadline))
    run = {"gpuplane.io/pipeline": str(call.context.get("pipeline") or "")[:63]}
    body["labels"] = {**run, **(body.get("labels") or {})}
    return body


def asked_of(config: JobConfig) -> dict[str, Any]:
    """Return the fields of a job that a step sets, `spec` aside."""
    return {
        name: getattr(config, name)
        for name in sorted(config.model_fields_set - OWN)
        if getattr(config, name) is not None
    }


def complete(
    config: JobConfig, spec: Mapping[str, Any], asked: Mapping[str, Any], tools: StepTools
) -> dict[str, Any]:
    """Return a job's body: what the catalogue says, with what the step says laid over it.

    Of a model the catalogue says what runs; `spec` says which, and reaches it as MODEL_… variables.
    """
    catalogue = tools.catalogue
    if not _is_provided(config):
        return {**asked, "spec": dict(spec)}
    if config.component_ref is not None:
        base = dict(catalogue.components.get(config.component_ref) or {})
        base["spec"] = merge(base.get("spec") or {}, spec)
    else:
        base = dict(catalogue.model(str(spec.get("model_id"))) or {})
        told = {f"MODEL_{key.removeprefix('model_').upper()}": _text(spec[key]) for key in spec}
        base["spec"] = merge(base.get("spec") or {}, {"env": told})
    body = merge(base, asked)
    body["deployment_type"] = base.get("deployment_type", "process")
    return body


def _is_provided(config: JobConfig) -> bool:
    return config.component_ref is not None or config.deployment_type is DeploymentType.MODEL


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def provider_refusal(config: JobConfig, spec: Mapping[str, Any], tools: StepTools) -> str | None:
    """Return why nobody provides what a step refers to, None if somebody does."""
    catalogue = tools.catalogue
    if config.optimize_with_budsim:
        return "No optimizer stands behind this server; leave optimize_with_budsim out."
    if config.component_ref is not None:
        if config.component_ref in catalogue.components or "{{" in config.component_ref:
            return None
        if not catalogue.components:
            return (
                f"No catalogue of components stands behind this server, so {config.component_ref!r}"
                " cannot be deployed. Describe it in `spec`, or set GPUPLANE_PIPELINES_CATALOGUE."
            )
        known = ", ".join(sorted(catalogue.components)[:20])
        return f"The catalogue has no component {config.component_ref!r}. It has: {known}."
    if config.deployment_type is DeploymentType.MODEL:
        name = spec.get("model_id")
        if isinstance(name, str) and ("{{" in name or catalogue.model(name) is not None):
            has_any = bool(catalogue.models)
            if has_any:
                return None
        return (
            f"Nothing here serves models, so {str(name)[:100]!r} cannot be deployed."
            " Use deployment_type process or docker, or set GPUPLANE_PIPELINES_CATALOGUE."
        )
    return None


def job_name(call: StepCall) -> str:
    """Return the name of a step's job: the pipeline's and the step's key."""
    pipeline = str(call.context.get("pipeline") or "pipeline")
    key = _NO_NAME.sub("-", call.key.lower()).strip("-")
    name = f"{pipeline[: 62 - min(len(key), 40)]}-{key[:40]}"
    return name.strip("-")[:63].strip("-") or "step"


def outputs_of(job: Job) -> dict[str, Any]:
    """Return what later steps see of a job."""
    return {**job.outputs, "job_id": str(job.id)}


def _ended(job: Job) -> Failed:
    reason = job.status_message or job.reason or "no reason was told"
    return Failed(
        "JobCancelled" if job.status is JobStatus.CANCELLED else "JobFailed",
        f"The job {job.name} {job.status}: {reason}",
        detail={"job_id": str(job.id), "status": str(job.status)},
    )
