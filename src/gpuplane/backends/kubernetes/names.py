"""What objects of the product are called in a cluster, and the labels by which they are known.

Owns names alone. They are derived from ids, so that the same attempt always has the same objects;
a person with kubectl finds the job's name in front.
"""

import re
import uuid

from gpuplane.core.ids import AttemptId, JobId

PREFIX = "gpuplane.io/"
CLUSTER = f"{PREFIX}cluster-id"
TENANT_ID = f"{PREFIX}tenant-id"
PROJECT_ID = f"{PREFIX}project-id"
JOB_ID = f"{PREFIX}job-id"
ATTEMPT_ID = f"{PREFIX}attempt-id"
ATTEMPT = f"{PREFIX}attempt"
EPOCH = f"{PREFIX}epoch"
RANK = f"{PREFIX}rank"
RECORD = f"{PREFIX}record"
"""On the one object of an attempt that outlives its pods; its value is `attempt`."""

MANIFEST = f"{PREFIX}manifest"
GPU_IDS = f"{PREFIX}gpu-ids"
PLACEMENTS = f"{PREFIX}placements"
"""On a workload of several nodes: JSON of rank to node and GPUs, for the gate of each pod."""

RELEASED = f"{PREFIX}released"
"""On a workload that was let go; in the same patch that lets it go."""

SCALE = f"{PREFIX}scale"
"""On a service that scales: the number of the change that its places are of."""

RELEASE = f"{PREFIX}release"
"""On the object that a Helm release hangs on; its value is the release's name."""
INSTALLED = f"{PREFIX}installed"
"""On the Job that stands in line for a Helm release: the chart is installed under its quota."""
PART = f"{PREFIX}part"
"""On what a chart makes, its pods among them: what each is in its job, see `manifests/charts`."""

TENANT = f"{PREFIX}tenant"
PLACEMENT_GATE = f"{PREFIX}placement"

DISPATCHED = "kueue.x-k8s.io/multikueue-origin"
"""On what MultiKueue made on a worker; its value names the manager."""

INDEX = "batch.kubernetes.io/job-completion-index"
HAMI_GPUS = "nvidia.com/use-gpuuuid"

CONTAINER = "main"
ATTEMPT_VARIABLE = "GPUPLANE_ATTEMPT_ID"
CLUSTER_VARIABLE = "GPUPLANE_CLUSTER_ID"
"""In the environment of a service that Kueue admits: whose a Workload of Kueue is."""

_SLUG_CHARS = 35
_NOT_NAME = re.compile(r"[^a-z0-9]+")


def slug(text: str) -> str:
    """Return a text as part of a DNS label: lower case, digits and dashes, never empty."""
    return _NOT_NAME.sub("-", text.lower()).strip("-")[:_SLUG_CHARS].strip("-") or "x"


def workload_name(job_name: str, attempt_id: AttemptId) -> str:
    """Return the name of an attempt's workload; pods and services derive theirs from it.

    The last twelve digits of the id tell attempts apart: the first ones are its time. Services
    and JobSets want a letter in front (RFC 1035), which the name of a job need not have.
    """
    text = slug(job_name)
    if not text[0].isalpha():
        text = slug(f"j-{text}")
    return f"{text}-{attempt_id.hex[-12:]}"


def record_name(attempt_id: AttemptId) -> str:
    """Return the name of an attempt's record."""
    return f"gpuplane-{attempt_id}"


def claim_name(volume: str) -> str:
    """Return the name of the claim for a named volume of a tenant, whole: each has its own."""
    return f"volume-{volume}"


def checkpoint_claim_name(job_id: JobId) -> str:
    """Return the name of the claim for the checkpoints of a job, kept from attempt to attempt."""
    return f"checkpoints-{job_id}"


def find_id(labels: object, key: str) -> uuid.UUID | None:
    """Return the id under a label, None where there is none that can be read."""
    text = labels.get(key) if isinstance(labels, dict) else None
    try:
        return uuid.UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None
