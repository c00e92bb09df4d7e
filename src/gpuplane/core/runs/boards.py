"""The working copy of one run: its row and those of its steps that a change may touch.

Whoever decides changes rows on a board and notes what changed; whoever loaded the board stores
that. Most changes need only a step's neighbours; a board that turns out to need the others asks
for them by the function it was given.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from gpuplane.core.lifecycle.runs import (
    RUN_EDGES,
    RUN_OVER,
    STEP_EDGES,
    STEP_OVER,
    RunCondition,
    RunStatus,
    StepCondition,
    StepStatus,
)
from gpuplane.core.runs.plans import Answer, Join, OnFailure, StepPlan


@dataclass(slots=True, eq=False)
class Run:
    """What decides how a run goes on.

    Attributes:
        expires_at: The earlier of its deadline and its time-out.
        next_seq: Number of the next step that is added.
        left: Steps that are not over, children and compensations included.
        failed: Steps of the top that failed.
        completed: Steps that completed, in all; numbers them in the order of completion.
        active: Steps that hold one of the run's places.
        output_bytes: Size of all outputs together.
        verdict: Why the run is being stopped: `failed`, `cancelled`; empty while it is not.
        undoes: Whether completed steps are to be compensated once everything stands.
        told_at: When its progress was last told to those who follow it.
    """

    id: UUID
    tenant_id: UUID
    project_id: UUID
    kind: str
    name: str
    source_id: UUID | None
    created_by: str
    status: RunStatus
    condition: RunCondition
    on_failure: OnFailure
    max_parallel: int | None
    timeout_ms: int | None
    deadline_at: int | None
    expires_at: int | None
    created_at: int
    started_at: int | None
    ended_at: int | None
    step_count: int
    next_seq: int
    left: int
    failed: int
    completed: int
    active: int
    output_bytes: int
    verdict: str
    undoes: bool
    error: str
    message: str
    told_at: int

    @property
    def is_over(self) -> bool:
        """Return whether nothing more will happen by itself."""
        return self.status in RUN_OVER

    def move(self, status: RunStatus) -> None:
        """Follow an edge of the table."""
        if status != self.status:
            assert (self.status, status) in RUN_EDGES, f"{self.status} to {status}"
            self.status = status


@dataclass(slots=True, eq=False)
class Step:
    """What decides how a step goes on; see `StepPlan` for what was planned.

    Attributes:
        seq: Number in the run, from 1.
        parent: `seq` of the step that expanded into this one; 0 at the top.
        undo_of: `seq` of the step that this one compensates; 0 for others.
        needs, followers: `seq` of what must be satisfied before, and of what waits for this.
        due_at: When somebody is to look at it; None while nothing can be done.
        held_at: What `due_at` was when its run stood still.
        owner: The worker that runs it.
        epoch: Counts claims: an answer counts only for the claim it was given for.
        generation: Counts retries by hand; part of the idempotency key.
        limited_by: What it waits for: `run`, `parent` or `key`.
        expires_at: When this attempt has taken too long.
        event: Payload of the awaited event, as stored, from when it came to the next answer.
        join: How many children must end well; empty where there are none.
        stopping: Number of times that its handler was told to stop what it began; 0 for not.
        done_no: Place in the order of completion.
    """

    id: UUID
    run_id: UUID
    seq: int
    parent: int
    undo_of: int
    key: str
    handler: str
    spec: StepPlan
    needs: tuple[int, ...]
    followers: tuple[int, ...]
    status: StepStatus
    condition: StepCondition
    needs_left: int
    due_at: int | None
    held_at: int | None
    owner: str | None
    epoch: int
    attempt: int
    generation: int
    limited_by: str
    run_slot: bool
    kin_slot: bool
    key_slot: bool
    expires_at: int | None
    wait_key: str | None
    wait_until: int | None
    state: str | None
    event: str | None
    join: str
    join_count: int
    kids_left: int
    kids_done: int
    kids_active: int
    kids_parallel: int | None
    stopping: int
    done_no: int
    error: str
    message: str
    cache_note: str
    started_at: int | None
    ended_at: int | None

    @property
    def is_over(self) -> bool:
        """Return whether it will not be looked at again by itself."""
        return self.status in STEP_OVER

    def move(self, status: StepStatus) -> None:
        """Follow an edge of the table."""
        if status is not self.status:
            assert (self.status, status) in STEP_EDGES, f"{self.key}: {self.status} to {status}"
            self.status = status


@dataclass(frozen=True, slots=True)
class Reply:
    """A handler's answer with what is stored of it, made outside the transaction.

    Args:
        epoch: The claim it answers.
        near: Numbers of the step's parent and of those that wait for it.
        output: Of a completed step, as JSON text; None for null.
        state: Of a sleeping, waiting or expanding step, as JSON text.
        chance: In [-1, 1], for the jitter of a retry.
        cache_note: Why an earlier output was taken, or was not.
        cache_key: Hash of the input under which the output is kept; empty for not.
    """

    run_id: UUID
    step_id: UUID
    epoch: int
    answer: Answer
    near: tuple[int, ...] = ()
    output: str | None = None
    state: str | None = None
    chance: float = 0.0
    cache_note: str = ""
    cache_key: str = ""
    cache_parts: tuple[str, str] = ("", "")
    from_cache: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """Something worth an event: about a step, or about the run when `seq` is 0."""

    kind: str
    seq: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits of the engine, and which handlers must be told when a step is stopped.

    Args:
        steps: Rows that one run may have.
        edges: Dependencies that one run may have.
        depth: Levels of steps within steps.
        outputs_bytes: All outputs of one run together.
        told_every_ms: Progress of a run is told no more often than this.
        on_cancel: Handlers that began something outside which must be ended.
    """

    steps: int = 10_000
    edges: int = 100_000
    depth: int = 8
    outputs_bytes: int = 64 << 20
    told_every_ms: int = 1_000
    on_cancel: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Board:
    """One run's working copy, and what a change did to it.

    Attributes:
        steps: Those loaded, by `seq`.
        rest: Returns every step as it is stored; None when all are here.
        fresh: What became due at once, in order: the next to be claimed.
        changed: `seq` of rows to be stored.
        added: New rows.
        outputs: `seq` to output text of what was completed.
        dropped: `seq` of parents whose children are to be forgotten.
        revoked: Claims that were taken from a worker: (step, epoch).
        freed: Where a place became free: a parent's `seq`, 0 for the run.
        released: Steps that gave back the place under their key.
        waits: Steps that begin to wait for a key.
        kept: Replies whose output is to be kept for reuse, by `seq`.
    """

    run: Run
    steps: dict[int, Step]
    rules: Rules
    rest: Callable[[], Mapping[int, Step]] | None = None
    run_changed: bool = False
    fresh: list[int] = field(default_factory=list)
    changed: dict[int, None] = field(default_factory=dict)
    added: list[Step] = field(default_factory=list)
    outputs: dict[int, str] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    revoked: list[tuple[UUID, int]] = field(default_factory=list)
    freed: dict[int, None] = field(default_factory=dict)
    released: list[Step] = field(default_factory=list)
    waits: list[Step] = field(default_factory=list)
    kept: dict[int, Reply] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)

    def touch(self, step: Step) -> Step:
        """Note that a row is to be stored."""
        self.changed[step.seq] = None
        return step

    def complete(self) -> None:
        """Have every step of the run here; what is here already stays as it was changed."""
        if self.rest is not None:
            rest, self.rest = self.rest, None
            for seq, step in rest().items():
                self.steps.setdefault(seq, step)

    def at(self, seq: int) -> Step:
        """Return a step by number, loaded if need be."""
        if seq not in self.steps:
            self.complete()
        return self.steps[seq]

    def whole(self) -> list[Step]:
        """Return every step of the run in order."""
        self.complete()
        return [self.steps[seq] for seq in sorted(self.steps)]

    def children_of(self, seq: int) -> list[Step]:
        """Return the direct children of a step in order."""
        return [step for step in self.whole() if step.parent == seq]

    def below(self, seqs: Iterable[int]) -> set[int]:
        """Return everything that these steps expanded into, at any depth."""
        found: set[int] = set()
        roots = set(seqs)
        for step in self.whole():  # a child's number is higher than its parent's
            if step.parent in roots or step.parent in found:
                found.add(step.seq)
        return found

    def after(self, seqs: Iterable[int]) -> set[int]:
        """Return everything that needs one of these steps, directly or not, among siblings."""
        self.complete()
        found: set[int] = set()
        ahead = list(seqs)
        while ahead:
            for follower in self.steps[ahead.pop()].followers:
                if follower not in found and follower in self.steps:
                    found.add(follower)
                    ahead.append(follower)
        return found


UNREADABLE = ""
"""The handler in the plan of a step whose row is damaged; no plan that is checked has it."""
_SEQ_BITS = 24
MAX_SEQ = (1 << _SEQ_BITS) - 1


def step_id(run_id: UUID, seq: int) -> UUID:
    """Return the id of a run's step: the run's own, with the number in its last bits.

    So neighbours are found without a look-up, and the rows of a run lie side by side.
    """
    return UUID(int=run_id.int >> _SEQ_BITS << _SEQ_BITS | seq)


def new_step(
    run_id: UUID,
    seq: int,
    spec: StepPlan,
    *,
    parent: int = 0,
    undo_of: int = 0,
    generation: int = 0,
) -> Step:
    """Return a step that has not begun and waits for nothing yet."""
    return Step(
        step_id(run_id, seq), run_id, seq, parent, undo_of, spec.key, spec.handler, spec, (), (),
        StepStatus.WAITING, StepCondition.NONE, 0, None, None, None, 0, 0, generation, "",
        False, False, False, None, None, None, None, None, "", 0, 0, 0, 0, None, 0, 0, "", "", "",
        None, None,
    )  # fmt: skip


def link_steps(steps: Iterable[Step], now: int) -> list[int]:
    """Number who needs whom among siblings, and return the `seq` of those that need nothing."""
    siblings = {step.key: step for step in steps}
    followers: dict[int, list[int]] = {step.seq: [] for step in siblings.values()}
    ready = []
    for step in siblings.values():
        step.needs = tuple(sorted({siblings[key].seq for key in step.spec.needs}))
        step.needs_left = len(step.needs)
        for need in step.needs:
            followers[need].append(step.seq)
        if not step.needs:
            step.status, step.due_at = StepStatus.PENDING, now
            ready.append(step.seq)
    for step in siblings.values():
        step.followers = tuple(followers[step.seq])
    return ready


def earliest(*instants: int | None) -> int | None:
    """Return the earliest of those instants that are set."""
    return min((each for each in instants if each is not None), default=None)


def joins(step: Step) -> Join:
    """Return the join of an expanded step."""
    return Join(step.join)
