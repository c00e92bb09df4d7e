"""What work holds that its cluster has bound to nodes already: which devices, and what is missing.

The cluster is the truth for what runs there. What our own books say of a node or a GPU, reserved,
cordoned, ailing or full, keeps no running work out of them; a device is never counted twice.
"""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from gpuplane.backends.interface import Phase, ReplicaObservation
from gpuplane.core.fleet.facts import MigPlacement, mig_device_of
from gpuplane.core.ids import AttemptId, ClusterId, GpuId, NodeId, ReplicaId
from gpuplane.core.mig.profiles import resource_of_profile
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.rules import Job, Replica
from gpuplane.domains.jobs.rules.scaling import Usage
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import PlacementOrder, ReplicaOrder
from gpuplane.kit.ids import new_id

UNCOUNTED_AFTER_MS = 30_000
"""How long work runs on GPUs that the books give to others before it is recorded without them: what
is being stopped gives them back sooner."""
OVER = (Phase.EXITED, Phase.LOST)
NO_NODE = NodeId(UUID(int=0))
"""Where work runs on a node that is not known here."""


def runs_for_long(seen: Sequence[ReplicaObservation], now: int) -> bool:
    """Return whether work runs for so long that it is recorded without GPUs others hold."""
    began = [each.started_at for each in seen if each.started_at is not None]
    return bool(began) and now - min(began) > UNCOUNTED_AFTER_MS


def began_at(seen: Sequence[ReplicaObservation], since: int, now: int) -> int:
    """Return from when on work holds what it runs on: nobody may have looked for a while.

    The ledger takes from it only the time in which nobody else is booked on those devices.

    Args:
        seen: Its replicas.
        since: Before this it was not.
        now: The instant, where nothing tells more.
    """
    began = [each.started_at or each.ended_at for each in seen]
    known = [each for each in began if each is not None]
    return min(now, max(min(known, default=now), since))


def order_for(
    job: Job, attempt_id: AttemptId, cluster_id: ClusterId, places: Sequence[ReplicaOrder]
) -> PlacementOrder:
    """Return the order by which what work holds is recorded, as far as its nodes are known."""
    return PlacementOrder(
        attempt_id=attempt_id,
        job_id=job.id,
        tenant_id=job.tenant_id,
        project_id=job.project_id,
        cluster_id=cluster_id,
        replicas=tuple(each for each in places if each.node_id != NO_NODE),
    )


def replica_of(
    attempt_id: AttemptId, place: ReplicaOrder, node_name: str, usage: Usage | None
) -> Replica:
    """Return the row of a replica that its cluster has bound; `usage` where it scales here."""
    return Replica(
        id=place.replica_id,
        attempt_id=attempt_id,
        rank=place.rank,
        node_id=place.node_id,
        node_name=node_name,
        gpu_ids=tuple(place.gpu_ids),
        gpu_milli=place.gpu_milli,
        mig_device=None if place.mig is None else mig_device_of(place.mig),
        quota_usage=usage,
    )


def choose_places(
    session: WriteSession,
    job: Job,
    seen: Sequence[ReplicaObservation],
    known: Mapping[str, Node],
) -> tuple[ReplicaOrder, ...]:
    """Return what each replica holds: the devices that are told, else others of its node.

    Fewer than it asked for where the books say that others hold them, none where the node is not
    known here.

    Args:
        session: Where to look; what is chosen from is locked.
        job: The job.
        seen: Its replicas, as their cluster shows them.
        known: The nodes of that cluster, by name.
    """
    asked = job.spec.resources
    count = asked.gpu_count if asked.mig_profile is None else 0
    taken: dict[GpuId, int] = {}
    cut: set[MigPlacement] = set()
    places = []
    for each in seen:
        node = known.get(each.node_name)
        chosen: tuple[GpuId, ...] = ()
        instance = _choose_instance(session, job, node, each, cut)
        if instance is not None:
            cut.add(instance)
        if node is not None:
            ordered = sorted(node.gpus, key=lambda gpu: (not gpu.present, gpu.gpu_index))
            own = [gpu.gpu_id for gpu in ordered]
            told = [gpu for gpu in each.gpu_ids if gpu in own][:count]
            for part in (told, [gpu for gpu in own if gpu not in told]):
                chosen += placements.choose_running(
                    session, part, count - len(chosen), asked.gpu_milli, job.project_id, taken
                )
        for gpu in chosen:
            taken[gpu] = taken.get(gpu, 0) + asked.gpu_milli
        places.append(
            ReplicaOrder(
                replica_id=ReplicaId(new_id()),
                rank=each.rank,
                node_id=NO_NODE if node is None else node.id,
                gpu_ids=chosen,
                gpu_milli=asked.gpu_milli,
                mig=instance,
                cpu_milli=asked.cpu_milli,
                memory_mib=asked.memory_mib,
                ephemeral_mib=asked.ephemeral_mib,
            )
        )
    return tuple(places)


def choose_bookable(
    session: WriteSession,
    job: Job,
    seen: Sequence[ReplicaObservation],
    known: Mapping[str, Node],
    now: int,
) -> tuple[ReplicaOrder, ...]:
    """Return what the first of these replicas hold, up to one that cannot be recorded just now.

    The inventory of a new node is waited for, and GPUs that others hold, which work that is being
    stopped gives back. What is over waits for nothing.

    Args:
        session: Where to look; what is chosen from is locked.
        job: A service whose cluster admits each pod by itself.
        seen: Its replicas that are or were bound to a node, by rank.
        known: The nodes of the cluster, by name.
        now: The instant.
    """
    found = []
    places = choose_places(session, job, seen, known)
    for each, place in zip(seen, places, strict=True):
        is_short = bool(count_missing_gpus(job, [place])) and not runs_for_long([each], now)
        if each.phase not in OVER and (place.node_id == NO_NODE or is_short):
            break
        found.append(place)
    return tuple(found)


def _choose_instance(
    session: WriteSession,
    job: Job,
    node: Node | None,
    seen: ReplicaObservation,
    beside: Collection[MigPlacement],
) -> MigPlacement | None:
    """Return the MIG instance that a replica holds: the one that is told, else any of its node."""
    profile = job.spec.resources.mig_profile
    if profile is None or node is None:
        return None
    resource = resource_of_profile(profile)
    told = {str(each) for each in seen.gpu_ids}
    own: list[MigPlacement] = []
    for gpu in sorted(node.gpus, key=lambda gpu: gpu.gpu_index):
        for name, start in gpu.mig_instances if gpu.present else ():
            instance = MigPlacement(gpu.gpu_id, name, start)
            if resource_of_profile(name) != resource or instance in beside:
                continue
            # `GPU-…/1g.10gb/2` or `0/1g.10gb/2`, as the extender writes what it has chosen.
            names = {f"{gpu.gpu_id}/{name}/{start}", f"{gpu.gpu_index}/{name}/{start}"}
            own.insert(0 if names & told else len(own), instance)
    return placements.choose_running_instance(session, own)


def count_missing_gpus(job: Job, places: Sequence[ReplicaOrder]) -> int:
    """Return how many GPUs that it runs on are nobody's to be counted here."""
    asked = job.spec.resources
    if asked.mig_profile is not None:
        return sum(each.mig is None for each in places)
    return sum(asked.gpu_count - len(each.gpu_ids) for each in places)


def tell_missing(session: WriteSession, job: Job, number: int, missing: int, now: int) -> None:
    """Tell that an attempt of a job, by its number, runs on GPUs that the books give to others."""
    if not missing:
        return
    things = "GPUs" if job.spec.resources.mig_profile is None else "MIG instances"
    message = (
        f"{missing} of the {things} that {job.name} runs on are held by others in the books, or "
        "its node is not known: they are not counted and not paid for."
    )
    data = {"attempt": number, "gpu_count": missing}
    events.record(session, job_event(job, "job.uncounted", now, message=message, data=data))
