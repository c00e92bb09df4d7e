"""What a caller keeps between the cycles of one cluster, so that a cycle costs what changed.

Owns nothing that a decision depends on: with a memory, with another one or without, equal
arguments give equal bytes. Losing it is no harm. Not for two cycles at once.
"""

from collections import Counter
from collections.abc import Hashable

from gpuplane.core.reasons import Reason
from gpuplane.core.scheduling.answers import AnswerMemory
from gpuplane.core.scheduling.decisions import WordCount
from gpuplane.core.scheduling.fragmentation import TypicalMix, cut_typical_mix
from gpuplane.core.scheduling.holdings import Holdings
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.pools import PendingPool

MAX_KINDS = 200_000
"""Kinds of workloads remembered; beyond, everything is learnt anew."""


class Memory:
    """Everything kept between cycles; a cycle that fails leaves it empty.

    Attributes:
        said: What was said last of those who wait alike: values that are shared, not looked up.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self.pool = PendingPool()
        self.holdings = Holdings()
        self.answers = AnswerMemory()
        self.said: dict[Hashable, tuple[Reason, tuple[WordCount, ...]]] = {}

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

    def forget(self) -> None:
        """Drop everything."""
        self.__init__()  # type: ignore[misc]  # the empty memory is the constructor's

    def trim(self) -> None:
        """Drop everything when there is too much of it."""
        if self.pool.kinds_known > MAX_KINDS:
            self.forget()
