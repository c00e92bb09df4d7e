"""Jobs of an attempt: a Job, an indexed Job with a headless Service, or a JobSet.

All are made suspended: what starts pods is the release, a patch that is sent only after the
attempt's record says that it may start (`fencing`). Nothing is tried again inside the cluster:
an attempt is one try, and retries make attempts.
"""

from typing import Any

from gpuplane.backends.interface import AttemptPlan
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.pods import MASTER_PORT, owner_labels, ranks_of
from gpuplane.core.workloads import RestartPolicy

RANKS = "r"
"""Name of the one group of a JobSet. It is short because its pods are `<set>-r-0-<rank>-<5 more>`,
and JobSet's webhook refuses a set where that could be longer than 63 characters."""

_WITHOUT_LIMIT = 2_147_483_647


def compute_job(plan: AttemptPlan, cluster_id: str, template: dict[str, Any]) -> dict[str, Any]:
    """Return the suspended Job of an attempt; indexed where it has several replicas."""
    count = len(ranks_of(plan))
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    spec: dict[str, Any] = {
        "suspend": True,
        "parallelism": count,
        "completions": count,
        # Restarts of a container count against it, and how many there may be is the job's affair.
        "backoffLimit": _WITHOUT_LIMIT if _restarts(plan) else 0,
        # A pod that is being ended still holds its GPUs: its end is waited for.
        "podReplacementPolicy": "Failed",
        "template": template,
    }
    if plan.max_duration_s is not None:
        spec["activeDeadlineSeconds"] = max(1, plan.max_duration_s)
    if plan.dispatches and not _restarts(plan):
        # Its manager is told conditions of the Job and no pod: this one says the exit code.
        failed = {"containerName": names.CONTAINER, "operator": "NotIn", "values": [0]}
        spec["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onExitCodes": failed}]}
    if count > 1:
        spec["completionMode"] = "Indexed"
        _pod_spec(template)["subdomain"] = name
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": owner_labels(plan, cluster_id)},
        "spec": spec,
    }


def compute_jobset(plan: AttemptPlan, cluster_id: str, template: dict[str, Any]) -> dict[str, Any]:
    """Return the suspended JobSet of a training on several nodes.

    Source:
        JobSet v1alpha2: one replicated job, DNS names `<set>-<job>-<n>-<index>.<subdomain>`.
    """
    job = compute_job(plan, cluster_id, template)
    name = job["metadata"]["name"]
    spec = {key: value for key, value in job["spec"].items() if key != "suspend"}
    for entry in _pod_spec(template)["containers"][0]["env"]:
        if entry["name"] == "MASTER_ADDR":
            entry["value"] = f"{name}-{RANKS}-0-0.{name}"
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": job["metadata"],
        "spec": {
            "suspend": True,
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {
                    "name": RANKS,
                    "replicas": 1,
                    "template": {"metadata": {"labels": job["metadata"]["labels"]}, "spec": spec},
                }
            ],
        },
    }


def compute_headless(plan: AttemptPlan, cluster_id: str) -> dict[str, Any]:
    """Return the Service without an address that gives each rank its name."""
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": owner_labels(plan, cluster_id)},
        "spec": {
            "clusterIP": "None",
            # Ranks find each other before they are ready: that is how they become so.
            "publishNotReadyAddresses": True,
            "selector": {names.ATTEMPT_ID: str(plan.ref.attempt_id)},
            "ports": [{"name": "master", "port": MASTER_PORT, "protocol": "TCP"}],
        },
    }


def _restarts(plan: AttemptPlan) -> bool:
    return plan.execution.restart is not RestartPolicy.NEVER


def _pod_spec(template: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = template["spec"]
    return spec
