"""The Job that stands in line for a chart where Kueue admits: pure.

Kueue admits Jobs, and a release is many objects. So one Job asks for what the job asks for and
never makes a pod, because it says that another controller manages it (`spec.managedBy`). Kueue
admits and suspends it like any Job; what the chart makes belongs to it and is let alone by Kueue
(its rule for what a Job with a queue controls). Its pods go where the admitted Job's would.

Source: kubernetes-sigs/kueue v0.15.0, pkg/controller/jobframework, FindAncestorJobManagedByKueue;
Kubernetes 1.32 and newer, Job `spec.managedBy`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuplane.backends.interface import AttemptPlan
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.chartrules import Object
from gpuplane.backends.kubernetes.manifests.pods import compute_ask, owner_labels, ranks_of
from gpuplane.backends.kubernetes.manifests.workloads import encode_manifest
from gpuplane.backends.kubernetes.settings import KubernetesSettings

MANAGER = f"{names.PREFIX}release"
"""Who manages such a Job: Kubernetes' own controller makes no pods of it."""


def compute_stand_in(
    plan: AttemptPlan, settings: KubernetesSettings, cluster_id: str, namespace: str
) -> Object:
    """Return the Job that stands in line for a release, held back."""
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    count = len(ranks_of(plan))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**owner_labels(plan, cluster_id), names.RELEASE: name},
            "annotations": {names.MANIFEST: encode_manifest(plan)},
        },
        "spec": {
            "suspend": True,
            "managedBy": MANAGER,
            "parallelism": count,
            "completions": count,
            "template": compute_ask(plan, settings, cluster_id),
        },
    }


def let_go(job: Mapping[str, Any], pod: Mapping[str, Any], rank: int | None) -> Object:
    """Return the merge patch that lets a waiting pod go to the nodes of its quota.

    Args:
        job: The admitted stand-in, in whose template Kueue has put the flavors' nodes.
        pod: The pod as the cluster has it.
        rank: The replica that it is, None where it is none.
    """
    asked = job["spec"]["template"]["spec"]
    metadata = {
        "uid": pod["metadata"]["uid"],
        "resourceVersion": pod["metadata"]["resourceVersion"],
    }
    if rank is not None:
        metadata["labels"] = {names.RANK: str(rank)}
    spec: Object = {"schedulingGates": None}
    terms = _terms(asked)
    if terms:
        required = {"nodeSelectorTerms": terms}
        key = "requiredDuringSchedulingIgnoredDuringExecution"
        spec["affinity"] = {"nodeAffinity": {key: required}}
    own = pod["spec"].get("tolerations") or []
    more = [each for each in asked.get("tolerations") or () if each not in own]
    if more:
        spec["tolerations"] = [*own, *more]
    return {"metadata": metadata, "spec": spec}


def _terms(asked: Mapping[str, Any]) -> Sequence[Object]:
    """Return the node selector terms of a pod spec, what its `nodeSelector` says among them."""
    selected = [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in sorted((asked.get("nodeSelector") or {}).items())
    ]
    affinity = (asked.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ([{}] if selected else [])
    return [
        {**each, "matchExpressions": [*(each.get("matchExpressions") or ()), *selected]}
        for each in terms
    ]
