"""What a workload's phase is, from its Job and its pods.

Owns the judgement; never writes it. A phase only moves on: a Job that is over stays over, and a
Job that was taken away by somebody is a failure that says so, because running it again could run
it twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuplane.operator.names import Phase
from gpuplane.operator.rules.seen import Job, Pod, Workload


@dataclass(frozen=True, slots=True)
class Standing:
    """How a workload stands.

    Attributes:
        node: Where it runs or shall run.
        trouble: Why its pod does not run, empty while nothing is wrong.
    """

    phase: Phase
    node: str
    message: str
    trouble: str = ""


def decide_standing(workload: Workload, job: Job, pods: Sequence[Pod]) -> Standing:
    """Return how a workload stands whose Job is there."""
    bound = next((pod.node for pod in pods if pod.node), "")
    node = bound or job.node or workload.node
    strategy = job.strategy or workload.strategy.value
    if job.is_complete:
        return Standing(Phase.SUCCEEDED, node, f"Job {job.name} completed on node {node}")
    if job.failure:
        trouble = next((pod.trouble for pod in pods if pod.trouble), "")
        told = f" ({trouble})" if trouble else ""
        return Standing(Phase.FAILED, node, f"Job {job.name} failed: {job.failure}{told}")
    if job.is_suspended:
        where = f" to queue {job.queue}" if job.queue else ""
        waits = f"Job {job.name} waits for admission{where}"
        return Standing(Phase.SCHEDULING, node, waits)
    if not node:
        trouble = next((pod.trouble for pod in pods if pod.trouble and not pod.is_over), "")
        told = f"Job {job.name} is admitted and waits for a node"
        return Standing(Phase.SCHEDULING, "", f"{told}; {trouble}" if trouble else told, trouble)
    if any(pod.is_running for pod in pods):
        return Standing(Phase.RUNNING, node, f"Running on node {node}")
    placed = f"Successfully scheduled on node {node} using {strategy} strategy"
    trouble = next((pod.trouble for pod in pods if pod.trouble and not pod.is_over), "")
    return Standing(Phase.SCHEDULED, node, f"{placed}; {trouble}" if trouble else placed, trouble)
