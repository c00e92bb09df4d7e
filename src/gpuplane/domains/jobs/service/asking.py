"""What the service asks of whoever can run the decision core on the world as it is now.

The composition root offers it as the port `planner`: it is the scheduler's own loading and
`decide`, asked without applying anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from gpuplane.core.ids import ClusterId, JobId
from gpuplane.core.prediction.durations import Durations
from gpuplane.core.prediction.predicting import Prediction
from gpuplane.core.reasons import Reason
from gpuplane.domains.jobs.errors import QuotaExceeded
from gpuplane.domains.jobs.service.submission import Submission

RETRY_AFTER_S = 30
"""When a job refused for quota may be sent again: quota is given back when jobs end."""


@dataclass(frozen=True, slots=True)
class SmallestChange:
    """The smallest change known that would let a waiting job start now.

    Args:
        also: Field and value of a second change that is needed beside the first, or None.
    """

    field: str
    value: str
    sentence: str
    also: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What would become of one job, decided on the world as it is now and applied to nothing.

    Args:
        cluster_id: Where it would run, or the cluster whose refusal is told.
        starts_now: Whether it would be placed at once.
        nodes: The nodes it would be placed on.
        gpu_model: The model it would be placed on, if it takes GPUs.
        reason: Why it would wait.
        counts: Nodes refused per filter, in the order of the filters.
        position: Its place in the order of consideration, from 1.
        earliest_start: When it is expected to start; None when nothing can be said.
        explanation: Sentences for people.
        is_over_quota: Whether it would wait for quota rather than for devices.
        change: The smallest change that would let it start now, when it was asked for.
        prediction: What is expected of it from those before it.
        durations: How long it is counted on to run.
        workers: The clusters that its queue may dispatch it to, best first; empty where it runs on
            the cluster that is named.
    """

    cluster_id: ClusterId | None
    cluster: str | None
    simulated: bool
    starts_now: bool
    nodes: tuple[str, ...] = ()
    gpu_model: str | None = None
    reason: Reason | None = None
    counts: Mapping[str, int] | None = None
    position: int | None = None
    earliest_start: int | None = None
    explanation: tuple[str, ...] = ()
    is_over_quota: bool = False
    change: SmallestChange | None = None
    prediction: Prediction | None = None
    durations: Durations | None = None
    workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a job is expected to start and to end."""

    job_id: JobId
    start_at: int
    end_at: int


@runtime_checkable
class Planner(Protocol):
    """Asks the decision core without applying what it says."""

    async def outlook_of(self, submission: Submission) -> Outlook:
        """Return what would become of a submission."""
        ...

    async def outlook_of_job(self, job_id: JobId) -> Outlook | None:
        """Return what a queued job waits for with the smallest change; None if it does not wait."""
        ...

    async def forecasts(self, cluster_id: ClusterId) -> tuple[Forecast, ...]:
        """Return when the waiting jobs of a cluster are expected to run, earliest first."""
        ...


def refuse_over_quota(outlook: Outlook) -> None:
    """Raise if a job that asked to be refused rather than queued would wait for quota.

    Raises:
        QuotaExceeded: With the reason that the decision core gives.
    """
    if not outlook.is_over_quota or outlook.reason is None:
        return
    raise QuotaExceeded(
        outlook.reason.sentence,
        field="when_exceeded",
        fix=outlook.reason.fix or "Ask for less, wait, or submit with when_exceeded queue.",
        retry_after_s=RETRY_AFTER_S,
        extra={"reason": str(outlook.reason.word), "cluster": outlook.cluster},
    )


def planner_of(ports: Mapping[str, Any]) -> Planner:
    """Return the planner that the composition root offers."""
    planner = ports["planner"]
    if not isinstance(planner, Planner):
        raise TypeError(f"port 'planner' is {type(planner).__name__}")
    return planner
