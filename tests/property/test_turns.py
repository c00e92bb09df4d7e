"""The order of turns, found for everyone at once, is the one found head by head."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.ids import JobId
from gpuplane.core.quota.specs import QueueingStrategy
from gpuplane.core.scheduling.lineup import Lineup
from gpuplane.core.scheduling.ordering import Entry, Key
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.trial import Trial
from gpuplane.core.scheduling.turns import Turns
from gpuplane.core.workloads import Priority
from tests.builders import NOW, World, a_node
from tests.property.test_scheduling import a_queue, workloads

Start = Callable[[Trial, Entry], None]


@st.composite
def crowds(draw: st.DrawFn) -> World:
    """Draw work that waits in queues which share what is theirs."""
    sizes = st.sampled_from([1, 2, 4, 8])
    names = ["a", "b", "c"]
    queues = [a_queue(name, draw(sizes), QueueingStrategy.BEST_EFFORT_FIFO) for name in names]
    count = draw(st.integers(2, 12))
    pending = [draw(workloads(index, names, list(Priority)[1:3])) for index in range(count)]
    return World([a_node("node")], queues, pending)


def starting(some: set[int]) -> Start:
    """Count what every so-manieth of those who have a turn would use, where it has quota."""
    turns = iter(range(1_000))

    def start(trial: Trial, entry: Entry) -> None:
        usage, _ = trial.first_choice(entry)
        fits = trial.admission.tree.fits(entry.workload.queue, usage).fits
        if next(turns) in some and usage and fits:
            trial.admission.tree.add_usage(entry.workload.queue, usage)
            trial.changes += 1

    return start


def turns_at_once(world: World, start: Start) -> list[JobId]:
    order = []
    with Trial(world.snapshot(), Policy(), NOW, 1) as trial:
        lineup = Lineup(trial.memory.pool, trial.answers, trial.memory.pool.list_order())
        turns = Turns(trial.admission.tree, lineup)
        while turns.refresh(trial.changes):
            entry = lineup.entry(int(turns.order[turns.passed]))
            turns.passed += 1
            order.append(entry.workload.job_id)
            start(trial, entry)
    return order


def turns_head_by_head(world: World, start: Start) -> list[JobId]:
    """Let the best head have its turn, asked again for its level when it is first."""
    order = []
    with Trial(world.snapshot(), Policy(), NOW, 1) as trial:
        queues = {name: list(some) for name, some in trial.memory.pool.list_queues().items()}
        levels = {name: trial.first_choice(some[0])[1] for name, some in queues.items()}
        while queues:

            def worth(name: str) -> tuple[int, Key]:
                return levels[name], queues[name][0].key

            best = min(queues, key=worth)
            fresh = trial.first_choice(queues[best][0])[1]
            if fresh != levels[best]:
                levels[best] = fresh
                continue
            entry = queues[best].pop(0)
            order.append(entry.workload.job_id)
            start(trial, entry)
            if queues[best]:
                levels[best] = trial.first_choice(queues[best][0])[1]
            else:
                del queues[best]
    return order


@given(crowds(), st.sets(st.integers(0, 11)))
def test_turns_found_for_all_at_once_are_those_of_the_best_head_each_time(
    world: World, some: set[int]
) -> None:
    plain = turns_head_by_head(world, starting(some))
    assert turns_at_once(world, starting(some)) == plain
    assert len(plain) == len(world.pending)
