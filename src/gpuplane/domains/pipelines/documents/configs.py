"""What a step's `config` holds, by its type: the fields of the specification's 5.2.1 and more.

Fields may be given as expressions; `config_of(..., rendered=True)` types them once evaluated.
"""

import re
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from pydantic import Field, ValidationInfo, field_validator, model_validator

from gpuplane.core.workloads import DeploymentType, JobType, Priority
from gpuplane.domains.pipelines.documents.fields import (
    LOWER,
    MAX_LOOP_ITEMS,
    MAX_PARALLEL,
    RENDERED,
    TEMPLATED,
    Code,
    Seconds,
    SecondsFromZero,
    String,
    Truth,
    Whole,
    Word,
    is_templated,
)
from gpuplane.domains.pipelines.documents.models import Step, StepType
from gpuplane.kit.bodies import Body, Name, refusal

MAX_HEADERS = 100
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_HEADER_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")
"""RFC 9110, sections 5.1 and 5.5, without letters outside ASCII."""
MAX_RECIPIENTS = 100
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CHANNELS = ("slack", "email", "webhook", "pagerduty")


class JobConfig(Body):
    """What a JOB step deploys; further fields are those of a job."""

    job_type: Annotated[JobType, LOWER, TEMPLATED] = JobType.BATCH
    deployment_type: Annotated[DeploymentType, LOWER, TEMPLATED] = DeploymentType.PROCESS
    component_ref: String | None = None
    spec: dict[str, Any] | str | None = None
    cluster_id: Annotated[UUID, TEMPLATED] | None = None
    cluster: String | None = None
    gpu_type: String | None = None
    gpu_count: Annotated[int, Field(strict=True, ge=0), TEMPLATED] = 0
    cpu_cores: Annotated[float, Field(strict=True, ge=0), TEMPLATED] = 1.0
    memory_gb: Annotated[float, Field(strict=True, ge=0), TEMPLATED] = 4.0
    estimated_duration_seconds: Annotated[int, Field(strict=True, ge=1), TEMPLATED] | None = None
    max_duration_seconds: Annotated[int, Field(strict=True, ge=1), TEMPLATED] | None = None
    time_window_start: String | None = None
    time_window_end: String | None = None
    time_window_zone: String = "UTC"
    priority: Annotated[Priority, LOWER, TEMPLATED] | None = None
    preemptible: Truth | None = None
    optimize_with_budsim: Truth = False
    readiness_timeout_seconds: Seconds = 300.0
    """How long a SERVICE may take until it is healthy."""
    keep_after: Truth = True
    """Whether a SERVICE goes on when its run is over."""
    storage_gb: Any = None
    resources: Any = None
    replicas: Any = None
    array: Any = None
    placement: Any = None
    deadline: Any = None
    deadline_action: Any = None
    scheduled_start: Any = None
    window: Any = None
    preempts_others: Any = None
    max_retries: Any = None
    retry: Any = None
    checkpoint: Any = None
    budget_limit: Any = None
    budget_action: Any = None
    labels: Any = None
    cost_centre: Any = None
    data_classification: Any = None
    queue: Any = None
    when_exceeded: Any = None

    @model_validator(mode="after")
    def _whole_window(self) -> "JobConfig":
        if (self.time_window_start is None) != (self.time_window_end is None):
            raise refusal(
                "A time window has a start and an end.",
                "Give time_window_start and time_window_end.",
            )
        return self


class SecretHeader(Body):
    """A header's value by the name of a secret of the project."""

    secret: Name
    prefix: Annotated[str, Field(max_length=100)] = ""


def header_problem(name: str, value: str) -> str | None:
    """Return why a header cannot be sent, None if it can; the value itself is not told."""
    if not _HEADER_NAME.fullmatch(name):
        return f"{name[:100]!r} is no name of a header."
    if not _HEADER_VALUE.fullmatch(value):
        return (
            f"The value of the header {name} has a line break, a blank at an end or another "
            "character that no header has."
        )
    return None


class ApiCallConfig(Body):
    """One HTTP request."""

    url: Annotated[String, Field(min_length=1)]
    method: Annotated[Literal[METHODS], TEMPLATED] = "POST"  # type: ignore[valid-type]  # a tuple of words
    headers: Annotated[dict[str, SecretHeader | String], Field(max_length=MAX_HEADERS)] = Field(
        default_factory=dict
    )
    query: dict[str, Any] = Field(default_factory=dict)
    body: Any = None
    timeout_seconds: Annotated[float, Field(strict=True, gt=0, le=3_600), TEMPLATED] = 30.0
    retry_count: Annotated[int, Field(strict=True, ge=0, le=100)] = 3
    success_codes: list[Annotated[int, Field(strict=True, ge=100, le=599)]] | None = None
    """Answers that count as success; without them every 2xx."""

    @field_validator("headers")
    @classmethod
    def _can_be_sent(
        cls, value: dict[str, SecretHeader | str], info: ValidationInfo
    ) -> dict[str, SecretHeader | str]:
        rendered = bool(info.context and info.context.get("rendered"))
        for name, each in value.items():
            given = each.prefix.rstrip(" ") if isinstance(each, SecretHeader) else each
            later = is_templated(given) and not rendered
            problem = header_problem(name, "" if later else given)
            if problem is not None:
                raise refusal(problem, "Use printable ASCII, in one line.")
        return value

    @field_validator("method", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) and "{{" not in value else value


class FunctionConfig(Body):
    """User Python in a child process."""

    code: Code
    entrypoint: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")] = "main"
    inputs: dict[str, Any] | str = Field(default_factory=dict)
    """Keyword arguments of the entry point."""
    timeout_seconds: Annotated[float, Field(strict=True, gt=0, le=86_400), TEMPLATED] = 60.0
    memory_mb: Annotated[int, Field(strict=True, ge=32, le=65_536), TEMPLATED] = 512
    network: Truth = False
    """Whether it may reach the network; what the server grants, no more."""


class NotificationConfig(Body):
    """A message to people."""

    channel: Annotated[Literal[CHANNELS], LOWER, TEMPLATED]  # type: ignore[valid-type]  # a tuple of words
    recipients: Annotated[list[String], Field(max_length=MAX_RECIPIENTS)] | str = Field(
        default_factory=list
    )
    message: Annotated[String, Field(min_length=1)]
    subject: String = ""
    severity: Annotated[Literal["info", "warning", "error", "critical"], LOWER, TEMPLATED] = "info"


class TransformConfig(Body):
    """CEL over JSON: one expression, or one for each output."""

    input: Any = None
    expression: String | None = None
    outputs: Annotated[dict[Word, Any], Field(max_length=1_000)] | None = None

    @model_validator(mode="after")
    def _name_one(self) -> "TransformConfig":
        if (self.expression is None) == (self.outputs is None):
            raise refusal(
                "A transform has either an expression or outputs.",
                "Write `expression: input.items` or `outputs: {total: ...}`.",
            )
        return self


class ConditionConfig(Body):
    """Which steps run and which are skipped."""

    expression: String | bool
    then_steps: list[Word] = Field(default_factory=list)
    else_steps: list[Word] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_side(self) -> "ConditionConfig":
        both = sorted(set(self.then_steps) & set(self.else_steps))
        if both:
            raise refusal(f"Step {both[0]} is on both sides.", "Name it on one side.")
        return self


class JoinCount(Body):
    """So many branches."""

    count: Annotated[int, Field(strict=True, ge=1, le=MAX_PARALLEL)]


Join: TypeAlias = Annotated[Literal["all", "any"], LOWER] | JoinCount


class ParallelConfig(Body):
    """Branches side by side: each a list of steps, or each of `steps` a branch of its own."""

    branches: Annotated[list[list[Step]], Field(min_length=1, max_length=MAX_PARALLEL)] | None = (
        None
    )
    steps: Annotated[list[Step], Field(min_length=1, max_length=MAX_PARALLEL)] | None = None
    join: Join = "all"
    max_parallel: Annotated[int, Field(strict=True, ge=1, le=MAX_PARALLEL)] | None = None
    fail: Annotated[Literal["on_failure", "never"], LOWER] = "on_failure"
    """`never` completes once every branch is over and tells in `failed` which steps did."""

    @model_validator(mode="after")
    def _name_one(self) -> "ParallelConfig":
        if (self.branches is None) == (self.steps is None):
            raise refusal("A parallel step has either branches or steps.", "Give one of them.")
        if any(not branch for branch in self.branches or ()):
            raise refusal("A branch has at least one step.", "Remove the empty branch.")
        count = self.join.count if isinstance(self.join, JoinCount) else 0
        if count > len(self.all_branches()):
            raise refusal(
                f"{count} of {len(self.all_branches())} branches can never complete.",
                f"Give a count up to {len(self.all_branches())}.",
            )
        return self

    def all_branches(self) -> list[list[Step]]:
        """Return the branches however they were written."""
        return self.branches or [[step] for step in self.steps or ()]


class WaitConfig(Body):
    """A fixed time, or until an event comes."""

    duration_seconds: SecondsFromZero | None = None
    wait_for_event: String | None = None
    timeout_seconds: Seconds = 3_600.0
    on_timeout: Annotated[Literal["fail", "continue"], LOWER] = "fail"

    @model_validator(mode="after")
    def _name_one(self) -> "WaitConfig":
        if (self.duration_seconds is None) == (self.wait_for_event is None):
            raise refusal(
                "A wait has either duration_seconds or wait_for_event.", "Give one of them."
            )
        return self


class RangePart(Body):
    """Whole numbers from `start` up to and without `stop`."""

    start: Whole = 0
    stop: Whole
    step: Whole = 1

    @model_validator(mode="after")
    def _is_bounded(self) -> "RangePart":
        parts = (self.start, self.stop, self.step)
        if any(isinstance(part, str) for part in parts):
            return self
        if self.step == 0:
            raise refusal("A range with step 0 has no end.", "Give another step.")
        count = len(range(self.start, self.stop, self.step))
        if count > MAX_LOOP_ITEMS:
            raise refusal(
                f"A loop has at most {MAX_LOOP_ITEMS} iterations, not {count}.",
                "Loop over parts, or submit an array of jobs.",
            )
        return self


class LoopConfig(Body):
    """The same steps for each item of a list or number of a range."""

    over: list[Any] | String | None = None
    range: RangePart | None = None
    as_: Annotated[Word, Field(alias="as")] = "item"
    max_parallel: Annotated[int, Field(strict=True, ge=1, le=MAX_PARALLEL), TEMPLATED] = 10
    steps: Annotated[list[Step], Field(min_length=1)]
    join: Join = "all"

    @model_validator(mode="after")
    def _name_one(self) -> "LoopConfig":
        if (self.over is None) == (self.range is None):
            raise refusal("A loop has either over or range.", "Give one of them.")
        if isinstance(self.over, list) and len(self.over) > MAX_LOOP_ITEMS:
            raise refusal(
                f"A loop has at most {MAX_LOOP_ITEMS} iterations, not {len(self.over)}.",
                "Loop over parts, or submit an array of jobs.",
            )
        return self


Config: TypeAlias = (
    JobConfig
    | ApiCallConfig
    | FunctionConfig
    | NotificationConfig
    | TransformConfig
    | ConditionConfig
    | ParallelConfig
    | WaitConfig
    | LoopConfig
)
CONFIGS: dict[StepType, type[Config]] = {
    StepType.JOB: JobConfig,
    StepType.API_CALL: ApiCallConfig,
    StepType.FUNCTION: FunctionConfig,
    StepType.NOTIFICATION: NotificationConfig,
    StepType.TRANSFORM: TransformConfig,
    StepType.CONDITION: ConditionConfig,
    StepType.PARALLEL: ParallelConfig,
    StepType.WAIT: WaitConfig,
    StepType.LOOP: LoopConfig,
}


def config_of(step_type: StepType, config: dict[str, Any], *, rendered: bool = False) -> Config:
    """Return a step's config, typed.

    Args:
        step_type: The step's type.
        config: As it was written, or evaluated.
        rendered: Whether expressions were evaluated: then every field must be what it says.

    Raises:
        ValidationError: If a field cannot hold.
    """
    return CONFIGS[step_type].model_validate(config, context=dict(RENDERED) if rendered else None)


def branches_of(step: Step) -> list[list[Step]]:
    """Return the nested steps of a container by branch; none for other steps.

    Raises:
        ValidationError: If the config cannot hold.
    """
    if step.step_type not in (StepType.PARALLEL, StepType.LOOP):
        return []
    config = config_of(step.step_type, step.config)
    if isinstance(config, ParallelConfig):
        return config.all_branches()
    return [config.steps] if isinstance(config, LoopConfig) else []
