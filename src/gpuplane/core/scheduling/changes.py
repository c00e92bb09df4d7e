"""The changes to a request that might place it: which there are, and in which order to try them.

Owns the variants of a workload and of its queue, each with its field and its sentence. Never
tries one: `why` asks the filters again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.scheduling.explain import describe_request
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.workloads import NetworkMode, ResourceRequest, Spreading, Toleration

MAX_MODELS = 16
"""Other models tried; fleets have a handful, and each try is one placement."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A workload that differs in one field from the one that waits."""

    field: str
    before: object
    after: object
    sentence: str
    workload: Workload


@dataclass(frozen=True, slots=True)
class Choice:
    """A field with a few other values, the least loss to the user first."""

    list_variants: Callable[[Workload, Sequence[Fleet]], Iterator[Variant]]


@dataclass(frozen=True, slots=True)
class Amount:
    """A field that could be less: the most that fits is the smallest change.

    Args:
        get: Returns the amount asked for; None where the field does not count.
        put: Returns the workload with another amount.
        describe: Returns the sentence for a workload with less, given the amounts before and after.
    """

    field: str
    least: int
    step: int
    get: Callable[[Workload], int | None]
    put: Callable[[Workload, int], Workload]
    describe: Callable[[Workload, int, int], str]

    def variant(self, workload: Workload, amount: int) -> Variant:
        """Return the workload with this amount."""
        before = self.get(workload) or 0
        less = self.put(workload, amount)
        return Variant(self.field, before, amount, self.describe(less, before, amount), less)


def _loosen_links(workload: Workload, fleets: Sequence[Fleet]) -> Iterator[Variant]:
    placement = workload.placement
    if placement.links is not LinkPreference.NONE and placement.links_required:
        yield Variant(
            "placement.links_required",
            "true",
            "false",
            f"Prefer {placement.links.value} instead of requiring it.",
            _placed(workload, links_required=False),
        )


def _loosen_network(workload: Workload, fleets: Sequence[Fleet]) -> Iterator[Variant]:
    network = workload.placement.network
    if network is not None and network.mode is NetworkMode.REQUIRED:
        yield Variant(
            "placement.network.mode",
            network.mode.value,
            NetworkMode.PREFERRED.value,
            f"Prefer one {network.level.value} instead of requiring it.",
            _placed(workload, network=replace(network, mode=NetworkMode.PREFERRED)),
        )


def _loosen_spreading(workload: Workload, fleets: Sequence[Fleet]) -> Iterator[Variant]:
    spreading = workload.placement.spreading
    if spreading is not Spreading.ANY:
        yield Variant(
            "placement.spreading",
            spreading.value,
            Spreading.ANY.value,
            "Let the replicas lie on any nodes.",
            _placed(workload, spreading=Spreading.ANY),
        )


def _tolerate(workload: Workload, fleets: Sequence[Fleet]) -> Iterator[Variant]:
    """Yield a toleration for each set of taints in the fleets, the shortest sets first."""
    sets = {taints for fleet in fleets for taints in fleet.taint_sets if taints}
    for taints in sorted(sets, key=lambda each: (len(each), each)):
        extra = tuple(Toleration(t.key, "Equal", t.value, t.effect) for t in taints)
        names = ", ".join(f"{t.key}={t.value}:{t.effect}" for t in taints)
        tolerations = (*workload.placement.tolerations, *extra)
        yield Variant(
            "placement.tolerations",
            len(workload.placement.tolerations),
            names,
            f"Tolerate {names}.",
            _placed(workload, tolerations=tolerations),
        )


def _loosen_selector(workload: Workload, fleets: Sequence[Fleet]) -> Iterator[Variant]:
    selector = workload.placement.node_selector
    for key in sorted(selector):
        rest = {other: value for other, value in selector.items() if other != key}
        yield Variant(
            f"placement.node_selector.{key}",
            selector[key],
            "",
            f"Drop the label {key} from the selector.",
            _placed(workload, node_selector=rest),
        )


def _drop_affinity(workload: Workload, fleets: Sequence[Fleet]) -> Iterator[Variant]:
    placement = workload.placement
    if placement.co_locate_with:
        yield Variant(
            "placement.co_locate_with",
            len(placement.co_locate_with),
            0,
            "Let it run apart from the jobs it names.",
            _placed(workload, co_locate_with=()),
        )
    if placement.separate_from:
        yield Variant(
            "placement.separate_from",
            len(placement.separate_from),
            0,
            "Let it share nodes with the jobs it names.",
            _placed(workload, separate_from=()),
        )


def _other_model(workload: Workload, fleets: Sequence[Fleet]) -> Iterator[Variant]:
    """Yield the fleets' other models, the one closest in memory first."""
    resources = workload.resources
    if resources.gpu_count == 0 or resources.gpu_model is None:
        return
    memory: dict[str, int] = {}
    for fleet in fleets:
        for node in fleet.nodes:
            for gpu in node.gpus:
                memory[gpu.model] = gpu.memory_mib
    own = memory.pop(resources.gpu_model, 0)
    for model in sorted(memory, key=lambda name: (abs(memory[name] - own), name))[:MAX_MODELS]:
        yield Variant(
            "resources.gpu_model",
            resources.gpu_model,
            model,
            f"Use {model} ({memory[model]} MiB a GPU) instead of {resources.gpu_model}.",
            _asking(workload, gpu_model=model, gpu_architecture=None),
        )


def _whole_gpus(workload: Workload) -> int | None:
    resources = workload.resources
    if resources.gpu_milli < WHOLE_GPU_MILLI or resources.mig_profile is not None:
        return None
    return resources.gpu_count


def _with_replicas(workload: Workload, count: int) -> Workload:
    replicas = workload.replicas
    minimum = min(replicas.minimum, count)
    return replace(workload, replicas=replace(replicas, count=count, minimum=minimum))


CHANGES: tuple[Choice | Amount, ...] = (
    Choice(_loosen_links),
    Choice(_loosen_network),
    Choice(_loosen_spreading),
    Choice(_tolerate),
    Choice(_loosen_selector),
    Choice(_drop_affinity),
    Amount(
        "resources.cpu_milli",
        100,
        100,
        lambda workload: workload.resources.cpu_milli,
        lambda workload, amount: _asking(workload, cpu_milli=amount),
        lambda _, before, after: f"Ask for {after / 1000:g} CPU instead of {before / 1000:g}.",
    ),
    Amount(
        "resources.memory_mib",
        256,
        256,
        lambda workload: workload.resources.memory_mib,
        lambda workload, amount: _asking(workload, memory_mib=amount),
        lambda _, before, after: f"Ask for {after} MiB of memory instead of {before}.",
    ),
    Amount(
        "resources.ephemeral_mib",
        0,
        1024,
        lambda workload: workload.resources.ephemeral_mib,
        lambda workload, amount: _asking(workload, ephemeral_mib=amount),
        lambda _, before, after: f"Ask for {after} MiB of ephemeral storage instead of {before}.",
    ),
    Amount(
        "replicas.count",
        1,
        1,
        lambda workload: workload.replicas.count,
        _with_replicas,
        lambda _, before, after: f"Run {after} replicas instead of {before}.",
    ),
    Choice(_other_model),
    Amount(
        "resources.gpu_count",
        1,
        1,
        _whole_gpus,
        lambda workload, amount: _asking(workload, gpu_count=amount),
        lambda less, _, __: f"Ask for {describe_request(less.resources)} a replica.",
    ),
)
"""Every change to a request, the least loss to the user first."""


def _asking(workload: Workload, **changes: int | str | None) -> Workload:
    resources: ResourceRequest = replace(workload.resources, **changes)  # type: ignore[arg-type]  # the callers name the fields
    return replace(workload, resources=resources)


def _placed(workload: Workload, **changes: object) -> Workload:
    placement = replace(workload.placement, **changes)  # type: ignore[arg-type]  # the callers name the fields
    return replace(workload, placement=placement)
