"""What a change of runs means to others: places given back, events taken, outputs kept."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from gpuplane.core.lifecycle.runs import RunCondition
from gpuplane.core.runs.boards import MAX_SEQ, Board, Rules, step_id
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.runs.repository import boards as repository
from gpuplane.domains.runs.repository import claims, places
from gpuplane.domains.runs.service.policies import RUNS


def settle(session: WriteSession, boards: Iterable[Board], now: int) -> None:
    """Do what follows outside the runs themselves; the runs are locked."""
    boards = list(boards)
    _take_events(session, boards, now)
    _keep_outputs(session, boards, now)
    holders = [step.id for board in boards for step in board.released]
    over = [board.run.id for board in boards if board.run_changed and board.run.is_over]
    waiters = [
        step.id
        for board in boards
        for seq in board.changed
        if (step := board.steps.get(seq)) and step.is_over and step.spec.limit is not None
    ]
    holders = list(dict.fromkeys([*holders, *waiters]))
    if holders:
        keys = places.keys_of(session, holders)
        places.lock_places(session, keys)
        places.delete_places(session, holders)
        for key in keys:
            wake_waiting(session, key, now)
    if over:
        keys = places.keys_of(session, over)
        if keys:
            places.lock_places(session, keys)
        places.delete_places_of_runs(session, over)
        claims.delete_events_of(session, over)
        for key in keys:
            wake_waiting(session, key, now)


def wake_waiting(session: WriteSession, key: places.PlaceKey, now: int) -> None:
    """Give free places under a key to those who waited longest; its lock is held."""
    found = places.load_places(session, key)
    held = sum(place.held for place in found)
    chosen: list[places.Place] = []
    for place in found:
        if not place.held and held + len(chosen) < place.count:
            chosen.append(place)
    if not chosen:
        return
    if key.kind == "step":
        claims.make_due(session, [place.holder_id for place in chosen], now)
    else:
        for place in chosen:
            release_run(session, place.run_id)
    session.wake(RUNS)


def release_run(session: WriteSession, run_id: UUID) -> bool:
    """Let a run begin that waited for its places, if it may have all of them now."""
    keys = [key for key in places.keys_of(session, [run_id]) if key.kind == "run"]
    places.lock_places(session, keys)
    for key in keys:
        found = places.load_places(session, key)
        own = next(place for place in found if place.holder_id == run_id)
        if sum(place.held for place in found) >= own.count:
            return False
    run = repository.lock_free_runs(session, [run_id]).get(run_id)
    if run is None or run.condition is not RunCondition.LIMITED:
        return False
    for key in keys:
        places.hold_place(session, key, run_id)
    run.condition, run.message = RunCondition.NONE, ""
    board = Board(run, {}, Rules())
    board.run_changed = True
    repository.store_boards(session, [board])
    claims.release_held(session, run_id, step_id(run_id, 0), step_id(run_id, MAX_SEQ))
    return True


def _take_events(session: WriteSession, boards: Sequence[Board], now: int) -> None:
    """Give steps that begin to wait what came before they did."""
    waiting = [
        (board, step) for board in boards for step in board.waits if step.wait_key is not None
    ]
    if not waiting:
        return
    keys = [step.wait_key for _, step in waiting if step.wait_key is not None]
    claims.lock_keys(session, keys)
    kept = claims.find_kept(session, keys)
    taken = []
    for board, step in waiting:
        found = kept.pop(step.wait_key or "", None)
        if found is not None:
            taken.append(found[0])
            board.touch(step).event, step.due_at = found[1], now
            board.fresh.append(step.seq)
    claims.delete_events(session, taken)


def _keep_outputs(session: WriteSession, boards: Sequence[Board], now: int) -> None:
    for board in boards:
        for seq, reply in board.kept.items():
            step = board.steps[seq]
            rule = step.spec.cache
            if rule is None:
                continue
            salt_hash, input_hash = reply.cache_parts
            kept = places.Kept(
                reply.cache_key, step.handler, step.key, salt_hash, input_hash, reply.output,
                board.run.id, now, now + rule.keep_ms,
            )  # fmt: skip
            places.store_output(session, board.run.project_id, kept)
