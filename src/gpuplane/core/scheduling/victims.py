"""The search for victims: the least costly set of running workloads that makes room for one.

Owns the search over quota and nodes and what is promised to whom within a cycle. A freed place is
kept for its preemptor: what is stopping is soft, it counts as taken for everyone who would start
now and as free for those who may wait for it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuplane.core.fleet.columns import Take
from gpuplane.core.ids import ClusterId, JobId
from gpuplane.core.quota.preemption import AdmittedWorkload
from gpuplane.core.quota.victims import plan_preemption
from gpuplane.core.scheduling.admission import Grant, QuotaRefusal
from gpuplane.core.scheduling.decisions import Receipt
from gpuplane.core.scheduling.pieces import Piece
from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.preemption import (
    Loss,
    NodeRights,
    as_admitted,
    as_preemptor,
    compute_loss,
    is_protected,
    loss_key,
    loss_measure,
    may_stop,
)
from gpuplane.core.scheduling.quota_sets import QuotaSets
from gpuplane.core.scheduling.room import (
    find_cheapest_set,
    probe_place,
    release_parts,
    swap_parts,
)
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import PRIORITY_VALUES, Priority


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running workload with what it holds and what stopping it costs."""

    running: RunningWorkload
    loss: Loss
    piece: Piece

    @property
    def job_id(self) -> JobId:
        return self.running.workload.job_id


@dataclass(frozen=True, slots=True)
class Plan:
    """Whom to stop and where the preemptor goes then.

    Args:
        victims: Whom to stop; nobody when what is stopping already suffices.
        soft: What is stopping already and is given to this workload.
    """

    victims: tuple[Candidate, ...]
    soft: tuple[Piece, ...]
    found: Found


class VictimSearch:
    """Looks for victims within one trial and remembers what it promised."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._limits = trial.policy.preemption
        self._searches_left = self._limits.max_searches
        self._candidates: list[Candidate] | None = None
        stopping = trial.list_stopping()
        self._soft = [
            _piece_of(running, compute_loss(running, trial.now), index, takes)
            for running, index, takes in stopping
        ]
        self._soft.sort(key=lambda piece: piece.key)
        self._soft_workloads = [running for running, _, _ in stopping]
        self._chosen: set[JobId] = set()
        self._nobody: set[tuple[Priority, bool | None, tuple[ClusterId, ...] | None]] = set()
        self._spent: dict[ClusterId, int] = dict(trial.snapshot.preempted_last_hour)

    def find_plan(self, workload: Workload) -> Plan | None:
        """Return the least costly plan that lets the workload start, or None.

        What is stopping already is used before anyone else is stopped. The trial is as before
        afterwards; `promise` counts the plan.
        """
        if not self._limits.enabled or self._searches_left <= 0:
            return None
        asker = (workload.priority, workload.preempts_others, workload.clusters)
        if asker in self._nobody:
            return None
        candidates = self._usable(workload)
        # What stops was stopped for somebody who may stop it: nobody else waits for it.
        soft = [piece for piece in self._soft if may_stop(workload, piece.owner.workload)]
        stopping = [each for each in self._soft_workloads if may_stop(workload, each.workload)]
        if not candidates and not soft and not stopping:
            # Whom this one may not stop now is not stopped for it later in the cycle either.
            self._nobody.add(asker)
            return None
        if not self._trial.could_ever_fit(workload):
            return None
        self._searches_left -= 1
        with self._trial.undone():
            self._give_back(stopping)
            if soft or stopping:
                plan = self._plan_without_victims(workload, soft)
                if plan is not None:
                    return plan
            release_parts(self._trial, soft)
            return self._plan_with_victims(workload, candidates, soft)

    def is_hopeless(self, workload: Workload) -> bool:
        """Tell whether it is known that nobody is stopped for such a workload in this cycle."""
        if not self._limits.enabled or self._searches_left <= 0:
            return True
        return (workload.priority, workload.preempts_others, workload.clusters) in self._nobody

    def promise(self, workload: Workload, plan: Plan) -> None:
        """Count the plan: the preemptor's place is taken, the rest of what is freed is soft."""
        used = set(plan.soft)
        kept = [piece for piece in self._soft if piece not in used]
        freed = [*plan.soft, *(each.piece for each in plan.victims)]
        self._soft = kept + swap_parts(self._trial, freed, plan.found)
        self._soft.sort(key=lambda piece: piece.key)
        usage = plan.found.grant.usage
        self._trial.admission.tree.add_usage(workload.queue, usage, workload.local_queue)
        for victim in plan.victims:
            self._chosen.add(victim.job_id)
            self._soft_workloads.append(victim.running)
            cluster = victim.running.cluster_id
            self._spent[cluster] = self._spent.get(cluster, 0) + 1

    # Candidates.

    def _usable(self, workload: Workload) -> list[Candidate]:
        """Return whom the table lets this workload stop, cheapest first."""
        is_open = {each: self._left(each) > 0 for each in self._clusters(workload)}
        if not any(is_open.values()):
            return []
        everyone = self._all()
        # They stand by class, lowest first: nobody from the workload's own class on may be stopped.
        own = PRIORITY_VALUES[workload.priority]
        lower = bisect_left(everyone, own, key=lambda each: each.piece.key[0])
        found = [
            each
            for each in everyone[:lower]
            if is_open.get(each.running.cluster_id, False)
            and each.job_id not in self._chosen
            and may_stop(workload, each.running.workload)
        ]
        return found[: self._limits.max_candidates]

    def _clusters(self, workload: Workload) -> list[ClusterId]:
        fleets = [bench.fleet for bench in self._trial.benches]
        return [fleet.cluster_id for fleet in fleets if self._trial.may_use(workload, fleet)]

    def _left(self, cluster_id: ClusterId) -> int:
        return self._limits.per_cluster_hour - self._spent.get(cluster_id, 0)

    def _all(self) -> list[Candidate]:
        if self._candidates is not None:
            return self._candidates
        trial = self._trial
        self._candidates = [
            Candidate(running, loss, _piece_of(running, loss, index, takes))
            for running, index, takes in trial.list_running()
            if not is_protected(running, self._limits, trial.now)
            for loss in [compute_loss(running, trial.now)]
        ]
        self._candidates.sort(key=lambda each: each.piece.key)
        return self._candidates

    # The search, inside an undone trial.

    def _plan_without_victims(self, workload: Workload, soft: list[Piece]) -> Plan | None:
        """Return a plan with what is stopping already; its quota is given back, its nodes not.

        The same search that chose the victims finds them again while they stop.
        """
        found = probe_place(self._trial, workload)
        if found is not None:
            return Plan((), (), found)
        grant = self._first_answer(workload)
        if not isinstance(grant, Grant):
            return None
        chosen = find_cheapest_set(self._trial, workload, grant, soft)
        if chosen is None:
            return None
        found = self._probe_without(workload, chosen)
        return None if found is None else Plan((), tuple(chosen), found)

    def _plan_with_victims(
        self, workload: Workload, candidates: list[Candidate], soft: list[Piece]
    ) -> Plan | None:
        """Return a plan with victims; everything soft is given back already."""
        victims = self._quota_victims(workload, candidates)
        if victims is None:
            return None
        chosen = self._complete(workload, candidates, victims)
        if chosen is None:
            return None
        pieces, found = chosen
        by_piece = {each.piece: each for each in candidates}
        return Plan(tuple(by_piece[piece] for piece in pieces), tuple(soft), found)

    def _complete(
        self, workload: Workload, candidates: list[Candidate], victims: list[Candidate]
    ) -> tuple[list[Piece], Found] | None:
        """Return the victims for quota with those who make room, or others that keep the limit.

        Who was chosen for quota alone may be spared where those who make room give quota too.
        """
        chosen = [each.piece for each in victims]
        if not self._within_limits(victims):
            return self._open_sets(workload, candidates).find()
        with self._trial.undone():
            self._give_back(each.running for each in victims)
            found = probe_place(self._trial, workload)
            if found is not None:
                return chosen, found
            release_parts(self._trial, chosen)
            more = self._node_victims(workload, candidates, victims, is_limited=True)
            if more is not None:
                found = self._probe_without(workload, [each.piece for each in more])
            elif not victims:
                return None
            elif self._node_victims(workload, candidates, victims, is_limited=False) is None:
                return None  # it is not the limit that stands in the way
        if more is None:
            return self._open_sets(workload, candidates).find()
        chosen += [each.piece for each in more]
        if victims and more:
            spared = self._open_sets(workload, [*victims, *more]).spare(chosen)
            if spared is not None:
                return spared
        return None if found is None else (chosen, found)

    def _open_sets(self, workload: Workload, candidates: list[Candidate]) -> QuotaSets:
        """Return the sets of these candidates that could give quota and room."""
        answer = self._first_answer(workload)
        assert isinstance(answer, QuotaRefusal), "who has quota needs no victims for it"
        admitted = {each.piece: self._admitted(each.running) for each in candidates}
        left = {each: self._left(each) for each in self._clusters(workload)}
        return QuotaSets(self._trial, workload, answer.usage, admitted, left)

    def _probe_without(self, workload: Workload, pieces: Sequence[Piece]) -> Found | None:
        with self._trial.undone():
            release_parts(self._trial, pieces)
            return probe_place(self._trial, workload)

    def _within_limits(self, victims: Sequence[Candidate]) -> bool:
        counts: dict[ClusterId, int] = {}
        for victim in victims:
            cluster = victim.running.cluster_id
            counts[cluster] = counts.get(cluster, 0) + 1
        return all(count <= self._left(cluster) for cluster, count in counts.items())

    def _quota_victims(
        self, workload: Workload, candidates: list[Candidate]
    ) -> list[Candidate] | None:
        """Return Kueue's minimal victims for the quota, [] if none are needed, None if hopeless.

        They are taken in Kueue's order (other queues first, then lower classes), where the loss
        decides among equals: none can be spared, and another set may lose less in sum.
        """
        answer = self._first_answer(workload)
        if isinstance(answer, Grant):
            return []
        if answer is None or answer.is_final or not answer.usage:
            return None
        by_id = {str(each.job_id): each for each in candidates}
        admitted: dict[str, list[AdmittedWorkload]] = {}
        soft = {each.workload.job_id for each in self._soft_workloads}
        for running, _, _ in self._trial.list_running():
            if running.workload.job_id not in soft:
                admitted.setdefault(running.workload.queue, []).append(self._admitted(running))
        targets = plan_preemption(
            self._trial.admission.tree,
            as_preemptor(workload, answer.usage),
            admitted,
            permit=lambda each: each.id in by_id,
        )
        return [by_id[target.workload.id] for target in targets] or None

    def _first_answer(self, workload: Workload) -> Grant | QuotaRefusal | None:
        replicas = needed_replicas(workload.replicas)
        return next(iter(self._trial.admission.grants(workload, replicas)), None)

    def _node_victims(
        self,
        workload: Workload,
        candidates: list[Candidate],
        taken: list[Candidate],
        *,
        is_limited: bool,
    ) -> list[Candidate] | None:
        """Return further victims whose devices make room, given quota; [] if none are needed.

        Args:
            workload: What needs room.
            candidates: Whom the table lets it stop.
            taken: Who is stopped for the quota already.
            is_limited: Whether the limit of the hour is kept, or asked what would be without it.
        """
        if probe_place(self._trial, workload) is not None:
            return []
        answer = self._first_answer(workload)
        if not isinstance(answer, Grant):
            return None
        preemptor = as_preemptor(workload, answer.usage)
        rights = NodeRights(self._trial.admission.tree, preemptor, workload.tenant)
        gone = {each.job_id for each in taken}
        legal = {
            each.piece: each
            for each in candidates
            if each.job_id not in gone and rights.allow(each.running)
        }
        if not legal:
            return None
        left = {each: self._left(each) for each in self._clusters(workload)}
        for each in taken:
            left[each.running.cluster_id] -= 1
        most = left if is_limited else None
        chosen = find_cheapest_set(self._trial, workload, answer, list(legal), most)
        return None if chosen is None else [legal[piece] for piece in chosen]

    def _admitted(self, running: RunningWorkload) -> AdmittedWorkload:
        workload = running.workload
        door = self._trial.admission.find_counted_door(workload.local_queue, workload.queue)
        if not self._limits.by_loss:
            return as_admitted(running, door)
        loss = loss_measure(compute_loss(running, self._trial.now))
        return as_admitted(running, door, loss)

    def _give_back(self, workloads: Iterable[RunningWorkload]) -> None:
        """Give back quota; what is on nodes stays."""
        admission = self._trial.admission
        for running in workloads:
            queue = running.workload.queue
            door = admission.find_counted_door(running.workload.local_queue, queue)
            admission.give_back(queue, running.usage, door)


def _piece_of(running: RunningWorkload, loss: Loss, index: int, takes: Sequence[Take]) -> Piece:
    return Piece(loss_key(running, loss), tuple((index, take) for take in takes), running)


def make_receipt(preemptor: Workload, victim: Candidate) -> Receipt:
    """Return what stopping a victim costs, and why it may be."""
    workload, loss = victim.running.workload, victim.loss
    written = victim.running.checkpoint_at
    # One that an earlier attempt wrote is older than this start: what ran before is not lost.
    is_since_start = written is None or written <= victim.running.started_at
    since = "its start" if is_since_start else "its last checkpoint"
    return Receipt(
        job_id=workload.job_id,
        version=workload.version,
        lost_gpu_s=loss.lost_gpu_s,
        ran_s=loss.ran_s,
        rule=f"{workload.priority.value} may be stopped by {preemptor.priority.value}",
        sentence=(f"Ran {loss.ran_s} s; {loss.lost_gpu_s} GPU-seconds since {since} are lost."),
    )
