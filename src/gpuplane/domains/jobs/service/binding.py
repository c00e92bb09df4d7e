"""What a cluster that admits by itself has bound: an offer becomes an attempt with what it holds.

The cluster is the truth for what runs there. What our own books say of a node or a GPU, reserved,
cordoned, ailing or full, keeps no running work out of them; a device is never counted twice.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from gpuplane.backends.interface import Phase, ReplicaObservation
from gpuplane.core.fleet.facts import MigPlacement, mig_device_of
from gpuplane.core.ids import GpuId, NodeId, ReplicaId
from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.mig.profiles import resource_of_profile
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules import Attempt, Job, Replica
from gpuplane.domains.jobs.rules.offers import Offer
from gpuplane.domains.jobs.rules.scaling import find_bounds
from gpuplane.domains.jobs.service.observing import Chance, Seal, take_in
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.domains.jobs.service.timing import next_due
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import PlacementOrder, ReplicaOrder
from gpuplane.domains.usage import service as usage
from gpuplane.kit.ids import new_id

OVER = (Phase.EXITED, Phase.LOST)
UNCOUNTED_AFTER_MS = 30_000
"""How long work runs on GPUs that the books give to others before it is recorded without them: what
is being stopped gives them back sooner."""
_NO_NODE = NodeId(UUID(int=0))
"""Where work runs on a node that is not known here."""


def has_ended(
    job: Job, by_rank: Mapping[int, ReplicaObservation], *, completed: bool = False
) -> bool:
    """Return whether every rank is over and it is known how: well, if `completed` is asked."""
    ranks = [by_rank.get(rank) for rank in _ranks(job, by_rank)]
    ends = [each for each in ranks if each and each.phase in OVER and not each.forbids]
    if not ends or len(ends) < len(ranks):
        return False
    well = [each.reason == Word.COMPLETED for each in ends]
    return all(well) if completed else any(well) or any(e.exit_code is not None for e in ends)


def end(
    session: WriteSession,
    job: Job,
    found: Offer,
    by_rank: Mapping[int, ReplicaObservation],
    seal: Seal,
    chance: Chance,
    now: int,
) -> None:
    """Make an attempt of an offer that ran to its end, with what it held meanwhile, and end it."""
    known = {node.name: node for node in nodes.list_nodes(session, found.place_id)}
    places = _choose_places(session, job, found, by_rank, known)
    attempt = _attempt_of(job, found, places, known, by_rank, now)
    order = _order_of(job, found, attempt, places)
    placements.place_running(session, [order], _began_at(found, by_rank, now))
    _become(session, job, found, attempt, now)
    _tell_missing(session, job, found, _count_missing(job, places), now)
    ended = [  # what has an end had begun, though nothing may say when
        replace(each, started_at=each.started_at or each.ended_at or now)
        for each in by_rank.values()
    ]
    take_in(session, ended, seal, chance, now)


def is_bound(job: Job, by_rank: Mapping[int, ReplicaObservation]) -> bool:
    """Return whether every rank is on a node."""
    ranks = _ranks(job, by_rank)
    return bool(ranks) and all(rank in by_rank and by_rank[rank].node_name for rank in ranks)


def _ranks(job: Job, by_rank: Mapping[int, ReplicaObservation]) -> Sequence[int]:
    """Return the ranks that a job must have: of a service that scales those that are there."""
    if find_bounds(job.spec) is None:
        return range(job.spec.replicas.count)
    return sorted(r for r, each in by_rank.items() if each.reason != Word.SCALED_DOWN)


def settle(
    session: WriteSession,
    job: Job,
    found: Offer,
    by_rank: Mapping[int, ReplicaObservation],
    now: int,
) -> bool:
    """Record what a bound offer holds and make it an attempt; False to look again soon.

    It runs whatever the books say of its node. Only the inventory of a new node is waited for, and
    GPUs that others hold, which work that is being stopped gives back; what is still missing after
    a while is told.
    """
    known = {node.name: node for node in nodes.list_nodes(session, found.place_id)}
    places = _choose_places(session, job, found, by_rank, known)
    missing = _count_missing(job, places)
    if any(each.node_id == _NO_NODE for each in places):
        return False
    if missing and not _runs_for_long(by_rank, now):
        return False
    attempt = _attempt_of(job, found, places, known, by_rank, now)
    order = _order_of(job, found, attempt, places)
    at = _began_at(found, by_rank, now)
    if attempt.id not in placements.place_running(session, [order], at).placed:
        return False
    _become(session, job, found, attempt, now)
    _tell_missing(session, job, found, missing, now)
    return True


def _began_at(found: Offer, by_rank: Mapping[int, ReplicaObservation], now: int) -> int:
    """Return from when on a job holds what it runs on: nobody may have looked for a while.

    The ledger takes from it only the time in which nobody else is booked on those devices.
    """
    began = [each.started_at or each.ended_at for each in by_rank.values()]
    known = [each for each in began if each is not None]
    return min(now, max(min(known, default=now), found.offered_at))


def _runs_for_long(by_rank: Mapping[int, ReplicaObservation], now: int) -> bool:
    began = [each.started_at for each in by_rank.values() if each.started_at is not None]
    return bool(began) and now - min(began) > UNCOUNTED_AFTER_MS


def _become(session: WriteSession, job: Job, found: Offer, attempt: Attempt, now: int) -> None:
    """Store the attempt that an offer has become."""
    attempts_repository.insert_attempts(session, [attempt])
    offers_repository.delete_offers(session, [found.attempt_id])
    scheduled = replace(job, status=JobStatus.SCHEDULED, admitted_at=attempt.admitted_at)
    changes: dict[str, Any] = {
        "status": str(JobStatus.SCHEDULED),
        "condition": str(Condition.STARTING),
        "condition_at": now,
        "reason": "",
        "status_message": found.message,
        "reason_counts": None,
        "cluster_id": attempt.cluster_id,
        "queue": found.local_queue,
        "admitted_at": attempt.admitted_at,
        "current_attempt_id": attempt.id,
        "estimated_start": now,
        "due_at": next_due(scheduled, now),
    }
    repository.update_job(session, job, now, **changes)
    usage.note_queues(session, {job.id: found.local_queue})
    events.record(session, _told(job, attempt, now))


def _choose_places(
    session: WriteSession,
    job: Job,
    found: Offer,
    by_rank: Mapping[int, ReplicaObservation],
    known: Mapping[str, Node],
) -> tuple[ReplicaOrder, ...]:
    """Return what each replica holds: the devices that are told, else others of its node.

    Fewer than it asked for where the books say that others hold them, none where the node is not
    known here.
    """
    asked = job.spec.resources
    count = asked.gpu_count if asked.mig_profile is None else 0
    taken: dict[GpuId, int] = {}
    cut: set[MigPlacement] = set()
    places = []
    for rank in _ranks(job, by_rank):
        seen = by_rank[rank]
        node = known.get(seen.node_name)
        chosen: tuple[GpuId, ...] = ()
        instance = _choose_instance(session, job, node, seen, cut)
        if instance is not None:
            cut.add(instance)
        if node is not None:
            ordered = sorted(node.gpus, key=lambda gpu: (not gpu.present, gpu.gpu_index))
            own = [gpu.gpu_id for gpu in ordered]
            told = [gpu for gpu in seen.gpu_ids if gpu in own][:count]
            for part in (told, [gpu for gpu in own if gpu not in told]):
                chosen += placements.choose_running(
                    session, part, count - len(chosen), asked.gpu_milli, job.project_id, taken
                )
        for gpu in chosen:
            taken[gpu] = taken.get(gpu, 0) + asked.gpu_milli
        places.append(
            ReplicaOrder(
                replica_id=ReplicaId(new_id()),
                rank=rank,
                node_id=_NO_NODE if node is None else node.id,
                gpu_ids=chosen,
                gpu_milli=asked.gpu_milli,
                mig=instance,
                cpu_milli=asked.cpu_milli,
                memory_mib=asked.memory_mib,
                ephemeral_mib=asked.ephemeral_mib,
            )
        )
    return tuple(places)


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


def _order_of(
    job: Job, found: Offer, attempt: Attempt, places: Sequence[ReplicaOrder]
) -> PlacementOrder:
    return PlacementOrder(
        attempt_id=attempt.id,
        job_id=job.id,
        tenant_id=job.tenant_id,
        project_id=job.project_id,
        cluster_id=attempt.cluster_id,
        replicas=tuple(each for each in places if each.node_id != _NO_NODE),
    )


def _count_missing(job: Job, places: Sequence[ReplicaOrder]) -> int:
    """Return how many GPUs that it runs on are nobody's to be counted here."""
    asked = job.spec.resources
    if asked.mig_profile is not None:
        return sum(each.mig is None for each in places)
    return sum(asked.gpu_count - len(each.gpu_ids) for each in places)


def _tell_missing(session: WriteSession, job: Job, found: Offer, missing: int, now: int) -> None:
    """Tell that a job runs on GPUs that the books give to others."""
    if not missing:
        return
    things = "GPUs" if job.spec.resources.mig_profile is None else "MIG instances"
    message = (
        f"{missing} of the {things} that {job.name} runs on are held by others in the books, or "
        "its node is not known: they are not counted and not paid for."
    )
    data = {"attempt": found.number, "gpu_count": missing}
    events.record(session, job_event(job, "job.uncounted", now, message=message, data=data))


def _attempt_of(
    job: Job,
    found: Offer,
    places: Sequence[ReplicaOrder],
    known: Mapping[str, Node],
    by_rank: Mapping[int, ReplicaObservation],
    now: int,
) -> Attempt:
    names = {node.id: node.name for node in known.values()}
    began_at = _began_at(found, by_rank, now)
    admitted_at = min(began_at, max(found.offered_at, found.admitted_at or began_at))
    # Kueue's own offers name their queue: there no service scales.
    scales = not found.local_queue and find_bounds(job.spec) is not None
    replicas = tuple(
        Replica(
            id=each.replica_id,
            attempt_id=found.attempt_id,
            rank=each.rank,
            node_id=each.node_id,
            node_name=names.get(each.node_id, by_rank[each.rank].node_name),
            gpu_ids=tuple(each.gpu_ids),
            gpu_milli=each.gpu_milli,
            mig_device=None if each.mig is None else mig_device_of(each.mig),
            quota_usage=() if scales else None,
        )
        for each in places
    )
    return Attempt(
        id=found.attempt_id,
        job_id=job.id,
        number=found.number,
        epoch=found.number,
        cluster_id=found.place_id,
        state="starting",
        stop_intent=None,
        stop_reason="",
        stop_message="",
        stop_deadline=None,
        evict_sent_at=None,
        grace_s=job.spec.execution.grace_s,
        admitted_at=admitted_at,
        ensured_at=found.taken_at or found.ensured_at or now,
        started_at=None,
        ended_at=None,
        exit_code=None,
        signal=None,
        exit_reason="",
        exit_message="",
        lost_gpu_ms=None,
        cluster_queue=found.cluster_queue,
        local_queue=found.local_queue,
        quota_usage=found.usage,
        explanation=_explained(found),
        forgotten=False,
        version=1,
        replicas_wanted=len(replicas) if scales else None,
        next_rank=max(by_rank, default=-1) + 1,
        replicas=replicas,
        manager_id=None if found.worker_id is None else found.cluster_id,
    )


def _explained(found: Offer) -> dict[str, Any] | None:
    """Return why it runs there: whose choice it was, and what its Kueue said of it."""
    if found.explanation is None or found.admitted_at is None or not found.message:
        return found.explanation
    sentences = [*found.explanation.get("sentences", ()), found.message]
    return {**found.explanation, "sentences": sentences}


def _told(job: Job, attempt: Attempt, now: int) -> events.NewEvent:
    names = sorted({each.node_name for each in attempt.replicas})
    where = names[0] if len(names) == 1 else f"{len(names)} nodes"
    return job_event(
        replace(job, cluster_id=attempt.cluster_id),
        "job.scheduled",
        attempt.admitted_at,  # not when it was looked at: what began since then follows it
        actor="kueue",
        message=f"{job.name} was admitted by {attempt.cluster_queue} and bound to {where}.",
        data={
            "attempt": attempt.number,
            "from_status": str(job.status),
            "nodes": names,
            "gpu_ids": [gpu for each in attempt.replicas for gpu in each.gpu_ids],
            "mig_devices": [each.mig_device for each in attempt.replicas if each.mig_device],
            "queue": attempt.local_queue,
            "cluster_queue": attempt.cluster_queue,
            "wait_ms": now - (job.queued_at or now),
        },
    )
