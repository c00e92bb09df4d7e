"""The search for victims: the least costly set of running workloads that makes room for one.

Owns the search over quota and nodes and what is promised to whom within a cycle. A freed place is
kept for its preemptor: what is stopping is soft, it counts as taken for everyone who would start
now and as free for those who may wait for it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.ids import ClusterId, JobId
from gpuplane.core.quota.preemption import AdmittedWorkload
from gpuplane.core.quota.victims import plan_preemption
from gpuplane.core.scheduling.admission import Grant, QuotaRefusal
from gpuplane.core.scheduling.backfill import find_first
from gpuplane.core.scheduling.bench import NOT_FIT, Row
from gpuplane.core.scheduling.decisions import Receipt
from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.preemption import (
    Loss,
    NodeRights,
    as_admitted,
    as_preemptor,
    compute_loss,
    is_protected,
    loss_key,
    may_stop,
)
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import PRIORITY_VALUES

if TYPE_CHECKING:
    from gpuplane.core.scheduling.trial import Found, Trial

MAX_NODES = 64
"""Nodes for which a set of victims is worked out for one workload: those with the cheapest
victims first, so what is left out could only cost more."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running workload with what it holds and what stopping it costs."""

    running: RunningWorkload
    bench_index: int
    takes: tuple[Take, ...]
    loss: Loss
    key: tuple[int, bool, int, int, str]

    @property
    def job_id(self) -> JobId:
        return self.running.workload.job_id


@dataclass(frozen=True, slots=True)
class Plan:
    """Whom to stop and where the preemptor goes then; without victims what is stopping suffices."""

    victims: tuple[Candidate, ...]
    found: "Found"


class VictimSearch:
    """Looks for victims within one trial and remembers what it promised."""

    def __init__(self, trial: "Trial") -> None:
        self._trial = trial
        self._limits = trial.policy.preemption
        self._searches_left = self._limits.max_searches
        self._candidates: list[Candidate] | None = None
        self._soft: list[tuple[int, Take]] = []
        self._soft_workloads: list[RunningWorkload] = []
        self._chosen: set[JobId] = set()
        self._spent: dict[ClusterId, int] = dict(trial.snapshot.preempted_last_hour)

    def find_plan(self, workload: Workload) -> Plan | None:
        """Return the least costly plan that lets the workload start, or None.

        The trial is as before afterwards; `promise` counts the plan.
        """
        if not self._limits.enabled or self._searches_left <= 0:
            return None
        candidates = self._usable(workload)
        if not candidates and not self._soft:
            return None
        if not self._trial.could_ever_fit(workload):
            return None
        self._searches_left -= 1
        with self._trial.undone():
            self._release_soft()
            return self._search(workload, candidates)

    def promise(self, workload: Workload, plan: Plan) -> None:
        """Count the plan: the preemptor's place is taken, the rest of what is freed is soft."""
        fleets = [bench.fleet for bench in self._trial.benches]
        freed = [*self._soft, *_takes_of(plan.victims)]
        before = _Room.of(fleets, freed)
        for index, take in freed:
            fleets[index].release(take)
        after = _Room.of(fleets, freed)
        index = plan.found.bench_index
        for take in plan.found.spots.takes:
            fleets[index].allocate(take)
        used = _Room.of(fleets, freed)
        self._soft = list(_left_over(fleets, freed, before, after, used))
        for bench_index, take in self._soft:
            fleets[bench_index].allocate(take)
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
        found = [
            each
            for each in self._all()
            if each.job_id not in self._chosen
            and may_stop(workload, each.running.workload)
            and self._left(each.running.cluster_id) > 0
            and (workload.clusters is None or each.running.cluster_id in workload.clusters)
        ]
        return found[: self._limits.max_candidates]

    def _left(self, cluster_id: ClusterId) -> int:
        return self._limits.per_cluster_hour - self._spent.get(cluster_id, 0)

    def _all(self) -> list[Candidate]:
        if self._candidates is not None:
            return self._candidates
        trial = self._trial
        self._candidates = []
        for running, index, takes in trial.list_running():
            if running.stopping:
                self._soft += [(index, take) for take in takes]
                self._soft_workloads.append(running)
            elif not is_protected(running, self._limits, trial.now):
                loss = compute_loss(running, trial.now)
                key = loss_key(running, loss)
                self._candidates.append(Candidate(running, index, takes, loss, key))
        self._candidates.sort(key=lambda each: each.key)
        return self._candidates

    # The search, inside an undone trial.

    def _release_soft(self) -> None:
        for index, take in self._soft:
            self._trial.benches[index].fleet.release(take)
        tree = self._trial.admission.tree
        for running in self._soft_workloads:
            tree.remove_usage(running.workload.queue, running.usage, running.workload.local_queue)

    def _search(self, workload: Workload, candidates: list[Candidate]) -> Plan | None:
        found = self._probe(workload)
        if found is not None:
            return Plan((), found)
        victims = self._quota_victims(workload, candidates)
        if victims is None:
            return None
        self._release(victims)
        found = self._probe(workload)
        if found is None:
            rest = [each for each in candidates if each not in victims]
            more = self._node_victims(workload, rest)
            if more is None:
                return None
            victims = [*victims, *more]
            found = self._probe(workload)
        if found is None or not self._within_limits(victims):
            return None
        return Plan(tuple(victims), found)

    def _probe(self, workload: Workload) -> "Found | None":
        """Return the place the workload would get now, with nothing counted."""
        with self._trial.undone():
            found = self._trial.find_place(workload)
        return found if found is not None and not isinstance(found, QuotaRefusal) else None

    def _within_limits(self, victims: Sequence[Candidate]) -> bool:
        counts: dict[ClusterId, int] = {}
        for victim in victims:
            cluster = victim.running.cluster_id
            counts[cluster] = counts.get(cluster, 0) + 1
        return all(count <= self._left(cluster) for cluster, count in counts.items())

    def _quota_victims(
        self, workload: Workload, candidates: list[Candidate]
    ) -> list[Candidate] | None:
        """Return Kueue's minimal victims for the quota, [] if none are needed, None if hopeless."""
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
                admitted.setdefault(running.workload.queue, []).append(as_admitted(running))
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
        self, workload: Workload, candidates: list[Candidate]
    ) -> list[Candidate] | None:
        """Return victims whose devices make room, given quota; leaves them released."""
        answer = self._first_answer(workload)
        if not isinstance(answer, Grant):
            return None
        rights = NodeRights(self._trial.admission.tree, as_preemptor(workload, answer.usage))
        legal = [each for each in candidates if rights.allow(as_admitted(each.running))]
        if not legal:
            return None
        if workload.replicas.count == 1:
            return self._cheapest_on_one_node(workload, answer, legal)
        return self._cheapest_for_gang(workload, legal)

    def _cheapest_on_one_node(
        self, workload: Workload, grant: Grant, legal: list[Candidate]
    ) -> list[Candidate] | None:
        """Return the cheapest minimal set on any one node; legal candidates come cheapest first."""
        by_node: dict[tuple[int, int], list[Candidate]] = {}
        for each in legal:
            for node in dict.fromkeys(take.node for take in each.takes):
                by_node.setdefault((each.bench_index, node), []).append(each)
        rows: dict[int, tuple[Row, object]] = {}
        best: list[Candidate] | None = None
        tried = 0
        for (index, node), there in by_node.items():
            if tried == MAX_NODES:
                break
            if index not in rows:
                row = self._trial.benches[index].row(workload)
                rows[index] = row, self._trial.allowed_nodes(workload, index, grant)
            row, allowed = rows[index]
            if not row.suits(node) or (isinstance(allowed, np.ndarray) and not allowed[node]):
                continue
            tried += 1
            with self._trial.undone():
                victims = self._minimal_on(row, node, there)
            if victims and (best is None or _total(victims) < _total(best)):
                best = victims
        if best is not None:
            self._release(best)
        return best

    def _minimal_on(self, row: Row, node: int, there: list[Candidate]) -> list[Candidate] | None:
        """Return a minimal set of victims that lets the class fit a node."""
        taken: list[Candidate] = []
        for each in there:
            self._release([each])
            taken.append(each)
            row.refresh()
            if row.ranks[node] != NOT_FIT:
                break
        else:
            return None
        for each in reversed(taken[:-1]):
            self._put_back(each)
            row.refresh()
            if row.ranks[node] != NOT_FIT:
                taken.remove(each)
            else:
                self._release([each])
        return taken

    def _cheapest_for_gang(
        self, workload: Workload, legal: list[Candidate]
    ) -> list[Candidate] | None:
        """Return the shortest run of cheapest victims that suffices, less those not needed."""
        found = find_first(legal, lambda some: self._probe_without(workload, some))
        if found is None:
            return None
        taken = legal[: found[0]]
        for each in reversed(taken[:-1]):
            rest = [other for other in taken if other is not each]
            if self._probe_without(workload, rest) is not None:
                taken = rest
        self._release(taken)
        return taken

    def _probe_without(self, workload: Workload, victims: Sequence[Candidate]) -> "Found | None":
        with self._trial.undone():
            self._release(victims)
            return self._probe(workload)

    def _release(self, victims: Iterable[Candidate]) -> None:
        tree = self._trial.admission.tree
        for each in victims:
            fleet = self._trial.benches[each.bench_index].fleet
            for take in each.takes:
                fleet.release(take)
            running = each.running
            tree.remove_usage(running.workload.queue, running.usage, running.workload.local_queue)

    def _put_back(self, victim: Candidate) -> None:
        fleet = self._trial.benches[victim.bench_index].fleet
        for take in victim.takes:
            fleet.allocate(take)
        workload = victim.running.workload
        tree = self._trial.admission.tree
        tree.add_usage(workload.queue, victim.running.usage, workload.local_queue)


def make_receipt(preemptor: Workload, victim: Candidate) -> Receipt:
    """Return what stopping a victim costs, and why it may be."""
    workload, loss = victim.running.workload, victim.loss
    since = "its last checkpoint" if victim.running.checkpoint_at else "its start"
    return Receipt(
        job_id=workload.job_id,
        version=workload.version,
        lost_gpu_s=loss.lost_gpu_s,
        ran_s=loss.ran_s,
        rule=f"{workload.priority.value} may be stopped by {preemptor.priority.value}",
        sentence=(f"Ran {loss.ran_s} s; {loss.lost_gpu_s} GPU-seconds since {since} are lost."),
    )


def _total(victims: Sequence[Candidate]) -> tuple[int, bool, int, int, str]:
    """Return the cost of a set: the highest class in it, then what is lost, then how many."""
    return (
        max(PRIORITY_VALUES[each.running.workload.priority] for each in victims),
        any(each.loss.is_nearly_done for each in victims),
        sum(each.loss.lost_gpu_s for each in victims),
        len(victims),
        min(str(each.job_id) for each in victims),
    )


def _takes_of(victims: Iterable[Candidate]) -> list[tuple[int, Take]]:
    return [(each.bench_index, take) for each in victims for take in each.takes]


@dataclass(frozen=True, slots=True)
class _Room:
    """Free amounts of some nodes: (CPU, memory, ephemeral) and free milli per GPU."""

    node: dict[tuple[int, int], tuple[int, int, int]]
    gpus: dict[tuple[int, int], tuple[int, ...]]

    @classmethod
    def of(cls, fleets: Sequence[Fleet], freed: Iterable[tuple[int, Take]]) -> "_Room":
        node: dict[tuple[int, int], tuple[int, int, int]] = {}
        gpus: dict[tuple[int, int], tuple[int, ...]] = {}
        for index, take in freed:
            key = (index, take.node)
            if key not in node:
                fleet = fleets[index]
                node[key] = (
                    int(fleet.cpu_free[take.node]),
                    int(fleet.memory_free[take.node]),
                    int(fleet.ephemeral_free[take.node]),
                )
                gpus[key] = tuple(fleet.gpu_free_milli[:, take.node].tolist())
        return cls(node, gpus)


def _left_over(
    fleets: Sequence[Fleet],
    freed: Sequence[tuple[int, Take]],
    before: _Room,
    after: _Room,
    used: _Room,
) -> Iterable[tuple[int, Take]]:
    """Yield what was freed and not used again, so that nobody else starts on it now.

    Of what was free before and used now nothing is freed; what was used beyond that came out of
    the freed part.
    """
    for key, was in before.node.items():
        index, node = key
        left = tuple(
            max(0, (freed_now - had) - max(0, (freed_now - has) - max(0, had)))
            for had, freed_now, has in zip(was, after.node[key], used.node[key], strict=True)
        )
        yield index, Take(node, 0, 0, left[0], left[1], left[2])
        triples = zip(before.gpus[key], after.gpus[key], used.gpus[key], strict=True)
        for gpu, (had, freed_now, has) in enumerate(triples):
            milli = max(0, (freed_now - had) - max(0, (freed_now - has) - had))
            if milli:
                yield index, Take(node, 1 << gpu, milli, 0, 0, 0)
    for index, take in freed:
        if take.mig is not None and fleets[index].has_free_instance(take):
            yield index, Take(take.node, 0, 0, 0, 0, 0, take.mig)
