"""What a caller keeps between the cycles of one cluster, so that a cycle costs what changed.

Owns nothing that a decision depends on: with a memory, with another one or without, equal
arguments give equal bytes. Losing it is no harm. Not for two cycles at once.
"""

from collections import Counter
from collections.abc import Sequence

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.scheduling.answers import AnswerMemory
from gpuplane.core.scheduling.fragmentation import cut_typical_mix
from gpuplane.core.scheduling.fragments import TypicalMix
from gpuplane.core.scheduling.holdings import Holdings
from gpuplane.core.scheduling.kinds import Owners
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.pools import PendingPool
from gpuplane.core.scheduling.workload import Workload

MAX_KINDS = 200_000
"""Kinds of workloads remembered; beyond, everything is learnt anew."""


def owners_of(snapshot: Snapshot) -> Owners:
    """Return whose reservations are still to begin."""
    return frozenset((each.tenant, each.project) for each in snapshot.reservations)


class Memory:
    """Everything kept between cycles; a cycle that fails leaves it empty."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self.pool = PendingPool()
        self.holdings = Holdings()
        self.answers = AnswerMemory()

    def compute_mix(self, policy: Policy) -> TypicalMix:
        """Return the typical mix of everything that is pending or runs."""
        counted = Counter(self.pool.class_counts)
        counted.update(self.holdings.class_counts)
        return cut_typical_mix(
            counted,
            {**self.holdings.members, **self.pool.members},
            share=policy.typical_share,
            max_classes=policy.max_typical,
        )

    def learn(self, snapshot: Snapshot, policy: Policy, now: int) -> tuple[Fleet, ...]:
        """Take in what waits and what runs; return the fleets in their order.

        Raises:
            ValueError: If a workload is given twice.
        """
        self.trim()
        fleets = tuple(sorted(snapshot.fleets, key=lambda fleet: str(fleet.cluster_id)))
        self.pool.advance(snapshot.pending, policy.boosts, now, owners_of(snapshot))
        self.holdings.advance(snapshot.running, fleets, policy)
        return fleets

    def count_known(self, pending: Sequence[Workload]) -> int:
        """Return how many of these the cycle before has seen."""
        return self.pool.count_known(pending)

    def forget(self) -> None:
        """Drop everything."""
        self.__init__()  # type: ignore[misc]  # the empty memory is the constructor's

    def trim(self) -> None:
        """Drop everything when there is too much of it."""
        if self.pool.kinds_known > MAX_KINDS:
            self.forget()
