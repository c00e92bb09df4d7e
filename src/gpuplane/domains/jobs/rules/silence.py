"""What is told of a job whose cluster does not answer, as a sentence: pure.

Nothing of it is stored: the job is as it was last seen, and may well go on there.
"""

from gpuplane.core.lifecycle.jobs import TERMINAL, Condition, JobStatus
from gpuplane.domains.jobs.rules.remarks import Remark
from gpuplane.domains.jobs.rules.values import Job


def describe_unheard(job: Job, cluster: str, silence: str) -> Remark:
    """Return that a job's cluster does not answer and what follows; empty where it does.

    Args:
        job: The job.
        cluster: The name of the one that has it, as an attempt or to be admitted.
        silence: Since when that has not answered, as a sentence; empty where it does.
    """
    if not silence or job.status in TERMINAL:
        return Remark()
    return Remark(
        f"{silence} What is told of the job is as of then; {_describe_outlook(job, cluster)}.",
        f"Look at `gpuplane clusters health {cluster}`.",
    )


def _describe_outlook(job: Job, name: str) -> str:
    """Return what becomes of a job while its cluster does not answer."""
    if job.condition is Condition.STOPPING:
        return f"its stop is delivered once {name} answers, and it keeps its devices until then"
    if job.status is JobStatus.RUNNING:
        return "as far as is known it goes on there"
    if job.status is JobStatus.SCHEDULED:
        return f"its start is delivered, or seen, once {name} answers"
    return f"whether it was admitted there is seen once {name} answers"
