"""What becomes of the fields that no step type has: tables of names with a reason for each.

A field that is left out changes where or how something runs, or what Argo keeps of it, not what
comes out. A field that is refused would change that.
"""

from collections.abc import Mapping
from typing import Any

from gpuplane.core.imports.results import Table

_CLUSTER = "The cluster that runs the job decides that."
_KEPT = "Runs, logs and outputs are kept as the server's settings say."

WORKFLOW_LEFT_OUT = {
    "serviceAccountName": _CLUSTER, "imagePullSecrets": _CLUSTER, "securityContext": _CLUSTER,
    "hostNetwork": _CLUSTER, "dnsPolicy": _CLUSTER, "dnsConfig": _CLUSTER,
    "hostAliases": _CLUSTER, "schedulerName": _CLUSTER, "podPriorityClassName": _CLUSTER,
    "podPriority": _CLUSTER, "automountServiceAccountToken": _CLUSTER, "executor": _CLUSTER,
    "affinity": "Placement follows what a job asks for; write placement.node_selector.",
    "podDisruptionBudget": "Jobs are evicted by the rules of their queue alone.",
    "podGC": "There are no pods that anybody would have to remove.",
    "podMetadata": "Jobs have labels of their own.",
    "volumeClaimGC": "Volumes are kept until one removes them.",
    "artifactGC": "Artifacts are kept until their volume is removed.",
    "ttlStrategy": _KEPT, "archiveLogs": _KEPT, "artifactRepositoryRef": _KEPT,
    "metrics": "Runs and steps have metrics of the product.",
    "workflowMetadata": "Labels are the pipeline's own.",
    "priority": "Priorities here are classes, not numbers; set spec.priority.",
}  # fmt: skip
WORKFLOW_REFUSED = {
    "podSpecPatch": "There is no pod that could be patched; write what it changes.",
    "executorPlugins": "Argo's plugins cannot be run here.",
    "templateDefaults": "Write the fields into the templates.",
    "suspend": "A pipeline is not started while it is suspended.",
    "shutdown": "It says to stop what runs.",
    "podResources": "Write the resources into the containers.",
    "resourceClaims": "Devices are asked for by gpu_count and gpu_type, not by claims.",
}
TEMPLATE_LEFT_OUT = {
    "serviceAccountName": _CLUSTER, "securityContext": _CLUSTER, "schedulerName": _CLUSTER,
    "priorityClassName": _CLUSTER, "priority": _CLUSTER, "hostAliases": _CLUSTER,
    "automountServiceAccountToken": _CLUSTER, "executor": _CLUSTER,
    "affinity": WORKFLOW_LEFT_OUT["affinity"], "metadata": WORKFLOW_LEFT_OUT["podMetadata"],
    "archiveLocation": _KEPT, "metrics": WORKFLOW_LEFT_OUT["metrics"],
    "failFast": "A failed branch fails the run in either case; set on_failure to go on.",
    "parallelism": "It bounds how much runs at once, not what comes out; set max_parallel.",
    "annotations": "Steps have names and descriptions.",
}  # fmt: skip
TEMPLATE_REFUSED = {
    "resource": "A step cannot act on Kubernetes' objects; call an API, or run kubectl in a job.",
    "data": "Listing and filtering objects of a bucket is not there; do it in a job.",
    "plugin": "Argo's plugins cannot be run here.",
    "sidecars": "A job has one container.",
    "podSpecPatch": WORKFLOW_REFUSED["podSpecPatch"],
    "podResources": WORKFLOW_REFUSED["podResources"],
    "resourceClaims": WORKFLOW_REFUSED["resourceClaims"],
}
CONTAINER_LEFT_OUT = {
    "imagePullPolicy": _CLUSTER, "securityContext": _CLUSTER, "lifecycle": _CLUSTER,
    "terminationMessagePath": _CLUSTER, "terminationMessagePolicy": _CLUSTER, "name": "",
    "readinessProbe": "Only a service has a health check.",
    "livenessProbe": "Only a service has a health check.",
    "startupProbe": "Only a service has a health check.",
    "ports": "Only a service is reached by others.", "tty": "Nobody sits at it.",
    "stdin": "Nobody sits at it.",
}  # fmt: skip


def sort_fields(
    table: Table,
    found: Mapping[str, Any],
    place: str,
    handled: frozenset[str],
    left_out: Mapping[str, str],
    refused: Mapping[str, str],
) -> None:
    """Note the fields that nobody handles: left out, refused, or not known."""
    for name, value in found.items():
        if name in handled or value in (None, "", [], {}):
            continue
        where = f"{place}.{name}"
        if name in refused and value is not False:
            table.refused(where, name, refused[name])
        elif left_out.get(name):
            table.left_out(where, name, left_out[name])
        elif name not in left_out and name not in refused:
            table.refused(where, name, "This field is not known to the import.")
