"""The kinds of Kubernetes that the product names: one table, each with its path.

What is not in the table is found by asking the cluster (`KubeClient.kind_of`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

_SEGMENT = re.compile(r"[A-Za-z0-9._:-]{1,253}")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind as a cluster serves it.

    Attributes:
        group: Such as `batch`; empty for the core.
        version: Such as `v1`.
        plural: The name in paths.
        kind: The name in objects.
        namespaced: Whether its objects live in namespaces.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def at(self, version: str) -> Self:
        """Return the same kind in another version."""
        return self if version == self.version else replace(self, version=version)

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Return the path of a collection, or of one object.

        Raises:
            ValueError: If a name cannot stand in a path, or an object of a namespace names none.
        """
        parts = [f"/apis/{self.group}" if self.group else "/api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", path_segment(namespace)]
        if self.namespaced and namespace is None and name is not None:
            raise ValueError(f"{self.kind} {name} needs a namespace")
        parts.append(self.plural)
        if name is not None:
            parts.append(path_segment(name))
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


def path_segment(text: str) -> str:
    """Return a name that may stand in a path, as it is.

    Raises:
        ValueError: If it may not: it could lead to another object.
    """
    if not _SEGMENT.fullmatch(text) or text in (".", ".."):
        raise ValueError(f"{text!r} is no name of an object")
    return text


def _core(plural: str, kind: str) -> Kind:
    return Kind("", "v1", plural, kind)


def _kueue(plural: str, kind: str) -> Kind:
    return Kind("kueue.x-k8s.io", "v1beta1", plural, kind)


def _wide(kind: Kind) -> Kind:
    return replace(kind, namespaced=False)


def _rbac(plural: str, kind: str) -> Kind:
    return Kind("rbac.authorization.k8s.io", "v1", plural, kind)


NODE = _wide(_core("nodes", "Node"))
NAMESPACE = _wide(_core("namespaces", "Namespace"))
PERSISTENT_VOLUME = _wide(_core("persistentvolumes", "PersistentVolume"))
POD = _core("pods", "Pod")
SERVICE = _core("services", "Service")
SECRET = _core("secrets", "Secret")
CONFIG_MAP = _core("configmaps", "ConfigMap")
SERVICE_ACCOUNT = _core("serviceaccounts", "ServiceAccount")
EVENT = _core("events", "Event")
ENDPOINTS = _core("endpoints", "Endpoints")
PERSISTENT_VOLUME_CLAIM = _core("persistentvolumeclaims", "PersistentVolumeClaim")
RESOURCE_QUOTA = _core("resourcequotas", "ResourceQuota")
LIMIT_RANGE = _core("limitranges", "LimitRange")
JOB = Kind("batch", "v1", "jobs", "Job")
CRON_JOB = Kind("batch", "v1", "cronjobs", "CronJob")
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet")
DAEMON_SET = Kind("apps", "v1", "daemonsets", "DaemonSet")
REPLICA_SET = Kind("apps", "v1", "replicasets", "ReplicaSet")
HORIZONTAL_POD_AUTOSCALER = Kind(
    "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"
)
SCALED_OBJECT = Kind("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject")
JOB_SET = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
INGRESS = Kind("networking.k8s.io", "v1", "ingresses", "Ingress")
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
PRIORITY_CLASS = _wide(Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass"))
STORAGE_CLASS = _wide(Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass"))
RUNTIME_CLASS = _wide(Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass"))
CUSTOM_RESOURCE_DEFINITION = _wide(
    Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
)
ROLE = _rbac("roles", "Role")
ROLE_BINDING = _rbac("rolebindings", "RoleBinding")
CLUSTER_ROLE = _wide(_rbac("clusterroles", "ClusterRole"))
CLUSTER_ROLE_BINDING = _wide(_rbac("clusterrolebindings", "ClusterRoleBinding"))
VALIDATING_WEBHOOK = _wide(
    Kind(
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
    )
)
MUTATING_WEBHOOK = _wide(
    Kind(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
    )
)
VALIDATING_POLICY = _wide(
    Kind(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
    )
)
VALIDATING_POLICY_BINDING = _wide(
    Kind(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
    )
)
RESOURCE_FLAVOR = _wide(_kueue("resourceflavors", "ResourceFlavor"))
CLUSTER_QUEUE = _wide(_kueue("clusterqueues", "ClusterQueue"))
LOCAL_QUEUE = _kueue("localqueues", "LocalQueue")
WORKLOAD = _kueue("workloads", "Workload")
WORKLOAD_PRIORITY_CLASS = _wide(_kueue("workloadpriorityclasses", "WorkloadPriorityClass"))
ADMISSION_CHECK = _wide(_kueue("admissionchecks", "AdmissionCheck"))
PROVISIONING_REQUEST_CONFIG = _wide(
    _kueue("provisioningrequestconfigs", "ProvisioningRequestConfig")
)
MULTIKUEUE_CONFIG = _wide(_kueue("multikueueconfigs", "MultiKueueConfig"))
MULTIKUEUE_CLUSTER = _wide(_kueue("multikueueclusters", "MultiKueueCluster"))
COHORT = _wide(_kueue("cohorts", "Cohort"))
TOPOLOGY = _wide(_kueue("topologies", "Topology"))
PROVISIONING_REQUEST = Kind(
    "autoscaling.x-k8s.io", "v1", "provisioningrequests", "ProvisioningRequest"
)
ROUTE = Kind("route.openshift.io", "v1", "routes", "Route")
GPU_WORKLOAD = Kind("gpu.warp.dev", "v1alpha1", "gpuworkloads", "GPUWorkload")

KINDS: tuple[Kind, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Kind)
)
_BY_NAME: Mapping[tuple[str, str], Kind] = {(kind.group, kind.kind): kind for kind in KINDS}


def find_kind(obj: Mapping[str, Any]) -> Kind | None:
    """Return the kind of an object if the table has it, in the version that the object names.

    Raises:
        ValueError: If the object names no apiVersion or no kind, or they cannot stand in a path.
    """
    api_version, name = obj.get("apiVersion"), obj.get("kind")
    if not isinstance(api_version, str) or not isinstance(name, str) or not api_version or not name:
        raise ValueError("the object names no apiVersion or no kind")
    group, _, version = api_version.rpartition("/")
    path_segment(version)
    known = _BY_NAME.get((group, name))
    return None if known is None else known.at(version)
