"""What a tenant is on a cluster: a namespace with its security, its walls and its limits.

Owns the objects and their names. Pure: writing them is done by who onboards a tenant.

Source: production scenarios 1.3 (NetworkPolicy) and 1.5 (Pod Security), with our label names.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuplane.core.quota.quantities import quantity_text

Object = dict[str, Any]
MAX_NAMESPACE_CHARS = 63
"""A namespace is a label of DNS (RFC 1123)."""
TENANT_LABEL = "gpuplane.io/tenant"
TENANT_ID_LABEL = "gpuplane.io/tenant-id"
SYSTEM_LABEL = "gpuplane.io/system"
"""On namespaces of the platform, which may reach into every tenant's."""
CLUSTER_LABEL = "gpuplane.io/cluster-id"
MANAGED = {"app.kubernetes.io/managed-by": "gpuplane"}
ACCOUNT = "gpuplane-jobs"
POLICY = "tenant-isolation"
LIMITS = "gpuplane-limits"
QUOTA = "gpuplane-quota"
DEFAULT_CPU = "1"
DEFAULT_MEMORY = "1Gi"
"""What a container that asks for nothing gets, so that it counts against a quota at all."""
MAX_PODS = 5_000
"""Pods of one tenant on one cluster: bounds what a run-away loop can make."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """A tenant to be set up on a cluster.

    Args:
        name: The tenant's name.
        tenant_id: Its id.
        cluster_id: The cluster as the control plane knows it.
        most: Resource to the most of it in the core's unit; empty leaves that to the queues.
    """

    name: str
    tenant_id: str
    cluster_id: str
    most: Mapping[str, int]

    @property
    def namespace(self) -> str:
        """Return its namespace."""
        return namespace_of(self.name)


def namespace_of(tenant: str) -> str:
    """Return the namespace of a tenant, which no other tenant has.

    A name that is too long behind its prefix is cut, and told from others by its digest; two
    dashes in front keep it from being the whole name of another tenant, which begins with none.
    """
    name = f"tenant-{tenant}"
    if len(name) <= MAX_NAMESPACE_CHARS:
        return name
    digest = hashlib.sha256(tenant.encode()).hexdigest()[:10]
    return f"tenant--{tenant[:44]}-{digest}"


def namespace_object(tenancy: Tenancy) -> Object:
    """Return the namespace of a tenant."""
    marks = {
        CLUSTER_LABEL: tenancy.cluster_id,
        TENANT_LABEL: tenancy.name,
        TENANT_ID_LABEL: tenancy.tenant_id,
    }
    return walled_namespace(tenancy.namespace, marks)


def walled_namespace(name: str, labels: Mapping[str, str]) -> Object:
    """Return a namespace of ours: Pod Security `baseline` is enforced, `restricted` warns."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {
                **MANAGED,
                **labels,
                "pod-security.kubernetes.io/enforce": "baseline",
                "pod-security.kubernetes.io/enforce-version": "latest",
                "pod-security.kubernetes.io/warn": "restricted",
                "pod-security.kubernetes.io/warn-version": "latest",
            },
        },
    }


def policy_object(tenancy: Tenancy) -> Object:
    """Return the wall: in from the own tenant and the platform, out to everywhere."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _named(tenancy, POLICY),
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {
                    "from": [
                        {
                            "namespaceSelector": {
                                "matchLabels": {TENANT_ID_LABEL: tenancy.tenant_id}
                            }
                        },
                        {"namespaceSelector": {"matchLabels": {SYSTEM_LABEL: "true"}}},
                    ]
                }
            ],
            "egress": [{}],
        },
    }


def account_object(tenancy: Tenancy) -> Object:
    """Return the ServiceAccount of its jobs, without a token of the API."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _named(tenancy, ACCOUNT),
        "automountServiceAccountToken": False,
    }


def limits_object(tenancy: Tenancy) -> Object:
    """Return what a container gets that asks for nothing."""
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": _named(tenancy, LIMITS),
        "spec": {
            "limits": [
                {
                    "type": "Container",
                    "defaultRequest": {"cpu": DEFAULT_CPU, "memory": DEFAULT_MEMORY},
                }
            ]
        },
    }


def quota_object(tenancy: Tenancy) -> Object:
    """Return the hard cap of the namespace: pods, and what was named of other resources."""
    hard = {"pods": str(MAX_PODS)}
    for resource, amount in sorted(tenancy.most.items()):
        hard[f"requests.{resource}"] = quantity_text(resource, amount)
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": _named(tenancy, QUOTA),
        "spec": {"hard": hard},
    }


def tenancy_objects(tenancy: Tenancy) -> tuple[Object, ...]:
    """Return everything of a tenant but its queues, in the order in which it is made."""
    return (
        namespace_object(tenancy),
        policy_object(tenancy),
        account_object(tenancy),
        limits_object(tenancy),
        quota_object(tenancy),
    )


def _named(tenancy: Tenancy, name: str) -> Object:
    return {
        "name": name,
        "namespace": tenancy.namespace,
        "labels": {**MANAGED, CLUSTER_LABEL: tenancy.cluster_id, TENANT_LABEL: tenancy.name},
    }
