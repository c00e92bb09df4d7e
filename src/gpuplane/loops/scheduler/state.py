"""What the scheduler keeps between turns, so that a turn costs as much as what changed.

Reads versions of everything and contents only of what moved; fleets are advanced by what was
taken and given back. Losing it all is no harm: the next turn reads everything again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.fleet.facts import Allocation, NodeFacts
from gpuplane.core.ids import AttemptId, ClusterId, JobId, ProjectId, TenantId
from gpuplane.core.prediction.predicting import Prediction
from gpuplane.core.scheduling.workload import RunningWorkload
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.billing import service as billing
from gpuplane.domains.billing.service import PriceBook
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterState
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Job
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import ReservationState
from gpuplane.domains.queues import service as queues
from gpuplane.loops.scheduler.known import KnownWorkloads
from gpuplane.loops.scheduler.loading import ClusterView, World, facts_basis, facts_of
from gpuplane.loops.scheduler.reasons import ToldReasons


@dataclass(frozen=True, slots=True)
class _Held:
    """An open attempt at the versions it was read at."""

    attempt_version: int
    job_version: int
    workload: RunningWorkload
    growth: jobs.Growth | None = None


@dataclass(slots=True)
class _FleetState:
    """Columns of a cluster, what they were made from, and what each attempt takes."""

    basis: tuple[object, ...]
    facts: Sequence[NodeFacts]
    fleet: Fleet
    taken: dict[AttemptId, tuple[Take, ...]] = field(default_factory=dict)
    of: dict[AttemptId, tuple[Allocation, ...]] = field(default_factory=dict)
    """What each was taken for: a service that grew or shrank takes something else."""


class SchedulerState:
    """Everything kept between turns; used by one turn at a time."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._nodes: dict[ClusterId, tuple[int, tuple[Node, ...]]] = {}
        self._queued: dict[JobId, Job] = {}
        self._held: dict[AttemptId, _Held] = {}
        self._fleets: dict[ClusterId, _FleetState] = {}
        self._known: dict[tuple[ClusterId, int], KnownWorkloads] = {}
        self._tenants: dict[TenantId, str] = {}
        self._projects: dict[ProjectId, str] = {}
        self._experience = jobs.Experience()
        self.reasons = ToldReasons()
        self.damaged: list[JobId] = []
        """Jobs of the last look that could not be read; the loop sets them aside."""

    def forget(self) -> None:
        """Drop everything, so that the next turn reads the database afresh."""
        self.__init__()  # type: ignore[misc]  # the empty state is the constructor's

    def load(self, session: ReadSession, now: int) -> World:
        """Return the world as it is, reading only what moved since the turn before."""
        self.damaged = []
        offered = jobs.list_offered_jobs(session)
        queued = tuple(job for job in self._load_queued(session) if job.id not in offered)
        self._load_held(session)
        holding: dict[ClusterId, list[RunningWorkload]] = {}
        growing: dict[JobId, jobs.Growth] = {}
        for held in self._held.values():
            if held.workload.allocations:  # a service scaled to zero holds nothing
                holding.setdefault(held.workload.cluster_id, []).append(held.workload)
            if held.growth is not None:
                growing[held.growth.piece.id] = held.growth
        self.reasons.forget_others({*self._queued, *growing})
        self._name(session, {job.tenant_id for job in queued}, {job.project_id for job in queued})
        book = billing.load_book(session)
        known = clusters.list_clusters(session)
        return World(
            queued=queued,
            holding=holding,
            clusters=tuple(
                self._load_cluster(session, cluster, book, now)
                for cluster in known
                if cluster.state is ClusterState.AVAILABLE
            ),
            closed=tuple(each for each in known if each.state is not ClusterState.AVAILABLE),
            tenants=self._tenants,
            projects=self._projects,
            choices=identity.load_cluster_choices(session),
            grants=frozenset(clusters.list_grants(session)),
            preempted=jobs.list_recent_preemptions(session, now),
            inherited=jobs.load_inherited(session),
            predictions=self._predict(session, queued),
            growing=growing,
        )

    def predict(self, session: ReadSession, job: Job) -> Prediction:
        """Return what to expect of a job that need not be stored."""
        found = self._experience.predict(session, [(job, job.requested_cluster_id)])
        return found[job.id]

    def _predict(self, session: ReadSession, queued: Sequence[Job]) -> dict[JobId, Prediction]:
        asked = [(job, job.requested_cluster_id) for job in queued]
        found = self._experience.predict(session, asked)
        self._experience.keep_only(found)
        return found

    def known(self, cluster_id: ClusterId, choice: int) -> KnownWorkloads:
        """Return what is known of the jobs that ask a cluster first, second, … (from 0)."""
        return self._known.setdefault((cluster_id, choice), KnownWorkloads())

    def fleet(self, view: ClusterView) -> Fleet:
        """Return the columns of a cluster with everything taken that is held there."""
        state, basis = self._fleets.get(view.cluster.id), facts_basis(view)
        if state is None or state.basis != basis:
            facts = facts_of(view)
            if state is None or state.facts != facts:
                state = _FleetState(basis, facts, Fleet(view.cluster.id, facts))
                self._fleets[view.cluster.id] = state
            state.basis = basis
        held = {
            attempt_id: each.workload
            for attempt_id, each in self._held.items()
            if each.workload.cluster_id == view.cluster.id
        }
        moved = [
            known
            for known in state.taken
            if known not in held or state.of[known] != held[known].allocations
        ]
        for attempt_id in moved:
            del state.of[attempt_id]
            for take in state.taken.pop(attempt_id):
                state.fleet.release(take)
        for attempt_id, workload in held.items():
            if attempt_id not in state.taken:
                state.taken[attempt_id] = _take(state.fleet, workload)
                state.of[attempt_id] = workload.allocations
        state.fleet.settle()
        return state.fleet

    def _load_queued(self, session: ReadSession) -> tuple[Job, ...]:
        versions = jobs.list_queued_versions(session)
        moved = [
            job_id
            for job_id, version in versions
            if (known := self._queued.get(job_id)) is None or known.version != version
        ]
        fresh = jobs.load_jobs(session, moved)
        self.damaged += [job_id for job_id in moved if job_id not in fresh]
        for job_id in self.damaged:
            self._queued.pop(job_id, None)
        self._queued = {
            job_id: job
            for job_id, _ in versions
            if (job := fresh.get(job_id) or self._queued.get(job_id)) is not None
        }
        return tuple(self._queued.values())

    def _load_held(self, session: ReadSession) -> None:
        rows = jobs.list_holding_versions(session)
        moved = []
        for attempt_id, attempt_version, _, job_version in rows:
            known = self._held.get(attempt_id)
            if (
                known is None
                or known.attempt_version != attempt_version
                or known.job_version != job_version
            ):
                moved.append(attempt_id)
        running = jobs.load_running(session, moved)
        self._name(
            session,
            {each.job.tenant_id for each in running},
            {each.job.project_id for each in running},
        )
        predicted = self._experience.predict(
            session, [(each.job, each.attempt.cluster_id) for each in running]
        )
        fresh = {
            each.attempt.id: _Held(
                each.attempt.version,
                each.job.version,
                jobs.running_of(
                    each,
                    self._tenants[each.job.tenant_id],
                    self._projects[each.job.project_id],
                    predicted[each.job.id],
                ),
                jobs.find_growth(each.job, each.attempt),
            )
            for each in running
        }
        job_of = {row[0]: row[2] for row in rows}
        self.damaged += [job_of[each] for each in moved if each not in fresh]
        self._held = {
            row[0]: held
            for row in rows
            if (held := fresh.get(row[0]) or self._held.get(row[0])) is not None
        }

    def _name(self, session: ReadSession, tenants: set[TenantId], projects: set[ProjectId]) -> None:
        new_tenants = tenants - self._tenants.keys()
        if new_tenants:
            found = identity.tenants_by_ids(session, new_tenants)
            self._tenants |= {
                key: found[key].name if key in found else str(key) for key in new_tenants
            }
        new_projects = projects - self._projects.keys()
        if new_projects:
            named = identity.projects_by_ids(session, new_projects)
            self._projects |= {
                key: named[key].name if key in named else str(key) for key in new_projects
            }

    def _load_cluster(
        self, session: ReadSession, cluster: Cluster, book: PriceBook, now: int
    ) -> ClusterView:
        cached = self._nodes.get(cluster.id)
        if cached is None or cached[0] != cluster.inventory_generation:
            found = tuple(n for n in nodes.list_nodes(session, cluster.id) if n.present)
            cached = (cluster.inventory_generation, found)
            self._nodes[cluster.id] = cached
        prices = {
            model: price.price_micro
            for model in cluster.gpu_shapes
            if (price := book.find_price(cluster.id, model, now)) is not None
        }
        return ClusterView(
            cluster=cluster,
            nodes=cached[1],
            windows=clusters.list_maintenance(session, cluster.id, now),
            reserved=placements.reserved_devices(session, cluster.id),
            cuts=placements.list_repartitions(session, cluster.id),
            usable=placements.usable_reservations(session, cluster.id),
            queues=queues.load_specs(session, cluster.id),
            upcoming=placements.list_reservations(
                session, cluster_id=cluster.id, states=(ReservationState.SCHEDULED,)
            ),
            prices=prices,
            seen=_load_seen(session, cluster),
        )


def _take(fleet: Fleet, workload: RunningWorkload) -> tuple[Take, ...]:
    """Take what a workload holds from the columns; nodes that are gone hold nothing here."""
    takes = tuple(
        fleet.take_of(each) for each in workload.allocations if each.node_id in fleet.index
    )
    for take in takes:
        fleet.allocate(take)
    return takes


def _load_seen(session: ReadSession, cluster: Cluster) -> tuple[queues.Seen, ...]:
    if not queues.admits_itself(cluster):
        return ()
    kinds = (
        queues.SeenKind.CLUSTER_QUEUE,
        queues.SeenKind.FLAVOR,
        queues.SeenKind.TOPOLOGY,
    )
    return tuple(each for kind in kinds for each in queues.list_seen(session, cluster.id, kind))
