"""What a backend is told of an attempt, and the manifest that makes it repeatable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid5

from gpuplane.backends.interface import AttemptPlan, AttemptRef, ReplicaPlan
from gpuplane.core.ids import AttemptId, ClusterId, GpuId, JobId, ReplicaId
from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.core.workloads import NetworkMode
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Attempt, Job
from gpuplane.domains.jobs.rules.offers import Offer
from gpuplane.domains.jobs.rules.scaling import find_bounds, list_staying
from gpuplane.domains.jobs.service.submission import Submission
from gpuplane.domains.jobs.service.submitting import blank_job
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.service import Seen
from gpuplane.kit.ids import new_id
from gpuplane.kube.nodefacts import LEVEL_LABELS

PRODUCT_LABEL = "nvidia.com/gpu.product"
"""Written by GPU feature discovery; flavors of Kueue tell nodes apart by it."""

TRIAL_QUEUE = "trial"
"""The LocalQueue of what is only tried: that there is one matters, and not its name."""


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
    return [
        (job, attempt, plan)
        for job, attempt, plan in load_plans_of(session, attempts, around)
        if attempt.state == "admitted" and job.status is JobStatus.SCHEDULED
    ]


def load_plans_of(
    session: ReadSession, attempts: Sequence[Attempt], around: Surroundings
) -> list[tuple[Job, Attempt, AttemptPlan]]:
    """Return what attempts are made of, as they stand now, whatever their state."""
    current = attempts_repository.load_attempts(session, [attempt.id for attempt in attempts])
    jobs = repository.load_jobs(session, [attempt.job_id for attempt in current.values()])
    tenants = identity.tenants_by_ids(session, {job.tenant_id for job in jobs.values()})
    projects = identity.projects_by_ids(session, {job.project_id for job in jobs.values()})
    plans = []
    for attempt in current.values():
        job = jobs.get(attempt.job_id)
        if job is None:
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


def load_offer_plans(
    session: ReadSession, offers: Sequence[Offer], around: Surroundings
) -> list[tuple[Job, Offer, AttemptPlan]]:
    """Return the plans of those offers whose jobs still stand in line, as they stand now."""
    jobs = repository.load_jobs(session, [each.job_id for each in offers])
    tenants = identity.tenants_by_ids(session, {job.tenant_id for job in jobs.values()})
    projects = identity.projects_by_ids(session, {job.project_id for job in jobs.values()})
    products: dict[ClusterId, dict[str, set[str]]] = {}
    seen: dict[ClusterId, Sequence[Seen]] = {}
    managers = {each.cluster_id: clusters.find_cluster(session, each.cluster_id) for each in offers}
    plans = []
    for offer in offers:
        job = jobs.get(offer.job_id)
        if job is None or job.status is not JobStatus.QUEUED:
            continue
        manager = managers[offer.cluster_id]
        dispatches = manager is not None and offer.cluster_queue in queues.dispatching_queues(
            manager
        )
        if offer.cluster_id not in products:
            products[offer.cluster_id] = _products(session, offer.cluster_id)
        tenant, project = tenants.get(job.tenant_id), projects.get(job.project_id)
        plan = _plan_of(
            job,
            AttemptRef(offer.attempt_id, offer.number),
            tuple(
                ReplicaPlan(ReplicaId(uuid5(offer.attempt_id, str(rank))), rank, "")
                for rank in range(job.spec.replicas.count)
            ),
            tenant.name if tenant else str(job.tenant_id),
            project.name if project else str(job.project_id),
            around,
        )
        if offer.cluster_id not in seen:
            seen[offer.cluster_id] = queues.list_seen(session, offer.cluster_id)
        affinity = _affinity(job, products[offer.cluster_id])
        if manager is not None and dispatches:
            affinity = _affinity(job, _products_of_workers(session, manager))
        plans.append(
            (
                job,
                offer,
                replace(
                    plan,
                    local_queue=offer.queue_name,
                    node_affinity=affinity,
                    priority_class=f"gpuplane-{job.spec.priority}",
                    level=_level(job, seen[offer.cluster_id], offer.cluster_queue),
                    dispatches=dispatches,
                    scales=find_bounds(job.spec),
                ),
            ),
        )  # fmt: skip - the plan reads as one line
    return plans


def _products(session: ReadSession, cluster_id: ClusterId) -> dict[str, set[str]]:
    """Return the product labels that the nodes of each GPU model have."""
    found: dict[str, set[str]] = {}
    for node in nodes.list_nodes(session, cluster_id):
        label = node.labels.get(PRODUCT_LABEL)
        for gpu in node.gpus:
            if label and gpu.present:
                found.setdefault(gpu.model, set()).add(label)
    return found


def _products_of_workers(session: ReadSession, manager: Cluster) -> dict[str, set[str]]:
    """Return the product labels that nodes of each GPU model have where a manager dispatches to."""
    found: dict[str, set[str]] = {}
    for name in queues.dispatch_workers(manager):
        worker = clusters.find_cluster(session, name)
        for model, labels in _products(session, worker.id).items() if worker is not None else ():
            found.setdefault(model, set()).update(labels)
    return found


def _affinity(
    job: Job, products: Mapping[str, set[str]]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    asked = job.spec.resources
    if not asked.gpu_count or asked.gpu_model is None:
        return ()
    models = asked.gpu_model.split("|")
    labels = sorted(label for model in models for label in products.get(model, ()))
    return ((PRODUCT_LABEL, tuple(labels)),) if labels else ()


def _level(job: Job, seen: Sequence[Seen], queue: str) -> tuple[str, str] | None:
    """Return how Kueue is asked to lay the replicas out, None where that is not its to do.

    A flavor with a Topology takes nothing that does not say so, but in a queue of such flavors.
    """
    asked = job.spec.placement.network
    if asked is not None and job.spec.replicas.count > 1:
        label = queues.find_level(seen, queue, LEVEL_LABELS[asked.level])
        if label is not None:
            return ("required" if asked.mode is NetworkMode.REQUIRED else "preferred"), label
    laid_out = queues.find_laid_out(seen, queue)
    models = set((job.spec.resources.gpu_model or "").split("|"))
    return ("unconstrained", "true") if models <= laid_out.keys() else None


def plan_of(
    job: Job, attempt: Attempt, tenant: str, project: str, around: Surroundings
) -> AttemptPlan:
    """Return everything a backend needs to run an attempt, without a secret value."""
    replicas = tuple(
        ReplicaPlan(
            replica_id=replica.id,
            rank=replica.rank,
            node_name=replica.node_name,
            gpu_ids=tuple(GpuId(gpu) for gpu in replica.gpu_ids),
            gpu_milli=replica.gpu_milli,
            mig_device=replica.mig_device,
        )
        for replica in list_staying(attempt)
    )
    ref = AttemptRef(attempt.id, attempt.epoch)
    plan = _plan_of(job, ref, replicas, tenant, project, around)
    return plan if attempt.replicas_wanted is None else replace(plan, scales=find_bounds(job.spec))


def _plan_of(
    job: Job,
    ref: AttemptRef,
    replicas: tuple[ReplicaPlan, ...],
    tenant: str,
    project: str,
    around: Surroundings,
) -> AttemptPlan:
    execution = job.spec.execution
    digest = execution.workspace_digest
    checkpoint = job.spec.checkpoint
    return AttemptPlan(
        ref=ref,
        job_id=job.id,
        job_name=job.name,
        tenant_id=job.tenant_id,
        tenant_name=tenant,
        project_name=project,
        attempt_number=ref.epoch,
        job_type=job.spec.job_type,
        execution=execution,
        resources=job.spec.resources,
        replicas=replicas,
        max_duration_s=job.spec.max_duration_s,
        checkpoint_path=checkpoint.path if checkpoint and checkpoint.enabled else "",
        resume_from=job.last_checkpoint or "",
        env=_environment(job, ref, around),
        workspace_archive=f"{around.workspaces}/{digest}.tar.gz" if digest else None,
        project_id=job.project_id,
        spec=job.spec,
    )


def _environment(job: Job, ref: AttemptRef, around: Surroundings) -> dict[str, str]:
    env = {
        "GPUPLANE_JOB_ID": str(job.id),
        "GPUPLANE_JOB_NAME": job.name,
        "GPUPLANE_ATTEMPT": str(ref.epoch),
    }
    if job.array_index is not None:
        env["GPUPLANE_ARRAY_INDEX"] = str(job.array_index)
    if around.api_url:
        env["GPUPLANE_URL"] = around.api_url
    if job.spec.execution.seed is not None:
        env["GPUPLANE_SEED"] = str(job.spec.execution.seed)
    return env


def load_trial(
    session: ReadSession, submission: Submission, workspaces: str, now: int
) -> tuple[ClusterId, AttemptPlan] | None:
    """Return where a job would run that names its cluster, and as what; nothing is stored."""
    cluster = clusters.find_cluster(session, submission.cluster or "")
    if cluster is None:
        return None
    job = blank_job(submission, cluster, JobId(new_id()), now)
    tenant = identity.tenants_by_ids(session, {job.tenant_id}).get(job.tenant_id)
    project = identity.projects_by_ids(session, {job.project_id}).get(job.project_id)
    attempt_id = AttemptId(new_id())
    plan = _plan_of(
        job,
        AttemptRef(attempt_id, 1),
        tuple(
            ReplicaPlan(ReplicaId(uuid5(attempt_id, str(rank))), rank, "")
            for rank in range(job.spec.replicas.count)
        ),
        tenant.name if tenant else str(job.tenant_id),
        project.name if project else str(job.project_id),
        Surroundings("", workspaces, ""),
    )
    if queues.admits_itself(cluster):
        plan = replace(plan, local_queue=TRIAL_QUEUE)
    return cluster.id, plan


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
