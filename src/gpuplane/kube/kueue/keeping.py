"""What keeps ended work on a worker until its logs were read: a policy of the API server.

MultiKueue deletes a Job on its worker, and with it the pods, as soon as the manager was told of its
end. The policy refuses that to the managers' account alone, and only for a Job of ours that is over
and whose logs nobody has read; Kueue asks again until it may. What runs can be deleted at any time,
and nodes can be drained. Pure: writing it is done by who connects clusters.

Source: Kubernetes v1.30, ValidatingAdmissionPolicy; kubernetes-sigs/kueue v0.15.0,
pkg/controller/admissionchecks/multikueue/workload.go (a deletion that fails is tried again).
"""

from typing import Any

from gpuplane.kube.kueue.multikueue import ACCOUNT, NAMESPACE
from gpuplane.kube.kueue.names import MANAGED_LABEL, MANAGED_VALUE

ARCHIVED = "gpuplane.io/archived"
"""Annotation of a Job that was dispatched and is over: everything of it was read."""
POLICY = "gpuplane-keep-until-read"
_GROUP = "admissionregistration.k8s.io"
_ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
_OVER = (
    "has(oldObject.status) && has(oldObject.status.conditions) && "
    "oldObject.status.conditions.exists(c, "
    "(c.type == 'Complete' || c.type == 'Failed') && c.status == 'True')"
)
_READ = f"has(oldObject.metadata.annotations) && '{ARCHIVED}' in oldObject.metadata.annotations"


def keeping_objects() -> tuple[dict[str, Any], ...]:
    """Return the policy and what puts it into force."""
    labels = {MANAGED_LABEL: MANAGED_VALUE}
    rule = {
        "apiGroups": ["batch"],
        "apiVersions": ["v1"],
        "operations": ["DELETE"],
        "resources": ["jobs"],
        "scope": "*",
    }
    marks = ("kueue.x-k8s.io/multikueue-origin", "gpuplane.io/attempt-id")
    selector = {"matchExpressions": [{"key": each, "operator": "Exists"} for each in marks]}
    return (
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": POLICY, "labels": labels},
            "spec": {
                # What cannot be judged may go: logs are worth less than a place that is blocked.
                "failurePolicy": "Ignore",
                "matchConstraints": {"resourceRules": [rule], "objectSelector": selector},
                "matchConditions": [
                    {"name": "manager", "expression": f"request.userInfo.username == '{_ACCOUNT}'"},
                    {"name": "over", "expression": _OVER},
                ],
                "validations": [
                    {
                        "expression": _READ,
                        "message": "gpuplane has not read the logs of this Job yet.",
                    }
                ],
            },
        },
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": POLICY, "labels": labels},
            "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
        },
    )
