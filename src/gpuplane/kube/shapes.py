"""What is kept of objects that come by the ten thousand: the fields that somebody reads, no more.

Of a Pod of 5 KB about 1 KB stays. Managed fields, the last applied configuration and images of
nodes are not decoded at all. For a shape with other fields make a Struct of its own.

None is watched by the collector of cycles (`gc=False`): what comes from JSON has none, and looking
through a hundred thousand of them stops everything else for a fifth of a second.
"""

from typing import Any

import msgspec


class OwnerReference(msgspec.Struct, rename="camel", gc=False):
    """Whom an object belongs to."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(msgspec.Struct, rename="camel", gc=False):
    """What every object has."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None
    owner_references: list[OwnerReference] | None = None


class SlimMeta(msgspec.Struct, rename="camel", gc=False):
    """What every object has, without annotations, which can be long."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    owner_references: tuple[OwnerReference, ...] | None = None


class BareObject(msgspec.Struct, gc=False):
    """An object of which only the metadata matter."""

    metadata: ObjectMeta


class Resources(msgspec.Struct, gc=False):
    """What a container asks for and may take, as quantities."""

    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class Container(msgspec.Struct, gc=False):
    """A container of a Pod as far as resources go."""

    name: str
    resources: Resources | None = None


class PodSpec(msgspec.Struct, rename="camel", gc=False):
    """What a Pod asks for and where it is."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    overhead: dict[str, str | int | float] | None = None


class Condition(msgspec.Struct, rename="camel", gc=False):
    """One condition of an object."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ContainerState(msgspec.Struct, rename="camel", gc=False):
    """How a container waits, runs or has ended."""

    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None
    started_at: str | None = None
    finished_at: str | None = None


class ContainerStates(msgspec.Struct, gc=False):
    """The state of a container; one of the three is there."""

    waiting: ContainerState | None = None
    running: ContainerState | None = None
    terminated: ContainerState | None = None


class ContainerStatus(msgspec.Struct, rename="camel", gc=False):
    """How a container does."""

    name: str
    ready: bool = False
    restart_count: int = 0
    state: ContainerStates | None = None
    last_state: ContainerStates | None = None


class PodStatus(msgspec.Struct, rename="camel", gc=False):
    """How a Pod does."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    host_ip: str = msgspec.field(name="hostIP", default="")
    pod_ip: str = msgspec.field(name="podIP", default="")
    start_time: str = ""


class PodShape(msgspec.Struct, gc=False):
    """A Pod with its annotations: for the pods that are ours."""

    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus | None = None


class SlimPodSpec(msgspec.Struct, rename="camel", gc=False):
    """What a Pod takes of a node."""

    containers: tuple[Container, ...] | None = None
    node_name: str = ""
    priority: int | None = None


class SlimPodStatus(msgspec.Struct, rename="camel", gc=False):
    """How far a Pod is."""

    phase: str = ""
    reason: str = ""


class SlimPod(msgspec.Struct, gc=False):
    """A Pod as far as it takes something of a node: for all pods of a large cluster."""

    metadata: SlimMeta
    spec: SlimPodSpec
    status: SlimPodStatus | None = None


class NodeStatus(msgspec.Struct, rename="camel", gc=False):
    """What a node has and how it does."""

    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None
    conditions: list[dict[str, Any]] | None = None
    addresses: list[dict[str, Any]] | None = None
    node_info: dict[str, Any] | None = None
    phase: str = ""


class NodeSpec(msgspec.Struct, rename="camel", gc=False):
    """What was asked of a node."""

    unschedulable: bool = False
    taints: list[dict[str, Any]] | None = None
    provider_id: str = msgspec.field(name="providerID", default="")


class NodeShape(msgspec.Struct, gc=False):
    """A Node without its images and managed fields."""

    metadata: ObjectMeta
    spec: NodeSpec
    status: NodeStatus | None = None


def as_dict(shape: msgspec.Struct) -> dict[str, Any]:
    """Return a shape as the dict that the API would have, without what it has not kept."""
    found: dict[str, Any] = msgspec.to_builtins(shape)
    return found
