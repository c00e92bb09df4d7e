"""Which due steps a worker takes: what just became due, who waited for a place, the longest due."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from gpuplane.core.lifecycle.runs import StepCondition, StepStatus
from gpuplane.core.runs.boards import Board, Run, Step, earliest, step_id
from gpuplane.core.runs.claiming import (
    BY_KEY,
    BY_PARENT,
    BY_RUN,
    claim_step,
    find_limit,
    hold_step,
    limit_step,
    stands_still,
)
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.runs.repository import boards as repository
from gpuplane.domains.runs.repository import claims, places
from gpuplane.domains.runs.rules import Claimed
from gpuplane.domains.runs.service.policies import RunPolicy

LIMITED_BATCH = 64
"""Steps that are looked at together when a place becomes free."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Who takes steps, which, and how many; see `Turn`."""

    owner: str
    handlers: frozenset[str]
    room: int
    share: int
    busy: dict[UUID, int]
    looks: bool
    now: int


class _Taking:
    """One unit's claims as they grow."""

    def __init__(
        self,
        session: WriteSession,
        boards: dict[UUID, Board],
        choice: Choice,
        policy: RunPolicy,
    ) -> None:
        self.session = session
        self.boards = boards
        self.choice = choice
        self.policy = policy
        self.claimed: list[Claimed] = []
        self.taken = dict(choice.busy)
        self.places: dict[places.PlaceKey, list[places.Place]] = {}

    @property
    def is_full(self) -> bool:
        return len(self.claimed) >= self.choice.room

    def take(self, board: Board, step: Step) -> bool:
        """Claim a due step if it has every place; say what it waits for if not."""
        now = self.choice.now
        if step.status is not StepStatus.PENDING or step.due_at is None or step.due_at > now:
            return False
        if step.handler not in self.choice.handlers or self.is_full:
            return False
        if self.taken.get(board.run.id, 0) >= self.choice.share:
            return False
        if stands_still(board.run) and not step.stopping:
            hold_step(board, step)
            return False
        by = find_limit(board, step) or self._key_limit(board, step)
        if by:
            limit_step(board, step, by)
            return False
        claim_step(board, step, self.choice.owner, now)
        self.taken[board.run.id] = self.taken.get(board.run.id, 0) + 1
        self.claimed.append(_claimed(board, step, now))
        return True

    def _key_limit(self, board: Board, step: Step) -> str:
        """Take a place under the step's key, or stand in line for one."""
        limit = step.spec.limit
        if limit is None or step.key_slot or step.stopping:
            return ""
        key = places.PlaceKey(board.run.project_id, "step", limit.key)
        if key not in self.places:
            places.lock_places(self.session, [key])
            self.places[key] = places.load_places(self.session, key)
        found = self.places[key]
        own = next((place for place in found if place.holder_id == step.id), None)
        free = sum(place.held for place in found) < limit.count
        if own is None:
            own = places.Place(step.id, board.run.id, limit.count, free)
            places.insert_place(self.session, key, own)
            found.append(own)
        elif free and not own.held:
            places.hold_place(self.session, key, step.id)
            found.remove(own)
            found.append(places.Place(own.holder_id, own.run_id, own.count, held=True))
        if not free:
            return BY_KEY
        board.touch(step).key_slot = True
        return ""


def board_on(session: WriteSession, run: Run, policy: RunPolicy) -> Board:
    """Return the working copy of a locked run without steps; it loads them when it needs all."""
    return Board(run, {}, policy.rules, partial(repository.load_all_steps, session, run.id))


def choose(
    session: WriteSession, boards: dict[UUID, Board], choice: Choice, policy: RunPolicy
) -> list[Claimed]:
    """Claim due steps onto boards, adding boards of other runs."""
    taking = _Taking(session, boards, choice, policy)
    for board in list(boards.values()):
        fresh = [board.steps[seq] for seq in board.fresh if seq in board.steps]
        _add_steps(taking, board, fresh)  # a container inside another has a parent of its own
        for step in fresh:
            taking.take(board, step)
    for board in list(boards.values()):
        _take_limited(taking, board)
    if choice.looks and not taking.is_full:
        _take_due(taking)
    return taking.claimed


def _take_limited(taking: _Taking, board: Board) -> None:
    """Let those go on that waited for a place of the run or under a parent."""
    for parent in list(board.freed):
        while not board.run.is_over:
            free = _free_places(board, parent)
            if free < 1:
                break
            by = BY_PARENT if parent else BY_RUN
            found = claims.list_limited(taking.session, board.run.id, by, parent or None, free)
            found = [row for row in found if not _is_known_changed(board, row, by)]
            if not found:
                break
            _add_steps(taking, board, found)
            for row in found:
                step = board.touch(board.steps[row.seq])
                step.condition, step.due_at = StepCondition.NONE, taking.choice.now
                taking.take(board, step)
            if len(found) < free or taking.is_full:
                break


def _free_places(board: Board, parent: int) -> int:
    run = board.run
    if not parent:
        return LIMITED_BATCH if run.max_parallel is None else run.max_parallel - run.active
    step = board.steps[parent]
    free = LIMITED_BATCH if step.kids_parallel is None else step.kids_parallel - step.kids_active
    return 0 if step.is_over else min(free, LIMITED_BATCH)


def _is_known_changed(board: Board, row: Step, by: str) -> bool:
    """Return whether a limited row is on the board already as something else."""
    step = board.steps.get(row.seq)
    if step is None:
        return False
    return step.condition is not StepCondition.LIMITED or step.limited_by != by


def _take_due(taking: _Taking) -> None:
    choice = taking.choice
    full = [run_id for run_id, count in taking.taken.items() if count >= choice.share]
    room = choice.room - len(taking.claimed)
    due = claims.list_due(taking.session, choice.handlers, choice.now, room, full)
    on_boards = {
        step.id for board in taking.boards.values() for step in board.steps.values()
    } if due else set()  # fmt: skip
    due = [each for each in due if each[0] not in on_boards]
    wanted = [run_id for _, run_id in due if run_id not in taking.boards]
    for run in repository.lock_free_runs(taking.session, wanted).values():
        taking.boards[run.id] = board_on(taking.session, run, taking.policy)
    rows = repository.load_steps(
        taking.session, [step for step, run_id in due if run_id in taking.boards]
    )
    by_run: dict[UUID, list[Step]] = {}
    for step in rows:
        by_run.setdefault(step.run_id, []).append(step)
    for run_id, steps in by_run.items():
        _add_steps(taking, taking.boards[run_id], steps)
    for wanted_id, run_id in due:
        board = taking.boards.get(run_id)
        if board is None:
            continue
        found = _find(board, wanted_id)
        if found is not None:
            taking.take(board, found)


def _find(board: Board, wanted: UUID) -> Step | None:
    step = board.steps.get(wanted.int & 0xFFFFFF)
    return step if step is not None and step.id == wanted else None


def _add_steps(taking: _Taking, board: Board, found: Iterable[Step]) -> None:
    """Put steps with their parents on a board; what is there already stays as it is."""
    for step in found:
        board.steps.setdefault(step.seq, step)
    lacking = {
        step_id(board.run.id, step.parent)
        for step in found
        if step.parent and step.parent not in board.steps
    }
    if lacking:
        for parent in repository.load_steps(taking.session, sorted(lacking)):
            board.steps.setdefault(parent.seq, parent)


def _claimed(board: Board, step: Step, now: int) -> Claimed:
    run = board.run
    waited = step.wait_until is not None and now >= step.wait_until and step.event is None
    return Claimed(
        run=run,
        step=step,
        epoch=step.epoch,
        attempt=step.attempt,
        event=step.event,
        state=step.state,
        joined=bool(step.join),
        timed_out=waited,
        late=step.expires_at is not None and now >= step.expires_at,
        stopping=bool(step.stopping),
        expires_at=earliest(run.expires_at, run.deadline_at, step.expires_at),
    )
