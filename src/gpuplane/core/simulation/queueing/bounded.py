"""Shortest first, with a slot in a plan for whoever would otherwise wait too long.

Owns the order `bounded`: who is given a slot, how the plan is laid, and who may pass meanwhile.

The rule. Let `a` be a job's arrival, `d` its run time and `T` the wait target.

1. Whoever has no slot is served shortest first; whoever fits passes, on GPUs that are free over the
   whole of its run, so that no slot moves.
2. A job is given a slot as soon as the earliest one that is left for it starts at `a + T` or
   later: to wait any more could only make it worse. It is looked at first after `T / 8`, and then
   each time half of what was left to `a + T` is gone.
3. Whenever somebody is given a slot the plan is laid in several ways: as it is with the new ones
   behind; and anew from now, in the order of `a`, of `a + min(d, T) / 4` and of `a + min(d, T)`.
   The one with the least `sum of (wait ** 8)` over the planned is kept, which is as much as to say
   the one whose longest waits are shortest.

4. A job smaller than a node goes to a node that is held longer than it runs anyway, of several to
   the one that is free soonest after it; else to the one with the fewest free GPUs, of several
   alike to the one that it holds the least longer. Everything else is the rule `consolidate`.

Why. Under an order by arrival long jobs start early and keep their GPUs for days; under an order by
size they never start. Starting them late but surely leaves the GPUs to short ones until then. A
slot has to be given before the target has passed, because a whole node has to be drained for it,
and the line for whole nodes is as long as the cluster is full; small jobs that end together leave
whole nodes behind (4). The order by `a + d` makes the longest wait on one machine as short as can
be (Jackson, 1955, for the due dates `a + d`); on many machines a long run blocks only its share,
hence the other orders. Slots for everyone from the start would be conservative backfill
(Mu'alem and Feitelson, IEEE TPDS 12(6), 2001).

No bound can be promised against an overload: a target is a wish, and where all the work cannot
start within it the longest waits grow together.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpuplane.core.simulation.queueing.calendars import Calendar, Slot
from gpuplane.core.simulation.queueing.lines import jobs_by_rank
from gpuplane.core.simulation.queueing.pools import Placement, PoolShape
from gpuplane.core.simulation.queueing.runs import NEVER_MS, Run
from gpuplane.core.simulation.queueing.traces import Trace

FIRST_LOOK = 8
"""A job is looked at when an eighth of its target has passed: most have started by then."""
LEAST_STEP_MS = 60_000
"""No job is looked at more often than once a minute."""
SEVERITY = 8
"""The power of a wait in the comparison of plans: high enough that the longest decide."""
MOST_LAID_ANEW = 128
"""A plan for more jobs is only added to: it takes long to lay it anew, and changes little."""
MOST_PLANNED = 256
"""Of so many jobs a plan is full. Whoever is late then gets a slot when there is room, by age."""
MOST_NODES = 256
"""Of how many nodes the best is taken for a small job: on a large pool more make no difference.
Where none of them will do the search goes on to the first that does."""

Plan = dict[int, Slot]


@dataclass(frozen=True, slots=True)
class WaitTarget:
    """How long a job should wait at most.

    Args:
        target_ms: The wait in milliseconds. Small ones cost mean wait, since more of the work is
            then served by age; large ones cost the longest waits.

    Raises:
        ValueError: If it is below a second.
    """

    target_ms: int = 16 * 3_600_000

    def __post_init__(self) -> None:
        if self.target_ms < 1000:
            raise ValueError("a wait target is at least a second")


class BoundedLine:
    """The queue of the order `bounded`."""

    def __init__(
        self,
        trace: Trace,
        shape: PoolShape,
        ranks: Sequence[int],
        target: WaitTarget,
        promised_ms: dict[int, int],
    ) -> None:
        """Make an empty line.

        Args:
            trace: The jobs; their run times are known.
            shape: The pool.
            ranks: The order of those without a slot.
            target: How long a job should wait at most.
            promised_ms: Where the first slot of a job is noted.
        """
        self._trace = trace
        self._ranks = ranks
        self._jobs = jobs_by_rank(ranks)
        # A job of no time has its GPUs at its instant all the same, so the calendar lends it the
        # least there is, until it has ended.
        self._of_no_time: dict[int, Placement] = {}
        self._run_ms = [max(1, run_ms) for run_ms in trace.duration_ms]
        self._target_ms = target.target_ms
        self._promised_ms = promised_ms
        self._calendar = Calendar(shape)
        self._waiting: dict[int, list[int]] = {size: [] for size in sorted(set(trace.gpus))}
        self._arrived: list[int] = []
        self._looks: list[tuple[int, int]] = []
        self._late: list[int] = []
        self._plan: Plan = {}
        self._starts: list[tuple[int, int]] = []
        self._booked = 0  # bit `n`: somebody has a slot on node `n`

    def add(self, job: int) -> None:
        self._arrived.append(self._ranks[job])

    def wakes_at_ms(self) -> int:
        return self._starts[0][0] if self._starts else NEVER_MS

    def serve(self, run: Run, ended: list[int]) -> None:
        for job in ended:
            if job in self._of_no_time:
                self._calendar.give(self._of_no_time.pop(job), run.now_ms, run.now_ms + 1)
        while self._starts and self._starts[0][0] <= run.now_ms:
            # The calendar has had it all along.
            job = heapq.heappop(self._starts)[1]
            self._start(run, job, self._plan.pop(job).placement)
        for rank in self._arrived:
            job = self._jobs[rank]
            heapq.heappush(self._waiting[self._trace.gpus[job]], rank)
            look_ms = run.now_ms + self._target_ms // FIRST_LOOK
            heapq.heappush(self._looks, (look_ms, job))
        grown = self._look(run)
        if grown:
            self._lay_plan(run, grown)
        if ended or grown:
            self._let_pass(run, self._waiting)
        elif self._arrived:
            # Nobody else fits: they were all looked at when GPUs last came back.
            sizes = {self._trace.gpus[self._jobs[rank]] for rank in self._arrived}
            self._let_pass(run, sorted(sizes))
        self._arrived.clear()

    def _look(self, run: Run) -> list[int]:
        """Return the waiting jobs that get a slot now, by age; note those who are late."""
        while self._looks and self._looks[0][0] <= run.now_ms:
            job = heapq.heappop(self._looks)[1]
            if run.start_ms[job] >= 0:
                continue
            due_ms = self._trace.arrival_ms[job] + self._target_ms
            start_ms = run.now_ms
            if due_ms > run.now_ms and len(self._plan) < MOST_PLANNED:
                start_ms = self._find_slot(run, job).start_ms
            if start_ms >= due_ms:
                heapq.heappush(self._late, job)
            else:
                look_ms = run.now_ms + max(LEAST_STEP_MS, (due_ms - start_ms) // 2)
                heapq.heappush(self._looks, (look_ms, job))
        grown: list[int] = []
        while self._late and len(self._plan) + len(grown) < MOST_PLANNED:
            job = heapq.heappop(self._late)
            if run.start_ms[job] < 0:
                grown.append(job)
        return grown

    def _find_slot(self, run: Run, job: int) -> Slot:
        return self._calendar.find_slot(run.now_ms, self._trace.gpus[job], self._run_ms[job])

    def _lay_plan(self, run: Run, grown: Iterable[int]) -> None:
        """Give some more jobs a slot and keep the best of several plans for all that have one."""
        self._calendar.forget(run.now_ms)
        behind = {**self._plan, **self._lay(run, grown)}
        for job, slot in self._plan.items():
            self._book(job, slot, self._calendar.give)
        orders: list[Callable[[int], int]] = [self._due_by(0), self._due_by(4), self._due_by(1)]
        plans = [behind]
        if len(behind) <= MOST_LAID_ANEW:
            plans += [self._lay(run, sorted(behind, key=order)) for order in orders]
        best = min(plans, key=self._severity)
        for job, slot in best.items():
            self._book(job, slot, self._calendar.take)
            self._promised_ms.setdefault(job, slot.start_ms)
            if slot.start_ms <= run.now_ms:
                self._start(run, job, slot.placement)
        self._plan = {job: slot for job, slot in best.items() if slot.start_ms > run.now_ms}
        self._starts = sorted((slot.start_ms, job) for job, slot in self._plan.items())
        self._booked = 0
        for slot in self._plan.values():
            for node, _ in slot.placement:
                self._booked |= 1 << node

    def _lay(self, run: Run, jobs: Iterable[int]) -> Plan:
        """Return slots for jobs, each the earliest that those before it leave."""
        plan: Plan = {}
        for job in jobs:
            plan[job] = self._find_slot(run, job)
            self._book(job, plan[job], self._calendar.take)
        for job, slot in plan.items():
            self._book(job, slot, self._calendar.give)
        return plan

    def _book(self, job: int, slot: Slot, book: Callable[[Placement, int, int], None]) -> None:
        book(slot.placement, slot.start_ms, slot.start_ms + self._run_ms[job])

    def _due_by(self, divisor: int) -> Callable[[int], int]:
        """Return the order by arrival plus a share of the run time, at most of the target."""

        def due_ms(job: int) -> int:
            run_ms = min(self._run_ms[job], self._target_ms)
            return self._trace.arrival_ms[job] + (run_ms // divisor if divisor else 0)

        return due_ms

    def _severity(self, plan: Plan) -> int:
        arrivals = self._trace.arrival_ms
        return sum(
            ((slot.start_ms - arrivals[job]) // 1000) ** SEVERITY for job, slot in plan.items()
        )

    def _let_pass(self, run: Run, sizes: Iterable[int]) -> None:
        """Start who fits beside the plan, the first in rank first."""
        heads = [(head, size) for size in sizes if (head := self._head(run, size)) >= 0]
        heapq.heapify(heads)
        while heads:
            rank, size = heads[0]
            job = self._jobs[rank]
            placement = self._find_beside(run, size, self._run_ms[job])
            if placement is None:
                # Whoever is behind it in its queue runs as long or longer, and fits no better.
                heapq.heappop(heads)
                continue
            self._calendar.take(placement, run.now_ms, run.now_ms + self._run_ms[job])
            self._start(run, job, placement)
            head = self._head(run, size)
            if head < 0:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (head, size))

    def _start(self, run: Run, job: int, placement: Placement) -> None:
        if not self._trace.duration_ms[job]:
            self._of_no_time[job] = placement
        run.start(job, placement)

    def _head(self, run: Run, size: int) -> int:
        """Return the rank of the first of a size that has neither started nor a slot, else -1."""
        waiting = self._waiting[size]
        while waiting:
            job = self._jobs[waiting[0]]
            if run.start_ms[job] < 0 and job not in self._plan:
                return waiting[0]
            heapq.heappop(waiting)
        return -1

    def _find_beside(self, run: Run, gpus: int, run_ms: int) -> Placement | None:
        """Return where a job goes without touching a slot, or None."""
        end_ms = run.now_ms + run_ms
        if gpus < run.pool.size:
            return self._find_shared(run, gpus, end_ms)
        nodes = self._booked & ~run.pool.sets[0]
        caps = {}
        while nodes:
            node = (nodes & -nodes).bit_length() - 1
            nodes &= nodes - 1
            caps[node] = self._calendar.nodes[node].least(run.now_ms, end_ms)
        return run.pool.find_capped(gpus, caps)

    def _find_shared(self, run: Run, gpus: int, end_ms: int) -> Placement | None:
        """Return the node that a job smaller than a node keeps from whole jobs the least."""
        best = (2, 0, 0, 0)
        left = MOST_NODES
        for free in range(gpus, run.pool.size + 1):
            nodes = run.pool.sets[free]
            while nodes and (left > 0 or best[0] > 1):
                bit = nodes & -nodes
                nodes ^= bit
                left -= 1
                node = bit.bit_length() - 1
                calendar = self._calendar.nodes[node]
                if self._booked & bit and calendar.least(run.now_ms, end_ms) < gpus:
                    continue
                longer_ms = max(run.now_ms, calendar.times[-1]) - end_ms
                if longer_ms >= 0:
                    best = min(best, (0, longer_ms, free, node))
                else:
                    best = min(best, (1, free, -longer_ms, node))
        return None if best[0] > 1 else ((best[3], gpus),)
