"""The groups of fields of a job's body; each is shown as it is written."""

import json
import re
from functools import lru_cache
from typing import Annotated, Any, Self
from uuid import UUID
from zoneinfo import available_timezones

from pydantic import AfterValidator, Field, field_validator, model_validator

from gpuplane.core.mig.profiles import find_models_with_profile
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.workloads import (
    DependencyCondition,
    NetworkLevel,
    NetworkMode,
    RestartPolicy,
    Spreading,
    WindowEnd,
)
from gpuplane.domains.jobs.schemas.values import (
    MAX_AFTER,
    MAX_ARRAY,
    MAX_CHART_VALUES,
    MAX_DATA,
    MAX_ITEMS,
    MAX_TRIGGER_CHARS,
    MAX_TRIGGER_KEYS,
    MAX_TRIGGERS,
    AbsolutePath,
    Digest,
    Environment,
    EnvName,
    EphemeralGb,
    FloatSeconds,
    GpuMemoryGb,
    GpuShare,
    InsidePath,
    PlainText,
    Port,
    PrintableText,
    Ratio,
    Replicas,
    ReplicasFromZero,
    Seconds,
    SecondsFromZero,
    TimeOfDay,
    UrlPath,
    Weekday,
)
from gpuplane.kit.bodies import Body, Flag, Integer, Labels, Name, refusal
from gpuplane.kit.problems import nearest

HOST_WORDS = frozenset({"host_path", "hostPath", "source", "src", "bind", "host"})
"""What people write to mount a folder of the machine; none of it is taken."""


_CHART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*")
_REPO = re.compile(r"https://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
_CHART_VERSION = re.compile(r"v?[0-9]+(\.[0-9]+){0,2}([-+][0-9A-Za-z.+-]+)?")


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """Return every IANA zone; reading them from the disk takes tens of milliseconds."""
    return frozenset(available_timezones())


def _check_zone(value: str) -> str:
    if value not in _zones():
        raise refusal(f"There is no time zone {value[:64]!r}.", nearest(value, _zones()))
    return value


def _check_profile(value: str) -> str:
    if not find_models_with_profile(value):
        raise refusal(
            f"No GPU model has a MIG profile {value[:50]!r}.",
            "Profiles are written like 1g.10gb, 2g.20gb or 3g.40gb.",
        )
    return value


Zone = Annotated[str, Field(max_length=64), AfterValidator(_check_zone)]
Profile = Annotated[str, Field(max_length=50), AfterValidator(_check_profile)]


class MountBody(Body):
    """A named volume at a path inside the job."""

    name: Name
    path: AbsolutePath
    read_only: Flag = False

    @model_validator(mode="before")
    @classmethod
    def _refuse_host_paths(cls, value: Any) -> Any:
        named = value.get("name") if isinstance(value, dict) else None
        is_path = isinstance(named, str) and named.startswith(("/", ".", "~"))
        if isinstance(value, dict) and (HOST_WORDS & set(value) or is_path):
            raise refusal(
                "A path of the host cannot be mounted.",
                "Name a volume, put files into the working directory, or fetch them in the job.",
            )
        return value


class SecretBodyPart(Body):
    """A secret by name, and how it reaches the process; never its value."""

    name: Name
    env: EnvName = ""
    path: InsidePath = ""

    @model_validator(mode="before")
    @classmethod
    def _refuse_values(cls, value: Any) -> Any:
        if isinstance(value, dict) and "value" in value:
            raise refusal(
                "A job names a secret and never holds its value.",
                "Store it with `gpuplane secrets set NAME` and leave `value` out.",
            )
        return value


class HealthBody(Body):
    """How a service replica is known to be ready: an HTTP path, or a TCP connect without one."""

    path: UrlPath = ""
    port: Port = 0
    interval_s: Annotated[float, Field(strict=True, ge=0.1, le=3600, allow_inf_nan=False)] = 1.0
    timeout_s: Annotated[float, Field(strict=True, ge=0.1, le=3600, allow_inf_nan=False)] = 2.0
    failure_threshold: Annotated[int, Field(strict=True, ge=1, le=1_000)] = 3
    start_period_s: FloatSeconds = 300.0


class SimulatedBody(Body):
    """What the job does on a simulated cluster, where no command is ever executed."""

    duration_s: FloatSeconds = 60.0
    exit_code: Annotated[int, Field(strict=True, ge=0, le=255)] = 0
    log: Annotated[list[PrintableText], Field(max_length=MAX_ITEMS)] = Field(default_factory=list)
    startup_s: FloatSeconds = 0.0
    checkpoint_every_s: FloatSeconds = 0.0
    outputs: Annotated[dict[str, Any], Field(max_length=100)] = Field(default_factory=dict)
    gpu_memory_mib: Annotated[int, Field(strict=True, ge=0, le=16_777_216)] | None = None
    """Peak memory of a GPU that is measured of it; null for not measured."""
    gpu_utilization: Ratio | None = None
    """Mean utilisation of its GPUs that is measured of it; null for not measured."""


class ChartBody(Body):
    """A Helm chart and its values; `$(GPUPLANE_SECRET)` in one names the Secret of the job."""

    name: Annotated[str, Field(min_length=1, max_length=500)]
    repo: Annotated[str, Field(max_length=500)] = ""
    version: Annotated[str, Field(max_length=64)] = ""
    values: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        is_address = value.startswith("oci://")
        plain = value.removeprefix("oci://").removeprefix("./")
        if not _CHART.fullmatch(plain) or (".." in plain) or (is_address and "/" not in plain):
            raise refusal(
                f"{value[:100]!r} names no chart.",
                "Write a name such as 'qdrant', an 'oci://host/path', or './folder' in the"
                " working directory.",
            )
        return value

    @field_validator("repo")
    @classmethod
    def _check_repo(cls, value: str) -> str:
        if value and not _REPO.fullmatch(value):
            raise refusal(
                "A chart repository is reached over https, without a name or password in it.",
                "For example 'https://charts.example.com/stable'.",
            )
        return value

    @field_validator("version")
    @classmethod
    def _check_version(cls, value: str) -> str:
        if value and not _CHART_VERSION.fullmatch(value):
            raise refusal(
                f"{value!r} is no exact version of a chart.", "For example '1.12.0', not a range."
            )
        return value

    @field_validator("values")
    @classmethod
    def _check_size(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            size = len(json.dumps(value, allow_nan=False))
        except (ValueError, RecursionError):
            raise refusal("The values hold a number that JSON has not.", "Leave it out.") from None
        if size > MAX_CHART_VALUES:
            raise refusal(
                f"The values take {size} characters; at most {MAX_CHART_VALUES} are kept.",
                "Put large texts into the chart or a volume.",
            )
        return value


class ExecutionBody(Body):
    """What runs."""

    image: Annotated[str, Field(max_length=1_000)] = ""
    command: Annotated[list[PrintableText], Field(max_length=MAX_ITEMS)] = Field(
        default_factory=list
    )
    env: Environment = Field(default_factory=dict)
    working_dir: InsidePath = ""
    workspace_digest: Digest | None = None
    mounts: Annotated[list[MountBody], Field(max_length=100)] = Field(default_factory=list)
    secrets: Annotated[list[SecretBodyPart], Field(max_length=100)] = Field(default_factory=list)
    artifacts: Annotated[list[InsidePath], Field(max_length=100)] = Field(default_factory=list)
    port: Port | None = None
    health: HealthBody | None = None
    restart: RestartPolicy = RestartPolicy.NEVER
    grace_s: Annotated[int, Field(strict=True, ge=0, le=3_600)] = 30
    seed: Integer | None = None
    simulated: SimulatedBody | None = None
    chart: ChartBody | None = None

    @field_validator("command")
    @classmethod
    def _name_a_program(cls, value: list[str]) -> list[str]:
        if value and not value[0].strip():
            raise refusal(
                "The first word of a command names the program, and is empty.",
                "Give the program first, then its arguments.",
            )
        return value

    @model_validator(mode="after")
    def _run_something(self) -> Self:
        """Refuse an empty command that was written down, where nothing else says what runs."""
        others = self.image or self.simulated is not None or self.chart is not None
        if "command" in self.model_fields_set and not self.command and not others:
            raise refusal(
                "spec.command is empty: nothing would run.",
                'Write it as a list, such as ["python3", "train.py"].',
            )
        return self

    @field_validator("mounts")
    @classmethod
    def _mount_one_at_a_path(cls, value: list[MountBody]) -> list[MountBody]:
        by_path: dict[str, str] = {}
        for each in value:
            path = each.path.rstrip("/")
            if path in by_path:
                raise refusal(
                    f"The volumes {by_path[path]!r} and {each.name!r} are both mounted at {path}.",
                    "Give each its own path.",
                )
            by_path[path] = each.name
        return value

    @field_validator("image")
    @classmethod
    def _check_image(cls, value: str) -> str:
        if not value.isprintable() or any(mark in value for mark in (" ", "..", "\\")):
            raise refusal(
                "This is no name of an image.", "For example 'registry.example.com/team/app:1.2'."
            )
        return value


class ResourcesBody(Body):
    """What one replica needs beside the counts at the top of the job."""

    gpu_memory_gb: GpuMemoryGb | None = None
    gpu_architecture: PlainText | None = None
    gpu_share: GpuShare = 1.0
    mig_profile: Profile | None = None
    rdma_fabric: PlainText | None = None
    ephemeral_storage_gb: EphemeralGb = 100.0


class TriggerBody(Body):
    """What scales a service on a cluster with KEDA: a type of its triggers, and its metadata."""

    type: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    metadata: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")],
            Annotated[str, Field(max_length=MAX_TRIGGER_CHARS)],
        ],
        Field(max_length=MAX_TRIGGER_KEYS),
    ] = Field(default_factory=dict)


class ReplicasBody(Body):
    """How many copies: `count` asked, `minimum` that may start, all or nothing with `gang`."""

    count: Replicas = 1
    minimum: Replicas | None = None
    gang: Flag = True
    min: ReplicasFromZero | None = None
    max: Replicas | None = None
    scale_to_zero: Flag = False
    triggers: Annotated[list[TriggerBody], Field(max_length=MAX_TRIGGERS)] = Field(
        default_factory=list
    )


class ArrayBody(Body):
    """Many jobs alike, each with its own GPUPLANE_ARRAY_INDEX."""

    size: Annotated[int, Field(strict=True, ge=1, le=MAX_ARRAY)]
    limit: Annotated[int, Field(strict=True, ge=1, le=MAX_ARRAY)] | None = None


class AfterBody(Body):
    """A job this one comes after."""

    job_id: UUID
    condition: DependencyCondition = DependencyCondition.COMPLETED


class WindowBody(Body):
    """A daily window in a named zone; it crosses midnight when it ends before it starts."""

    start: TimeOfDay
    end: TimeOfDay
    zone: Zone
    weekdays: Annotated[list[Weekday], Field(max_length=7)] | None = None
    at_end: WindowEnd = WindowEnd.FINISH


class TopologyBody(Body):
    """Which links the GPUs of a replica should have."""

    preference: LinkPreference = LinkPreference.NONE
    required: Flag = False


class NetworkBody(Body):
    """In which part of the network the replicas should lie together."""

    level: NetworkLevel = NetworkLevel.RACK
    mode: NetworkMode = NetworkMode.PREFERRED


class TolerationBody(Body):
    """A Kubernetes toleration."""

    key: Annotated[str, Field(max_length=317)] = ""
    operator: Annotated[str, Field(pattern="^(Equal|Exists)$")] = "Equal"
    value: Annotated[str, Field(max_length=63)] = ""
    effect: Annotated[str, Field(pattern="^(|NoSchedule|PreferNoSchedule|NoExecute)$")] = ""


class PlacementBody(Body):
    """Where the job may and would rather run."""

    topology: TopologyBody = TopologyBody()
    spreading: Spreading = Spreading.ANY
    network: NetworkBody | None = None
    data: Annotated[list[Name], Field(max_length=MAX_DATA)] = Field(
        default_factory=list,
        description="Data sets it reads; nodes with data.gpuplane.io/NAME=cached are preferred.",
    )
    co_locate_with: Annotated[list[UUID], Field(max_length=MAX_AFTER)] = Field(default_factory=list)
    separate_from: Annotated[list[UUID], Field(max_length=MAX_AFTER)] = Field(default_factory=list)
    node_selector: Labels = Field(default_factory=dict)
    tolerations: Annotated[list[TolerationBody], Field(max_length=100)] = Field(
        default_factory=list
    )


class RetryBody(Body):
    """How failures are tried again; `max_retries` stands at the top of the job."""

    delay_seconds: SecondsFromZero = 30
    max_delay_seconds: SecondsFromZero = 3_600
    jitter: Ratio = 0.1
    on_preemption: Flag = True


class CheckpointBody(Body):
    """Where and how often the job writes checkpoints."""

    enabled: Flag = True
    storage_class: PlainText = "standard"
    storage_size: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,6}(Mi|Gi|Ti)$")] = "100Gi"
    checkpoint_interval: Seconds = 3_600
    max_checkpoints: Annotated[int, Field(strict=True, ge=1, le=1_000)] = 3
    checkpoint_path: AbsolutePath = "/checkpoints"
