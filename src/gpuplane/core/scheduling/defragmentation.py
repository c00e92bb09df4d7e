"""The plan of moves that lets pending workloads start where GPUs are free but badly spread.

Owns who may be moved for whom, what a move costs, and the plan with its gain. The search is
`relocation`'s, quota and places are the cycle's own. Carries nothing out: a move is a workload that
is stopped here and started again there from its last checkpoint.

Who moves: workloads of one replica, not CRITICAL, not marked as unmovable (`preemptible: false`),
not of a higher class than the one that gains, past the least run time and not nearly done, tied to
no other job by affinity and to no reservation. Each moves at most once in a plan.

Source: production scenarios, section 16 (on demand before a large job, or in quiet hours: move work
of low priority off fragmented nodes, keep CRITICAL where it is).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Bools, Fleet, Take
from gpuplane.core.fleet.facts import Allocation, MigPlacement
from gpuplane.core.ids import ClusterId, JobId
from gpuplane.core.scheduling.admission import Grant
from gpuplane.core.scheduling.devices import choose_devices
from gpuplane.core.scheduling.gates import find_gate
from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.preemption import compute_loss, is_protected
from gpuplane.core.scheduling.relocation import Quest, Relocation, RelocationSearch, Tenants
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import PRIORITY_VALUES, Priority, ReplicaRequest


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """How much a plan may disturb.

    Args:
        max_moves: Most moves of the plan: each stops someone's work.
        max_moves_each: Most moves for one replica that gains.
        max_lost_s: Most GPU-seconds lost for each GPU that a replica gains: an hour, as long as the
            work that is started should at least run.
        max_workloads: Most pending workloads looked at: bounds the search.
    """

    max_moves: int = 50
    max_moves_each: int = 4
    max_lost_s: int = 3600
    max_workloads: int = 1000


@dataclass(frozen=True, slots=True)
class Move:
    """Stop a workload here and start it there.

    Args:
        lost_gpu_s: GPU-seconds since its last checkpoint, or since its start.
    """

    job_id: JobId
    version: int
    cluster_id: ClusterId
    source: Allocation
    target: Allocation
    lost_gpu_s: int


@dataclass(frozen=True, slots=True)
class Gain:
    """A pending workload that can start once moves are done.

    Args:
        gpu_milli: GPU share that it gets, over all its replicas.
        after_moves: How many moves, from the first, have to be done before.
    """

    job_id: JobId
    version: int
    cluster_id: ClusterId
    allocations: tuple[Allocation, ...]
    gpu_milli: int
    after_moves: int


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Moves in the order in which they are possible, and what they are good for.

    Args:
        starts: What fits without moves and is taken as started before them.
    """

    generation: int
    now: int
    starts: tuple[Gain, ...]
    moves: tuple[Move, ...]
    gains: tuple[Gain, ...]

    @property
    def gained_gpu_milli(self) -> int:
        """GPU share that is put to use."""
        return sum(gain.gpu_milli for gain in self.gains)

    @property
    def lost_gpu_s(self) -> int:
        """GPU-seconds of work thrown away."""
        return sum(move.lost_gpu_s for move in self.moves)


def plan_defragmentation(
    snapshot: Snapshot, policy: Policy, now: int, seed: int, limits: MoveLimits | None = None
) -> MovePlan:
    """Return the moves that let pending workloads start that fit nowhere as it is.

    What fits without moves is taken as started, as the next cycle would do. A plan that was carried
    out and planned again gives no further moves, unless a limit ended the first one.

    Args:
        snapshot: As for a cycle; it is the same before and after. A large job that is still to come
            can be given as pending.
        policy: How nodes are ranked, and whom preemption spares.
        now: The instant of the plan, in ms since the epoch.
        seed: Of the policy `random`.
        limits: How much the plan may disturb.
    """
    with Trial(snapshot, policy, now, seed) as trial:
        planner = _Planner(trial, limits or MoveLimits())
        planner.run(_list_wishes(trial, planner.limits))
    return MovePlan(
        snapshot.generation,
        now,
        tuple(planner.starts),
        tuple(planner.moves),
        tuple(planner.gains),
    )


def _list_wishes(trial: Trial, limits: MoveLimits) -> list[Workload]:
    """Return who may start now, in the order of their turn: class, size, age, id."""
    wishes = [
        workload
        for workload in trial.snapshot.pending
        if find_gate(workload, trial.snapshot, trial.admission, trial.now) is None
    ]
    wishes.sort(
        key=lambda each: (
            -PRIORITY_VALUES[each.priority],
            -_gpu_milli(each, 1),
            each.queued_at,
            each.job_id.int,
        )
    )
    return wishes[: limits.max_workloads]


class _Planner:
    """One plan in the making, on a trial's fleets."""

    def __init__(self, trial: Trial, limits: MoveLimits) -> None:
        self.limits = limits
        self.starts: list[Gain] = []
        self.moves: list[Move] = []
        self.gains: list[Gain] = []
        self._trial = trial
        self._running: list[dict[int, RunningWorkload]] = [{} for _ in trial.benches]
        self._tenants = [Tenants() for _ in trial.benches]
        self._masks: dict[JobId, Bools | None] = {}
        self._searches = [
            RelocationSearch(bench, tenants, lambda workload: self._masks.get(workload.job_id))
            for bench, tenants in zip(trial.benches, self._tenants, strict=True)
        ]
        self._add_tenants()

    def _add_tenants(self) -> None:
        trial = self._trial
        tied = _list_tied(trial.snapshot)
        for running, index, takes in trial.list_running():
            workload = running.workload
            if len(takes) != 1 or workload.job_id in tied:
                continue
            if not self._is_movable(running, trial.benches[index].fleet, takes[0]):
                continue
            flavors = tuple(sorted({pair.flavor for pair in running.usage}))
            mask = trial.admission.flavor_nodes(flavors, index) if flavors else None
            number = self._tenants[index].add(
                workload,
                takes[0],
                loss_gpu_s=compute_loss(running, trial.now).lost_gpu_s,
                value=PRIORITY_VALUES[workload.priority],
                group=repr(flavors),
            )
            self._running[index][number] = running
            self._masks[workload.job_id] = mask

    def _is_movable(self, running: RunningWorkload, fleet: Fleet, take: Take) -> bool:
        workload = running.workload
        if workload.priority is Priority.CRITICAL or workload.preemptible is False:
            return False
        if is_protected(running, self._trial.policy.preemption, self._trial.now):
            return False
        if workload.reservation_id is not None or workload.replicas.count != 1:
            return False
        # What holds a device that the facts no longer show cannot be given back as a whole.
        whole = _allocation_of(workload.job_id, fleet, take)
        held = running.allocations[0]
        if (whole.gpu_ids, whole.mig) != (held.gpu_ids, held.mig):
            return False
        return not compute_loss(running, self._trial.now).is_nearly_done

    def run(self, wishes: list[Workload]) -> None:
        """Go through the wishes again and again until nothing more is gained."""
        left = [each for each in wishes if not self._starts(each)]
        while left:
            before = len(left)
            left = [each for each in left if not (self._starts(each) or self._move_for(each))]
            if len(left) == before:
                return

    def _starts(self, workload: Workload) -> bool:
        """Start a workload that fits as it is; after a move that is a gain."""
        found = self._trial.find_place(workload)
        if not isinstance(found, Found):
            return False
        self._trial.note_started(workload, found)
        self._note_started(workload, found, self.gains if self.moves else self.starts)
        return True

    def _note_started(self, workload: Workload, found: Found, noted: list[Gain]) -> None:
        fleet = self._trial.benches[found.bench_index].fleet
        takes = found.spots.takes
        noted.append(
            Gain(
                workload.job_id,
                workload.version,
                fleet.cluster_id,
                tuple(
                    _allocation_of(workload.job_id, fleet, take, rank)
                    for rank, take in enumerate(takes)
                ),
                _gpu_milli(workload, len(takes)),
                len(self.moves),
            )
        )

    def _move_for(self, workload: Workload) -> bool:
        """Make room for a workload by moves, and start it; nothing is left of a failure."""
        if not workload.resources.gpu_count or len(self.moves) >= self.limits.max_moves:
            return False
        needed = needed_replicas(workload.replicas)
        for answer in self._trial.admission.grants(workload, needed):
            if not isinstance(answer, Grant):
                return False
            for index, bench in enumerate(self._trial.benches):
                if self._trial.may_use(workload, bench.fleet) and self._move_on(
                    workload, index, answer, needed
                ):
                    return True
        return False

    def _move_on(self, workload: Workload, index: int, grant: Grant, needed: int) -> bool:
        fleet, search = self._trial.benches[index].fleet, self._searches[index]
        mark, fleet_mark = len(search.moves), fleet.checkpoint()
        self._masks[workload.job_id] = self._trial.allowed_nodes(workload, index, grant)
        held = self._hold_replicas(workload, index, grant, needed)
        if held is not None:
            for take in held:
                fleet.release(take)
            found = self._trial.find_place(workload)
            if isinstance(found, Found):
                self._keep(index, search.moves[mark:])
                self._trial.note_started(workload, found)
                self._note_started(workload, found, self.gains)
                return True
        for move in search.moves[mark:]:
            self._tenants[index].free(move.tenant)
        search.rollback(mark, fleet_mark)
        return False

    def _hold_replicas(
        self, workload: Workload, index: int, grant: Grant, needed: int
    ) -> list[Take] | None:
        """Take room for the replicas one by one, made by moves where there is none."""
        bench, search = self._trial.benches[index], self._searches[index]
        alone = replace(workload, replicas=ReplicaRequest())
        group = repr(grant.flavors)
        if workload.placement.co_locate_with or workload.placement.separate_from:
            group = f"{group} of {workload.job_id}"
        held: list[Take] = []
        began = len(search.moves)
        for _ in range(needed):
            row = bench.row(alone)
            best = row.find_best(self._masks[workload.job_id])
            if best is None:
                done = len(search.moves) - began
                left = self.limits.max_moves - len(self.moves) - done
                quest = Quest(
                    PRIORITY_VALUES[workload.priority],
                    min(left, self.limits.max_moves_each),
                    self.limits.max_lost_s * _gpu_milli(workload, 1) // WHOLE_GPU_MILLI,
                )
                mark = len(search.moves)
                if left <= 0 or not search.make_room(alone, quest, group):
                    return None
                for move in search.moves[mark:]:
                    self._tenants[index].keep(move.tenant)  # who moved once stays where it is
                row = bench.row(alone)
                best = row.find_best(self._masks[workload.job_id])
                assert best is not None, "room was made"
            take = choose_devices(row, best[0])
            bench.fleet.allocate(take)
            held.append(take)
        return held

    def _keep(self, index: int, moved: Iterable[Relocation]) -> None:
        """Write moves down."""
        fleet = self._trial.benches[index].fleet
        for each in moved:
            running = self._running[index][each.tenant]
            workload = running.workload
            self.moves.append(
                Move(
                    workload.job_id,
                    workload.version,
                    fleet.cluster_id,
                    running.allocations[0],
                    _allocation_of(workload.job_id, fleet, each.target),
                    compute_loss(running, self._trial.now).lost_gpu_s,
                )
            )


def _list_tied(snapshot: Snapshot) -> set[JobId]:
    """Return the jobs that name others, or that others name, as near or apart."""
    tied: set[JobId] = set()
    for workload in [*snapshot.pending, *(each.workload for each in snapshot.running)]:
        named = (*workload.placement.co_locate_with, *workload.placement.separate_from)
        if named:
            tied.add(workload.job_id)
            tied.update(JobId(other) for other in named)
    return tied


def _gpu_milli(workload: Workload, replicas: int) -> int:
    resources = workload.resources
    return resources.gpu_count * resources.gpu_milli * replicas


def _allocation_of(job_id: JobId, fleet: Fleet, take: Take, rank: int = 0) -> Allocation:
    mask, mig = take.gpu_mask, None
    if take.mig is not None:
        gpu, profile, start = take.mig
        mask = 1 << gpu
        mig = MigPlacement(fleet.gpu_ids_of(take.node, mask)[0], profile, start)
    return Allocation(
        job_id,
        fleet.nodes[take.node].node_id,
        rank,
        fleet.gpu_ids_of(take.node, mask),
        take.gpu_milli,
        mig,
        take.cpu_milli,
        take.memory_mib,
        take.ephemeral_mib,
    )
