"""The cycle run forward: an event clock on which work ends and waiting work starts.

Owns one run at one quantile of durations. Uses the very code of a cycle, so a forecast cannot
drift from what the scheduler does. Preemption is decided on in the first instant, and carried out
then, or once those are old enough whom it stops; whom later preemptors would stop depends on work
that is not there yet.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import Take
from gpuplane.core.forecast.estimates import ForecastLimits, durations_of, expected_end
from gpuplane.core.ids import JobId
from gpuplane.core.prediction.durations import Durations, Quantile
from gpuplane.core.scheduling.admission import Usage
from gpuplane.core.scheduling.cycle import take_turns
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.gates import find_gate
from gpuplane.core.scheduling.judge import Judge
from gpuplane.core.scheduling.ordering import compute_entry, group_entries
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.protection import Opening
from gpuplane.core.scheduling.trial import Trial
from gpuplane.core.scheduling.windows import find_fitting_window
from gpuplane.core.scheduling.workload import Workload


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of the clock found.

    Args:
        starts: When each workload starts, in ms.
        waited_for: The last workload that ended before each start, if it had to wait for one.
    """

    starts: Mapping[JobId, int]
    waited_for: Mapping[JobId, JobId]
    events: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class _Holding:
    workload: Workload
    bench_index: int
    takes: tuple[Take, ...]
    usage: Usage
    local_queue: str | None


class _Clock:
    def __init__(
        self,
        trial: Trial,
        quantile: Quantile,
        now: int,
        openings: Mapping[JobId, Opening],
    ) -> None:
        self.trial = trial
        self.now = now
        self.pending: dict[JobId, Workload] = {}
        self.starts: dict[JobId, int] = {}
        self.waited_for: dict[JobId, JobId] = {}
        self.events = 0
        self._quantile = quantile
        self._ends: list[tuple[int, str, JobId]] = []
        self._holding: dict[JobId, _Holding] = {}
        self._due: dict[JobId, int] = {}
        self._openings = sorted((each.at, str(job), job) for job, each in openings.items())
        self._victims = {job: each.victims for job, each in openings.items()}
        self._last_end: JobId | None = None
        self._requeued: frozenset[JobId] = frozenset()

    def durations_of(self, workload: Workload) -> Durations:
        return durations_of(workload, self.trial.policy.default_duration_s)

    def load_running(self, stopped: Mapping[JobId, int], victims: frozenset[JobId]) -> None:
        """Put the ends of running work on the clock.

        Args:
            stopped: When what is asked to stop is over, earlier than it would be.
            victims: Those of them that go back into their queue.
        """
        self._requeued = victims
        for running, index, takes in self.trial.list_running():
            workload = running.workload
            ends_at = stopped.get(workload.job_id)
            if ends_at is None:
                durations = self.durations_of(workload)
                ends_at = expected_end(running, durations, self._quantile, self.now)
            door = self.trial.admission.find_counted_door(workload.local_queue, workload.queue)
            self._hold(_Holding(workload, index, takes, running.usage, door), ends_at)

    def play_cycle(self) -> None:
        """Start whatever the scheduler would start now."""
        trial, policy = self.trial, self.trial.policy
        trial.advance(self.now)
        entries = [
            compute_entry(workload, policy.boosts, self.now, trial.owners)
            for workload in self.pending.values()
            if wakes_at(workload, self.now) <= self.now
            and find_gate(workload, trial.snapshot, trial.admission, self.now) is None
        ]
        take_turns(trial, Judge(trial), group_entries(entries), entries)
        for workload, found in trial.started:
            del self.pending[workload.job_id]
            self.starts[workload.job_id] = self.now
            if self._last_end is not None:
                self.waited_for[workload.job_id] = self._last_end
            holding = _Holding(
                workload,
                found.bench_index,
                found.spots.takes,
                found.grant.usage,
                workload.local_queue,
            )
            lasts_s = self.durations_of(workload).at(self._quantile)
            self._hold(holding, self.now + lasts_s * MS_PER_S)

    def go_on(self) -> bool:
        """Advance to the next end or opening; False when nothing more will happen."""
        times = [wakes_at(workload, self.now) for workload in self.pending.values()]
        times += [each.end_at for each in self.trial.snapshot.reservations]
        upcoming = [time for time in times if time > self.now]
        if self._openings:
            upcoming.append(self._openings[0][0])
        if self._ends:
            upcoming.append(self._ends[0][0])
        if not upcoming:
            return False
        self.now = max(self.now, min(upcoming))
        while self._openings and self._openings[0][0] <= self.now:
            self._stop_for(self._openings.pop(0)[2])
        while self._ends and self._ends[0][0] <= self.now:
            ends_at, _, job_id = heapq.heappop(self._ends)
            if self._due.get(job_id) == ends_at:
                self._end(job_id)
        return True

    def _stop_for(self, preemptor: JobId) -> None:
        """Have those stopped that have become old enough for one that still waits."""
        if preemptor not in self.pending:
            return
        victims = [each for each in self._victims[preemptor] if each in self._holding]
        ends_at = self.now + self.trial.policy.preemption.grace_s * MS_PER_S
        for job_id in victims:
            if self._due[job_id] > ends_at:
                self._ends_at(job_id, ends_at)
                self._requeued |= {job_id}

    def _hold(self, holding: _Holding, ends_at: int) -> None:
        job_id = holding.workload.job_id
        self._holding[job_id] = holding
        self._ends_at(job_id, ends_at)

    def _ends_at(self, job_id: JobId, ends_at: int) -> None:
        """Put an end on the clock; one that was put there before counts no more."""
        self._due[job_id] = ends_at
        heapq.heappush(self._ends, (ends_at, str(job_id), job_id))

    def _end(self, job_id: JobId) -> None:
        holding = self._holding.pop(job_id)
        del self._due[job_id]
        fleet = self.trial.benches[holding.bench_index].fleet
        for take in holding.takes:
            fleet.release(take)
        workload = holding.workload
        self.trial.admission.give_back(workload.queue, holding.usage, holding.local_queue)
        self.trial.note_ended(job_id)
        self._last_end = job_id
        self.events += 1
        if job_id in self._requeued:
            self._requeued -= {job_id}
            self.pending[job_id] = workload


def run_clock(
    snapshot: Snapshot,
    policy: Policy,
    now: int,
    seed: int,
    quantile: Quantile,
    first: Decision,
    limits: ForecastLimits,
    openings: Mapping[JobId, Opening],
    until: JobId | None = None,
) -> Run:
    """Play the clock until everyone has started, `until` has, or a bound is reached.

    Args:
        snapshot: The installation now; left as it is.
        policy: The scheduler's policy.
        now: The instant to begin at, in ms.
        seed: As for `decide`.
        quantile: Which of the durations everyone takes.
        first: The decision of this instant, for its victims.
        limits: Bounds of the run.
        openings: When those who wait may have others stopped that are too young in this instant.
        until: Stop when this job has started.
    """
    limits_off = replace(policy.preemption, enabled=False)
    calm = replace(policy, preemption=limits_off, cuts_gpus=False)
    stop_at = now + policy.preemption.grace_s * MS_PER_S
    victims = frozenset(job_id for verdict in first.preempting for job_id in verdict.victims)
    stopping = {each.workload.job_id for each in snapshot.running if each.stopping}
    stopped = dict.fromkeys(victims | stopping, stop_at)
    order = [verdict.job_id for verdict in first.verdicts]
    kept = set(order[: limits.max_pending]) | ({until} if until is not None else set())
    with Trial(snapshot, calm, now, seed) as trial:
        clock = _Clock(trial, quantile, now, openings)
        clock.pending = {w.job_id: w for w in snapshot.pending if w.job_id in kept}
        clock.load_running(stopped, victims)
        horizon = now + limits.horizon_s * MS_PER_S
        # Preemptors wait for their victims; nobody may slip in between, as in the real cycle.
        if not first.preempting:
            clock.play_cycle()
        else:
            _start_placed(clock, first)
        while clock.pending and clock.events < limits.max_events:
            if until is not None and until in clock.starts:
                break
            if not clock.go_on() or clock.now > horizon:
                break
            clock.play_cycle()
        is_complete = not clock.pending and len(kept) >= len(snapshot.pending)
        return Run(clock.starts, clock.waited_for, clock.events, is_complete)


def _start_placed(clock: _Clock, first: Decision) -> None:
    """Start only what the real decision starts; the rest waits until the victims are gone."""
    placed = {verdict.job_id for verdict in first.placed}
    waiting = {
        job_id: workload for job_id, workload in clock.pending.items() if job_id not in placed
    }
    clock.pending = {
        job_id: workload for job_id, workload in clock.pending.items() if job_id in placed
    }
    clock.play_cycle()
    clock.pending |= waiting


def wakes_at(workload: Workload, now: int) -> int:
    """Return the first instant from now on at which the workload may start at all."""
    earliest = max(now, workload.not_before or now)
    if workload.window is None:
        return earliest
    opening = find_fitting_window(workload.window, earliest, workload.estimated_duration_s)
    return earliest if opening is None else max(earliest, opening[0])
