"""The pipeline document as models: every field of the specification's 5.2.1 and what design adds.

Frozen; unknown fields are refused. A step's `config` stays as it was written here, for it may hold
expressions; `configs.py` types it by the step's type.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from gpuplane.core.lifecycle.runs import RunStatus
from gpuplane.core.runs.plans import OnFailure
from gpuplane.core.workloads import Priority
from gpuplane.domains.pipelines.documents.fields import (
    LOWER,
    MAX_PARALLEL,
    MAX_PARAMETERS,
    MAX_SECONDS,
    MAX_STEPS,
    MAX_TRIGGERS,
    Seconds,
    String,
    Word,
)
from gpuplane.kit.bodies import Body, Flag, InstantIn, Labels, Name, refusal

API_VERSION = "gpuplane.io/v1"
KIND = "Pipeline"


class StepType(StrEnum):
    """What a step does (spec 5.2.1); only JOB makes jobs."""

    JOB = "job"
    API_CALL = "api_call"
    FUNCTION = "function"
    NOTIFICATION = "notification"
    TRANSFORM = "transform"
    CONDITION = "condition"
    PARALLEL = "parallel"
    WAIT = "wait"
    LOOP = "loop"


class ParameterType(StrEnum):
    """What a parameter may hold."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    LIST = "list"
    OBJECT = "object"


class CatchUp(StrEnum):
    """What becomes of firings that were missed while nobody was there to fire."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class Parameter(Body):
    """A parameter of a pipeline; without a type any JSON value is taken."""

    type: Annotated[ParameterType | None, LOWER] = None
    default: Any = None
    required: Flag = False
    enum: Annotated[list[Any], Field(min_length=1, max_length=1_000)] | None = None
    description: String = ""


class RetryPart(Body):
    """How often a failed step is tried again."""

    attempts: Annotated[int, Field(strict=True, ge=1, le=100)] = 1
    delay_seconds: Annotated[float, Field(strict=True, ge=0, le=86_400)] = 1.0
    factor: Annotated[float, Field(strict=True, ge=1, le=10)] = 2.0
    max_delay_seconds: Annotated[float, Field(strict=True, ge=0, le=86_400)] = 60.0
    jitter: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.1


class CachePart(Body):
    """That equal input may reuse an earlier output."""

    enabled: Flag = True
    salt: Annotated[str, Field(max_length=200)] = ""
    keep_seconds: Annotated[int, Field(strict=True, ge=1, le=MAX_SECONDS)] = 86_400


class LimitPart(Body):
    """At most so many steps with this key at once in the project."""

    key: Annotated[str, Field(min_length=1, max_length=200)]
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_PARALLEL)] = 1


class ConcurrencyPart(Body):
    """At most so many runs with this key at once in the project."""

    key: Annotated[String, Field(min_length=1)]
    limit: Annotated[int, Field(strict=True, ge=1, le=MAX_PARALLEL)] = 1


class CompensatePart(Body):
    """What undoes a completed step when its run is rolled back."""

    step_type: Annotated[StepType, LOWER]
    config: dict[str, Any] = Field(default_factory=dict)
    timeout_seconds: Seconds | None = None


class Step(Body):
    """One step; `config` as it was written."""

    id: Word
    name: Annotated[str, Field(max_length=200)] = ""
    description: String = ""
    order: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 0
    step_type: Annotated[StepType, LOWER]
    depends_on: Annotated[list[Word], Field(max_length=MAX_STEPS)] = Field(default_factory=list)
    condition: String | bool | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    timeout_seconds: Annotated[float, Field(strict=True, gt=0, le=MAX_SECONDS)] | None = None
    retry: RetryPart | None = None
    cache: CachePart | None = None
    limit: LimitPart | None = None
    on_failure: Annotated[OnFailure | None, LOWER] = None
    compensate: CompensatePart | None = None

    @field_validator("cache", mode="before")
    @classmethod
    def _read_flag(cls, value: Any) -> Any:
        return {"enabled": value} if isinstance(value, bool) else value


class WebhookPart(Body):
    """A signed call from outside starts a run; its body gives parameters."""

    secret: Name
    """Name of the project's secret that signs."""
    parameters: dict[Word, String] = Field(default_factory=dict)
    """Parameter → expression over `body` and `headers`."""
    tolerance_seconds: Annotated[int, Field(strict=True, ge=1, le=3_600)] = 300


class FolderPart(Body):
    """New files in a folder of the server start a run each."""

    path: Annotated[str, Field(min_length=1, max_length=1_024)]
    pattern: Annotated[str, Field(min_length=1, max_length=200)] = "*"
    every_seconds: Annotated[int, Field(strict=True, ge=1, le=86_400)] = 30
    parameters: dict[Word, String] = Field(default_factory=dict)
    """Parameter → expression over `object`: `name`, `path`, `size`, `modified_at`."""


class NotificationsPart(Body):
    """A bucket tells of new objects by calls to the path that the pipeline shows."""

    secret: Name
    """Name of the project's secret: it signs the calls, or is their token as MinIO sends it."""
    tolerance_seconds: Annotated[int, Field(strict=True, ge=1, le=3_600)] = 300


class BucketPart(Body):
    """New objects of an S3-compatible bucket start a run each: looked for, told of, or both."""

    endpoint: Annotated[str, Field(min_length=1, max_length=1_024)] | None = None
    """Where to look; without it the bucket has to tell."""
    notifications: NotificationsPart | None = None
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    prefix: Annotated[str, Field(max_length=1_024)] = ""
    suffix: Annotated[str, Field(max_length=1_024)] = ""
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,50}$")] = "us-east-1"
    access_key: Name | None = None
    """Names of the project's secrets; without them the bucket is read as anybody."""
    secret_key: Name | None = None
    every_seconds: Annotated[int, Field(strict=True, ge=1, le=86_400)] = 60
    parameters: dict[Word, String] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _know_how(self) -> "BucketPart":
        if self.endpoint is None and self.notifications is None:
            raise refusal(
                "A bucket is looked into at its endpoint, or tells of new objects.",
                "Write endpoint, notifications or both.",
            )
        return self


class ScheduledTrigger(Body):
    """Starts a run at the times of a cron expression in a zone."""

    type: Literal["scheduled"]
    cron: Annotated[str, Field(min_length=1, max_length=200)]
    time_zone: Annotated[str, Field(max_length=64)] = "UTC"
    catch_up: Annotated[CatchUp, LOWER] = CatchUp.LAST
    parameters: dict[Word, Any] = Field(default_factory=dict)
    enabled: Flag = True


class EventTrigger(Body):
    """Starts a run when something arrives: exactly one of the three."""

    type: Literal["event"]
    webhook: WebhookPart | None = None
    folder: FolderPart | None = None
    bucket: BucketPart | None = None
    catch_up: Annotated[CatchUp, LOWER] = CatchUp.ALL
    enabled: Flag = True

    @model_validator(mode="after")
    def _name_one(self) -> "EventTrigger":
        if sum(part is not None for part in (self.webhook, self.folder, self.bucket)) != 1:
            raise refusal(
                "An event trigger has exactly one of webhook, folder and bucket.",
                "Write one trigger for each.",
            )
        return self


class PipelineTrigger(Body):
    """Starts a run when a run of another pipeline of the project is over."""

    type: Literal["pipeline"]
    pipeline: Name
    statuses: Annotated[list[Annotated[RunStatus, LOWER]], Field(min_length=1, max_length=6)] = (
        Field(default_factory=lambda: [RunStatus.COMPLETED])
    )
    parameters: dict[Word, Any] = Field(default_factory=dict)
    """Parameter → value, or expression over `upstream`: `id`, `status`, `outputs`."""
    enabled: Flag = True


Trigger = Annotated[ScheduledTrigger | EventTrigger | PipelineTrigger, Field(discriminator="type")]


class Metadata(Body):
    """What a pipeline is called."""

    name: Name
    labels: Labels = Field(default_factory=dict)


class PipelineSpec(Body):
    """What a pipeline does."""

    description: String = ""
    parameters: Annotated[dict[Word, Parameter], Field(max_length=MAX_PARAMETERS)] = Field(
        default_factory=dict
    )
    services: Annotated[dict[Word, Any], Field(max_length=MAX_PARAMETERS)] = Field(
        default_factory=dict
    )
    components: Annotated[dict[str, Any], Field(max_length=MAX_PARAMETERS)] = Field(
        default_factory=dict
    )
    on_failure: Annotated[OnFailure, LOWER] = OnFailure.FAIL_FAST
    timeout_seconds: Annotated[float, Field(strict=True, gt=0, le=MAX_SECONDS)] | None = None
    deadline: InstantIn | None = None
    priority: Annotated[Priority, LOWER] = Priority.NORMAL
    max_parallel: Annotated[int, Field(strict=True, ge=1, le=MAX_PARALLEL)] | None = None
    concurrency: ConcurrencyPart | None = None
    triggers: Annotated[list[Trigger], Field(max_length=MAX_TRIGGERS)] = Field(default_factory=list)
    outputs: Annotated[dict[Word, Any], Field(max_length=MAX_PARAMETERS)] = Field(
        default_factory=dict
    )
    steps: Annotated[list[Step], Field(min_length=1, max_length=MAX_STEPS)]

    @field_validator("parameters", mode="before")
    @classmethod
    def _read_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: _definition(each) for name, each in value.items()}


class Pipeline(Body):
    """The whole document."""

    api_version: Annotated[Literal["gpuplane.io/v1"], Field(alias="apiVersion")] = "gpuplane.io/v1"
    kind: Literal["Pipeline"] = "Pipeline"
    metadata: Metadata
    spec: PipelineSpec

    @property
    def name(self) -> str:
        """Return what the pipeline is called."""
        return self.metadata.name


_DEFINITION = frozenset(Parameter.model_fields)


def _definition(value: Any) -> Any:
    """Return a parameter's definition: an object that names a type is one, all else a default."""
    if isinstance(value, dict) and value and set(value) <= _DEFINITION:
        kind = value.get("type")
        if isinstance(kind, str) and kind.lower() in set(ParameterType):
            return value
        if "type" not in value and {"default", "required"} & set(value):
            return value
    return {"default": value}
