"""Steps that become several: children are siblings of their own, beside one another."""

from gpuplane.core.runs.boards import Board, Step, link_steps, new_step
from gpuplane.core.runs.checking import find_step_faults
from gpuplane.core.runs.plans import Expanding, Failed, Join


def apply_expansion(board: Board, step: Step, answer: Expanding, now: int) -> Failed | None:
    """Add a step's children to its run; return why they cannot be, or None."""
    run, rules = board.run, board.rules
    room = rules.steps - run.step_count
    faults = find_step_faults(answer.children, rules, parent=step.key, room=room)
    if faults:
        told = " ".join(f"{fault.place}: {fault.reason} {fault.fix}".strip() for fault in faults)
        return Failed("BadChildren", told, is_final=True)
    count = {Join.ALL: len(answer.children), Join.ANY: min(1, len(answer.children))}.get(
        answer.join, answer.count
    )
    if not 0 <= count <= len(answer.children):
        return Failed(
            "BadChildren",
            f"{answer.count} of {len(answer.children)} children cannot complete.",
            is_final=True,
        )
    if answer.max_parallel is not None and answer.max_parallel < 1:
        return Failed("BadChildren", "max_parallel must be at least 1.", is_final=True)
    first = run.next_seq
    children = [
        new_step(run.id, first + place, spec, parent=step.seq, generation=step.generation)
        for place, spec in enumerate(answer.children)
    ]
    ready = link_steps(children, now)
    for child in children:
        board.steps[child.seq] = child
    board.added += children
    run.next_seq = first + len(children)
    board.fresh += ready
    run.left += len(children)
    run.step_count += len(children)
    board.run_changed = True
    step.join, step.join_count = str(answer.join), count
    step.kids_left, step.kids_done, step.kids_active = len(children), 0, 0
    step.kids_parallel = answer.max_parallel
    return None
