"""What is refused at submit because of what only the database knows: no row is written before."""

from collections.abc import Sequence

from gpuplane.core.ids import JobId
from gpuplane.core.scheduling.windows import find_next_window
from gpuplane.core.workloads import DeploymentType, JobSpec
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.jobs.errors import BadJob, NotPartOfProduct
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import workspaces
from gpuplane.domains.jobs.rules.scaling import find_bounds
from gpuplane.domains.jobs.service.classes import require_class_of_queues, require_queue
from gpuplane.domains.jobs.service.lookups import Lookups
from gpuplane.domains.jobs.service.sizes import require_room
from gpuplane.domains.jobs.service.submission import Submission
from gpuplane.domains.queues import service as queues
from gpuplane.domains.secrets import service as secrets

CONTAINER_KINDS = frozenset({"simulated", "kubernetes"})
PROCESS_KINDS = frozenset({"simulated", "local"})
CONTAINER_FIX = "Name an image (`image`; `gpuplane run --image`): a container runs there."
PROCESS_FIX = "Leave the image out to run a process there, or name a cluster that runs containers."


def check_submission(lookups: Lookups, submission: Submission, now: int) -> Cluster | None:
    """Check what only the database knows and return the cluster named, if one is.

    Raises:
        BadJob: If a field cannot hold here.
        NotPartOfProduct: If no part stands behind this kind of work.
        Forbidden: If no queue that takes it grants its priority class.
    """
    spec = submission.spec
    _check_kind(spec)
    usable = lookups.usable_clusters(submission.tenant_id)
    cluster = named_cluster(usable, submission)
    candidates = [cluster] if cluster else [each for each in usable if not each.simulated]
    if not candidates:
        raise BadJob(
            "No real cluster may be used by this tenant.",
            field="cluster",
            fix="Name a simulated cluster, or have an admin grant a cluster to the tenant.",
        )
    if spec.deployment_type is DeploymentType.HELM:
        _check_release(candidates, is_named=cluster is not None)
    else:
        _check_backend(spec, candidates)
    _check_triggers(spec, candidates)
    places = _with_workers(lookups.session, candidates)
    _check_gpus(spec, places)
    require_room(lookups, spec, places)
    _check_instants(spec, now)
    require_queue(lookups, submission.tenant_id, spec.queue, candidates)
    require_class_of_queues(lookups, submission.tenant_id, spec, spec.priority, candidates)
    _check_named(lookups.session, submission)
    return cluster


def _with_workers(session: ReadSession, candidates: Sequence[Cluster]) -> list[Cluster]:
    """Return clusters with those that they dispatch work to: there it may run as well."""
    names = {each.name for each in candidates}
    workers = sorted({name for each in candidates for name in queues.dispatch_workers(each)})
    found = (clusters.find_cluster(session, name) for name in workers if name not in names)
    return [*candidates, *(each for each in found if each is not None)]


def _check_kind(spec: JobSpec) -> None:
    if spec.deployment_type is DeploymentType.MODEL:
        raise NotPartOfProduct(
            "Model endpoints cannot be deployed here: no registered cluster has a part that"
            " installs them.",
            field="deployment_type",
            fix="Use deployment_type process, or docker with an image.",
        )


def named_cluster(usable: Sequence[Cluster], submission: Submission) -> Cluster | None:
    """Return the cluster a submission names, None if it names none; BadJob if there is none."""
    if submission.cluster is None:
        return None
    for cluster in usable:
        if submission.cluster == cluster.name or submission.cluster == str(cluster.id):
            return cluster
    names = ", ".join(cluster.name for cluster in usable) or "none"
    raise BadJob(
        f"There is no cluster {submission.cluster!r} that this tenant may use.",
        field="cluster",
        fix=f"Clusters that may be used: {names}.",
    )


def _check_release(candidates: Sequence[Cluster], *, is_named: bool) -> None:
    """Refuse a Helm release where none can be: it needs one cluster, and pods placed from here."""
    able = [each for each in candidates if each.kind == "kubernetes"]
    if not able:
        kinds = ", ".join(f"{cluster.name} ({cluster.kind})" for cluster in candidates)
        raise NotPartOfProduct(
            f"deployment_type helm cannot run on {kinds}: charts are installed on Kubernetes.",
            field="deployment_type",
            fix="Name a registered cluster, or use process on local clusters.",
        )
    if not is_named:
        names = ", ".join(each.name for each in able)
        raise BadJob(
            "A Helm release is for one cluster, and none is named.",
            field="cluster",
            fix=f"Clusters that can: {names}.",
        )


def _check_triggers(spec: JobSpec, candidates: Sequence[Cluster]) -> None:
    """Refuse triggers where nothing would ever look at them."""
    if not spec.replicas.triggers:
        return
    if find_bounds(spec) is None:
        raise BadJob(
            "Triggers scale a service between min and max, and its number of replicas is fixed.",
            field="replicas.triggers",
            fix="Give replicas.min and replicas.max, or leave the triggers out.",
        )
    if not any(each.kind == "kubernetes" for each in candidates):
        raise BadJob(
            "Triggers are KEDA's, which only clusters of Kubernetes have.",
            field="replicas.triggers",
            fix="Name a registered cluster, or leave the triggers out.",
        )


def _check_backend(spec: JobSpec, candidates: Sequence[Cluster]) -> None:
    needed = CONTAINER_KINDS if spec.deployment_type is DeploymentType.DOCKER else PROCESS_KINDS
    if not any(cluster.kind in needed for cluster in candidates):
        kinds = ", ".join(f"{cluster.name} ({cluster.kind})" for cluster in candidates)
        raise NotPartOfProduct(
            f"deployment_type {spec.deployment_type} cannot run on {kinds}.",
            field="deployment_type",
            fix=CONTAINER_FIX if needed is PROCESS_KINDS else PROCESS_FIX,
        )
    if not spec.execution.command and all(cluster.kind == "local" for cluster in candidates):
        raise BadJob(
            "A process needs a command.",
            field="spec.command",
            fix='Write it as a list, such as ["python3", "train.py"].',
        )


def _check_gpus(spec: JobSpec, candidates: Sequence[Cluster]) -> None:
    asked = spec.resources
    if asked.gpu_count == 0:
        return
    shapes = [
        (cluster.name, model, most)
        for cluster in candidates
        for model, (most, _total) in cluster.gpu_shapes.items()
        if asked.gpu_model in (None, model)
    ]
    most = max((each[2] for each in shapes), default=0)
    if asked.gpu_count <= most:
        return
    what = f"{asked.gpu_count} x {asked.gpu_model or 'GPU'}"
    where = ", ".join(cluster.name for cluster in candidates)
    if most == 0:
        have = sorted({model for cluster in candidates for model in cluster.gpu_shapes})
        raise BadJob(
            f"{where} has no {asked.gpu_model or 'GPU'}; {what} can never be placed there.",
            field="gpu_type" if asked.gpu_model else "gpu_count",
            fix=f"GPU models there: {', '.join(have)}."
            if have
            else "Use --gpus 0, or a cluster with GPUs such as the simulated demo.",
        )
    raise BadJob(
        f"No node of {where} has {what}; the largest has {most}.",
        field="gpu_count",
        fix=f"Ask at most {most} a replica, and more replicas for more.",
    )


def _check_instants(spec: JobSpec, now: int) -> None:
    if spec.deadline is not None and spec.deadline <= now:
        raise BadJob(
            "The deadline has passed already.", field="deadline", fix="Give one in the future."
        )
    start = spec.scheduled_start
    if spec.deadline is not None and start is not None and start >= spec.deadline:
        raise BadJob(
            "The scheduled start lies after the deadline.",
            field="scheduled_start",
            fix="Start before the deadline, or move the deadline.",
        )
    if spec.window is not None:
        opening = find_next_window(spec.window, max(now, start or now))
        last = spec.deadline
        if opening is None or (last is not None and opening[0] >= last):
            raise BadJob(
                "The window never opens before the deadline."
                if opening is not None
                else "The window never opens.",
                field="window",
                fix="Give a window that opens before the deadline, or leave one of them out.",
            )


def _check_secrets(session: ReadSession, submission: Submission) -> None:
    references = submission.spec.execution.secrets
    if not references:
        return
    names = [reference.name for reference in references]
    missing = secrets.missing_secrets(session, submission.project_id, names)
    if missing:
        raise BadJob(
            f"The project has no secret {missing[0]!r}.",
            field=f"spec.secrets[{names.index(missing[0])}].name",
            fix="Create it with `gpuplane secrets set`, or name another.",
        )


def _check_named(session: ReadSession, submission: Submission) -> None:
    """Refuse a working directory that was not uploaded, and jobs that are not there to be near."""
    digest = submission.spec.execution.workspace_digest
    if digest is not None and not workspaces.has_workspace(session, submission.tenant_id, digest):
        raise BadJob(
            "No working directory of this digest was uploaded by this tenant.",
            field="spec.workspace_digest",
            fix="Upload it with POST /api/v1/workspaces first.",
        )
    _check_secrets(session, submission)
    placement = submission.spec.placement
    for name, ids in (
        ("placement.co_locate_with", placement.co_locate_with),
        ("placement.separate_from", placement.separate_from),
    ):
        known = repository.load_jobs(session, ids)
        for index, job_id in enumerate(ids):
            found = known.get(JobId(job_id))
            if found is None or found.tenant_id != submission.tenant_id:
                raise BadJob(
                    f"There is no job {job_id} in this tenant.",
                    field=f"{name}[{index}]",
                    fix="Name a job of this tenant.",
                )
