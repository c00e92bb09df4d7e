"""Whether a plan can be run: every fault with its place, before anything is stored."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuplane.core.runs.boards import Rules
from gpuplane.core.runs.plans import RunPlan, StepPlan

MAX_KEY_CHARS = 250
MAX_WORD_CHARS = 100
MAX_FAULTS = 20
"""Told at once: a plan with more is wrong as a whole."""


@dataclass(frozen=True, slots=True)
class PlanFault:
    """What is wrong, where, and what to do."""

    place: str
    reason: str
    fix: str = ""


def find_plan_faults(plan: RunPlan, rules: Rules) -> list[PlanFault]:
    """Return what keeps a run from being stored; empty when nothing does."""
    faults = find_step_faults(plan.steps, rules, parent="", room=rules.steps)
    for name, value in (("timeout_ms", plan.timeout_ms), ("max_parallel", plan.max_parallel)):
        if value is not None and value < 1:
            faults.append(PlanFault(name, f"{name} must be at least 1, not {value}."))
    for limit in plan.limits:
        if limit.count < 1 or not limit.key:
            faults.append(PlanFault("limits", "A limit needs a key and a count of at least 1."))
    if not plan.steps:
        faults.append(PlanFault("steps", "A run needs at least one step."))
    return faults[:MAX_FAULTS]


def find_step_faults(
    steps: Sequence[StepPlan], rules: Rules, *, parent: str, room: int
) -> list[PlanFault]:
    """Return what is wrong with siblings: names, dependencies, cycles, numbers.

    Args:
        steps: The siblings.
        rules: The limits.
        parent: Key of the step they are children of; empty at the top.
        room: Rows that the run may still have.
    """
    if len(steps) > room:
        return [
            PlanFault(
                parent or "steps",
                f"The run would have {len(steps) - room} steps more than the {rules.steps} "
                "that a run may have.",
                "Split it, or let one step do more.",
            )
        ]
    edges = sum(len(step.needs) for step in steps)
    if edges > rules.edges:
        return [PlanFault(parent or "steps", f"{edges} dependencies are more than {rules.edges}.")]
    faults: list[PlanFault] = []
    known: set[str] = set()
    for step in steps:
        faults += _faults_of(step, parent, known)
        known.add(step.key)
    for step in steps:
        for need in step.needs:
            if need == step.key:
                faults.append(PlanFault(step.key, "It needs itself.", "Remove the dependency."))
            elif need not in known:
                faults.append(
                    PlanFault(step.key, f"It needs {need!r}, which is no step beside it.")
                )
        if len(faults) >= MAX_FAULTS:
            return faults[:MAX_FAULTS]
    if not faults:
        cycle = find_cycle(steps)
        if cycle:
            way = " needs ".join(cycle)
            faults.append(PlanFault(cycle[0], f"The steps wait for one another: {way}."))
    if parent.count("/") // 2 + 1 >= rules.depth and parent:
        faults.append(PlanFault(parent, f"Steps lie within steps {rules.depth} levels at most."))
    return faults[:MAX_FAULTS]


def _faults_of(step: StepPlan, parent: str, known: set[str]) -> list[PlanFault]:
    faults = []
    place = step.key or "steps"
    if not step.key or len(step.key) > MAX_KEY_CHARS or "\x00" in step.key:
        faults.append(PlanFault(place, f"A key has 1 to {MAX_KEY_CHARS} characters."))
    if step.key in known:
        faults.append(PlanFault(place, "Two steps have this key.", "Rename one of them."))
    if parent and not step.key.startswith(f"{parent}/"):
        faults.append(PlanFault(place, f"The key of a child begins with {parent + '/'!r}."))
    if not step.handler or len(step.handler) > MAX_WORD_CHARS:
        faults.append(PlanFault(place, "It names no handler."))
    if step.timeout_ms is not None and step.timeout_ms < 1:
        faults.append(PlanFault(place, "A time-out is at least a millisecond."))
    retry = step.retry
    if not (1 <= retry.attempts <= 1_000 and retry.delay_ms >= 0 and 0 <= retry.jitter <= 1):
        faults.append(PlanFault(place, "A retry has 1 to 1000 attempts and a jitter in 0..1."))
    if not 1 <= retry.factor <= 100:
        faults.append(PlanFault(place, "The factor of a retry lies in 1..100."))
    if step.limit is not None and (step.limit.count < 1 or not step.limit.key):
        faults.append(PlanFault(place, "A limit needs a key and a count of at least 1."))
    return faults


def find_cycle(steps: Sequence[StepPlan]) -> list[str]:
    """Return keys of steps that wait for one another, the first again at the end; else empty."""
    needs = {step.key: step.needs for step in steps}
    waiting = {key: len(set(each)) for key, each in needs.items()}
    followers: dict[str, list[str]] = {key: [] for key in needs}
    for key, each in needs.items():
        for need in sorted(set(each)):
            followers[need].append(key)
    ready = [key for key, count in waiting.items() if count == 0]
    while ready:
        for follower in followers[ready.pop()]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    stuck = [key for key in needs if waiting[key] > 0]
    if not stuck:
        return []
    path, seen = [stuck[0]], {stuck[0]: 0}
    while True:
        following = min(need for need in needs[path[-1]] if waiting[need] > 0)
        if following in seen:
            return [*path[seen[following] :], following]
        seen[following] = len(path)
        path.append(following)
