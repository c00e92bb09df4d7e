"""Makes the core value of a job from its body; refuses what several fields say together."""

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache

from gpuplane.core.amounts import WHOLE_GPU_MILLI, cores_to_milli, gib_to_mib
from gpuplane.core.mig.profiles import find_models_with_profile
from gpuplane.core.workloads import (
    ChartRequest,
    CheckpointConfig,
    Dependency,
    DeploymentType,
    Execution,
    HealthCheck,
    JobSpec,
    JobType,
    Mount,
    NetworkRequest,
    PlacementRequest,
    ReplicaRequest,
    ResourceRequest,
    RetryPolicy,
    ScaleTrigger,
    SecretReference,
    SimulatedBehaviour,
    SourceType,
    Spreading,
    TimeWindow,
    Toleration,
)
from gpuplane.domains.jobs.errors import BadJob, NotPartOfProduct
from gpuplane.domains.jobs.schemas.incoming import JobIn
from gpuplane.domains.jobs.schemas.parts import (
    CheckpointBody,
    ExecutionBody,
    PlacementBody,
    ReplicasBody,
    WindowBody,
)

_STORAGE_MIB = {"Mi": 1, "Gi": 1024, "Ti": 1024 * 1024}


def spec_of(body: JobIn) -> JobSpec:
    """Return what is asked as a core value.

    Raises:
        BadJob: If fields contradict each other; names the field to change.
        NotPartOfProduct: If no part of the product stands behind what is asked.
    """
    _check_kind(body)
    return JobSpec(
        name=body.name,
        job_type=body.job_type,
        deployment_type=body.deployment_type,
        resources=_resources(body),
        replicas=_replicas(body.replicas, body.job_type),
        placement=_placement(body.placement, body),
        execution=_execution(body.spec),
        priority=body.priority,
        preemptible=body.preemptible,
        preempts_others=body.preempts_others,
        estimated_duration_s=_duration(body),
        max_duration_s=body.max_duration_seconds,
        deadline=body.deadline,
        deadline_action=body.deadline_action,
        scheduled_start=body.scheduled_start,
        window=_window(body.window),
        after=tuple(Dependency(each.job_id, each.condition) for each in body.after),
        budget_limit_micro=body.budget_limit,
        budget_action=body.budget_action,
        retry=_retry(body),
        checkpoint=_checkpoint(body.checkpoint, body.job_type),
        labels=dict(body.labels),
        cost_centre=body.cost_centre,
        data_classification=body.data_classification,
        queue=body.queue,
    )


def source_of(body: JobIn) -> tuple[str, str | None]:
    """Return what made the job and its id, from the general fields or the named ones.

    Raises:
        BadJob: If two sources are named, or a source needs an id.
    """
    named: Sequence[tuple[str, SourceType, object]] = (
        ("pipeline_step_id", SourceType.PIPELINE, body.pipeline_step_id),
        ("pipeline_id", SourceType.PIPELINE, body.pipeline_id),
        ("usecase_deployment_id", SourceType.USECASE, body.usecase_deployment_id),
    )
    kind, source_id = body.source_type, body.source_id
    for field, source, value in named:
        if value is None:
            continue
        if kind is not SourceType.DIRECT and kind is not source:
            raise BadJob(
                f"{field} says that a {source} made the job, and source_type says {kind}.",
                field=field,
                fix=f"Leave one of them out, or write source_type {source}.",
            )
        kind = source
        if source_id is None:
            step = body.pipeline_step_id if field == "pipeline_step_id" else None
            source_id = f"{body.pipeline_id}/{step}" if step and body.pipeline_id else str(value)
    if kind is SourceType.DIRECT and source_id is not None:
        raise BadJob(
            "A job that a person submits has no source_id.",
            field="source_id",
            fix="Leave it out, or name the source_type pipeline or usecase.",
        )
    if kind is not SourceType.DIRECT and source_id is None:
        raise BadJob(
            f"A job made by a {kind} names it.", field="source_id", fix="Give its id in source_id."
        )
    return str(kind), source_id


def _check_kind(body: JobIn) -> None:
    if body.deployment_type is DeploymentType.MODEL:
        raise NotPartOfProduct(
            "Model endpoints cannot be deployed here: no registered cluster has a part that"
            " installs them.",
            field="deployment_type",
            fix="Use deployment_type process, or docker where containers run.",
        )
    if body.deployment_type is DeploymentType.HELM or body.spec.chart is not None:
        _check_chart(body)
    if body.deployment_type is DeploymentType.DOCKER and not body.spec.image:
        raise BadJob(
            "A container needs an image.", field="spec.image", fix="Name one, or use process."
        )
    if body.deployment_type is DeploymentType.PROCESS and body.spec.image:
        raise BadJob(
            "A process runs on the machine itself and has no image.",
            field="spec.image",
            fix="Leave it out, or use deployment_type docker.",
        )
    if body.job_type is not JobType.SERVICE and body.spec.health is not None:
        raise BadJob(
            f"Only a service has a health check, and this is a {body.job_type} job.",
            field="spec.health",
            fix="Leave it out, or use job_type service.",
        )
    if body.job_type is not JobType.SERVICE and body.replicas.scale_to_zero:
        raise BadJob(
            "Only a service can scale to zero.",
            field="replicas.scale_to_zero",
            fix="Leave it out, or use job_type service.",
        )
    if body.job_type is not JobType.SERVICE and body.replicas.triggers:
        raise BadJob(
            "Only a service is scaled by triggers.",
            field="replicas.triggers",
            fix="Leave them out, or use job_type service.",
        )
    if body.array is not None and body.job_type is JobType.SERVICE:
        raise BadJob(
            "A service cannot be an array.", field="array", fix="Use replicas for more copies."
        )


def _check_chart(body: JobIn) -> None:
    """Refuse a job that is half a Helm release."""
    if body.spec.chart is None:
        raise BadJob(
            "A Helm release needs a chart.",
            field="spec.chart",
            fix="Name it in spec.chart, with its values.",
        )
    if body.deployment_type is not DeploymentType.HELM:
        raise BadJob(
            f"A chart is installed by Helm, and the deployment_type is {body.deployment_type}.",
            field="spec.chart",
            fix="Leave it out, or use deployment_type helm.",
        )
    if body.job_type is not JobType.SERVICE:
        raise BadJob(
            "A Helm release runs until it is stopped; it has no end of its own.",
            field="job_type",
            fix="Use job_type service.",
        )
    run = body.spec
    for field, given in (
        ("image", run.image),
        ("command", run.command),
        ("env", run.env),
        ("mounts", run.mounts),
        ("artifacts", run.artifacts),
        ("health", run.health),
    ):
        if given:
            raise BadJob(
                "What a chart runs, its chart says.",
                field=f"spec.{field}",
                fix="Leave it out, and give it in spec.chart.values.",
            )


def _resources(body: JobIn) -> ResourceRequest:
    asked = body.resources
    milli = round(asked.gpu_share * WHOLE_GPU_MILLI)
    if milli < WHOLE_GPU_MILLI and body.gpu_count != 1:
        raise BadJob(
            f"A share of a GPU is asked with gpu_count 1, not {body.gpu_count}.",
            field="resources.gpu_share",
            fix="Use gpu_count 1, or whole GPUs.",
        )
    if milli < 1:
        raise BadJob(
            "The smallest share of a GPU is 0.001.",
            field="resources.gpu_share",
            fix="Ask for more.",
        )
    profile = asked.mig_profile
    if profile is not None:
        _check_mig(body, profile)
    if body.gpu_count == 0 and profile is None:
        for field, value in (
            ("gpu_type", body.gpu_type),
            ("resources.gpu_memory_gb", asked.gpu_memory_gb),
            ("resources.gpu_architecture", asked.gpu_architecture),
        ):
            if value is not None:
                raise BadJob(
                    "It says which GPU, and asks for none.",
                    field=field,
                    fix="Set gpu_count, or leave this out.",
                )
    memory = asked.gpu_memory_gb
    return ResourceRequest(
        gpu_count=1 if profile is not None else body.gpu_count,
        gpu_model=body.gpu_type,
        gpu_memory_mib=None if memory is None else _mib(memory),
        gpu_architecture=asked.gpu_architecture.lower() if asked.gpu_architecture else None,
        gpu_milli=milli,
        mig_profile=profile,
        cpu_milli=_milli(body.cpu_cores),
        memory_mib=_mib(body.memory_gb),
        storage_mib=_mib(body.storage_gb or 0),
        ephemeral_mib=_mib(asked.ephemeral_storage_gb),
        rdma_fabric=asked.rdma_fabric,
    )


@lru_cache(maxsize=1_024)
def _mib(gib: float) -> int:
    """Return a size as written, in GiB, as MiB; exact, and the same few sizes for most jobs."""
    return gib_to_mib(Decimal(str(gib)))


@lru_cache(maxsize=1_024)
def _milli(cores: float) -> int:
    return cores_to_milli(Decimal(str(cores)))


def _check_mig(body: JobIn, profile: str) -> None:
    if body.gpu_count > 1 or body.resources.gpu_share < 1:
        raise BadJob(
            "A replica takes one MIG instance instead of whole GPUs or a share.",
            field="resources.mig_profile",
            fix="Leave gpu_count and gpu_share out, and ask more replicas for more instances.",
        )
    if body.gpu_type is not None and not find_models_with_profile(profile, body.gpu_type):
        names = ", ".join(find_models_with_profile(profile)[:5])
        raise BadJob(
            f"{body.gpu_type} has no MIG profile {profile}.",
            field="resources.mig_profile",
            fix=f"Models that have it: {names}.",
        )


def _replicas(body: ReplicasBody, job_type: JobType) -> ReplicaRequest:
    minimum = body.minimum if body.minimum is not None else (body.count if body.gang else 1)
    if minimum > body.count:
        raise BadJob(
            f"{minimum} replicas cannot be the least that start of {body.count}.",
            field="replicas.minimum",
            fix=f"Give at most {body.count}, or ask more replicas.",
        )
    if body.gang and minimum != body.count:
        raise BadJob(
            "A gang starts with all its replicas or not at all.",
            field="replicas.minimum",
            fix="Leave minimum out, or set gang to false.",
        )
    low = body.min if body.min is not None else min(minimum, body.count)
    high = body.max if body.max is not None else body.count
    if not low <= body.count <= high:
        raise BadJob(
            f"count {body.count} does not lie between min {low} and max {high}.",
            field="replicas.count",
            fix="Give a count between them.",
        )
    if low == 0 and not body.scale_to_zero:
        raise BadJob(
            "No replica at all needs scale_to_zero.",
            field="replicas.min",
            fix="Set scale_to_zero, or give min 1.",
        )
    if job_type is not JobType.SERVICE and body.max is not None and body.max != body.count:
        raise BadJob(
            "Only a service changes its number of replicas.",
            field="replicas.max",
            fix="Leave max out.",
        )
    lowest = low if job_type is JobType.SERVICE and low and low != minimum else None
    triggers = tuple(
        ScaleTrigger(each.type, tuple(sorted(each.metadata.items()))) for each in body.triggers
    )
    return ReplicaRequest(
        body.count, minimum, high, body.gang, body.scale_to_zero, lowest, triggers
    )


def _placement(body: PlacementBody, job: JobIn) -> PlacementRequest:
    both = set(body.co_locate_with) & set(body.separate_from)
    if both:
        raise BadJob(
            f"Job {next(iter(sorted(both, key=str)))} is named to be near and to be far.",
            field="placement.separate_from",
            fix="Name it in one of the two.",
        )
    if body.topology.required and body.topology.preference == "none":
        raise BadJob(
            "A required topology names which one.",
            field="placement.topology.preference",
            fix="Write nvlink, same_numa or same_pcie.",
        )
    if body.topology.preference != "none" and job.gpu_count == 0:
        raise BadJob(
            "Links between GPUs are asked for, and no GPU is.",
            field="placement.topology.preference",
            fix="Set gpu_count, or leave topology out.",
        )
    network = body.network
    if network is not None and body.spreading is Spreading.SAME_NODE:
        raise BadJob(
            "Replicas that share one node lie in one part of the network anyway.",
            field="placement.network",
            fix="Leave network out, or change spreading.",
        )
    return PlacementRequest(
        links=body.topology.preference,
        links_required=body.topology.required,
        spreading=body.spreading,
        co_locate_with=tuple(body.co_locate_with),
        separate_from=tuple(body.separate_from),
        node_selector=dict(body.node_selector),
        tolerations=tuple(
            Toleration(each.key, each.operator, each.value, each.effect)
            for each in body.tolerations
        ),
        data=tuple(dict.fromkeys(body.data)),
        network=None if network is None else NetworkRequest(network.level, network.mode),
    )


def _execution(body: ExecutionBody) -> Execution:
    health, simulated, chart = body.health, body.simulated, body.chart
    return Execution(
        image=body.image,
        command=tuple(body.command),
        env=dict(body.env),
        working_dir=body.working_dir,
        workspace_digest=body.workspace_digest,
        mounts=tuple(Mount(each.name, each.path, each.read_only) for each in body.mounts),
        secrets=tuple(SecretReference(each.name, each.env, each.path) for each in body.secrets),
        artifacts=tuple(body.artifacts),
        port=body.port,
        health=None
        if health is None
        else HealthCheck(
            health.path,
            health.port,
            health.interval_s,
            health.timeout_s,
            health.failure_threshold,
            health.start_period_s,
        ),
        restart=body.restart,
        grace_s=body.grace_s,
        seed=body.seed,
        simulated=None
        if simulated is None
        else SimulatedBehaviour(
            simulated.duration_s,
            simulated.exit_code,
            tuple(simulated.log),
            simulated.startup_s,
            simulated.checkpoint_every_s,
            dict(simulated.outputs),
            simulated.gpu_memory_mib,
            simulated.gpu_utilization,
        ),
        chart=None
        if chart is None
        else ChartRequest(chart.name, chart.repo, chart.version, dict(chart.values)),
    )


def _duration(body: JobIn) -> int | None:
    estimated, most = body.estimated_duration_seconds, body.max_duration_seconds
    if estimated is not None and most is not None and estimated > most:
        raise BadJob(
            f"It is expected to run {estimated} s and would be stopped after {most} s.",
            field="max_duration_seconds",
            fix="Raise it, or lower estimated_duration_seconds.",
        )
    return estimated


def _window(body: WindowBody | None) -> TimeWindow | None:
    if body is None:
        return None
    days = tuple(sorted(set(body.weekdays or ())))
    return TimeWindow(body.start, body.end, body.zone, days, body.at_end)


def _retry(body: JobIn) -> RetryPolicy:
    retry = body.retry
    if retry.max_delay_seconds < retry.delay_seconds:
        raise BadJob(
            "The longest delay is shorter than the first one.",
            field="retry.max_delay_seconds",
            fix=f"Give at least {retry.delay_seconds}.",
        )
    return RetryPolicy(
        body.max_retries,
        retry.delay_seconds,
        retry.max_delay_seconds,
        retry.jitter,
        retry.on_preemption,
    )


def _checkpoint(body: CheckpointBody | None, job_type: JobType) -> CheckpointConfig | None:
    """Return the configuration; a training job has the defaults when it says nothing."""
    if body is None:
        return CheckpointConfig() if job_type is JobType.TRAINING else None
    return CheckpointConfig(
        enabled=body.enabled,
        storage_class=body.storage_class,
        storage_size_mib=int(body.storage_size[:-2]) * _STORAGE_MIB[body.storage_size[-2:]],
        interval_s=body.checkpoint_interval,
        max_checkpoints=body.max_checkpoints,
        path=body.checkpoint_path,
    )
