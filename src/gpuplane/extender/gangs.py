"""Gangs: pods that are placed all at once or not at all, by holding them back and letting them go.

Owns who belongs together, whether all of a gang's places exist, and how long places are kept for
those of its pods that kube-scheduler has not bound yet. Everything follows from the cluster's
objects and the time, so replicas need not speak to each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.bench import Bench
from gpuplane.core.scheduling.explain import describe_request
from gpuplane.core.scheduling.placement import count_placeable, place_workload
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import ReplicaRequest
from gpuplane.extender.affinity import find_allowed, read_required
from gpuplane.extender.pods import PodFacts

HOLD_MS = 60_000
"""How long places are kept for a gang that could start: kube-scheduler backs a pod off for at most
10 s by default, so each pod of it is tried several times."""
MAX_PLANNED = 64
"""Complete gangs whose places are sought at once, first come first: bounds the work of a change."""


@dataclass(frozen=True, slots=True)
class GangPlan:
    """What becomes of a gang now.

    Attributes:
        reason: Why it is held back, empty when its pods may go.
        places: By pod uid what it takes, for pods that are not bound yet.
        is_kept: The places are kept from others until `until`, in ms.
    """

    key: str
    reason: str = ""
    places: Mapping[str, Take] = field(default_factory=dict)
    is_kept: bool = False
    until: int = 0


def plan_gangs(
    gangs: Mapping[str, Iterable[PodFacts]], fleet: Fleet, bench: Bench, now: int, hold_ms: int
) -> dict[str, GangPlan]:
    """Return a plan for each gang that has pods to place.

    Places that are kept stay counted in the fleet; the caller gives them back.

    Args:
        gangs: The pods of each that have not ended, in any order.
        fleet: With what bound pods hold taken from it.
        bench: The fleet's.
        now: In ms.
        hold_ms: How long places are kept.
    """
    plans: dict[str, GangPlan] = {}
    complete: list[tuple[int, int, str, list[PodFacts]]] = []
    for key, pods in gangs.items():
        members = sorted(pods, key=_order)
        size = max(pod.gang_size for pod in members)
        if all(pod.node for pod in members):
            continue
        if len(members) < size:
            plans[key] = GangPlan(
                key, f"{Word.GANG.value}: gang {key} has {len(members)} of its {size} pods"
            )
            continue
        created = sorted(pod.created_at for pod in members)
        priority = max(pod.priority for pod in members)
        complete.append((-priority, created[size - 1], key, members))
    for place, (_, completed_at, key, members) in enumerate(sorted(complete, key=lambda g: g[:3])):
        if place >= MAX_PLANNED:
            plans[key] = GangPlan(key, f"{Word.BEHIND_HEAD.value}: {place} gangs stand before it")
            continue
        plans[key] = _plan(key, completed_at, members, fleet, bench, now, hold_ms)
    return plans


def _order(pod: PodFacts) -> tuple[int, int, str, str]:
    return pod.rank, pod.created_at, pod.name, pod.uid


def _plan(
    key: str,
    completed_at: int,
    members: Sequence[PodFacts],
    fleet: Fleet,
    bench: Bench,
    now: int,
    hold_ms: int,
) -> GangPlan:
    """Place what is missing of one gang, all of it or nothing."""
    size = max(pod.gang_size for pod in members)
    bound = [pod for pod in members if pod.node]
    waiting = [pod for pod in members if not pod.node]
    missing = waiting[: max(0, size - len(bound))]
    if not missing:
        # It runs; pods beyond its size are placed one by one.
        return GangPlan(key)
    began = max([completed_at, *(pod.bound_at for pod in bound)])
    mark = fleet.checkpoint()
    places: dict[str, Take] = {}
    for (_, _), same in groupby(sorted(missing, key=_class_of), key=_class_of):
        group = sorted(same, key=_order)
        workload = _many(group[0].workload, len(group))
        allowed = find_allowed(group[0].affinity, fleet)
        spots = place_workload(workload, bench, allowed)
        if spots is None:
            fit = count_placeable(workload, bench, allowed)
            fleet.rollback(mark)
            asked = describe_request(workload.resources)
            return GangPlan(
                key,
                f"{Word.GANG.value}: gang {key} needs {len(group)} times {asked} at once; "
                f"{fit} of them fit now",
            )
        places.update(zip((pod.uid for pod in group), spots.takes, strict=True))
    until = began + hold_ms
    if now >= until:
        fleet.rollback(mark)
    return GangPlan(key, places=places, is_kept=now < until, until=until)


def _class_of(pod: PodFacts) -> tuple[str, str]:
    return pod.workload.class_key, repr(read_required(pod.affinity))


def _many(workload: Workload, count: int) -> Workload:
    return replace(workload, replicas=ReplicaRequest(count, count, count, gang=count > 1))
