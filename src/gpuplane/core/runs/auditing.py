"""What must hold of a run's rows between any two changes; every fault is a sentence."""

from collections.abc import Mapping

from gpuplane.core.lifecycle.runs import (
    SATISFIED,
    RunCondition,
    StepCondition,
    StepStatus,
)
from gpuplane.core.runs.boards import Run, Step


def find_run_faults(run: Run, steps: Mapping[int, Step]) -> list[str]:
    """Return what is wrong with a run and its steps, given all of them."""
    top_failed = sum(
        step.status is StepStatus.FAILED and not step.parent and not step.undo_of
        for step in steps.values()
    )
    counts = {
        "steps that are not over": (run.left, sum(not step.is_over for step in steps.values())),
        "steps": (run.step_count, len(steps)),
        "failed steps": (run.failed, top_failed),
        "places held": (run.active, sum(step.run_slot for step in steps.values())),
    }
    faults = [
        f"it counts {told} {what} and has {found}"
        for what, (told, found) in counts.items()
        if told != found
    ]
    if run.is_over and run.left:
        faults.append(f"it is {run.status} with {run.left} steps that are not over")
    if not run.is_over and not run.left:
        faults.append(f"it is {run.status} and nothing is left of it")
    if run.max_parallel is not None and run.active > run.max_parallel:
        faults.append(f"{run.active} steps are under way, {run.max_parallel} may be")
    places = [step.done_no for step in steps.values() if step.status is StepStatus.COMPLETED]
    if len(set(places)) != len(places) or 0 in places:
        faults.append("two steps completed in the same place, or one in none")
    for seq in sorted(steps):
        faults += [f"its step {steps[seq].key} {fault}" for fault in _step_faults(run, steps, seq)]
    return [f"Run {run.id}: {fault}." for fault in faults]


def _step_faults(run: Run, steps: Mapping[int, Step], seq: int) -> list[str]:
    step = steps[seq]
    faults = []
    stray = [need for need in step.needs if need in steps and seq not in steps[need].followers]
    deaf = [other for other in step.followers if other in steps and seq not in steps[other].needs]
    absent = [other for other in (*step.needs, *step.followers) if other not in steps]
    if stray or deaf or absent:
        told = ", ".join(str(each) for each in (*stray, *deaf, *absent)[:10])
        faults.append(f"and those it names do not name one another: {told}")
    unmet = sum(steps[need].status not in SATISFIED for need in step.needs if need in steps)
    if step.undo_of:
        unmet = sum(not steps[need].is_over for need in step.needs if need in steps)
    began = step.started_at is not None or step.status in (StepStatus.RUNNING, StepStatus.COMPLETED)
    if began and unmet:
        faults.append("began before what it needs was satisfied")
    if step.status is StepStatus.WAITING and step.needs_left != unmet:
        faults.append(f"waits for {step.needs_left} and {unmet} are not satisfied")
    if step.status is StepStatus.WAITING and not unmet and not run.is_over:
        faults.append("waits for nothing")
    if (step.owner is not None) != (step.status is StepStatus.RUNNING):
        faults.append("is run by nobody, or by somebody who should not")
    if step.status is StepStatus.PENDING and not _has_way_on(run, step):
        faults.append("waits for something that will not come")
    if step.join:
        faults += _family_faults(steps, step)
    if step.is_over and (step.run_slot or step.kin_slot or step.key_slot):
        faults.append("is over and holds a place")
    return faults


def _has_way_on(run: Run, step: Step) -> bool:
    """Return whether something will make a pending step due."""
    if step.due_at is not None or step.wait_key is not None:
        return True
    if step.held_at is not None:
        return run.condition in (RunCondition.PAUSED, RunCondition.LIMITED)
    if step.condition is StepCondition.EXPANDED:
        return step.kids_left > 0
    return step.condition in (StepCondition.LIMITED, StepCondition.PARKED)


def _family_faults(steps: Mapping[int, Step], step: Step) -> list[str]:
    children = [other for other in steps.values() if other.parent == step.seq]
    left = sum(not child.is_over for child in children)
    done = sum(child.status is StepStatus.COMPLETED for child in children)
    active = sum(child.kin_slot for child in children)
    faults = []
    if (step.kids_left, step.kids_done) != (left, done):
        told = f"{step.kids_left} left and {step.kids_done} done"
        faults.append(f"counts {told} of its children and has {left} and {done}")
    if step.kids_active != active:
        faults.append(f"counts {step.kids_active} children under way and has {active}")
    if step.kids_parallel is not None and active > step.kids_parallel:
        faults.append(f"has {active} children under way, {step.kids_parallel} may be")
    return faults
