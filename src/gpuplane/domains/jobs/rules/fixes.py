"""What a person can do about each reason, for jobs whose reason was stored without its fix."""

from collections.abc import Sequence

from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.reasons import Word

FIXES: dict[str, str] = {
    Word.SCHEDULED_START: "Wait, or submit it again with another scheduled_start.",
    Word.DEPENDENCY: "Wait for the jobs it comes after, or look at what they wait for.",
    Word.DEPENDENCY_FAILED: "Retry that job, then this one; or submit this one without `after`.",
    Word.ARRAY_LIMIT: "Wait, or submit the array with a higher limit.",
    Word.BACKING_OFF: "Wait for the next try, or look at its log for the cause.",
    Word.BREAKER_OPEN: "Find the cause in its log, then retry it by hand.",
    Word.PAUSED: "Resume it.",
    Word.FROZEN: "Wait until an operator thaws the cluster, or use another cluster.",
    Word.NO_CLUSTER: "Name a cluster, or have one granted to the tenant.",
    Word.CLUSTER_NOT_AVAILABLE: "Wait until the cluster that the sentence names takes work: see "
    "`gpuplane clusters health` of it; or name another cluster.",
    Word.DEDICATED_CLUSTER: "Have a cluster dedicated to its tenant.",
    Word.QUOTA_EXCEEDED: "Wait for jobs of the queue to end, ask for less, or have its quota "
    "raised.",
    Word.BORROWING_LIMIT: "Wait for jobs of the queue to end, or have its borrowing limit raised.",
    Word.LOCAL_QUEUE_LIMIT: "Wait for jobs of the tenant's queue to end, or have its limit raised.",
    Word.REQUEST_EXCEEDS_QUOTA: "Ask for less than the queue can ever give, or have its quota "
    "raised.",
    Word.NO_QUOTA_FOR_MODEL: "Ask for a GPU model that the queue has a quota for, name another "
    "queue, or have a quota added.",
    Word.NO_QUEUE: "Have an operator create a LocalQueue for the tenant, or name another queue.",
    Word.OFFERED: "Wait: its cluster admits it by the quotas there; the sentence is the cluster's.",
    Word.NOT_HANDED_OVER: "Wait: it is handed over as soon as its cluster takes it; look after "
    "what the sentence names.",
    Word.WORKER_LOST: "Bring the cluster that the sentence names back, or delete it by force if "
    "nothing of it runs any more.",
    Word.WORKER_NOT_CONNECTED: "Mend what the sentence names: the queue dispatches to no worker "
    "until then; or name another queue.",
    Word.UNSCHEDULABLE: "It has its quota, but no node has room: see `gpuplane nodes ls` for nodes "
    "that are full, cordoned or not ready, ask for less, or wait for work there to end.",
    Word.BEHIND_HEAD: "Wait, or state a duration that ends before the work before it can start.",
    Word.NOT_READY: "Wait for the nodes to come back, or ask an operator about them.",
    Word.CORDONED: "Wait until an operator uncordons the nodes.",
    Word.MAINTENANCE: "Wait for the end of the maintenance, or state a shorter duration.",
    Word.UNTOLERATED_TAINT: "Add a toleration for the taint, or have it removed.",
    Word.SELECTOR: "Loosen the node selector.",
    Word.GPU_MODEL: "Ask for another GPU model, or for any.",
    Word.GPU_MEMORY: "Ask for less memory per GPU.",
    Word.GPU_ARCHITECTURE: "Ask for another architecture, or for any.",
    Word.MIG_UNAVAILABLE: "Wait, or ask for another MIG profile.",
    Word.MIG_REPARTITION: "Wait until the GPU is cut; where the cluster cannot, an operator must.",
    Word.RDMA: "Ask for another fabric, or for none.",
    Word.NODE_TOO_SMALL: "Ask for less in one replica.",
    Word.CPU: "Wait, or ask for fewer cores.",
    Word.MEMORY: "Wait, or ask for less memory.",
    Word.EPHEMERAL_STORAGE: "Wait, or ask for less ephemeral storage.",
    Word.GPU_COUNT: "Wait, or ask for fewer GPUs.",
    Word.TOPOLOGY: "Wait, or make the topology a preference instead of a requirement.",
    Word.AFFINITY: "Wait, or loosen co_locate_with, separate_from or spreading.",
    Word.RESERVED: "Wait for the end of the reservation, or use it.",
    Word.NETWORK: "Wait, or make the network level preferred instead of required.",
    Word.GANG: "Wait, or ask for fewer replicas or a lower minimum.",
    Word.TIME_WINDOW: "Wait for the window to open, or submit it with another one.",
    Word.WINDOW_TOO_SHORT: "Wait for the next window, or submit it with a shorter duration.",
    Word.DEADLINE: "Submit it with a later deadline or the deadline action warn.",
    Word.PREEMPTED: "Wait: it stands in line again; a higher priority is preempted less.",
    Word.PREEMPTED_BY_HAND: "Wait: it stands in line again.",
    Word.TIMED_OUT: "Raise max_duration_seconds, then retry it.",
    Word.DEADLINE_MISSED: "Submit it with a later deadline.",
    Word.BUDGET_EXCEEDED: "Submit it with a higher budget_limit.",
    Word.SCALED_DOWN: "Nothing needs to be done: fewer replicas are wanted.",
    Word.NON_ZERO_EXIT: "Read its log for the cause, then retry it.",
    Word.SIGNALLED: "Read its log for the cause, then retry it.",
    Word.OUT_OF_MEMORY: "Ask for more memory, then retry it.",
    Word.START_FAILED: "Read the message for what could not be started, then retry it.",
    Word.START_REFUSED: "Mend what the message names and submit it anew: so it never starts.",
    Word.START_TIMEOUT: "Look whether its cluster is well, then retry it.",
    Word.UNHEALTHY: "Read its log, and check its health path and port.",
    Word.NODE_LOST: "Wait: it goes on when the node is seen again, or is tried elsewhere.",
    Word.EVICTED: "Read the message: the node lacked memory or disk, or more urgent pods came.",
    Word.DELETED: "Find out who deleted it on its cluster; retry it if that was not meant.",
    Word.END_NOT_SEEN: "Read its log for how far it came, then retry it.",
    Word.SUPERVISOR_LOST: "Retry it; what watched it is gone.",
    Word.GPU_FAILED: "Retry it; it will be given other GPUs.",
    Word.CANCELLED: "Retry it if it was cancelled by mistake.",
    Word.SUSPENDED: "Resume it.",
    Word.DRAINED: "Wait: it is moved to another node.",
    Word.UNREADABLE: "Submit it again; its row is damaged.",
    Word.WINDOW_CLOSED: "Wait: it goes on when its window opens again.",
}

_STATUS_SENTENCES: dict[JobStatus, str] = {
    JobStatus.PENDING: "It has not stood in line yet.",
    JobStatus.QUEUED: "It stands in line and was not looked at yet.",
    JobStatus.SCHEDULED: "It was admitted and is being started.",
    JobStatus.RUNNING: "It runs.",
    JobStatus.COMPLETED: "It completed.",
    JobStatus.FAILED: "It failed.",
    JobStatus.CANCELLED: "It was cancelled.",
    JobStatus.PREEMPTED: "It was preempted and will stand in line again.",
}


def describe_mending(cluster: str, queue: str, flavors: Sequence[str]) -> str:
    """Return what to do about a queue that admits nothing for want of flavors.

    Args:
        cluster: The name of its cluster.
        queue: The ClusterQueue.
        flavors: Those that are not there, at least one.
    """
    drops = " ".join(f"--no-gpu {each}" for each in flavors)
    return (
        f"Waiting does not help before the queue is mended: {cluster} has no ResourceFlavor "
        f"{', '.join(flavors)}. Look at `gpuplane quotas show {queue} --cluster {cluster}`; take "
        f"out what is not there: `gpuplane quotas set {queue} --cluster {cluster} {drops}`, or "
        "add nodes of it."
    )


def describe_dead(cluster: str, kind: str, queue: str, message: str) -> str:
    """Return that a queue of a worker admits nothing, with what its Kueue says of it."""
    why = f": {message.rstrip('.')}" if message else ""
    return f"{kind} {queue} of {cluster}, to which it may be dispatched, admits nothing{why}."


def describe_waking(cluster: str, kind: str, queue: str) -> str:
    """Return what to do about a queue of a worker that was stopped, or leads nowhere."""
    return (
        f"Waiting does not help before {kind} {queue} of {cluster} is let go on: look at it with "
        f"`kubectl describe` there (spec.stopPolicy), or name another queue."
    )


def describe_writing(cluster: str) -> str:
    """Return what to do about a queue that could not be written to its cluster."""
    return (
        "Waiting does not help before what the sentence names is mended: it is written as soon as "
        f"it can be. See `gpuplane queues ls --cluster {cluster}`; or name another queue."
    )


def describe_declaring(cluster: str, tenant: str, door: str, queue: str) -> str:
    """Return what to do about a LocalQueue that nobody declares any more."""
    return (
        "Waiting does not help: declare it again, `gpuplane queues set "
        f"{door} --cluster {cluster} --tenant {tenant} --leads-to {queue}`, or cancel the job and "
        "submit it to another queue."
    )


def describe_standing(status: JobStatus, condition: Condition) -> str:
    """Return the sentence for a job whose reason says nothing of its own."""
    if condition is Condition.STOPPING:
        return "It is being stopped and keeps its devices until it is over."
    if condition is Condition.UNREACHABLE:
        return "Its node cannot be reached; it keeps its devices."
    return _STATUS_SENTENCES[status]
