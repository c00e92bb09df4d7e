"""Makes the bodies that are told about jobs from what the service returns."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from gpuplane.core.amounts import MIB_PER_GIB, WHOLE_GPU_MILLI
from gpuplane.core.lifecycle.jobs import TERMINAL
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobSpec, SourceType
from gpuplane.domains.jobs.schemas import (
    ArrayOut,
    AttemptOut,
    JobOut,
    JobRowOut,
    ReplicaOut,
    ScaleOut,
)
from gpuplane.domains.jobs.schemas.parts import (
    AfterBody,
    ChartBody,
    CheckpointBody,
    ExecutionBody,
    HealthBody,
    MountBody,
    NetworkBody,
    PlacementBody,
    ReplicasBody,
    ResourcesBody,
    RetryBody,
    SecretBodyPart,
    SimulatedBody,
    TolerationBody,
    TopologyBody,
    TriggerBody,
    WindowBody,
)
from gpuplane.domains.jobs.service import (
    Attempt,
    Job,
    JobView,
    Names,
    count_missing,
    count_ready,
    mask_deeply,
    mask_sensitive,
    tell_unheard,
)
from gpuplane.kit.clock import instant_to_text

# What is stored was checked on its way in, so bodies are built without a second check.


def job_row(job: Job, names: Names) -> JobRowOut:
    """Return a job as lists show it."""
    return JobRowOut.checked(**_row(job, names))


def job_body(view: JobView) -> JobOut:
    """Return a job with everything that was asked and what became of it."""
    job, spec = view.job, view.job.spec
    last = next((each for each in reversed(view.attempts) if each.ended_at is not None), None)
    current = view.attempts[-1] if view.attempts else None
    return JobOut.checked(
        **_row(job, view.names),
        **_source(job),
        **_asked(spec),
        requested_cluster_id=job.requested_cluster_id,
        idempotency_key=job.idempotency_key,
        array=array_body(job, view.array),
        reason_counts=job.reason_counts,
        condition_at=job.condition_at,
        due_at=job.due_at,
        last_checkpoint=job.last_checkpoint,
        last_checkpoint_at=job.last_checkpoint_at,
        exit_code=None if last is None or job.status not in TERMINAL else last.exit_code,
        outputs=dict(view.outputs),
        current_attempt=None if current is None else attempt_body(current),
        resource_version=job.version,
    )


def array_body(job: Job, job_ids: Sequence[UUID]) -> ArrayOut | None:
    """Return the array a job belongs to, or None."""
    if job.array_id is None:
        return None
    return ArrayOut.checked(
        id=job.array_id, size=len(job_ids), limit=job.array_limit, job_ids=list(job_ids)
    )


def attempt_body(attempt: Attempt) -> AttemptOut:
    """Return one try of a job with its replicas."""
    lost = attempt.lost_gpu_ms
    return AttemptOut.checked(
        id=attempt.id,
        number=attempt.number,
        cluster_id=attempt.cluster_id,
        state=attempt.state,
        queue=attempt.local_queue,
        cluster_queue=attempt.cluster_queue,
        admitted_at=attempt.admitted_at,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        exit_code=attempt.exit_code,
        signal=attempt.signal,
        reason=attempt.exit_reason or attempt.stop_reason,
        message=attempt.exit_message or attempt.stop_message,
        stop_intent=None if attempt.stop_intent is None else str(attempt.stop_intent),
        lost_gpu_seconds=None if lost is None else lost / 1000,
        explanation=attempt.explanation,
        scale=_scale_body(attempt),
        replicas=[
            ReplicaOut.checked(
                id=each.id,
                rank=each.rank,
                node=each.node_name,
                gpu_ids=list(each.gpu_ids),
                gpu_share=each.gpu_milli / WHOLE_GPU_MILLI,
                mig_device=each.mig_device,
                phase=each.phase,
                ready=each.ready,
                started_at=each.started_at,
                ended_at=each.ended_at,
                exit_code=each.exit_code,
                signal=each.signal,
                reason=each.reason,
                message=each.message,
                url=each.url,
                restart_count=each.restart_count,
            )
            for each in attempt.replicas
        ],
    )


def _scale_body(attempt: Attempt) -> ScaleOut | None:
    if attempt.replicas_wanted is None:
        return None
    return ScaleOut.checked(
        wanted=attempt.replicas_wanted,
        since=attempt.wanted_at,
        present=len(attempt.replicas),
        missing=count_missing(attempt),
        ready=count_ready(attempt),
        reason=attempt.growth_reason,
        message=attempt.growth_message,
    )


def manifest_body(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest as it is told: its instant as text, like every instant of the API."""
    return {**manifest, "captured_at": instant_to_text(manifest["captured_at"])}


def _row(job: Job, names: Names) -> dict[str, Any]:
    spec = job.spec
    cluster = None if job.cluster_id is None else names.clusters.get(job.cluster_id)
    cost = names.costs.get(job.id, job.actual_cost_micro)
    attempt, tries = names.scales.get(job.id), names.attempts.get(job.id)
    scale = None if attempt is None else _scale_body(attempt)
    has_it = None if job.current_attempt_id is None else cluster
    unheard = tell_unheard(job, has_it).sentence
    return {
        "id": job.id,
        "name": job.name,
        "tenant_id": job.tenant_id,
        "tenant": names.tenants.get(job.tenant_id, ""),
        "project_id": job.project_id,
        "project": names.projects.get(job.project_id, ""),
        "user_id": job.user_id,
        "user": names.users.get(job.user_id, ""),
        "cluster_id": job.cluster_id,
        "cluster": None if cluster is None else cluster.name,
        "simulated": cluster is not None and cluster.simulated,
        "source_type": job.source_type,
        "source_id": job.source_id,
        "job_type": str(spec.job_type),
        "deployment_type": str(spec.deployment_type),
        "gpu_type": spec.resources.gpu_model,
        "gpu_count": spec.resources.gpu_count,
        "replica_count": spec.replicas.count,
        "replicas_wanted": None if scale is None else scale.wanted,
        "replicas_ready": None if scale is None else scale.ready,
        "scale": scale,
        "priority": str(spec.priority),
        "queue": job.queue or spec.queue or "",
        "labels": dict(job.labels),
        "cost_centre": spec.cost_centre,
        "data_classification": spec.data_classification,
        "array_id": job.array_id,
        "array_index": job.array_index,
        "status": str(job.status),
        "condition": str(job.condition),
        "reason": job.reason or (str(Word.CLUSTER_NOT_AVAILABLE) if unheard else ""),
        "status_message": unheard or job.status_message,
        "progress": job.progress_ratio,
        "retry_count": job.retry_count,
        "attempt_count": job.attempt_count if tries is None else tries.number,
        "ran_seconds": 0.0 if tries is None else tries.ran_ms / 1000,
        "estimated_start": job.estimated_start,
        "estimated_end": job.estimated_end,
        "actual_start": job.actual_start,
        "actual_end": job.actual_end,
        "queued_at": job.queued_at,
        "admitted_at": job.admitted_at,
        "estimated_cost": job.estimated_cost_micro,
        "actual_cost": cost,
        "currency": job.currency,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
    }


def _source(job: Job) -> dict[str, Any]:
    """Return the specification's three ids of what made a job."""
    ids: dict[str, UUID | None] = {
        "pipeline_id": None,
        "pipeline_step_id": None,
        "usecase_deployment_id": None,
    }
    if job.source_id is None:
        return ids
    parts = [_uuid(part) for part in job.source_id.split("/")]
    if job.source_type == SourceType.PIPELINE:
        ids["pipeline_id"] = parts[0]
        ids["pipeline_step_id"] = parts[1] if len(parts) > 1 else None
    elif job.source_type == SourceType.USECASE:
        ids["usecase_deployment_id"] = parts[0]
    return ids


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _asked(spec: JobSpec) -> dict[str, Any]:
    asked = spec.resources
    return {
        "spec": _execution(spec),
        "cpu_cores": asked.cpu_milli / 1000,
        "memory_gb": asked.memory_mib / MIB_PER_GIB,
        "storage_gb": asked.storage_mib // MIB_PER_GIB or None,
        "resources": ResourcesBody.checked(
            gpu_memory_gb=None
            if asked.gpu_memory_mib is None
            else asked.gpu_memory_mib / MIB_PER_GIB,
            gpu_architecture=asked.gpu_architecture,
            gpu_share=asked.gpu_milli / WHOLE_GPU_MILLI,
            mig_profile=asked.mig_profile,
            rdma_fabric=asked.rdma_fabric,
            ephemeral_storage_gb=asked.ephemeral_mib / MIB_PER_GIB,
        ),
        "replicas": ReplicasBody.checked(
            count=spec.replicas.count,
            minimum=spec.replicas.minimum,
            gang=spec.replicas.gang,
            min=spec.replicas.fewest,
            max=spec.replicas.maximum,
            scale_to_zero=spec.replicas.scale_to_zero,
            triggers=[
                TriggerBody.checked(type=each.type, metadata=dict(each.metadata))
                for each in spec.replicas.triggers
            ],
        ),
        "placement": _placement(spec),
        "estimated_duration_seconds": spec.estimated_duration_s,
        "max_duration_seconds": spec.max_duration_s,
        "deadline": spec.deadline,
        "deadline_action": str(spec.deadline_action),
        "scheduled_start": spec.scheduled_start,
        "window": None
        if spec.window is None
        else WindowBody.checked(
            start=spec.window.start_minute,
            end=spec.window.end_minute,
            zone=spec.window.zone,
            weekdays=list(spec.window.weekdays) or None,
            at_end=spec.window.at_end,
        ),
        "after": [
            AfterBody.checked(job_id=each.job_id, condition=each.condition) for each in spec.after
        ],
        "preemptible": spec.preemptible,
        "preempts_others": spec.preempts_others,
        "max_retries": spec.retry.max_retries,
        "retry": RetryBody.checked(
            delay_seconds=spec.retry.delay_s,
            max_delay_seconds=spec.retry.max_delay_s,
            jitter=spec.retry.jitter_ratio,
            on_preemption=spec.retry.on_preemption,
        ),
        "checkpoint": _checkpoint(spec),
        "budget_limit": spec.budget_limit_micro,
        "budget_action": str(spec.budget_action),
    }


def _execution(spec: JobSpec) -> ExecutionBody:
    run = spec.execution
    return ExecutionBody.checked(
        image=run.image,
        command=list(run.command),
        env=dict(run.env),
        working_dir=run.working_dir,
        workspace_digest=run.workspace_digest,
        mounts=[
            MountBody.checked(name=each.name, path=each.path, read_only=each.read_only)
            for each in run.mounts
        ],
        secrets=[
            SecretBodyPart.checked(name=each.name, env=each.env, path=each.path)
            for each in run.secrets
        ],
        artifacts=list(run.artifacts),
        port=run.port,
        health=None if run.health is None else HealthBody.checked(**_fields(run.health)),
        restart=run.restart,
        grace_s=run.grace_s,
        seed=run.seed,
        simulated=None
        if run.simulated is None
        else SimulatedBody.checked(
            **{
                **_fields(run.simulated),
                "log": list(run.simulated.log),
                "outputs": mask_sensitive(run.simulated.outputs),
            }
        ),
        chart=None
        if run.chart is None
        else ChartBody.checked(**{**_fields(run.chart), "values": mask_deeply(run.chart.values)}),
    )


def _placement(spec: JobSpec) -> PlacementBody:
    wanted = spec.placement
    return PlacementBody.checked(
        topology=TopologyBody.checked(preference=wanted.links, required=wanted.links_required),
        spreading=wanted.spreading,
        network=None if wanted.network is None else NetworkBody.checked(**_fields(wanted.network)),
        data=list(wanted.data),
        co_locate_with=list(wanted.co_locate_with),
        separate_from=list(wanted.separate_from),
        node_selector=dict(wanted.node_selector),
        tolerations=[TolerationBody.checked(**_fields(each)) for each in wanted.tolerations],
    )


def _checkpoint(spec: JobSpec) -> CheckpointBody | None:
    config = spec.checkpoint
    if config is None:
        return None
    gib, rest = divmod(config.storage_size_mib, MIB_PER_GIB)
    return CheckpointBody.checked(
        enabled=config.enabled,
        storage_class=config.storage_class,
        storage_size=f"{config.storage_size_mib}Mi" if rest else f"{gib}Gi",
        checkpoint_interval=config.interval_s,
        max_checkpoints=config.max_checkpoints,
        checkpoint_path=config.path,
    )


def _fields(value: Any) -> Mapping[str, Any]:
    """Return a frozen value's fields, of which the body has the same names."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
