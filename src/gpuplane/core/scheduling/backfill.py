"""The place kept for a blocked head: when it could start, and on which nodes.

Owns the forecast of one head from the expected ends of what runs (EASY backfilling, Lifka 1995):
work behind the head may start only where it is out of the way by then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpuplane.core.fleet.columns import Take
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.core.scheduling.admission import Usage

_T = TypeVar("_T")
_E = TypeVar("_E")


@dataclass(frozen=True, slots=True)
class Release:
    """What one running workload gives back when it ends.

    Args:
        bench_index: The place of its fleet, -1 for one that is not there.
        is_counted: Its LocalQueue surely counts it; for others that is to be found out.
    """

    ends_at: int
    name: str
    bench_index: int
    takes: tuple[Take, ...]
    queue: str
    usage: Usage
    local_queue: str | None
    is_counted: bool = False


@dataclass(slots=True)
class Head:
    """A blocked head of a queue and what may still pass it.

    Attributes:
        starts_at: Its forecast start.
        usage: What it will count against its queue then; empty where no quota is in its way.
        local_queue: The LocalQueue that counts it too.
        slack: Quota of its queue that is left at that instant once it has started: longer work
            of the same queue may use this much and no more, and work of other queues this much
            at least.
    """

    starts_at: int
    usage: Usage
    local_queue: str | None
    slack: dict[FlavorResource, int]

    def lets_pass(self, usage: Usage, ends_at: int) -> bool:
        """Tell whether work with this usage and end cannot delay the head."""
        if ends_at <= self.starts_at:
            return True
        return all(
            self.slack[pair] >= amount for pair, amount in usage.items() if pair in self.slack
        )

    def note(self, usage: Usage, ends_at: int) -> None:
        """Count work that passed and lasts beyond the head's start."""
        if ends_at > self.starts_at:
            for pair in self.slack:
                self.slack[pair] -= usage.get(pair, 0)


def find_first(
    events: Sequence[_E], probe: Callable[[Sequence[_E]], _T | None], least: int = 0
) -> tuple[int, _T] | None:
    """Return how many events, in order, let the probe succeed first, and its answer.

    Args:
        events: What frees room, in the order in which it is to be counted on.
        probe: Tries with these events done, and undoes them; more events never hurt.
        least: Fewer than this many surely do not suffice.
    """
    low, high = max(0, least - 1), max(1, least)
    while True:
        high = min(high, len(events))
        answer = probe(events[:high])
        if answer is not None:
            break
        if high == len(events):
            return None
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        found = probe(events[:middle])
        if found is None:
            low = middle
        else:
            high, answer = middle, found
    return high, answer
