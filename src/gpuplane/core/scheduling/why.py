"""The smallest change that would place one workload, found by asking the filters again.

Owns which changes are tried and in which order; each is a variant of the workload, placed on
trial against what is free now. Nothing is guessed: a change is named only if it works.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.reasons import Reason
from gpuplane.core.scheduling.decisions import Waiting
from gpuplane.core.scheduling.explain import describe_request
from gpuplane.core.scheduling.gates import find_gate
from gpuplane.core.scheduling.ordering import compute_entry
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.waiting import Blocked, Explainer
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.workloads import ResourceRequest, Spreading, Toleration

MAX_MODELS = 16
"""Other models tried; fleets have a handful, and each try is one placement."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change to the request that would let it start now.

    Args:
        field: The field of the job specification to change, such as `resources.gpu_count`.
        before: Its value now, as text.
        after: The value that works.
        node_name: The node its first replica would go to.
    """

    field: str
    before: str
    after: str
    sentence: str
    node_name: str


@dataclass(frozen=True, slots=True)
class Why:
    """Why a workload waits and what would change it.

    Args:
        waiting: Its verdict if it were alone in the queue; None when it would start now.
        changes: Smallest first; empty when no single change helps.
    """

    waiting: Waiting | None
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class _Variant:
    field: str
    before: object
    after: object
    sentence: str
    workload: Workload


def explain_workload(
    snapshot: Snapshot, workload: Workload, policy: Policy, now: int, seed: int
) -> Why:
    """Return why a workload does not start now, alone in the queue, and what would change that.

    Args:
        snapshot: What is running and free; what else is pending is not considered.
        workload: The workload in question; it need not be in the snapshot.
        policy: The scheduler's policy.
        now: The instant of the question, in ms.
        seed: As for `decide`.
    """
    with Trial(replace(snapshot, pending=(workload,)), policy, now, seed) as trial:
        gate = find_gate(workload, snapshot, trial.admission, now)
        if gate is not None:
            return Why(_at_gate(workload, gate), ())
        if _probe(trial, workload) is not None:
            return Why(None, ())
        entry = compute_entry(workload, policy.boosts, now)
        waiting = Explainer(trial).explain(Blocked(entry, 0))
        return Why(waiting, tuple(_list_changes(trial, workload)))


def _at_gate(workload: Workload, gate: Reason) -> Waiting:
    return Waiting(workload.job_id, workload.version, gate, (), 0)


def _probe(trial: Trial, workload: Workload) -> Found | None:
    with trial.undone():
        found = trial.find_place(workload)
    return found if isinstance(found, Found) else None


def _list_changes(trial: Trial, workload: Workload) -> Iterator[Change]:
    """Yield every single change that works, the least loss to the user first."""
    for search in (
        _loosen_links,
        _loosen_spreading,
        _tolerate,
        _loosen_selector,
        _drop_affinity,
        _less_cpu,
        _less_memory,
        _less_ephemeral,
        _fewer_replicas,
        _other_model,
        _fewer_gpus,
    ):
        for variant in search(trial, workload):
            found = _probe(trial, variant.workload)
            if found is not None:
                take = found.spots.takes[0]
                node = trial.benches[found.bench_index].fleet.nodes[take.node]
                yield Change(
                    variant.field,
                    str(variant.before),
                    str(variant.after),
                    variant.sentence,
                    node.name,
                )
                break


def _loosen_links(trial: Trial, workload: Workload) -> Iterator[_Variant]:
    placement = workload.placement
    if placement.links is not LinkPreference.NONE and placement.links_required:
        yield _Variant(
            "placement.links_required",
            "true",
            "false",
            f"Prefer {placement.links.value} instead of requiring it.",
            _placed(workload, links_required=False),
        )


def _loosen_spreading(trial: Trial, workload: Workload) -> Iterator[_Variant]:
    spreading = workload.placement.spreading
    if spreading is not Spreading.ANY:
        yield _Variant(
            "placement.spreading",
            spreading.value,
            Spreading.ANY.value,
            "Let the replicas lie on any nodes.",
            _placed(workload, spreading=Spreading.ANY),
        )


def _tolerate(trial: Trial, workload: Workload) -> Iterator[_Variant]:
    """Yield a toleration for each set of taints in the fleets, the shortest sets first."""
    sets = {taints for fleet in _fleets(trial, workload) for taints in fleet.taint_sets if taints}
    for taints in sorted(sets, key=lambda each: (len(each), each)):
        extra = tuple(Toleration(t.key, "Equal", t.value, t.effect) for t in taints)
        names = ", ".join(f"{t.key}={t.value}:{t.effect}" for t in taints)
        tolerations = (*workload.placement.tolerations, *extra)
        yield _Variant(
            "placement.tolerations",
            len(workload.placement.tolerations),
            names,
            f"Tolerate {names}.",
            _placed(workload, tolerations=tolerations),
        )


def _loosen_selector(trial: Trial, workload: Workload) -> Iterator[_Variant]:
    selector = workload.placement.node_selector
    for key in sorted(selector):
        rest = {other: value for other, value in selector.items() if other != key}
        yield _Variant(
            f"placement.node_selector.{key}",
            selector[key],
            "",
            f"Drop the label {key} from the selector.",
            _placed(workload, node_selector=rest),
        )


def _drop_affinity(trial: Trial, workload: Workload) -> Iterator[_Variant]:
    placement = workload.placement
    if placement.co_locate_with:
        yield _Variant(
            "placement.co_locate_with",
            len(placement.co_locate_with),
            0,
            "Let it run apart from the jobs it names.",
            _placed(workload, co_locate_with=()),
        )
    if placement.separate_from:
        yield _Variant(
            "placement.separate_from",
            len(placement.separate_from),
            0,
            "Let it share nodes with the jobs it names.",
            _placed(workload, separate_from=()),
        )


def _less_cpu(trial: Trial, workload: Workload) -> Iterator[_Variant]:
    def asked(amount: int) -> Workload:
        return _asking(workload, cpu_milli=amount)

    now = workload.resources.cpu_milli
    most = _largest(trial, asked, 100, now, 100)
    if most is not None:
        sentence = f"Ask for {most / 1000:g} CPU instead of {now / 1000:g}."
        yield _Variant("resources.cpu_milli", now, most, sentence, asked(most))


def _less_memory(trial: Trial, workload: Workload) -> Iterator[_Variant]:
    def asked(amount: int) -> Workload:
        return _asking(workload, memory_mib=amount)

    now = workload.resources.memory_mib
    most = _largest(trial, asked, 256, now, 256)
    if most is not None:
        sentence = f"Ask for {most} MiB of memory instead of {now}."
        yield _Variant("resources.memory_mib", now, most, sentence, asked(most))


def _less_ephemeral(trial: Trial, workload: Workload) -> Iterator[_Variant]:
    def asked(amount: int) -> Workload:
        return _asking(workload, ephemeral_mib=amount)

    now = workload.resources.ephemeral_mib
    most = _largest(trial, asked, 0, now, 1024)
    if most is not None:
        sentence = f"Ask for {most} MiB of ephemeral storage instead of {now}."
        yield _Variant("resources.ephemeral_mib", now, most, sentence, asked(most))


def _fewer_replicas(trial: Trial, workload: Workload) -> Iterator[_Variant]:
    replicas = workload.replicas

    def asked(count: int) -> Workload:
        minimum = min(replicas.minimum, count)
        return replace(workload, replicas=replace(replicas, count=count, minimum=minimum))

    most = _largest(trial, asked, 1, replicas.count, 1)
    if most is not None:
        sentence = f"Run {most} replicas instead of {replicas.count}."
        yield _Variant("replicas.count", replicas.count, most, sentence, asked(most))


def _other_model(trial: Trial, workload: Workload) -> Iterator[_Variant]:
    """Yield the fleets' other models, the one closest in memory first."""
    resources = workload.resources
    if resources.gpu_count == 0 or resources.gpu_model is None:
        return
    memory: dict[str, int] = {}
    for fleet in _fleets(trial, workload):
        for node in fleet.nodes:
            for gpu in node.gpus:
                memory[gpu.model] = gpu.memory_mib
    own = memory.pop(resources.gpu_model, 0)
    for model in sorted(memory, key=lambda name: (abs(memory[name] - own), name))[:MAX_MODELS]:
        yield _Variant(
            "resources.gpu_model",
            resources.gpu_model,
            model,
            f"Use {model} ({memory[model]} MiB a GPU) instead of {resources.gpu_model}.",
            _asking(workload, gpu_model=model, gpu_architecture=None),
        )


def _fewer_gpus(trial: Trial, workload: Workload) -> Iterator[_Variant]:
    resources = workload.resources
    if resources.gpu_milli < WHOLE_GPU_MILLI or resources.mig_profile is not None:
        return

    def asked(count: int) -> Workload:
        return _asking(workload, gpu_count=count)

    most = _largest(trial, asked, 1, resources.gpu_count, 1)
    if most is not None:
        fewer = asked(most)
        sentence = f"Ask for {describe_request(fewer.resources)} a replica."
        yield _Variant("resources.gpu_count", resources.gpu_count, most, sentence, fewer)


def _largest(
    trial: Trial, asked: Callable[[int], Workload], least: int, now: int, step: int
) -> int | None:
    """Return the largest amount below `now`, in steps above `least`, that can be placed."""
    low, high = 0, (now - 1 - least) // step
    if high < 0 or _probe(trial, asked(least)) is None:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if _probe(trial, asked(least + middle * step)) is not None:
            low = middle
        else:
            high = middle - 1
    return least + low * step


def _asking(workload: Workload, **changes: int | str | None) -> Workload:
    resources: ResourceRequest = replace(workload.resources, **changes)  # type: ignore[arg-type]  # the callers name the fields
    return replace(workload, resources=resources)


def _placed(workload: Workload, **changes: object) -> Workload:
    placement = replace(workload.placement, **changes)  # type: ignore[arg-type]  # the callers name the fields
    return replace(workload, placement=placement)


def _fleets(trial: Trial, workload: Workload) -> list[Fleet]:
    return [each.fleet for each in trial.benches if trial.may_use(workload, each.fleet)]
