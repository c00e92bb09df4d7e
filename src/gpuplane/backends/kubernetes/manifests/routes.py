"""The Route of a service that asks to be reached from outside, on clusters that serve Routes.

Owns who asks, and what the Route says. Its host is the cluster's choice, below the domain of its
router; TLS ends there, and plain requests are sent on to it.

Source: OpenShift, `route.openshift.io/v1`.
"""

from collections.abc import Mapping
from typing import Any

from gpuplane.backends.interface import AttemptPlan, BackendError
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.pods import owner_labels
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobType

EXPOSE = "expose"
"""The label of a job by which its service is reached from outside; `"true"` asks for it."""
ASKED, ALL, NONE = "asked", "all", "none"


def compute_route(
    plan: AttemptPlan, settings: KubernetesSettings, cluster_id: str, missing: str
) -> dict[str, Any] | None:
    """Return the Route of a service, None where none is asked for.

    Args:
        missing: Why no Route can be made on the cluster; empty where it can.

    Raises:
        BackendError: If one is asked for by the job and cannot be had; names the label.
    """
    told = plan.spec.labels if plan.spec is not None else {}
    is_asked = told.get(EXPOSE) == "true"
    if plan.job_type is not JobType.SERVICE:
        if is_asked:
            raise _refusal("only a service is reached from outside", "Take the label off.")
        return None
    if settings.expose == NONE and is_asked:
        raise _refusal(
            "the config of the cluster says that no service is reached from outside (expose: none)",
            "Take the label off, or choose another cluster.",
        )
    if missing and is_asked:
        raise _refusal(missing, "Take the label off, or choose a cluster that serves Routes.")
    if missing or not (is_asked or settings.expose == ALL):
        return None
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    return {
        "apiVersion": "route.openshift.io/v1",
        "kind": "Route",
        "metadata": {"name": name, "labels": owner_labels(plan, cluster_id)},
        "spec": {
            "to": {"kind": "Service", "name": name, "weight": 100},
            "port": {"targetPort": "main"},
            "tls": {"termination": "edge", "insecureEdgeTerminationPolicy": "Redirect"},
        },
    }


def address_of(route: Mapping[str, Any]) -> tuple[str, str]:
    """Return (URL, trouble) of a Route as the cluster has it: both empty until its router spoke."""
    ingresses = (route.get("status") or {}).get("ingress") or ()
    trouble = ""
    for ingress in ingresses:
        for each in ingress.get("conditions") or ():
            if each.get("type") != "Admitted":
                continue
            if each.get("status") == "True" and ingress.get("host"):
                return f"https://{ingress['host']}", ""
            reason, message = each.get("reason") or "NotAdmitted", each.get("message") or ""
            by = ingress.get("routerName") or "its router"
            trouble = f"{reason}: the Route is refused by {by}: {message}".rstrip(": ")
    return "", trouble


def _refusal(reason: str, fix: str) -> BackendError:
    return BackendError(Word.START_REFUSED, f"labels.{EXPOSE}: {reason}. {fix}")
