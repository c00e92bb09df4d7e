"""What of a service does not serve, and why, as a sentence: pure.

Owns no decision: whether an attempt runs is judged by `rules.attempts`, and why a replica that is
wanted and not there waits is told by the scheduler or the cluster's Kueue.
"""

from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.core.workloads import HealthCheck, JobType
from gpuplane.domains.jobs.rules.remarks import Remark
from gpuplane.domains.jobs.rules.scaling import GROWING, count_ready, list_staying
from gpuplane.domains.jobs.rules.values import Attempt, Job, Replica

STARTING = "they are being started."
FIX_PROBE = (
    "A replica is ready once it takes connections on the port given with `--port`, or answers "
    "`--health-path`: read its log, and name the port that it listens on."
)
FIX_NONE = "Give it replicas: `gpuplane jobs scale JOB 1`."


def describe_serving(job: Job, attempt: Attempt) -> Remark:
    """Return what of a service does not serve; empty where all that it has does, and of others."""
    if job.job_type is not JobType.SERVICE or attempt.state not in GROWING:
        return Remark()
    staying = sorted(list_staying(attempt), key=lambda each: each.rank)
    wanted = len(staying) if attempt.replicas_wanted is None else attempt.replicas_wanted
    if not wanted:
        return Remark("It runs with no replica: none is wanted just now.", FIX_NONE)
    waiting = [each for each in staying if each.phase != "running" or each.ready is False]
    if not waiting:
        return Remark()
    probed = [each for each in waiting if _is_probed(job, each)]
    if not probed and job.status is not JobStatus.RUNNING:
        return Remark()  # it is being started, which is told as of any job
    told = next((each.message for each in waiting if each.message), STARTING)
    why = _describe_probe(job, probed[0]) if probed else told
    sentence = f"{count_ready(attempt)} of {wanted} replicas are ready: {why}"
    return Remark(sentence, FIX_PROBE if probed else "")


def _is_probed(job: Job, replica: Replica) -> bool:
    """Return whether a replica runs and does not answer; of a chart every pod is asked its own."""
    is_silent = replica.phase == "running" and replica.ready is False
    return is_silent and job.spec.execution.chart is None


def _describe_probe(job: Job, replica: Replica) -> str:
    """Return what a replica is asked and does not answer.

    The port is that of its check, else the one that its backend serves it on.
    """
    health = job.spec.execution.health or HealthCheck()
    port = health.port or job.outputs.get("port") or job.spec.execution.port
    at = f"port {port}" if port else "its port"
    asked = f"GET {health.path} of {at} does not succeed"
    what = asked if health.path else f"nothing answers at {at}"
    return f"{what} ({replica.message})." if replica.message else f"{what}."
