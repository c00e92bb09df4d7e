"""Any DAG and any answers end, nothing begins before what it needs, no limit is exceeded."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.lifecycle.runs import (
    SATISFIED,
    RunCondition,
    RunStatus,
    StepCondition,
    StepStatus,
)
from gpuplane.core.runs.advancing import apply_reply
from gpuplane.core.runs.auditing import find_run_faults
from gpuplane.core.runs.boards import Board, Reply, Rules, Run, Step, link_steps, new_step
from gpuplane.core.runs.checking import find_cycle, find_plan_faults
from gpuplane.core.runs.claiming import claim_step, expire_run, find_limit, limit_step
from gpuplane.core.runs.plans import (
    Answer,
    Awaiting,
    Completed,
    Expanding,
    Failed,
    Join,
    OnFailure,
    Retry,
    RunPlan,
    Skipped,
    Sleeping,
    StepPlan,
    Undo,
)
from gpuplane.core.runs.reviving import (
    AGAIN,
    failed_needs,
    failed_steps,
    goes_on_without,
    lies_in_satisfied,
    revival_refusal,
    revive,
)
from gpuplane.core.runs.stopping import stop_run

RUN_ID = UUID("01900000-0000-7000-8000-000000000000")
TURNS = 5_000
"""Far more than any of these runs needs: one that takes so many does not end."""


@dataclass
class Machine:
    """One run, carried on by chance: what the loop does, without a database."""

    chance: random.Random
    board: Board
    now: int = 1_000
    expansions: int = 0
    waits: int = 0
    began: list[str] = field(default_factory=list)
    completed: dict[str, int] = field(default_factory=dict)
    expanded: dict[str, Expanding] = field(default_factory=dict)
    same_again: float = 0.6

    @property
    def run(self) -> Run:
        return self.board.run

    def turn(self) -> None:
        """Claim something that is due, or answer for something that runs, or let time pass."""
        steps = list(self.board.steps.values())
        running = [step for step in steps if step.status is StepStatus.RUNNING]
        due = [step for step in steps if step.due_at is not None and step.due_at <= self.now]
        due = [step for step in due if step.status is StepStatus.PENDING]
        for step in steps:
            if step.condition is StepCondition.LIMITED and not find_limit(self.board, step):
                step.condition, step.due_at = StepCondition.NONE, self.now
                due.append(step)
        if due and (not running or self.chance.random() < 0.6):
            self.claim(self.chance.choice(due))
        elif running:
            self.answer(self.chance.choice(running))
        else:
            later = [step.due_at for step in steps if step.due_at is not None and not step.is_over]
            waiting = [step for step in steps if step.wait_key is not None]
            if waiting and (not later or self.chance.random() < 0.5):
                waiting[0].event, waiting[0].due_at = "null", self.now
            elif later:
                self.now = max(self.now, min(later))

    def claim(self, step: Step) -> None:
        by = find_limit(self.board, step)
        if by:
            limit_step(self.board, step, by)
            return
        for need in step.needs:
            other = self.board.steps[need]
            assert other.status in SATISFIED or (step.undo_of and other.is_over), step.key
        claim_step(self.board, step, "me", self.now)
        self.began.append(step.key)

    def answer(self, step: Step) -> None:
        answer = self.choose(step)
        expected = isinstance(answer, Completed) and not step.stopping
        key = f"{step.seq}#{step.generation}"
        stored = Reply(RUN_ID, step.id, step.epoch, answer, chance=self.chance.uniform(-1, 1))
        apply_reply(self.board, step, stored, self.now)
        if expected:
            self.completed[key] = self.completed.get(key, 0) + 1
        if self.chance.random() < 0.1:  # the same answer again: a worker that lost its lease
            before = step.status
            apply_reply(self.board, step, stored, self.now)
            assert step.status is before

    def choose(self, step: Step) -> Answer:
        if step.stopping:
            return self.chance.choice((Completed(), Failed("Away", "not now")))
        if step.expires_at is not None and step.expires_at <= self.now:
            return Failed("TimedOut", "it took too long")  # as a worker answers
        kind = self.chance.random()
        if kind < 0.15:
            return Failed("Chance", "by chance", is_final=self.chance.random() < 0.3)
        if kind < 0.2:
            return Skipped("by chance")
        if kind < 0.3 and self.waits < 20:
            self.waits += 1
            return Sleeping(self.now + self.chance.randrange(100))
        if kind < 0.4 and self.waits < 20:
            self.waits += 1
            return Awaiting(f"key-{self.waits}", until=self.now + self.chance.randrange(1, 100))
        if not step.undo_of and not step.join:
            earlier = self.expanded.get(step.key)
            if earlier is not None and self.chance.random() < self.same_again:
                return earlier
            if kind < 0.55 and self.expansions < 6:
                self.expansions += 1
                self.expanded[step.key] = self.expand(step)
                return self.expanded[step.key]
        others = [each.key for each in self.board.steps.values() if each.parent == step.parent]
        skip = tuple(self.chance.sample(others, 1)) if self.chance.random() < 0.1 else ()
        return Completed(skip=tuple(key for key in skip if key != step.key))

    def expand(self, step: Step) -> Expanding:
        count = self.chance.randrange(4)
        children = plans_of(self.chance, count, prefix=f"{step.key}/")
        join = self.chance.choice(list(Join)) if count else Join.ALL
        parallel = self.chance.choice((None, 1, 2))
        return Expanding(children, join, self.chance.randint(0, count), parallel)


def plans_of(chance: random.Random, count: int, prefix: str = "") -> tuple[StepPlan, ...]:
    """Return steps of which each needs some of those before it."""
    found: list[StepPlan] = []
    for number in range(count):
        needs = [each.key for each in found if chance.random() < 0.3]
        found.append(
            StepPlan(
                key=f"{prefix}{number}",
                handler=chance.choice(("plain", "stoppable")),
                needs=tuple(needs),
                retry=Retry(attempts=chance.choice((1, 1, 2, 3)), delay_ms=10),
                undo=Undo("undo", None) if chance.random() < 0.3 else None,
                on_failure=chance.choice((None, None, *OnFailure)),
                timeout_ms=chance.choice((None, None, 200)),
            )
        )
    return tuple(found)


def a_machine(chance: random.Random, count: int) -> Machine:
    plan = RunPlan(
        "test", "test", RUN_ID, RUN_ID, plans_of(chance, count),
        on_failure=chance.choice(list(OnFailure)),
    )  # fmt: skip
    rules = Rules(on_cancel=frozenset({"stoppable"}))
    assert find_plan_faults(plan, rules) == []
    steps = [new_step(RUN_ID, number, spec) for number, spec in enumerate(plan.steps, 1)]
    link_steps(steps, 1_000)
    run = Run(
        id=RUN_ID, tenant_id=RUN_ID, project_id=RUN_ID, kind="test", name="test", source_id=None,
        created_by="", status=RunStatus.PENDING, condition=RunCondition.NONE,
        on_failure=plan.on_failure, max_parallel=chance.choice((None, None, 1, 2)),
        timeout_ms=None, deadline_at=None, expires_at=None, created_at=0, started_at=None,
        ended_at=None, step_count=count, next_seq=count + 1, left=count, failed=0, completed=0,
        active=0, output_bytes=0, verdict="", undoes=False, error="", message="", told_at=0,
    )  # fmt: skip
    return Machine(chance, Board(run, {step.seq: step for step in steps}, rules))


def carry_on(machine: Machine) -> None:
    """Take turns until the run is over; the audit holds after each."""
    for _ in range(TURNS):
        if machine.run.is_over:
            return
        machine.turn()
        assert find_run_faults(machine.run, machine.board.steps) == []
    raise AssertionError(f"it does not end: {machine.run.status} {machine.run.condition}")


@given(seed=st.integers(0, 2**32), count=st.integers(1, 9))
def test_any_dag_with_any_answers_ends_and_every_step_with_it(seed: int, count: int) -> None:
    machine = a_machine(random.Random(seed), count)
    carry_on(machine)
    assert all(step.is_over for step in machine.board.steps.values())
    assert all(times == 1 for times in machine.completed.values())
    assert machine.run.active == 0


@given(seed=st.integers(0, 2**32), count=st.integers(1, 9), turns=st.integers(0, 40))
def test_a_run_that_is_stopped_at_any_moment_ends_as_it_was_stopped(
    seed: int, count: int, turns: int
) -> None:
    chance = random.Random(seed)
    machine = a_machine(chance, count)
    for _ in range(turns):
        if not machine.run.is_over:
            machine.turn()
    run = machine.run
    if run.is_over or run.condition is not RunCondition.NONE:
        return
    began = len(machine.began)
    if chance.random() < 0.5:
        stop_run(machine.board, "cancelled", "Cancelled", "by a test", machine.now)
        wanted = RunStatus.CANCELLED
    else:
        run.deadline_at = machine.now
        expire_run(machine.board, machine.now, undoes=run.on_failure is OnFailure.ROLLBACK)
        wanted = RunStatus.FAILED
    assert find_run_faults(run, machine.board.steps) == []
    carry_on(machine)
    assert run.status is wanted
    for key in machine.began[began:]:  # only what ends or undoes something begins after that
        step = next(each for each in machine.board.steps.values() if each.key == key)
        assert step.stopping or step.undo_of


@given(seed=st.integers(0, 2**32), count=st.integers(1, 9))
def test_a_run_that_failed_can_be_rerun_until_it_ends_otherwise(seed: int, count: int) -> None:
    machine = a_machine(random.Random(seed), count)
    for _ in range(4):
        carry_on(machine)
        roots = failed_steps(machine.board)
        if not roots or revival_refusal(machine.run):
            return
        done = {
            step.seq: step.ended_at
            for step in machine.board.steps.values()
            if step.status is StepStatus.COMPLETED and not step.parent and not step.join
        }
        revive(machine.board, roots, machine.now)
        assert find_run_faults(machine.run, machine.board.steps) == []
        for seq, ended_at in done.items():
            assert machine.board.steps[seq].ended_at == ended_at


@given(seed=st.integers(0, 2**32), count=st.integers(1, 6))
def test_steps_that_expand_again_complete_no_child_twice(seed: int, count: int) -> None:
    machine = a_machine(random.Random(seed), count)
    machine.same_again = 1
    for _ in range(4):
        carry_on(machine)
        roots = failed_steps(machine.board)
        if not roots or revival_refusal(machine.run):
            break
        revive(machine.board, roots, machine.now)
    by_seq: dict[str, int] = {}
    for name, times in machine.completed.items():
        number = name.partition("#")[0]
        by_seq[number] = by_seq.get(number, 0) + times
    assert set(by_seq.values()) <= {1}
    keys = [step.key for step in machine.board.steps.values()]
    assert len(set(keys)) == len(keys)


@given(seed=st.integers(0, 2**32), count=st.integers(1, 9), turns=st.integers(0, 60))
def test_one_step_that_is_retried_at_any_moment_lets_its_run_end(
    seed: int, count: int, turns: int
) -> None:
    machine = a_machine(random.Random(seed), count)
    machine.run.on_failure = OnFailure.CONTINUE
    for _ in range(turns):
        if not machine.run.is_over:
            machine.turn()
    board = machine.board
    again = [
        step for step in board.whole()
        if step.status in AGAIN and not step.undo_of and not lies_in_satisfied(board, step)
        and not goes_on_without(board, step.seq) and not failed_needs(board, step.seq, ())
    ]  # fmt: skip
    if again and not revival_refusal(machine.run):
        revive(board, [machine.chance.choice(again).seq], machine.now)
        assert find_run_faults(machine.run, board.steps) == []
    carry_on(machine)


@given(seed=st.integers(0, 2**32), count=st.integers(1, 8))
def test_the_same_answers_in_the_same_order_lead_to_the_same_rows(seed: int, count: int) -> None:
    first, second = (a_machine(random.Random(seed), count) for _ in range(2))
    for machine in (first, second):
        carry_on(machine)
    assert first.began == second.began
    statuses = [
        [(step.key, step.status, step.done_no) for step in machine.board.steps.values()]
        for machine in (first, second)
    ]
    assert statuses[0] == statuses[1]


@given(
    edges=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20),
)
def test_a_cycle_is_found_exactly_where_no_order_exists(edges: list[tuple[int, int]]) -> None:
    steps = [
        StepPlan(
            key=str(node), handler="plain",
            needs=tuple(dict.fromkeys(str(b) for a, b in edges if a == node and b != node)),
        )
        for node in range(8)
    ]  # fmt: skip
    cycle = find_cycle(steps)
    needs = {step.key: set(step.needs) for step in steps}
    for here, following in itertools.pairwise(cycle):
        assert following in needs[here]
    left = set(needs)
    while ready := {key for key in left if not needs[key] & left}:
        left -= ready
    assert bool(cycle) == bool(left)
