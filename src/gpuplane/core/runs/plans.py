"""What a run consists of and what a handler answers: values between the engine and its users.

A run is a DAG of steps. A step names a handler and carries an input that only the handler
understands; the engine knows dependencies, time, attempts and answers, and nothing of pipelines.
All instants are milliseconds since the epoch, all durations milliseconds. Values that are stored
(`input`, `output`, `state`, `scope`, `params`) are JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias
from uuid import UUID

from gpuplane.core.lifecycle.runs import StepStatus


class OnFailure(StrEnum):
    """What a failed step does to its run."""

    FAIL_FAST = "fail_fast"
    CONTINUE = "continue"
    ROLLBACK = "rollback"


class Join(StrEnum):
    """When a step with children goes on."""

    ALL = "all"
    ANY = "any"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed step is tried again, and how long apart.

    Args:
        attempts: Tries in all; 1 means none again.
        delay_ms: Before the second try; multiplied by `factor` for each further one.
        jitter: Share of the delay that chance adds or takes away, in [0, 1].
    """

    attempts: int = 1
    delay_ms: int = 1_000
    factor: float = 2.0
    max_delay_ms: int = 60_000
    jitter: float = 0.1


@dataclass(frozen=True, slots=True)
class Cache:
    """That equal input may reuse an earlier output of the same project.

    Args:
        salt: Part of the key: change it to forget what was kept.
        keep_ms: How old an output may be.
    """

    salt: str = ""
    keep_ms: int = 86_400_000


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `count` steps (or runs) that name the same key at once, in one project."""

    key: str
    count: int


@dataclass(frozen=True, slots=True)
class Undo:
    """What undoes a completed step when its run is rolled back; its own try is a step too."""

    handler: str
    input: Any
    retry: Retry = Retry(attempts=3)
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step.

    Args:
        key: Unique in the run, in names of steps and `/` and digits for children.
        handler: Name under which somebody registered who does it.
        input: What the handler gets, as it was written; expressions are its own business.
        needs: Keys of siblings that must be completed or skipped before.
        scope: What children of a loop know beside the run: `item`, `index`.
        order: For people, where there is no other order.
        timeout_ms: Of one attempt, from its first start to its answer, waits included.
        on_failure: Replaces the run's rule for this step; None means the run's.
    """

    key: str
    handler: str
    input: Any = None
    name: str = ""
    needs: tuple[str, ...] = ()
    scope: Mapping[str, Any] = field(default_factory=dict)
    order: int = 0
    retry: Retry = Retry()
    timeout_ms: int | None = None
    cache: Cache | None = None
    limit: Limit | None = None
    undo: Undo | None = None
    on_failure: OnFailure | None = None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run, ready to be stored.

    Args:
        kind: Who plans such runs: `pipeline`, `cluster.register`; prefix of metrics.
        source_id: Of what it is a run (a pipeline), if of anything.
        source_version: Which version of that.
        dedup_id: At most one run of a project has it; a second start returns the first.
        timeout_ms: Of the whole run, from its first start.
        deadline_at: When it must be over.
        limits: Runs that share a key wait for one another (`pending`, condition Limited).
        context: What every handler is told and no user sets: names, source, priority.
    """

    kind: str
    name: str
    tenant_id: UUID
    project_id: UUID
    steps: Sequence[StepPlan]
    params: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    source_id: UUID | None = None
    source_version: int | None = None
    trigger: str = "manual"
    dedup_id: str | None = None
    on_failure: OnFailure = OnFailure.FAIL_FAST
    timeout_ms: int | None = None
    deadline_at: int | None = None
    limits: tuple[Limit, ...] = ()
    max_parallel: int | None = None
    traceparent: str | None = None
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How a child ended, as its parent sees it."""

    key: str
    status: StepStatus
    output: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepCall:
    """What a handler is called with.

    Args:
        idempotency_key: The same for every call of this step until it is retried by hand: what a
            handler does outside is asked for under it, so that a repeated call does it once.
        attempt: From 1; grows by retries, not by sleeping or waiting.
        outputs: Output of every step that this one needs, directly or not, and of the steps its
            parents need, by key; null of a skipped one.
        state: What an earlier answer of this attempt kept; None at the first call.
        event: Payload of the awaited event when that came; None else.
        timed_out: Whether the time for the awaited event is over.
        children: Of an expanded step, in the order they were given, once the join holds.
        deadline_at: The earliest of the run's deadline and time-out and the step's time-out.
    """

    run_id: UUID
    step_id: UUID
    key: str
    name: str
    tenant_id: UUID
    project_id: UUID
    idempotency_key: str
    attempt: int
    now: int
    input: Any
    params: Mapping[str, Any]
    context: Mapping[str, Any]
    scope: Mapping[str, Any]
    outputs: Mapping[str, Any]
    state: Any = None
    event: Any = None
    timed_out: bool = False
    children: Sequence[ChildResult] = ()
    deadline_at: int | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """The step is done.

    Args:
        skip: Keys of siblings that will not be run, and count as satisfied.
    """

    output: Any = None
    skip: tuple[str, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The try failed.

    Args:
        word: For programs, in UpperCamelCase.
        is_final: Whether another try would be of no use.
        retry_after_ms: What the other side asked for, in place of the policy's delay.
    """

    word: str
    message: str
    is_final: bool = False
    retry_after_ms: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Skipped:
    """The step is not to be run; it counts as satisfied and yields null."""

    reason: str


@dataclass(frozen=True, slots=True)
class Sleeping:
    """Call again at this instant with this state; costs nothing until then."""

    until: int
    state: Any = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Awaiting:
    """Call again when an event with this key comes, or at the latest at `until`.

    Args:
        key: `job:<id>` and the like; events that users send are `run:<run id>:<name>`.
        look_at: Call again then too, to look oneself, whatever was or was not heard.
    """

    key: str
    until: int | None = None
    look_at: int | None = None
    state: Any = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Expanding:
    """Run these children, then call again with how they ended.

    Children's keys begin with the step's key and `/`; their needs name siblings among them.

    Args:
        count: How many must complete for `Join.COUNT`; the rest are cancelled then.
        max_parallel: Children under way at once.
    """

    children: tuple[StepPlan, ...]
    join: Join = Join.ALL
    count: int = 0
    max_parallel: int | None = None
    state: Any = None
    message: str = ""


Answer: TypeAlias = Completed | Failed | Skipped | Sleeping | Awaiting | Expanding
