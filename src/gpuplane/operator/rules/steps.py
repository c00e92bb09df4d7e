"""The next step of one workload: one decision of everything that was seen of it.

Owns the order of the questions. Never does a step, and never asks twice: the next look at the
workload is the retry.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuplane.operator.names import FINALIZER, OVER, Priority
from gpuplane.operator.rules.jobs import job_name
from gpuplane.operator.rules.nodes import Choice, list_candidates
from gpuplane.operator.rules.phases import Standing, decide_standing
from gpuplane.operator.rules.preemption import Preemption, plan_preemption
from gpuplane.operator.rules.seen import Job, Node, Pod, Workload
from gpuplane.operator.rules.strategies import choose_node


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is to be done."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The finalizer is to be set before anything is made for the workload."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Jobs are to be deleted and awaited: those of a preempted attempt, or of a deleted workload.

    Attributes:
        finally_release: Whether the finalizer goes once none is left.
    """

    jobs: tuple[Job, ...]
    finally_release: bool


@dataclass(frozen=True, slots=True)
class Follow:
    """The Job is there: the status follows it."""

    standing: Standing
    job: Job


@dataclass(frozen=True, slots=True)
class Search:
    """A Job was made and is not seen: ask for it before saying that it is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class Await:
    """The workload starts later.

    Attributes:
        wake_s: When to look again, in seconds since the epoch.
        holds: Whether GPUs are to be kept for it from now on.
    """

    wake_s: int
    holds: bool


@dataclass(frozen=True, slots=True)
class Place:
    """A node is to be chosen and the Job to be made."""


Step = Rest | Guard | Clear | Follow | Search | Await | Place


def decide_step(
    workload: Workload, jobs: Sequence[Job], pods: Mapping[str, Sequence[Pod]], now_s: int
) -> Step:
    """Return the next step of a workload.

    Args:
        jobs: Every Job that carries its uid.
        pods: Its pods by the name of their Job.
    """
    if workload.is_going:
        if FINALIZER not in workload.finalizers:
            return Rest()
        return Clear(tuple(jobs), finally_release=True)
    if workload.phase in OVER:
        return Rest()
    if FINALIZER not in workload.finalizers:
        return Guard()
    name = job_name(workload)
    # A Job that ended while it was being preempted has done its work: it is not done again.
    done = next((job for job in jobs if job.is_complete), None)
    present = next((job for job in jobs if job.name == name and not job.is_going), done)
    if present is not None:
        return Follow(decide_standing(workload, present, pods.get(present.name, ())), present)
    if jobs:
        return Clear(tuple(jobs), finally_release=False)
    if workload.job == name:
        return Search(name)
    reservation = workload.reservation
    if reservation is not None and now_s < reservation.start_s:
        hold_from_s = reservation.start_s - reservation.hold_s
        holds = now_s >= hold_from_s
        return Await(reservation.start_s if holds else hold_from_s, holds)
    return Place()


@dataclass(frozen=True, slots=True)
class Placed:
    """The node that a workload goes to, and who gives it up for that."""

    node: str
    resource: str
    victims: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """No node fits now.

    Attributes:
        reason: A label of `warp_gpuworkload_failed_total`.
    """

    reason: str
    sentence: str


def decide_placement(
    workload: Workload,
    nodes: Iterable[Node],
    used: Mapping[str, int],
    busy_ids: Mapping[str, Sequence[str]],
    placed: Callable[[], Mapping[str, Sequence[Workload]]],
    *,
    chance: int,
    mix: Mapping[int, int],
    reserved: str = "",
) -> Placed | Refused:
    """Return the node of a workload, by preemption where nothing else helps.

    Args:
        used: By node, GPUs of the workload's vendor that are given away.
        busy_ids: By node, the ids of GPUs that are in use, where they are known.
        placed: Gives by node the workloads of this operator that hold GPUs there; asked only
            where nothing is free.
        chance: Any number not below 0, for the strategy `random`.
        mix: How many unfinished workloads ask for so many GPUs.
        reserved: A node that was kept for the workload; taken if it still fits.
    """
    known = list(nodes)
    choice = list_candidates(known, workload, used, busy_ids)
    kept = [each for each in choice.candidates if each.node.name == reserved]
    found = choose_node(
        workload.strategy, kept or choice.candidates, workload.gpus, chance=chance, mix=mix
    )
    if found is not None:
        return Placed(found.node.name, found.resource)
    if workload.priority is not Priority.LOW:
        plan: Preemption | None = plan_preemption(workload, known, used, placed())
        if plan is not None:
            return Placed(plan.node, plan.resource, plan.victims)
    return Refused(_reason(choice), choice.sentence(workload))


def _reason(choice: Choice) -> str:
    """Return the document's word where there are GPU nodes, another where there are none."""
    return "no_suitable_node" if _has_gpu_nodes(choice) else "no_gpu_nodes"


def _has_gpu_nodes(choice: Choice) -> bool:
    return any(why != "NoGPUs" for why in choice.left_out)
