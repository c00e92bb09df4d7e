"""Which jobs are handed to clusters that admit by themselves, and why others are not.

There the scheduler chooses the cluster alone: quota, order and nodes are Kueue's. Owns the choice;
never a quota.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuplane.core.hardware import find_model
from gpuplane.core.quota.specs import LocalQueueSpec
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.decisions import Waiting
from gpuplane.core.scheduling.windows import find_current_window
from gpuplane.core.workloads import JobType
from gpuplane.domains.jobs.service import Job, NewOffer
from gpuplane.domains.queues import service as queues
from gpuplane.loops.scheduler.kueue_queues import find_unlaid, find_unowned, fitting_models
from gpuplane.loops.scheduler.loading import ClusterView, World

KUEUE = "kueue"


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of a queued job: an offer, a reason to wait, or clusters to decide on here."""

    offer: NewOffer | None = None
    waiting: Waiting | None = None
    clusters: tuple[ClusterView, ...] = ()


def admits_itself(view: ClusterView) -> bool:
    """Return whether a cluster admits by its own Kueue."""
    return view.cluster.config.get("admission") == KUEUE


def choose(world: World, found: Sequence[ClusterView], job: Job, now: int) -> Choice:
    """Return what becomes of a queued job, by the first of its clusters that can take it.

    A cluster that admits by itself and comes first takes the job, if it could ever run there; one
    that comes behind a cluster of ours is not asked, because what is offered is bound to it.

    Args:
        world: What was read.
        found: The clusters it may run on, best first.
        job: The job.
        now: The instant, for its time window.
    """
    ours = tuple(view for view in found if not admits_itself(view))
    reason: Reason | None = None
    for view in found:
        if not admits_itself(view):
            return Choice(clusters=ours)
        made = _refusal(view, job, now) or _offer(world, view, job)
        if isinstance(made, NewOffer):
            return Choice(offer=made)
        reason = reason or made
    if reason is None:
        return Choice(clusters=ours)
    return Choice(waiting=Waiting(job.id, job.version, reason, (), 0))


def models_for(view: ClusterView, job: Job) -> list[str]:
    """Return the models of a cluster that would do for a job."""
    models = fitting_models(view, job.spec.resources)
    return [each for each in models if _is_large_enough(each, job)]


def _offer(world: World, view: ClusterView, job: Job) -> NewOffer | Reason:
    """Return the offer of a job to a cluster, or why none of its queues can ever admit it."""
    tenant = world.tenants.get(job.tenant_id, str(job.tenant_id))
    reason: Reason | None = None
    for door in _list_doors(view, tenant, job):
        made = _offer_through(world, view, tenant, door, job)
        if isinstance(made, NewOffer):
            return made
        reason = reason or made
    return reason or _doorless(view, job)


def _list_doors(view: ClusterView, tenant: str, job: Job) -> list[LocalQueueSpec]:
    """Return the doors that a job may go through, best first.

    What stands in line again goes through the one it went through before, as long as that takes
    it: another that its type would lead to by now may have been opened since.
    """
    spec = job.spec
    before = job.queue.rpartition("/")[2]  # kept as `cluster/name` for people
    names = [spec.queue] if spec.queue else [before, None] if before else [None]
    chosen = (
        queues.choose_door(view.queues, tenant, str(spec.job_type), name, spec.priority)
        for name in names
    )
    real = _real_queues(view)
    doors = [door for door in chosen if door is not None and door.cluster_queue in real]
    return list({door.name: door for door in doors}.values())


def _offer_through(
    world: World, view: ClusterView, tenant: str, door: LocalQueueSpec, job: Job
) -> NewOffer | Reason:
    """Return the offer of a job through a door, or why that can never admit it."""
    name = view.cluster.name
    if door.cluster_queue in queues.dispatching_queues(view.cluster):
        told = refuse_dispatch(world, view, tenant, door, job)
        workers = ", ".join(queues.dispatch_workers(view.cluster))
        said = f"Kueue on {name} dispatches ClusterQueue {door.cluster_queue} to {workers}."
    else:
        told = _shape_refusal(view, job) or _misfit(view, door.cluster_queue, job)
        said = (
            f"Kueue on {name} decides when it starts and where; ClusterQueue {door.cluster_queue}."
        )
    if told is not None:
        return told
    return NewOffer(
        job.id, job.version, view.cluster.id, f"{name}/{door.name}", door.cluster_queue, (said,)
    )


def refuse_dispatch(
    world: World, view: ClusterView, tenant: str, door: LocalQueueSpec, job: Job
) -> Reason | None:
    """Return why a job is not handed to a queue that dispatches to other clusters, or None.

    Each of them must have the queue as declared here: its Kueue waits there for our word then, and
    starts nothing that is taken back, or was started elsewhere.
    """
    name = view.cluster.name
    if job.spec.job_type not in (JobType.BATCH, JobType.TRAINING):
        said = f"LocalQueue {door.name} of {name} dispatches to other clusters: batch and training."
        return Reason(Word.NO_QUEUE, said, "Name another queue, or the cluster to run it on.")
    names = queues.dispatch_workers(view.cluster)
    if not names:
        said = f"{name} is to dispatch it, and has no worker left."
        return Reason(
            Word.NO_CLUSTER, said, f"Connect one: gpuplane clusters multikueue {name} --worker …"
        )
    workers = [each for each in world.clusters if each.cluster.name in names]
    if not workers:
        said = f"None of the clusters that {name} dispatches to can take work: {', '.join(names)}."
        return Reason(Word.CLUSTER_NOT_AVAILABLE, said)
    reason: Reason | None = None
    fits = False
    for worker in workers:
        there = _find_door(worker, tenant, door.name)
        if there is None:
            return Reason(
                Word.NO_QUEUE,
                f"{name} may dispatch it to {worker.cluster.name}, where LocalQueue {door.name} of "
                f"{tenant} is not declared through gpuplane.",
                f"Declare a queue of that name on {worker.cluster.name}.",
            )
        told = _unfit(worker, there, job)
        fits = fits or told is None
        reason = reason or told
    return None if fits else reason


def list_workers(
    world: World, view: ClusterView, offer: NewOffer, job: Job
) -> tuple[tuple[ClusterView, str], ...]:
    """Return who could run what is offered to a queue that dispatches, best first.

    Each is a cluster with its ClusterQueue; it is empty where the queue's own cluster runs it.
    """
    if offer.cluster_queue not in queues.dispatching_queues(view.cluster):
        return ()
    tenant = world.tenants.get(job.tenant_id, str(job.tenant_id))
    name = offer.local_queue.rpartition("/")[2]
    known = {each.cluster.name: each for each in world.clusters}
    found = []
    for worker in queues.dispatch_workers(view.cluster):
        there = None if worker not in known else _find_door(known[worker], tenant, name)
        if there is not None and _unfit(known[worker], there, job) is None:
            found.append((known[worker], there.cluster_queue))
    return tuple(found)


def _find_door(worker: ClusterView, tenant: str, name: str) -> LocalQueueSpec | None:
    """Return a tenant's LocalQueue of a name on a worker, if it was declared through us."""
    for each in worker.queues.local_queues:
        if (each.tenant, each.name) == (tenant, name):
            return each if each.cluster_queue in _real_queues(worker) else None
    return None


def _unfit(worker: ClusterView, door: LocalQueueSpec, job: Job) -> Reason | None:
    """Return why a worker can never run a job that comes through a door, or None."""
    return _shape_refusal(worker, job) or _misfit(worker, door.cluster_queue, job)


def _misfit(view: ClusterView, queue: str, job: Job) -> Reason | None:
    """Return why a ClusterQueue of a cluster can never admit a job, or None."""
    return find_unowned(view, queue, job, models_for(view, job)) or find_unlaid(view, queue, job)


def _real_queues(view: ClusterView) -> set[str]:
    """Return the ClusterQueues that were declared."""
    return {each.name for each in view.queues.cluster_queues if not each.covers_everything}


def _refusal(view: ClusterView, job: Job, now: int) -> Reason | None:
    """Return why a job is not handed to a cluster just now, or None."""
    if view.cluster.frozen:
        return Reason(Word.FROZEN, f"{view.cluster.name} is frozen. {view.cluster.frozen_reason}")
    window = job.spec.window
    if window is not None and find_current_window(window, now) is None:
        return Reason(Word.TIME_WINDOW, "Its time window is closed.")
    # One that dispatches need not have what its workers have.
    return None if queues.dispatching_queues(view.cluster) else _shape_refusal(view, job)


def _shape_refusal(view: ClusterView, job: Job) -> Reason | None:
    """Return why no node of a cluster has what a job asks for, or None."""
    asked = job.spec.resources
    if not asked.gpu_count:
        return None
    if asked.mig_profile is not None and not fitting_models(view, asked):
        said = f"No GPU of {view.cluster.name} that it may have is cut into {asked.mig_profile}."
        fix = "Ask for another profile, or have GPUs cut: gpuplane mig shows how they can be."
        return Reason(Word.MIG_UNAVAILABLE, said, fix)
    shapes = view.cluster.gpu_shapes
    models = shapes if asked.gpu_model is None else asked.gpu_model.split("|")
    fitting = [model for model in models if model in shapes and _is_large_enough(model, job)]
    if not fitting:
        return Reason(Word.GPU_MODEL, f"{view.cluster.name} has no GPU of the kind it asks for.")
    if max(shapes[model][0] for model in fitting) < asked.gpu_count:
        said = f"No node of {view.cluster.name} has {asked.gpu_count} of these GPUs."
        return Reason(Word.NODE_TOO_SMALL, said)
    return None


def _is_large_enough(model: str, job: Job) -> bool:
    asked = job.spec.resources
    known = find_model(model)
    if known is None:
        return True
    if asked.gpu_architecture and known.architecture != asked.gpu_architecture:
        return False
    return asked.gpu_memory_mib is None or known.memory_mib >= asked.gpu_memory_mib


def _doorless(view: ClusterView, job: Job) -> Reason:
    named = f"named {job.spec.queue!r} " if job.spec.queue else ""
    return Reason(
        Word.NO_QUEUE,
        f"Its tenant has no LocalQueue {named}on {view.cluster.name} that takes "
        f"{job.spec.job_type} jobs of class {job.spec.priority}.",
        "Have an operator create one, or use another cluster or class.",
    )
