"""What a backend is told of an attempt, and the manifest that makes it repeatable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuplane.backends.interface import AttemptPlan, AttemptRef, ReplicaPlan
from gpuplane.core.ids import GpuId
from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Attempt, Job
from gpuplane.domains.nodes import service as nodes


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the control plane adds to every attempt.

    Args:
        api_url: Where a job reports progress; empty when there is none.
        workspaces: Folder with the snapshotted working directories, by digest.
        version: Version of the control plane, for the manifest.
    """

    api_url: str
    workspaces: str
    version: str


def load_plans(
    session: ReadSession, attempts: Sequence[Attempt], around: Surroundings
) -> list[tuple[Job, Attempt, AttemptPlan]]:
    """Return the plans of those attempts that may still start, as they stand now."""
    current = attempts_repository.load_attempts(session, [attempt.id for attempt in attempts])
    jobs = repository.load_jobs(session, [attempt.job_id for attempt in current.values()])
    tenants = identity.tenants_by_ids(session, {job.tenant_id for job in jobs.values()})
    projects = identity.projects_by_ids(session, {job.project_id for job in jobs.values()})
    plans = []
    for attempt in current.values():
        job = jobs.get(attempt.job_id)
        if job is None or attempt.state != "admitted" or job.status is not JobStatus.SCHEDULED:
            continue
        tenant, project = tenants.get(job.tenant_id), projects.get(job.project_id)
        plan = plan_of(
            job,
            attempt,
            tenant.name if tenant else str(job.tenant_id),
            project.name if project else str(job.project_id),
            around,
        )
        plans.append((job, attempt, plan))
    return plans


def plan_of(
    job: Job, attempt: Attempt, tenant: str, project: str, around: Surroundings
) -> AttemptPlan:
    """Return everything a backend needs to run an attempt, without a secret value."""
    execution = job.spec.execution
    digest = execution.workspace_digest
    checkpoint = job.spec.checkpoint
    return AttemptPlan(
        ref=AttemptRef(attempt.id, attempt.epoch),
        job_id=job.id,
        job_name=job.name,
        tenant_id=job.tenant_id,
        tenant_name=tenant,
        project_name=project,
        attempt_number=attempt.number,
        job_type=job.spec.job_type,
        execution=execution,
        resources=job.spec.resources,
        replicas=tuple(
            ReplicaPlan(
                replica_id=replica.id,
                rank=replica.rank,
                node_name=replica.node_name,
                gpu_ids=tuple(GpuId(gpu) for gpu in replica.gpu_ids),
                gpu_milli=replica.gpu_milli,
                mig_device=replica.mig_device,
            )
            for replica in attempt.replicas
        ),
        max_duration_s=job.spec.max_duration_s,
        checkpoint_path=checkpoint.path if checkpoint and checkpoint.enabled else "",
        resume_from=job.last_checkpoint or "",
        env=_environment(job, attempt, around),
        workspace_archive=f"{around.workspaces}/{digest}.tar.gz" if digest else None,
    )


def _environment(job: Job, attempt: Attempt, around: Surroundings) -> dict[str, str]:
    env = {
        "GPUPLANE_JOB_ID": str(job.id),
        "GPUPLANE_JOB_NAME": job.name,
        "GPUPLANE_ATTEMPT": str(attempt.number),
    }
    if job.array_index is not None:
        env["GPUPLANE_ARRAY_INDEX"] = str(job.array_index)
    if around.api_url:
        env["GPUPLANE_URL"] = around.api_url
    if job.spec.execution.seed is not None:
        env["GPUPLANE_SEED"] = str(job.spec.execution.seed)
    return env


def store_manifests(
    session: WriteSession,
    started: Sequence[tuple[Job, Attempt]],
    around: Surroundings,
    now: int,
) -> None:
    """Capture, when attempts start, what would be needed to run them again.

    The version is left alone: nothing is decided on it.
    """
    held = {gpu for _, attempt in started for each in attempt.replicas for gpu in each.gpu_ids}
    models = nodes.models_of(session, held)
    repository.set_manifests(
        session,
        {job.id: manifest_of(job, attempt, models, around, now) for job, attempt in started},
    )


def manifest_of(
    job: Job,
    attempt: Attempt,
    models: Mapping[str, str],
    around: Surroundings,
    now: int,
) -> dict[str, Any]:
    """Return the reproducibility manifest: names of environment variables, never their values."""
    held = [gpu for replica in attempt.replicas for gpu in replica.gpu_ids]
    execution = job.spec.execution
    image, _, digest = execution.image.partition("@")
    return {
        "job_id": str(job.id),
        "attempt": attempt.number,
        "captured_at": now,
        "image": image,
        "image_digest": digest,
        "command": list(execution.command),
        "environment_names": sorted(execution.env),
        "secret_names": sorted(reference.name for reference in execution.secrets),
        "workspace_digest": execution.workspace_digest,
        "seed": execution.seed,
        "versions": {"gpuplane": around.version},
        "replicas": len(attempt.replicas),
        "nodes": [replica.node_name for replica in attempt.replicas],
        "devices": [{"gpu_id": gpu, "model": models.get(gpu, "")} for gpu in held],
        "resources": {
            "gpu_count": job.spec.resources.gpu_count,
            "gpu_model": job.spec.resources.gpu_model,
            "cpu_milli": job.spec.resources.cpu_milli,
            "memory_mib": job.spec.resources.memory_mib,
        },
        "resumed_from": job.last_checkpoint,
    }
