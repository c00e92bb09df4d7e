"""A service: Deployment, Service, and what scales it.

The Deployment is made with no replicas; the release gives it as many as were admitted.
"""

from typing import Any

from gpuplane.backends.interface import AttemptPlan, Unfit
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.pods import owner_labels
from gpuplane.core.reasons import Word

DEFAULT_PORT = 8080
"""Where a service listens that leaves the port to us; it is told by `PORT`."""

CPU_TARGET_PERCENT = 80
"""Where the HPA holds CPU use: Kubernetes' own default (autoscaling/v2)."""

KEDA_COOLDOWN_S = 300
"""How long without a request before a service goes to none: KEDA's own default.

At its start too, which KEDA counts by another field: by its default of 0 the first replica was
taken away a second after it began.
"""

_USES = frozenset({"cpu", "memory"})
"""Triggers by what pods use: where none runs, nothing is used, and nothing wakes it."""


def port_of(plan: AttemptPlan) -> int:
    """Return the port that a service listens on."""
    return plan.execution.port or DEFAULT_PORT


def url_of(name: str, namespace: str, port: int) -> str:
    """Return where a service is reached from inside its cluster."""
    return f"http://{name}.{namespace}.svc:{port}"


def compute_deployment(
    plan: AttemptPlan, cluster_id: str, template: dict[str, Any]
) -> dict[str, Any]:
    """Return the Deployment of a service, without replicas yet."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": names.workload_name(plan.job_name, plan.ref.attempt_id),
            "labels": owner_labels(plan, cluster_id),
        },
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {names.ATTEMPT_ID: str(plan.ref.attempt_id)}},
            # The devices of a replica are its own: a new one cannot start beside the old.
            "strategy": {"type": "Recreate"},
            "template": template,
        },
    }


def compute_service(plan: AttemptPlan, cluster_id: str) -> dict[str, Any]:
    """Return the Service in front of the replicas that are ready."""
    port = port_of(plan)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.workload_name(plan.job_name, plan.ref.attempt_id),
            "labels": owner_labels(plan, cluster_id),
        },
        "spec": {
            "selector": {names.ATTEMPT_ID: str(plan.ref.attempt_id)},
            "ports": [{"name": "main", "port": port, "targetPort": port, "protocol": "TCP"}],
        },
    }


def compute_scaling(
    plan: AttemptPlan, cluster_id: str, *, has_keda: bool
) -> tuple[dict[str, Any], ...]:
    """Return what scales a service, nothing where its number of replicas is fixed.

    Kubernetes' own autoscaler cannot go to none without an alpha gate, and KEDA goes there by
    other triggers than CPU and memory alone: its webhook refuses the rest. So without such a
    trigger a service keeps one replica.

    Raises:
        BackendError: If it names triggers and the cluster has no KEDA to follow them.

    Source:
        kedacore/keda v2.18, apis/keda/v1alpha1/scaledobject_webhook.go, verifyCPUMemoryScalers.
    """
    if plan.scales is None:
        return ()
    least, most = plan.scales
    asked = plan.spec.replicas.triggers if plan.spec is not None else ()
    if asked and not has_keda:
        raise Unfit(
            Word.START_REFUSED,
            "replicas.triggers",
            "the cluster has no KEDA, which alone follows them",
            "Leave them out to scale by CPU use, or have KEDA installed.",
        )
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    metadata = {"name": name, "labels": owner_labels(plan, cluster_id)}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    if has_keda:
        triggers: list[dict[str, Any]] = [
            {"type": each.type, "metadata": dict(each.metadata)} for each in asked
        ]
        if not triggers:
            triggers = [
                {
                    "type": "cpu",
                    "metricType": "Utilization",
                    "metadata": {"value": str(CPU_TARGET_PERCENT)},
                }
            ]
        reaches_none = any(each["type"] not in _USES for each in triggers)
        scaled: dict[str, Any] = {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": metadata,
            "spec": {
                "scaleTargetRef": target,
                "minReplicaCount": least if reaches_none else max(1, least),
                "maxReplicaCount": most,
                "cooldownPeriod": KEDA_COOLDOWN_S,
                "initialCooldownPeriod": KEDA_COOLDOWN_S,
                "triggers": triggers,
            },
        }
        return (scaled,)
    metric = {
        "type": "Resource",
        "resource": {
            "name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": CPU_TARGET_PERCENT},
        },
    }
    scaler: dict[str, Any] = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": max(1, least),
            "maxReplicas": most,
            "metrics": [metric],
        },
    }
    return (scaler,)
