"""The loop: load the world, decide a cluster at a time, apply verdict by verdict."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gpuplane.backends.capabilities import Repartitions
from gpuplane.core.ids import ClusterId, JobId
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.scheduling.decisions import (
    Decision,
    NeedsPreemption,
    NeedsRepartition,
    Placed,
    Waiting,
)
from gpuplane.core.scheduling.memory import Memory
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.recording import Recording
from gpuplane.db.database import Database
from gpuplane.db.leases import UNFENCED, LeaseKeeper, is_current
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Doors, Job
from gpuplane.kit.clock import Clock
from gpuplane.loops.deciding.process import DecisionProcess
from gpuplane.loops.deciding.questions import WhatToStart
from gpuplane.loops.ports import Backends
from gpuplane.loops.scheduler.loading import (
    ClusterView,
    Prepared,
    World,
    candidates_of,
    find_no_cluster_reason,
    prepare,
)
from gpuplane.loops.scheduler.losing import LostModels
from gpuplane.loops.scheduler.offering import choose
from gpuplane.loops.scheduler.recorder import Recorder
from gpuplane.loops.scheduler.state import SchedulerState

log = logging.getLogger("gpuplane.scheduler")

APPLY_BATCH = 500
"""Verdicts committed together: bounds how long one unit holds the writer (about 0.2 s)."""


@dataclass(slots=True)
class CycleReport:
    """What one turn did, for `/api/v1/loops` and the tests."""

    placed: int = 0
    grown: int = 0
    offered: int = 0
    waiting: int = 0
    preempting: int = 0
    repartitioning: int = 0
    stale: int = 0
    decide_s: float = 0.0
    extra: dict[str, object] = field(default_factory=dict)


class SchedulerLoop:
    """Decides where waiting jobs run; wakes on submits, ends and changes of the fleet."""

    name = "scheduler"

    def __init__(
        self,
        database: Database,
        clock: Clock,
        leases: LeaseKeeper,
        policy: Policy,
        seed: int,
        decisions: DecisionProcess,
        period_s: float = 10.0,
        backends: Backends | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Make the loop.

        Args:
            database: Where jobs and fleets are kept.
            clock: The time.
            leases: Only who holds the scheduler's lease decides; its token fences each apply.
            policy: How to order, rank and preempt.
            seed: Breaks ties; the same seed and input give the same decision.
            decisions: Whom the decision core is asked through.
            period_s: How often it looks without being woken.
            backends: Asked whether they can cut GPUs anew; without them nothing is cut.
            recorder: Keeps what decisions were made from; None keeps nothing.
        """
        self.period_s = period_s
        self.last = CycleReport()
        self._backends = backends
        self._database = database
        self._clock = clock
        self._leases = leases
        self._token = UNFENCED
        self._policy = policy
        self._seed = seed
        self._decisions = decisions
        self._recorder = recorder
        self._state = SchedulerState()
        self._lost = LostModels()

    async def run_once(self) -> bool:
        """Decide once for every cluster and apply; True when verdicts were stale."""
        try:
            return await self._turn()
        except BaseException:
            self._state.forget()  # a turn cut short may have left half-advanced columns
            raise

    async def _turn(self) -> bool:
        lease = await self._leases.hold(self.name)
        if lease is None:
            self._state.forget()
            return False
        self._token = lease.token
        now = self._clock.now_ms()
        report = CycleReport()
        world = await self._database.read(lambda s: self._state.load(s, now))
        if damaged := self._state.damaged:
            log.error("jobs whose rows cannot be read are set aside: %s", damaged)
            await self._database.write(
                "jobs.set_damaged_aside",
                partial(jobs.set_damaged_aside, job_ids=tuple(damaged), now=now),
            )
        if world.queued or world.growing:
            await self._decide_all(world, now, report)
        await self._tell_lost(world)
        self.last = report
        if report.stale and not report.placed and not report.grown:
            # Nothing came of it: look at the database afresh, at the next wake-up or period.
            self._state.forget()
            return False
        # A service grows by one replica a turn.
        return report.stale > 0 or report.grown > 0

    async def _tell_lost(self, world: World) -> None:
        """Say of offered jobs that their queue has lost their model, or has it again."""
        said = await self._lost.find(self._database, world)
        if said:
            await self._database.write(
                "jobs.note_waiting", partial(jobs.note_waiting, waiting=said)
            )

    async def _decide_all(self, world: World, now: int, report: CycleReport) -> None:
        # For the first choice of the jobs, the second, and so on: who asks each cluster.
        by_choice: list[dict[ClusterId, list[Job]]] = []
        nowhere: list[Waiting] = []
        offers: list[jobs.NewOffer] = []
        for job in (*world.queued, *(each.piece for each in world.growing.values())):
            found = candidates_of(world, job)
            choice = choose(world, found, job, now)
            if choice.offer is not None:
                offers.append(choice.offer)
                continue
            if choice.waiting is not None:
                nowhere.append(choice.waiting)
                continue
            for turn, view in enumerate(choice.clusters):
                if turn == len(by_choice):
                    by_choice.append({})
                by_choice[turn].setdefault(view.cluster.id, []).append(job)
            if not found:
                reason = find_no_cluster_reason(world, job)
                nowhere.append(Waiting(job.id, job.version, reason, (), 0))
        await self._offer(offers, now, report)
        await self._note_waiting(nowhere, world, now)
        settled: set[JobId] = set()
        best_reason: dict[JobId, Waiting] = {}
        for turn, asked in enumerate(by_choice):
            for view in world.clusters:
                pending = asked.get(view.cluster.id, [])
                if turn:
                    pending = [job for job in pending if job.id not in settled]
                if not pending:
                    continue
                known = self._state.known(view.cluster.id, turn)
                prepared = prepare(world, view, self._state.fleet(view), pending, known)
                policy = self._policy_for(view)
                decision = await self._decide(prepared.snapshot, policy, now, report, known.memory)
                settled |= await self._apply(world, prepared, decision, policy, now, report)
                for verdict in decision.waiting:
                    best_reason.setdefault(verdict.job_id, verdict)
                for cut in decision.repartitioning:
                    best_reason.setdefault(cut.job_id, _as_waiting(cut))
                for job in prepared.doorless:
                    best_reason.setdefault(job.id, _doorless(job, view))
        left = [verdict for job_id, verdict in best_reason.items() if job_id not in settled]
        report.waiting += len(left) + len(nowhere)
        await self._note_waiting(left, world, now)

    async def _offer(self, offers: Sequence[jobs.NewOffer], now: int, report: CycleReport) -> None:
        """Hand jobs to the clusters that admit by themselves."""
        for start in range(0, len(offers), APPLY_BATCH):
            part = offers[start : start + APPLY_BATCH]
            done = await self._database.write(
                "jobs.offer", partial(_hand_over, part=part, token=self._token, now=now)
            )
            report.offered += done

    def _policy_for(self, view: ClusterView) -> Policy:
        own = clusters.policy_of(view.cluster.preemption_policy)
        limits = replace(
            self._policy.preemption,
            enabled=self._policy.preemption.enabled and own.enabled,
            min_run_s=own.min_runtime_before_preemption_s,
            per_cluster_hour=own.max_preemptions_per_hour,
            grace_s=own.grace_period_s,
        )
        return replace(self._policy, preemption=limits)

    async def _decide(
        self,
        snapshot: Snapshot,
        policy: Policy,
        now: int,
        report: CycleReport,
        memory: Memory,
    ) -> Decision:
        started = self._clock.monotonic()
        question = WhatToStart(snapshot, policy, now, self._seed, memory)
        decision = await self._decisions.ask(question)
        if memory.count_known(snapshot.pending) < len(snapshot.pending):
            # It was answered elsewhere: what is learnt here now makes the next turn cheap.
            await asyncio.to_thread(memory.learn, snapshot, policy, now)
        report.decide_s += self._clock.monotonic() - started
        if self._recorder is not None:
            recording = Recording(snapshot, policy, now, self._seed)
            await asyncio.to_thread(self._recorder.store, recording, decision)
        return decision

    async def _apply(
        self,
        world: World,
        prepared: Prepared,
        decision: Decision,
        policy: Policy,
        now: int,
        report: CycleReport,
    ) -> set[JobId]:
        """Apply placed verdicts and preemptions; return the jobs that need no other cluster."""
        settled: set[JobId] = set()
        added = [verdict for verdict in decision.placed if verdict.job_id in world.growing]
        started = [verdict for verdict in decision.placed if verdict.job_id not in world.growing]
        for part in _batches(started):
            outcome = await self._database.write(
                "jobs.admit", _admission(part, prepared.doors, self._token, now)
            )
            report.placed += len(outcome.admitted)
            report.stale += outcome.stale
            settled.update(verdict.job_id for verdict in part)
        for part in _batches(added):
            outcome = await self._database.write(
                "jobs.grow", _growth(part, world.growing, prepared.doors, self._token, now)
            )
            report.grown += len(outcome.admitted)
            report.stale += outcome.stale
            settled.update(verdict.job_id for verdict in part)
        for verdict in decision.preempting:
            await self._note_waiting(
                [
                    Waiting(
                        verdict.job_id,
                        verdict.version,
                        verdict.reason,
                        verdict.counts,
                        verdict.position,
                    )
                ],
                world,
                now,
            )
            done = await self._database.write(
                "jobs.preempt",
                partial(
                    _preempt,
                    verdict=verdict,
                    grace_s=policy.preemption.grace_s,
                    token=self._token,
                    now=now,
                ),
            )
            report.preempting += done
            report.stale += not done
            settled.add(verdict.job_id)
        for cut in decision.repartitioning:
            if not self._can_cut(cut.cluster_id) or cut.job_id in world.growing:
                continue  # no GPU is cut for one more replica: it waits for an instance
            await self._note_waiting([_as_waiting(cut)], world, now)
            asked = await self._database.write(
                "jobs.repartition",
                partial(_repartition, verdict=cut, token=self._token, now=now),
            )
            report.repartitioning += asked
            report.stale += not asked
            settled.add(cut.job_id)
        return settled

    def _can_cut(self, cluster_id: ClusterId) -> bool:
        backend = None if self._backends is None else self._backends.find(cluster_id)
        return isinstance(backend, Repartitions)

    async def _note_waiting(self, waiting: Sequence[Waiting], world: World, now: int) -> None:
        """Store why jobs and wanted replicas wait, where that is news: the rest costs nothing."""
        news = [verdict for verdict in waiting if self._state.reasons.is_news(verdict, now)]
        for start in range(0, len(news), APPLY_BATCH):
            part = news[start : start + APPLY_BATCH]
            await self._database.write(
                "jobs.note_waiting", partial(_note, part=part, growing=world.growing)
            )
            self._state.reasons.note(part, now)


def _admission(
    part: Sequence[Placed], doors: Doors, token: int, now: int
) -> Callable[[WriteSession], jobs.AdmissionReport]:
    def apply(session: WriteSession) -> jobs.AdmissionReport:
        if not is_current(session, SchedulerLoop.name, token):
            return jobs.AdmissionReport((), len(part))
        return jobs.admit(session, part, doors, now)

    return apply


def _growth(
    part: Sequence[Placed],
    growing: Mapping[JobId, jobs.Growth],
    doors: Doors,
    token: int,
    now: int,
) -> Callable[[WriteSession], jobs.AdmissionReport]:
    def apply(session: WriteSession) -> jobs.AdmissionReport:
        if not is_current(session, SchedulerLoop.name, token):
            return jobs.AdmissionReport((), len(part))
        return jobs.grow(session, part, growing, doors, now)

    return apply


def _note(
    session: WriteSession, part: Sequence[Waiting], growing: Mapping[JobId, jobs.Growth]
) -> None:
    jobs.note_waiting(session, [each for each in part if each.job_id not in growing])
    jobs.note_growth_waiting(session, [each for each in part if each.job_id in growing], growing)


def _hand_over(session: WriteSession, part: Sequence[jobs.NewOffer], token: int, now: int) -> int:
    if not is_current(session, SchedulerLoop.name, token):
        return 0
    return jobs.offer(session, part, now)


def _preempt(
    session: WriteSession, verdict: NeedsPreemption, grace_s: int, token: int, now: int
) -> bool:
    if not is_current(session, SchedulerLoop.name, token):
        return False
    return jobs.preempt(session, verdict, grace_s, now)


def _repartition(session: WriteSession, verdict: NeedsRepartition, token: int, now: int) -> bool:
    if not is_current(session, SchedulerLoop.name, token):
        return False
    return jobs.repartition(session, verdict, now)


def _as_waiting(cut: NeedsRepartition) -> Waiting:
    return Waiting(cut.job_id, cut.version, cut.reason, cut.counts, cut.position)


def _batches(placed: Sequence[Placed]) -> list[Sequence[Placed]]:
    return [placed[start : start + APPLY_BATCH] for start in range(0, len(placed), APPLY_BATCH)]


def _doorless(job: Job, view: ClusterView) -> Waiting:
    asked = f"named {job.spec.queue!r} " if job.spec.queue else ""
    reason = Reason(
        Word.NO_QUEUE,
        f"Its tenant has no LocalQueue {asked}on {view.cluster.name} that takes "
        f"{job.spec.job_type} jobs of class {job.spec.priority}.",
        "Have an operator create one, or use another cluster or class.",
    )
    return Waiting(job.id, job.version, reason, (), 0)
