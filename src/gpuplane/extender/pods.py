"""A pod as the extender sees it: what it asks for, what it holds, and the class it belongs to.

Owns the translation from a Pod object, as an informer or kube-scheduler sends it, into core values.
Never keeps the object: a pod is a few numbers and names here.
"""

from datetime import datetime
from functools import lru_cache
from math import ceil
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from gpuplane.core.hardware import find_models
from gpuplane.core.ids import JobId
from gpuplane.core.podrequests import effective_request
from gpuplane.core.quantities import BadQuantity, parse_quantity
from gpuplane.core.scheduling.needs import OR
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.workloads import PlacementRequest, ResourceRequest, Toleration
from gpuplane.extender import names

MIB = 2**20
MAX_GANG = 4_096
"""More pods than any gang has; a larger number is a slip, and bounds what is planned at once."""
MAX_RESOURCES_BYTES = 1_024
"""What containers ask for is remembered by its JSON; longer ones than any real one are read each
time."""
NO_JOB: Final = JobId(UUID(int=0))
_ENDED = frozenset({"Succeeded", "Failed"})

Amounts = dict[str, int]


class Meta(msgspec.Struct, rename="camel", gc=False):
    """The part of an object's metadata that is read."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None


class Resources(msgspec.Struct, gc=False):
    """What a container or pod asks for."""

    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None


class Container(msgspec.Struct, rename="camel", gc=False):
    """One container; `restartPolicy: Always` makes an init container a sidecar.

    What it asks for stays JSON: most pods ask for what others did, in the same bytes.
    """

    resources: msgspec.Raw = msgspec.Raw()
    restart_policy: str | None = None


class TolerationView(msgspec.Struct, gc=False):
    """A toleration as the API has it."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class Spec(msgspec.Struct, rename="camel", gc=False):
    """The part of a pod's spec that decides where it may run."""

    node_name: str | None = None
    scheduler_name: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: Resources | None = None
    overhead: dict[str, Any] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[TolerationView] | None = None
    affinity: msgspec.Raw = msgspec.Raw()
    priority: int | None = None


class Condition(msgspec.Struct, rename="camel", gc=False):
    """One condition of a pod."""

    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class Status(msgspec.Struct, gc=False):
    """How far a pod has come."""

    phase: str | None = None
    conditions: list[Condition] | None = None


class PodView(msgspec.Struct, gc=False):
    """A Pod object, as far as it is read."""

    metadata: Meta
    spec: Spec
    status: Status | None = None


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """One pod in a few values; amounts are its effective request.

    Attributes:
        gpus: Whole devices of `resource`.
        migs: Instances of `mig_profile`.
        gpu_ids: What its annotation says it got, empty before.
        gang: Key of its gang within the cluster, empty without one.
        rank: Its number within the gang, as far as it is told.
        wrong: What no annotation of ours may say, empty where all can be read.
        created_at: In ms. `bound_at`: when kube-scheduler bound it, in ms, 0 before.
    """

    uid: str
    namespace: str
    name: str
    node: str
    resource: str
    gpus: int
    mig_profile: str
    migs: int
    cpu_milli: int
    memory_mib: int
    ephemeral_mib: int
    gpu_ids: tuple[str, ...]
    gang: str
    gang_size: int
    rank: int
    priority: int
    created_at: int
    bound_at: int
    is_starting: bool
    scheduler: str
    workload: Workload
    affinity: str
    wrong: str = ""

    @property
    def wants_devices(self) -> bool:
        """Return whether it asks for any device at all."""
        return self.gpus > 0 or self.migs > 0

    @property
    def is_judged(self) -> bool:
        """Return whether the core can judge it: whole GPUs of one node, or one MIG instance."""
        return (self.gpus > 0) != (self.migs == 1) and self.migs <= 1


class BadPod(ValueError):
    """A pod cannot be read; the text names the field."""


def facts_of(view: PodView) -> PodFacts | None:
    """Return the facts of a pod that was read, or None once it has ended.

    Raises:
        BadPod: If a field is not what the API says.
    """
    status = view.status
    if status is not None and status.phase in _ENDED:
        return None
    metadata, spec = view.metadata, view.spec
    gpus, resource, profile, migs, cpu, memory, ephemeral = _demand_of(spec)
    annotations = metadata.annotations or {}
    affinity = bytes(spec.affinity)
    tolerations = spec.tolerations
    selector = spec.node_selector
    workload = _workload(
        resource if gpus else (names.GPU_RESOURCES[0] if migs else ""),
        gpus,
        profile if migs else "",
        cpu,
        memory,
        ephemeral,
        tuple(sorted(selector.items())) if selector else (),
        _tolerations(tolerations) if tolerations else (),
        annotations.get(names.LINKS, ""),
        annotations.get(names.LINKS_REQUIRED, "") == "true",
        annotations.get(names.GPU_MODEL, ""),
        annotations.get(names.GPU_MEMORY, ""),
    )
    gang, size, rank = _gang(metadata, annotations)
    ids = annotations.get(names.GPU_IDS, "")
    return PodFacts(
        uid=metadata.uid,
        namespace=metadata.namespace or "default",
        name=metadata.name,
        node=spec.node_name or "",
        resource=resource,
        gpus=gpus,
        mig_profile=profile,
        migs=migs,
        cpu_milli=cpu,
        memory_mib=memory,
        ephemeral_mib=ephemeral,
        gpu_ids=tuple(part.strip() for part in ids.split(",") if part.strip()) if ids else (),
        gang=gang,
        gang_size=size,
        rank=rank,
        priority=spec.priority or 0,
        created_at=instant_of(metadata.creation_timestamp),
        bound_at=_bound_at(view),
        is_starting=status is None or status.phase in (None, "", "Pending"),
        scheduler=spec.scheduler_name or "",
        workload=workload,
        affinity=affinity.decode(errors="replace"),
        wrong=_find_wrong(metadata, annotations) if annotations else "",
    )


def _find_wrong(metadata: Meta, annotations: dict[str, str]) -> str:
    """Return what is wrong with a pod's wishes: left unsaid, it would run as if it had none."""
    for key, known in _WORDS_OF.items():
        text = annotations.get(key)
        if text and text not in known:
            return f"annotation {key}: {text!r} is none of {', '.join(known)}"
    memory, size = annotations.get(names.GPU_MEMORY), annotations.get(names.GANG_SIZE)
    if memory and not _number(memory):
        return f"annotation {names.GPU_MEMORY}: {memory!r} is no number of MiB"
    if size and not 1 <= _number(size) <= MAX_GANG:
        return f"annotation {names.GANG_SIZE}: {size!r} is no number from 1 to {MAX_GANG}"
    labels = metadata.labels or {}
    if size and not (labels.get(names.GANG) or labels.get(names.JOB_NAME)):
        return (
            f"annotation {names.GANG_SIZE}: the label {names.GANG} with the gang's name is missing"
        )
    return ""


_WORDS_OF = {
    names.LINKS: tuple(each.value for each in LinkPreference),
    names.LINKS_REQUIRED: ("true", "false"),
}


@lru_cache(maxsize=65_536)
def instant_of(text: str | None) -> int:
    """Return an RFC 3339 instant in ms since the epoch, 0 for none or one that is unreadable."""
    if not text:
        return 0
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return 0


def _bound_at(view: PodView) -> int:
    if not view.spec.node_name:
        return 0
    for each in (view.status.conditions or ()) if view.status is not None else ():
        if each.type == "PodScheduled" and each.status == "True":
            return instant_of(each.last_transition_time)
    return instant_of(view.metadata.creation_timestamp)


def _gang(metadata: Meta, annotations: dict[str, str]) -> tuple[str, int, int]:
    """Return (gang, size, rank): a gang by label, or a Job whose pods tell the size."""
    size_text = annotations.get(names.GANG_SIZE)
    if not size_text:
        return "", 0, 0
    labels = metadata.labels or {}
    name = labels.get(names.GANG) or labels.get(names.JOB_NAME)
    size = _number(size_text)
    if not name or not 1 < size <= MAX_GANG:
        return "", 0, 0
    rank = labels.get(names.RANK) or labels.get(names.JOB_INDEX) or ""
    return f"{metadata.namespace}/{name}", size, _number(rank)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0


class _Demand(NamedTuple):
    """What a pod asks for: devices and other amounts, as `PodFacts` has them."""

    gpus: int
    resource: str
    profile: str
    migs: int
    cpu: int
    memory: int
    ephemeral: int


def _demand_of(spec: Spec) -> _Demand:
    containers = spec.containers
    is_plain = not (spec.init_containers or spec.resources or spec.overhead)
    if is_plain and containers is not None and len(containers) == 1:
        raw = bytes(containers[0].resources)
        return _demand_in(raw) if len(raw) <= MAX_RESOURCES_BYTES else _demand(_read_amounts(raw))
    return _demand(_request_of(spec))


@lru_cache(maxsize=4_096)
def _demand_in(raw: bytes) -> _Demand:
    """Return the demand of a pod of one container from the JSON of its resources."""
    return _demand(_read_amounts(raw))


def _demand(amounts: Amounts) -> _Demand:
    cpu, memory = amounts.get("cpu", 0), amounts.get("memory", 0)
    ephemeral = amounts.get("ephemeral-storage", 0)
    return _Demand(*_whole(amounts), *_mig(amounts), cpu, memory, ephemeral)


def _read_amounts(raw: bytes) -> Amounts:
    """Return what one container asks for.

    Raises:
        BadPod: If it is not what the API says.
    """
    try:
        found = _RESOURCES.decode(raw) if raw else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadPod(f"resources: {error}") from error
    return _sum(found)


_RESOURCES: Final = msgspec.json.Decoder(Resources | None)


def _whole(amounts: Amounts) -> tuple[int, str]:
    for resource in names.GPU_RESOURCES:
        if amounts.get(resource):
            return amounts[resource], resource
    return 0, ""


def _mig(amounts: Amounts) -> tuple[str, int]:
    asked = [name for name in amounts if name.startswith(names.MIG_PREFIX) and amounts[name]]
    if not asked:
        return "", 0
    # A resource's name may not have the plus sign of `1g.10gb+me`.
    found = sorted(
        (name.removeprefix(names.MIG_PREFIX).replace(".me", "+me"), amounts[name]) for name in asked
    )
    return found[0][0], sum(count for _, count in found)


def _request_of(spec: Spec) -> Amounts:
    """Return a pod's effective request: CPU in milli, memory and storage in MiB, devices whole."""
    overhead = {name: amount_of(name, each) for name, each in (spec.overhead or {}).items()}
    return effective_request(
        [_read_amounts(bytes(each.resources)) for each in spec.containers or ()],
        [
            (_read_amounts(bytes(each.resources)), each.restart_policy == "Always")
            for each in spec.init_containers or ()
        ],
        _sum(spec.resources),
        overhead,
    )


def _sum(asked: Resources | None) -> Amounts:
    """Return the amounts that a container asks for; a limit without request is one."""
    if asked is None:
        return {}
    wanted = {**(asked.limits or {}), **(asked.requests or {})}
    return {name: amount_of(name, value) for name, value in wanted.items()}


def amount_of(name: str, value: object) -> int:
    """Return a quantity in the unit of its resource, rounded up as kube-scheduler does.

    Raises:
        BadPod: If it is no quantity.
    """
    return _amount(name, value if isinstance(value, (str, int)) else str(value))


@lru_cache(maxsize=16_384)
def _amount(name: str, value: str | int) -> int:
    try:
        exact = parse_quantity(value)
    except BadQuantity as error:
        raise BadPod(f"resources: {name}: {error}") from error
    if name == "cpu":
        return max(0, ceil(exact * 1000))
    if name in ("memory", "ephemeral-storage") or name.startswith("hugepages-"):
        return max(0, ceil(exact / MIB))
    return max(0, ceil(exact))


def _tolerations(tolerations: list[TolerationView]) -> tuple[Toleration, ...]:
    return tuple(
        sorted(
            (
                Toleration(
                    each.key or "", each.operator or "Equal", each.value or "", each.effect or ""
                )
                for each in tolerations
            ),
            key=lambda each: (each.key, each.operator, each.value, each.effect),
        )
    )


@lru_cache(maxsize=8_192)
def _workload(
    resource: str,
    gpus: int,
    profile: str,
    cpu: int,
    memory: int,
    ephemeral: int,
    selector: tuple[tuple[str, str], ...],
    tolerations: tuple[Toleration, ...],
    links: str,
    links_required: bool,  # noqa: FBT001 - the key of a cache
    model: str,
    memory_of_gpu: str,
) -> Workload:
    """Return the class of a pod as the core has it; pods of one class share the object."""
    wanted = dict(selector)
    if resource:
        wanted[names.ACCELERATOR] = resource
    try:
        preference = LinkPreference(links) if links else LinkPreference.NONE
    except ValueError:
        preference = LinkPreference.NONE
    found = find_models(model) if model else ()
    resources = ResourceRequest(
        gpu_count=gpus,
        gpu_model=(OR.join(each.name for each in found) or model) if model else None,
        gpu_memory_mib=_number(memory_of_gpu) or None,
        mig_profile=profile or None,
        cpu_milli=cpu,
        memory_mib=memory,
        ephemeral_mib=ephemeral,
    )
    placement = PlacementRequest(
        links=preference,
        links_required=links_required,
        node_selector=wanted,
        tolerations=tolerations,
    )
    return Workload(
        job_id=NO_JOB,
        version=0,
        tenant="",
        project="",
        queue="",
        submitted_at=0,
        queued_at=0,
        resources=resources,
        placement=placement,
    )
