"""The parts of pods, workloads and records that the backend keeps of what a cluster tells.

Lists and watches are decoded straight into these, so that fifty thousand pods stay small.
"""

import datetime

import msgspec

from gpuplane.backends.kubernetes.names import CONTAINER, PART

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Annotation by which a pod of several containers says which one people mean."""


class Reference(msgspec.Struct, gc=False):
    """Who an object belongs to."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class Meta(msgspec.Struct, rename="camel"):
    """The metadata that is kept."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[Reference] = []


class Condition(msgspec.Struct, rename="camel", gc=False):
    """A condition of a pod, a workload or a node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class Waiting(msgspec.Struct, gc=False):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class Running(msgspec.Struct, rename="camel", gc=False):
    """Since when a container runs."""

    started_at: str = ""


class Terminated(msgspec.Struct, rename="camel", gc=False):
    """How a container ended."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class State(msgspec.Struct):
    """One of three."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class Container(msgspec.Struct, rename="camel"):
    """The status of a container."""

    name: str = ""
    ready: bool = False
    started: bool | None = None
    """Whether its startup probe succeeded; None of a kubelet that does not say."""
    restart_count: int = 0
    state: State = msgspec.field(default_factory=State)
    last_state: State = msgspec.field(default_factory=State)


class Gate(msgspec.Struct, gc=False):
    """What keeps a pod from the scheduler."""

    name: str = ""


class PodSpec(msgspec.Struct, rename="camel"):
    """Where a pod is, and what keeps it."""

    node_name: str = ""
    scheduling_gates: list[Gate] = []


class PodStatus(msgspec.Struct, rename="camel"):
    """What is said of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: list[Condition] = []
    container_statuses: list[Container] = []
    init_container_statuses: list[Container] = []


class Pod(msgspec.Struct):
    """A pod, as far as it matters here."""

    metadata: Meta
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def is_over(self) -> bool:
        """Return whether all its containers have ended for good."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def main(self) -> Container | None:
        """Return the status of the job's container, None before there is one.

        A pod of a chart has the names that its author chose: the one that it says, else the first.
        """
        statuses = self.status.container_statuses
        wanted = CONTAINER
        if PART in self.metadata.labels:
            wanted = self.metadata.annotations.get(DEFAULT_CONTAINER, CONTAINER)
        found = [each for each in statuses if each.name == wanted]
        if not found and PART in self.metadata.labels:
            found = statuses[:1]
        return found[0] if found else None

    @property
    def container_name(self) -> str:
        """Return the name of the job's container."""
        main = self.main
        return main.name if main is not None else CONTAINER


class WorkloadSpec(msgspec.Struct):
    """Whether a workload is held back, and who manages it if not its own controller."""

    suspend: bool = False
    replicas: int | None = None
    managed_by: str | None = msgspec.field(default=None, name="managedBy")


class WorkloadStatus(msgspec.Struct):
    """What a controller says of a workload."""

    conditions: list[Condition] = []
    active: int = 0
    ready: int | None = None


class OwnedSpec(msgspec.Struct):
    """What of a spec a manager wrote last, as far as it matters: the number of replicas."""

    replicas: dict[str, str] | None = msgspec.field(default=None, name="f:replicas")


class OwnedFields(msgspec.Struct):
    """What of an object a manager wrote last."""

    spec: OwnedSpec | None = msgspec.field(default=None, name="f:spec")


class Manager(msgspec.Struct):
    """Who wrote which fields of an object."""

    manager: str = ""
    time: str = ""
    fields: OwnedFields | None = msgspec.field(default=None, name="fieldsV1")


class MainMeta(Meta, rename="camel"):
    """The metadata of a workload, with who wrote what of it."""

    managed_fields: list[Manager] = []


class Main(msgspec.Struct):
    """A Job, JobSet or Deployment of ours."""

    metadata: MainMeta
    kind: str = ""
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class RecordMap(msgspec.Struct):
    """The ConfigMap of a record."""

    metadata: Meta
    data: dict[str, str] | None = None


def instant_ms(text: str | None) -> int | None:
    """Return a Kubernetes time in ms since the epoch, None where none can be read."""
    if not text:
        return None
    try:
        return round(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None
