"""From an attempt's plan to every object of it: the one entrance to the manifests.

Pure: equal plans give equal bytes, so that applying again changes nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpuplane.backends.interface import AttemptPlan
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests import jobs, services
from gpuplane.backends.kubernetes.manifests.lastreports import keep_last_report, keeper_image
from gpuplane.backends.kubernetes.manifests.pods import (
    compute_template,
    needs_gates,
    owner_labels,
    placements_of,
    ranks_of,
)
from gpuplane.backends.kubernetes.manifests.routes import compute_route
from gpuplane.backends.kubernetes.manifests.volumes import compute_volumes
from gpuplane.backends.kubernetes.manifests.workspaces import (
    compute_pieces,
    unpacked_first,
    with_workspace,
)
from gpuplane.backends.kubernetes.served import Served
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.core.workloads import JobType
from gpuplane.kube.tenancy import namespace_of

MANIFEST_FORMAT = 1

QUEUE = "kueue.x-k8s.io/queue-name"
QUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """The objects of an attempt.

    Args:
        main: The object that makes pods; held back when it is made.
        release: The merge patch that lets it go.
        owned: What belongs to `main` and goes with it, made before the release.
        scaling: The same, made after the release: it changes the number of replicas.
        claims: (name, spec) of claims that stay when the workload goes.
    """

    namespace: str
    main: Object
    release: Object
    owned: tuple[Object, ...] = ()
    scaling: tuple[Object, ...] = ()
    claims: tuple[tuple[str, Object], ...] = ()


def compute_workload(
    plan: AttemptPlan,
    settings: KubernetesSettings,
    cluster_id: str,
    secret_names: Sequence[str],
    served: Served,
    workspace: bytes | None = None,
) -> Workload:
    """Return every object of an attempt.

    Args:
        secret_names: Environment names of secrets; their values join in `secret_of`.
        workspace: The packed working directory, None where there is none.

    Raises:
        BackendError: If no objects can say what was asked; names what.
    """
    ranks_of(plan)
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    volumes = compute_volumes(plan, settings, served)
    owned: list[Object] = []
    if workspace is not None:
        owned += compute_pieces(plan, owner_labels(plan, cluster_id), workspace)
        volumes = with_workspace(volumes, plan, len(owned))
    is_service = plan.job_type is JobType.SERVICE
    route = compute_route(plan, settings, cluster_id, served.no_routes)
    template = compute_template(
        plan,
        settings,
        cluster_id,
        volumes,
        dict.fromkeys(secret_names, name),
        services.port_of(plan) if is_service else None,
    )
    if workspace is not None:
        unpacked_first(template, plan)
    image = keeper_image(plan, settings, unpacks=workspace is not None)
    if image:
        keep_last_report(template, plan, image)
    scaling: tuple[Object, ...] = ()
    if is_service:
        main = services.compute_deployment(plan, cluster_id, template)
        release: Object = {"spec": {"replicas": len(plan.replicas)}}
        owned.append(services.compute_service(plan, cluster_id))
        if route is not None:
            owned.append(route)
        if plan.scales is not None:
            scaling = services.compute_scaling(plan, cluster_id, has_keda=served.keda)
    else:
        # Where Kueue admits, it is Kueue that lets a Job go, once it is told the queue.
        release = {} if plan.local_queue else {"spec": {"suspend": False}}
        if served.jobsets and _wants_set(plan):
            main = jobs.compute_jobset(plan, cluster_id, template)
        else:
            main = jobs.compute_job(plan, cluster_id, template)
            if len(plan.replicas) > 1:
                owned.append(jobs.compute_headless(plan, cluster_id))
    namespace = namespace_of(plan.tenant_name)
    _finish(plan, main, namespace)
    if plan.local_queue:
        release = {**release, "metadata": {"labels": queue_labels(plan)}}
    for each in (*owned, *scaling):
        each["metadata"]["namespace"] = namespace
    return Workload(namespace, main, release, tuple(owned), scaling, volumes.claims)


def _wants_set(plan: AttemptPlan) -> bool:
    """Return whether an attempt is a training on several nodes; Kueue chooses them afterwards.

    What is dispatched is an indexed Job: its manager hands Jobs over (`starting.name_manager`).
    """
    if plan.job_type is not JobType.TRAINING or len(plan.replicas) < 2 or plan.dispatches:
        return False
    return bool(plan.local_queue) or len({each.node_name for each in plan.replicas}) > 1


def queue_labels(plan: AttemptPlan) -> dict[str, str]:
    """Return the labels by which Kueue takes a workload up."""
    labels = {QUEUE: plan.local_queue}
    if plan.priority_class:
        labels[QUEUE_PRIORITY] = plan.priority_class
    return labels


def _finish(plan: AttemptPlan, main: Object, namespace: str) -> None:
    metadata = main["metadata"]
    metadata["namespace"] = namespace
    annotations = {names.MANIFEST: encode_manifest(plan)}
    if needs_gates(plan):
        annotations[names.PLACEMENTS] = json.dumps(placements_of(plan), sort_keys=True)
    metadata["annotations"] = annotations


def encode_manifest(plan: AttemptPlan) -> str:
    """Return what the job, its attempt and its allocations can be rebuilt from, as JSON."""
    manifest = {
        "format": MANIFEST_FORMAT,
        "name": plan.job_name,
        "tenant": plan.tenant_name,
        "project": plan.project_name,
        "attempt": plan.attempt_number,
        "replicas": [
            {
                "id": str(each.replica_id),
                "rank": each.rank,
                "node": each.node_name,
                "gpu_ids": list(each.gpu_ids),
                "gpu_milli": each.gpu_milli,
                "mig_device": each.mig_device,
            }
            for each in sorted(plan.replicas, key=lambda replica: replica.rank)
        ],
        "spec": msgspec.to_builtins(plan.spec) if plan.spec is not None else None,
    }
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"))


def secret_of(
    plan: AttemptPlan, cluster_id: str, namespace: str, values: Mapping[str, str]
) -> Object:
    """Return the Secret of an attempt: immutable, and owned by its workload when it is made."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.workload_name(plan.job_name, plan.ref.attempt_id),
            "namespace": namespace,
            "labels": owner_labels(plan, cluster_id),
        },
        "type": "Opaque",
        "immutable": True,
        "stringData": dict(sorted(values.items())),
    }


def claim_of(name: str, spec: Object, namespace: str, labels: Mapping[str, str]) -> Object:
    """Return a PersistentVolumeClaim that no workload owns."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": spec,
    }


def owned_by(child: Object, owner: Mapping[str, Any]) -> Object:
    """Return an object that goes when its owner does."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }
    return {**child, "metadata": {**child["metadata"], "ownerReferences": [reference]}}
