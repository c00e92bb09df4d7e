"""Waits until a real Kueue is done: by what it has in memory and in its log, never by a pause.

Owns the proof that nothing more will happen until something arrives or ends. Kueue is done with all
cohorts where, of one instant,

- the API server has a Workload of every Job that is wanted, and no other, none of them with an
  eviction under way;
- Kueue's memory (its dump) agrees with the API server about who holds quota and who waits, so that
  its caches are up to date and no head is between its queue and a decision;
- every waiting workload is parked, which means that only a change wakes it; or, where heads are
  tried again and again (a StrictFIFO queue's, or one that others hinder), the last cycles were
  whole and decided the same as those before them, and nothing was admitted or evicted in them.

Source: kubernetes-sigs/kueue v0.15.0, pkg/cache/queue/cluster_queue.go (RequeueIfNotPresent,
QueueInadmissibleWorkloads), pkg/controller/core/workload_controller.go (Create, Update, Delete: all
that changes the queues is done in the order of the watch).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Collection

from benchmarks.kueue_plans import NAMESPACE, Plan
from benchmarks.kueue_trace import Cycle, Dump, Trace
from benchmarks.kueue_workloads import Workload
from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient

POLL_S = 0.05
SAME_CYCLES = 3
"""So many whole cycles must have decided the same as the so many before them: a head goes through
its flavors in as many cycles as there are flavors, two at most."""
LIMIT_S = 300.0
"""A step that takes longer is an error: an hour-long wait would hide it."""


class NotDone(Exception):
    """Kueue did not come to an end in time; the message says what it waits for."""


class Settling:
    """One Kueue whose end of a step is waited for."""

    def __init__(
        self,
        client: KubeClient,
        trace: Trace,
        find_pid: Callable[[], int],
        see: Callable[[], list[Workload]],
    ) -> None:
        self._client = client
        self._trace = trace
        self._find_pid = find_pid
        self._see = see
        self._known: set[tuple[str, str]] = set()
        self._mark = 0

    async def wait(
        self, plans: Collection[Plan], wanted: Collection[str], gave_up: Callable[[], bool]
    ) -> list[Workload]:
        """Return the Workloads once Kueue is done with all of these cohorts.

        Args:
            plans: The cohorts.
            wanted: Their Jobs.
            gave_up: Asked now and then; where it says yes, the wait ends without a proof.

        Raises:
            NotDone: If it takes longer than `LIMIT_S`.
        """
        deadline = time.monotonic() + LIMIT_S
        why = ""
        while time.monotonic() < deadline:
            if gave_up():
                return self._see()
            # What a watch shows may be late: it saves questions, and proves nothing.
            why = self._unsettled(self._see(), set(wanted))
            if not why:
                dump = await self._dump()
                why = self._differs(dump, self._see(), plans) or self._tried(dump, plans)
                if not why:
                    found, _ = await self._client.list_as(kinds.WORKLOAD, Workload, NAMESPACE)
                    why = "the watch is behind" if _versions(found) != self._known else ""
                    if not why:
                        return found
            await asyncio.sleep(POLL_S)
        raise NotDone(f"Kueue is not done after {LIMIT_S:.0f} s: {why}")

    async def _dump(self) -> Dump:
        """Have Kueue write down what it has in memory, and return it."""
        trace = self._trace
        trace.read()
        before = trace.dumps
        os.kill(self._find_pid(), signal.SIGUSR2)
        while trace.dumps == before:
            await asyncio.sleep(POLL_S / 5)
            trace.read()
        return trace.dump

    @staticmethod
    def _unsettled(found: list[Workload], jobs: set[str]) -> str:
        if {each.job for each in found} != jobs or len(found) != len(jobs):
            return "Jobs and Workloads differ"
        leaving = [each.job for each in found if each.is_leaving]
        return f"being evicted: {leaving}" if leaving else ""

    @staticmethod
    def _differs(dump: Dump, found: list[Workload], plans: Collection[Plan]) -> str:
        """Return where Kueue's memory is another than the API server's, empty where nowhere."""
        queues = [queue.name for plan in plans for queue in plan.queues]
        held = {name for queue in queues for name in dump.holders.get(queue, ())}
        waiting = {
            name
            for queue in queues
            for name in dump.active.get(queue, frozenset()) | dump.parked.get(queue, frozenset())
        }
        if held != {each.metadata.name for each in found if each.holds}:
            return "Kueue's cache is behind"
        if waiting != {each.metadata.name for each in found if not each.holds}:
            return "a head is being looked at"
        return ""

    def _tried(self, dump: Dump, plans: Collection[Plan]) -> str:
        """Return which cohorts have heads that may come to something yet, empty for none."""
        if self._known != (seen := _versions(self._see())):
            self._known, self._mark = seen, self._trace.last_number
        busy = [plan.name for plan in plans if not self._is_idle(dump, plan)]
        return f"heads are tried in {busy}" if busy else ""

    def _is_idle(self, dump: Dump, plan: Plan) -> bool:
        """Tell whether heads of a cohort that are tried again come to the same each time.

        Looks at the cycles in which all was known to be as it is now.
        """
        queues = {queue.name for queue in plan.queues}
        if not any(dump.active.get(queue) for queue in queues):
            return True
        newer = (cycle for cycle in self._trace.cycles if cycle.number > self._mark)
        cycles = [cycle for cycle in newer if _touches(cycle, queues)]
        last = cycles[-2 * SAME_CYCLES :]
        if len(last) < 2 * SAME_CYCLES or not all(cycle.is_whole for cycle in last):
            return False
        seen = [_decided(cycle, queues) for cycle in last]
        acts = any(each.acts for cycle in last for each in cycle.entries if each.queue in queues)
        return not acts and set(seen[:SAME_CYCLES]) == set(seen[SAME_CYCLES:])


def _touches(cycle: Cycle, queues: set[str]) -> bool:
    return any(entry.queue in queues for entry in cycle.entries)


def _decided(cycle: Cycle, queues: set[str]) -> frozenset[object]:
    return frozenset(entry for entry in cycle.entries if entry.queue in queues)


def _versions(found: list[Workload]) -> set[tuple[str, str]]:
    return {(each.metadata.uid, each.metadata.resource_version) for each in found}
