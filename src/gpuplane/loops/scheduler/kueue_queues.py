"""What a Kueue shows of its ClusterQueues, as far as a plan may speak of it: models, room, line.

Owns sentences and one refusal: a GPU model that a queue has no flavor for. Never an estimate of
when Kueue admits: order, borrowing and preemption are its own.
"""

from collections.abc import Iterable, Sequence

from gpuplane.core.mig.profiles import resource_of_profile
from gpuplane.core.quota.specs import FlavorResource, ResourceGroup
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.workloads import DeploymentType, NetworkMode, ResourceRequest
from gpuplane.domains.jobs.service import Job
from gpuplane.domains.queues.service import SeenKind, find_laid_out, find_level
from gpuplane.kube.kueue.flavors import resource_of
from gpuplane.kube.nodefacts import LEVEL_LABELS
from gpuplane.loops.scheduler.loading import ClusterView

ANY = "any"
"""The flavor that stands for every node."""


def find_unowned(view: ClusterView, queue: str, job: Job, models: Sequence[str]) -> Reason | None:
    """Return why a queue can never admit a job: none of its flavors has a model that would do.

    Args:
        view: The cluster.
        queue: The ClusterQueue.
        job: The job.
        models: The models of the cluster that would do.
    """
    asked = job.spec.resources
    if not models or asked.gpu_milli != 1000:
        return None
    groups = groups_of(view, queue)
    if _pairs(view, groups, models, asked):
        return None
    profile = asked.mig_profile
    what, option = ("any GPU", f"--gpu {models[0]}=N")
    wanted = " or ".join(models)
    if profile is not None:
        what, option = (f"MIG instances {profile}", f"--mig {models[0]}/{profile}=N")
        wanted = f"{profile} of {wanted}"
    here = [each for each in sorted(view.cluster.gpu_shapes) if _pairs(view, groups, [each], asked)]
    has = f"has quota for {', '.join(here)}" if here else f"has no quota for {what}"
    instead = f"Ask for {' or '.join(here)}, name" if here else "Name"
    return Reason(
        Word.NO_QUOTA_FOR_MODEL,
        f"ClusterQueue {queue} of {view.cluster.name} {has}, and it asks for {wanted}: waiting "
        "does not help.",
        f"{instead} a LocalQueue of another ClusterQueue, or have a quota added: "
        f"gpuplane quotas set {queue} --cluster {view.cluster.name} {option}.",
    )


def find_unlaid(view: ClusterView, queue: str, job: Job) -> Reason | None:
    """Return why a queue cannot keep a job's replicas in one part of the network, as it must."""
    laid_out = find_laid_out(view.seen, queue)
    if laid_out and job.spec.deployment_type is DeploymentType.HELM:
        # Kueue binds the pods of a Job that it lays out, and those of a chart are none of its.
        return Reason(
            Word.NETWORK,
            f"ClusterQueue {queue} of {view.cluster.name} lays work out by a Topology "
            f"({', '.join(sorted(laid_out))}), which it cannot do for the pods of a chart.",
            "Name a LocalQueue of another ClusterQueue, whose flavors have no Topology.",
        )
    asked = job.spec.placement.network
    if asked is None or asked.mode is not NetworkMode.REQUIRED or job.spec.replicas.count < 2:
        return None
    if job.spec.is_plain_service:
        return Reason(
            Word.NETWORK,
            f"It must lie in one {asked.level}, and Kueue on {view.cluster.name} admits and places "
            "each replica of a service by itself.",
            "Prefer it instead, or name a cluster with embedded admission.",
        )
    labels = LEVEL_LABELS[asked.level]
    if find_level(view.seen, queue, labels) is not None:
        return None
    return Reason(
        Word.NETWORK,
        f"It must lie in one {asked.level}, and no flavor of ClusterQueue {queue} of "
        f"{view.cluster.name} has a Topology with a level that is one: {', '.join(labels)}.",
        "Prefer it instead, or have a Topology declared: POST …/topologies with the flavor.",
    )


def describe_line(view: ClusterView, queue: str) -> str:
    """Return what its Kueue says of a ClusterQueue: whether it is active, and who waits there."""
    found = next(
        (each for each in view.seen if (each.kind, each.name) == (SeenKind.CLUSTER_QUEUE, queue)),
        None,
    )
    if found is None or not found.state:
        return f"Its Kueue has not spoken of ClusterQueue {queue} yet."
    if not found.state.get("active"):
        return f"ClusterQueue {queue} is not active: {found.state.get('message', '')}".rstrip(": ")
    waiting, admitted = found.state.get("pending", 0), found.state.get("admitted", 0)
    return f"ClusterQueue {queue}: {waiting} waiting, {admitted} admitted."


def is_short_of_quota(view: ClusterView, queue: str, job: Job, models: Sequence[str]) -> bool:
    """Return whether a queue lacks unused quota by what Kueue counts, its own nominal included.

    What is its own and borrowed by others is no lack: Kueue may take it back.
    """
    asked = job.spec.resources
    each_milli = asked.gpu_milli if asked.mig_profile is None else 1  # instances count whole
    # Kueue admits each replica of a service by itself.
    replicas = 1 if job.spec.is_plain_service else job.spec.replicas.count
    amount = asked.gpu_count * each_milli * replicas
    used = {
        each.name: {
            FlavorResource(row["flavor"], row["resource"]): row["total"]
            for row in each.state.get("used", ())
        }
        for each in view.seen
        if each.kind is SeenKind.CLUSTER_QUEUE
    }
    tree = QuotaTree(view.queues.cluster_queues, view.queues.cohorts, ())
    for name in set(tree.cluster_queues) & set(used):
        tree.add_usage(name, used[name])
    spec = tree.get_spec(queue)
    pairs = _pairs(view, spec.resource_groups, models, asked)
    own = used.get(queue, {})
    rooms = [
        max(tree.available(queue, pair), spec.quotas[pair].nominal - own.get(pair, 0))
        for pair in pairs
        if pair in spec.quotas
    ]
    return bool(rooms) and max(rooms) < amount


def fitting_models(view: ClusterView, asked: ResourceRequest) -> list[str]:
    """Return the models a request names, or all of the cluster where it names none.

    Of a MIG profile only those that are cut into it on some node.
    """
    shapes = view.cluster.gpu_shapes
    named = list(shapes) if asked.gpu_model is None else asked.gpu_model.split("|")
    found = [model for model in named if model in shapes] if asked.gpu_count else []
    if asked.mig_profile is None:
        return found
    wanted = resource_of_profile(asked.mig_profile)
    cut = {
        gpu.model
        for node in view.nodes
        for gpu in node.gpus
        if gpu.present and any(resource_of_profile(name) == wanted for name, _ in gpu.mig_instances)
    }
    return [model for model in found if model in cut]


def groups_of(view: ClusterView, queue: str) -> list[ResourceGroup]:
    """Return the groups of a queue as declared and as on its cluster: either may be the newer."""
    found: list[ResourceGroup] = []
    for spec in view.queues.cluster_queues:
        if spec.name == queue:
            found += spec.resource_groups
    for each in view.seen:
        if (each.kind, each.name) == (SeenKind.CLUSTER_QUEUE, queue):
            found += [
                ResourceGroup(
                    tuple(group["coveredResources"]),
                    tuple(flavor["name"] for flavor in group["flavors"]),
                )
                for group in each.spec.get("resourceGroups", ())
            ]
    return found


def _pairs(
    view: ClusterView,
    groups: Iterable[ResourceGroup],
    models: Iterable[str],
    asked: ResourceRequest,
) -> set[FlavorResource]:
    """Return what a request for one of some models may be counted as, by the groups of a queue."""
    instance = None if asked.mig_profile is None else resource_of_profile(asked.mig_profile)
    wanted = {model: instance or resource_of(model) for model in models}
    return {
        FlavorResource(flavor, resource)
        for group in groups
        for flavor in group.flavors
        for model in _models_of(view, flavor) & wanted.keys()
        if (resource := wanted[model]) in group.covered_resources
    }


def _models_of(view: ClusterView, flavor: str) -> set[str]:
    """Return the models that a flavor stands for: by the nodes with its labels, and by its name."""
    here = set(view.cluster.gpu_shapes)
    named = {flavor} & here
    seen = next(
        (each for each in view.seen if (each.kind, each.name) == (SeenKind.FLAVOR, flavor)), None
    )
    if seen is None:
        return here if flavor == ANY else named
    labels = seen.spec.get("nodeLabels") or {}
    return named | {
        gpu.model
        for node in view.nodes
        if labels.items() <= node.labels.items()
        for gpu in node.gpus
        if gpu.present
    }
