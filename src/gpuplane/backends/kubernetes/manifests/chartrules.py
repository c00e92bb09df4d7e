"""What a chart may bring into a tenant's namespace: pure checks of rendered objects.

Owns the list of kinds and the refusals, each with the field of the job, the reason and what would
help. Never changes an object.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuplane.backends.interface import BackendError, Unfit
from gpuplane.core.quantities import BadQuantity, parse_quantity
from gpuplane.core.reasons import Word

Object = dict[str, Any]

TEMPLATED = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "Pod": (),
}
"""Kinds that make pods, and where each has its template."""

LASTING = frozenset({"Deployment", "StatefulSet", "ReplicaSet"})
"""Kinds whose pods run until they are taken away."""

PLAIN = frozenset(
    {"ConfigMap", "Secret", "Service", "ServiceAccount", "PersistentVolumeClaim",
     "PodDisruptionBudget", "Ingress"}
)  # fmt: skip
"""Kinds that make no pods and give no rights."""

_CLUSTER_WIDE = frozenset(
    {"Namespace", "Node", "PersistentVolume", "ClusterRole", "ClusterRoleBinding", "StorageClass",
     "CustomResourceDefinition", "PriorityClass", "RuntimeClass", "ValidatingWebhookConfiguration",
     "MutatingWebhookConfiguration", "APIService", "IngressClass", "CSIDriver", "DeviceClass",
     "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterQueue",
     "ResourceFlavor", "FlowSchema", "PriorityLevelConfiguration", "VolumeSnapshotClass"}
)  # fmt: skip

_GROUPS = frozenset({"", "apps", "batch", "policy", "networking.k8s.io"})

_WHY_NOT = {
    "DaemonSet": "it runs on every node, and this job runs on the nodes it was given",
    "HorizontalPodAutoscaler": "pods that it adds would have no place; set replicas instead",
    "Role": "rights in a tenant's namespace are given by its administrators",
    "RoleBinding": "rights in a tenant's namespace are given by its administrators",
    "NetworkPolicy": "who reaches a tenant's pods is set by its administrators",
    "ResourceQuota": "a tenant's limits are set by its administrators",
    "LimitRange": "a tenant's limits are set by its administrators",
}

HOOK = "helm.sh/hook"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

_VOLUMES = frozenset(
    {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "downwardAPI", "ephemeral",
     "projected", "image"}
)  # fmt: skip
"""Kinds of volumes that show what is the tenant's or the pod's own, or an image. By any other a
node mounts what a chart names, with the node's rights: another tenant's export among it."""

_PROJECTED = frozenset({"configMap", "secret", "downwardAPI"})

_TOKEN_SECRET = "kubernetes.io/service-account-token"

MEND = "Mend it in spec.chart.values, or in the chart's templates."
_HOST = ("hostNetwork", "hostPID", "hostIPC")


def refusal(reason: str, fix: str, field: str = "spec.chart") -> BackendError:
    """Return the refusal of a chart as the job's people are told it: it would never start."""
    return Unfit(Word.START_REFUSED, field, reason, fix)


def failure(reason: str, fix: str, field: str = "spec.chart") -> BackendError:
    """Return why a chart could not be started this time; another try may do it."""
    return BackendError(Word.START_FAILED, f"{field}: {reason}. {fix}")


def check_object(obj: Object, namespace: str) -> None:
    """Refuse an object that a chart may not bring.

    Raises:
        BackendError: With field, reason and fix.
    """
    kind, metadata = obj["kind"], obj["metadata"]
    called = f"{kind} {metadata['name']}"
    if kind in _CLUSTER_WIDE:
        raise refusal(
            f"the chart makes {called}, which is not in a namespace but of the whole cluster",
            "Switch it off in spec.chart.values, and have an administrator install it once.",
        )
    where = metadata.get("namespace")
    if where not in (None, "", namespace):
        raise refusal(
            f"the chart puts {called} into the namespace {where}, and the job's is {namespace}",
            "Leave the namespace out of spec.chart.values.",
        )
    group = str(obj["apiVersion"]).rpartition("/")[0]
    known = (kind in TEMPLATED or kind in PLAIN) and group in _GROUPS
    if not known:
        why = _WHY_NOT.get(kind, "nothing here knows what pods or rights it makes")
        raise refusal(
            f"the chart makes {called}: {why}",
            "Switch it off in spec.chart.values.",
        )
    if kind == "Secret" and obj.get("type") == _TOKEN_SECRET:
        raise refusal(
            f"{called} is to be filled with the token of a service account ({_TOKEN_SECRET})",
            "Switch it off in spec.chart.values: pods of jobs are no users of the cluster.",
        )
    if kind == "Service" and (obj.get("spec") or {}).get("externalIPs"):
        raise refusal(
            f"{called} takes addresses of others (externalIPs)", "Leave them out of the values."
        )


def check_queued(obj: Object) -> None:
    """Refuse an object that cannot be the job's where Kueue admits.

    Raises:
        BackendError: With field, reason and fix.
    """
    if obj["kind"] == "CronJob":
        raise refusal(
            f"the chart makes CronJob {obj['metadata']['name']}, and on a cluster that admits by "
            "Kueue each Job that it makes would stand in line by itself",
            "Switch it off in spec.chart.values, or name a cluster with embedded admission.",
        )
    for labels in (obj["metadata"].get("labels") or {}, _template_labels(obj)):
        if QUEUE_LABEL in labels:
            raise refusal(
                f"{obj['kind']} {obj['metadata']['name']} names a queue of its own",
                f"Leave the label {QUEUE_LABEL} out of spec.chart.values; the job's queue counts.",
            )


def _template_labels(obj: Object) -> Mapping[str, Any]:
    found: Any = obj
    for key in (*TEMPLATED.get(obj["kind"], ()), "metadata", "labels"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def check_pod(called: str, spec: Mapping[str, Any]) -> None:
    """Refuse a pod that leaves its namespace's limits or chooses its place itself.

    Raises:
        BackendError: With field, reason and fix.
    """
    for key in _HOST:
        if spec.get(key):
            raise refusal(f"{called} asks for {key}", "Set it to false in spec.chart.values.")
    for volume in spec.get("volumes") or ():
        _check_volume(called, volume)
    if spec.get("automountServiceAccountToken"):
        raise refusal(
            f"{called} asks for a token of its service account (automountServiceAccountToken)",
            "Set it to false in spec.chart.values: pods of jobs are no users of the cluster.",
        )
    for container in containers_of(spec):
        if (container.get("securityContext") or {}).get("privileged"):
            raise refusal(f"{called} runs privileged", "Set it to false in spec.chart.values.")
    if spec.get("nodeName"):
        raise refusal(f"{called} names its node", "Ask for it in placement.node_selector.")
    if spec.get("priorityClassName"):
        raise refusal(
            f"{called} has a priority class of the cluster, which could end others' pods",
            "Leave it out; the job's priority counts.",
        )
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    if affinity.get("requiredDuringSchedulingIgnoredDuringExecution"):
        raise refusal(
            f"{called} requires nodes by affinity, and its node is chosen here",
            "Ask for them in placement.node_selector.",
        )
    if spec.get("schedulerName", "default-scheduler") != "default-scheduler":
        raise refusal(f"{called} names a scheduler of its own", "Leave it out.")


def _check_volume(called: str, volume: Any) -> None:
    if not isinstance(volume, dict):
        raise refusal(f"{called} has a volume that cannot be read: it is no mapping", MEND)
    name = volume.get("name")
    for kind, source in volume.items():
        if kind == "name" or source is None:
            continue
        if kind == "hostPath":
            path = source.get("path") if isinstance(source, dict) else source
            raise refusal(
                f"{called} mounts the host's path {path}", "Use a claim or an emptyDir instead."
            )
        if kind not in _VOLUMES:
            raise refusal(
                f"{called} has the volume {name} of the kind {kind}, which the node would mount by"
                " an address of the chart's",
                f"Use a claim, or one of {', '.join(sorted(_VOLUMES))}.",
            )
        if kind == "projected":
            _check_projected(f"{called}, volume {name}", source)


def _check_projected(called: str, source: Any) -> None:
    for each in (source.get("sources") if isinstance(source, dict) else None) or ():
        for kind, told in each.items() if isinstance(each, dict) else ():
            if told is not None and kind not in _PROJECTED:
                raise refusal(
                    f"{called}: projected.sources.{kind} is not for the pods of jobs",
                    f"Leave it out; there may be {', '.join(sorted(_PROJECTED))}.",
                )


def check_amounts(called: str, obj: Object, spec: Mapping[str, Any]) -> None:
    """Refuse amounts that no API server takes: they would fail only once the job has its turn.

    Args:
        called: The object, for people.
        obj: What makes pods.
        spec: Of its pods.

    Raises:
        BackendError: With field, reason and fix.
    """
    key, copies = _told_copies(obj)
    # An API server takes 100.0 for a hundred: only of a whole number is it known what it makes.
    is_number = isinstance(copies, int) and not isinstance(copies, bool)
    if copies is not None and (not is_number or copies < 0):
        raise refusal(f"{called} has {key}: {str(copies)[:60]}", MEND)
    policy = (obj.get("spec") or {}).get("concurrencyPolicy")
    if obj["kind"] == "CronJob" and policy not in (None, "Forbid", "Replace"):
        raise refusal(
            f"{called} may start any number of runs beside those that have not ended",
            "Set its concurrencyPolicy to Forbid or Replace.",
        )
    for container in containers_of(spec):
        _check_resources(f"{called}, container {container.get('name')}", container.get("resources"))
    _check_resources(called, spec.get("resources"))
    _check_resources(called, {"overhead": spec.get("overhead")})


def _check_resources(called: str, resources: Any) -> None:
    for key in ("requests", "limits", "overhead"):
        amounts = resources.get(key) if isinstance(resources, dict) else resources or None
        where = f"{called}: {'' if key == 'overhead' else 'resources.'}{key}"
        if amounts is not None and not isinstance(amounts, dict):
            raise refusal(f"{where} cannot be read: it is no mapping", MEND)
        for name, amount in (amounts or {}).items():
            _check_amount(f"{where}.{name}", amount)


def _check_amount(where: str, amount: object) -> None:
    if amount is None:
        return  # an API server reads it as none
    try:
        is_negative = parse_quantity(amount) < 0
    except BadQuantity as error:
        raise refusal(f"{where} cannot be read: {error}", MEND) from None
    if is_negative:
        raise refusal(f"{where} is negative: {amount}", MEND)


def copies_of(obj: Object) -> int:
    """Return how many pods an object makes at once, once its amounts were checked."""
    _, copies = _told_copies(obj)
    return 1 if copies is None else int(copies)


def _told_copies(obj: Object) -> tuple[str, Any]:
    """Return (field, value) that says how many pods an object makes at once."""
    kind, spec = obj["kind"], obj.get("spec") or {}
    if kind == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    key = "parallelism" if kind in ("Job", "CronJob") else "replicas"
    return key, None if kind == "Pod" else spec.get(key)


def hooks_of(obj: Mapping[str, Any]) -> frozenset[str]:
    """Return the events of Helm that an object waits for, empty where it is no hook."""
    told = str((obj["metadata"].get("annotations") or {}).get(HOOK) or "")
    return frozenset(each.strip() for each in told.split(",")) - {""}


def pod_spec_of(obj: Object) -> Mapping[str, Any]:
    """Return the spec of the pods that an object makes, empty where it makes none."""
    path = TEMPLATED.get(obj["kind"])
    if path is None:
        return {}
    if not path:
        return obj.get("spec") or {}
    return template_at(obj, path, str(obj["kind"])).get("spec") or {}


def template_at(obj: Object, path: Sequence[str], called: str) -> Object:
    """Return the pod template of an object.

    Raises:
        BackendError: If there is none.
    """
    found: Any = obj
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise refusal(f"{called} has no pod template", "Look at the chart.")
    return found


def containers_of(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the containers of a pod, those that come first among them."""
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()
