"""The pod of one replica: container, devices, environment, place and security.

Owns the pod template. Compatible with Pod Security `baseline`: no privilege, no host namespace, no
host path, the runtime's seccomp profile; no token of a service account is mounted, for a job has
no business with the API server.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuplane.backends.interface import AttemptPlan, BackendError, ReplicaPlan
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.devices import DeviceClaim, compute_claim
from gpuplane.backends.kubernetes.manifests.volumes import REPORT_FOLDER, PodVolumes, reports
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import HealthCheck, JobType, RestartPolicy, Toleration

REPORT_PATH = "/dev/termination-log"
"""Where a replica writes its outputs: the kubelet hands 4 KiB of it back in the pod's status."""

CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")

LEVEL = "kueue.x-k8s.io/podset-{mode}-topology"
"""Annotation of a pod template: the level of a Topology in which Kueue is to keep its pods."""

ADMISSION_GATE = "kueue.x-k8s.io/admission"
"""What keeps a pod from the scheduler until Kueue has admitted it, which takes it away
(kubernetes-sigs/kueue v0.15.0, pkg/controller/jobs/pod)."""

NOTHING_RUNS = "registry.k8s.io/pause:3.10"
"""Image of a pod template that only says what is asked for: a template must name one."""

MASTER_PORT = 29_500
"""PyTorch's own default; pods have addresses of their own, so nothing else is on it."""


def owner_labels(plan: AttemptPlan, cluster_id: str) -> dict[str, str]:
    """Return the labels by which every object of an attempt is known as ours."""
    labels = {
        "app.kubernetes.io/managed-by": "gpuplane",
        names.CLUSTER: cluster_id,
        names.TENANT_ID: str(plan.tenant_id),
        names.JOB_ID: str(plan.job_id),
        names.ATTEMPT_ID: str(plan.ref.attempt_id),
        names.ATTEMPT: str(plan.attempt_number),
        names.EPOCH: str(plan.ref.epoch),
    }
    if plan.project_id is not None:
        labels[names.PROJECT_ID] = str(plan.project_id)
    return labels


def compute_template(
    plan: AttemptPlan,
    settings: KubernetesSettings,
    cluster_id: str,
    volumes: PodVolumes,
    secret_keys: Mapping[str, str],
    port: int | None = None,
) -> dict[str, Any]:
    """Return the pod template that all replicas of an attempt share.

    Where replicas have several places the template holds none: each pod waits behind a gate until
    it is given its own (`placed`).

    Args:
        secret_keys: Environment name to the name of the Secret that holds it under that key.
        port: The port that a service listens on.
    """
    first = min(plan.replicas, key=lambda replica: replica.rank)
    claim = compute_claim(plan.resources, ())
    spec: dict[str, Any] = {
        "restartPolicy": _restart(plan),
        "automountServiceAccountToken": False,
        # Otherwise every Service of the namespace is in the environment of every pod.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": plan.execution.grace_s,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(plan, settings, claim, volumes, secret_keys, port)],
    }
    if claim.shares:
        spec["schedulerName"] = settings.share_scheduler
    if volumes.volumes:
        spec["volumes"] = list(volumes.volumes)
    spec |= _wishes(plan, settings)
    annotations: dict[str, str] = {}
    if plan.local_queue:
        spec |= _models(plan)
        if is_by_pod(plan):
            # Kueue's webhook adds it too. Where it does not answer while Kueue is down, a pod that
            # a scaler adds would start unasked; with it the pod waits until Kueue is back.
            spec["schedulingGates"] = [{"name": ADMISSION_GATE}]
        if plan.level is not None:
            mode, label = plan.level
            annotations = {LEVEL.format(mode=mode): label}
    elif needs_gates(plan):
        spec["schedulingGates"] = [{"name": names.PLACEMENT_GATE}]
    else:
        spec |= _affinity(first.node_name)
        annotations = _hints(plan, first)
    metadata: dict[str, Any] = {"labels": owner_labels(plan, cluster_id)}
    if is_by_pod(plan):
        # A Workload of Kueue has the spec of its pod and none of the labels.
        container = spec["containers"][0]
        others = [each for each in container["env"] if each["name"] != names.CLUSTER_VARIABLE]
        container["env"] = [*others, {"name": names.CLUSTER_VARIABLE, "value": cluster_id}]
    elif len(plan.replicas) == 1 and not needs_gates(plan):
        metadata["labels"][names.RANK] = str(first.rank)
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec}


def is_by_pod(plan: AttemptPlan) -> bool:
    """Return whether Kueue admits each pod by itself, so that ranks are given to bound pods."""
    is_chart = plan.execution.chart is not None  # for which a Job stands in line, whole
    return plan.job_type is JobType.SERVICE and bool(plan.local_queue) and not is_chart


def compute_ask(plan: AttemptPlan, settings: KubernetesSettings, cluster_id: str) -> dict[str, Any]:
    """Return a pod template that says what a replica asks for, and would run nothing."""
    container = {
        "name": names.CONTAINER,
        "image": NOTHING_RUNS,
        "resources": _resources(plan, compute_claim(plan.resources, ())),
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
        **_wishes(plan, settings),
        **_models(plan),
    }
    return {"metadata": {"labels": owner_labels(plan, cluster_id)}, "spec": spec}


def list_tolerations(plan: AttemptPlan, settings: KubernetesSettings) -> list[dict[str, Any]]:
    """Return the taints that the pods of a job tolerate."""
    found: list[dict[str, Any]] = _wishes(plan, settings).get("tolerations", [])
    return found


def needs_gates(plan: AttemptPlan) -> bool:
    """Return whether replicas have places of their own, which one template cannot say.

    The replicas of a service always have: its pods are all alike until each is given a rank.
    """
    if plan.scales is not None and not plan.local_queue:
        return True  # those to come have places of their own too
    if plan.local_queue or len(plan.replicas) < 2:
        return False
    places = {(each.node_name, each.gpu_ids) for each in plan.replicas}
    return len(places) > 1 or plan.job_type is JobType.SERVICE


def placed(
    node_name: str, annotations: Mapping[str, str], resource_version: str, uid: str
) -> dict[str, Any]:
    """Return the merge patch that gives a waiting pod its place and lifts its gate."""
    return {
        "metadata": {
            "uid": uid,
            "resourceVersion": resource_version,
            "annotations": dict(annotations),
        },
        "spec": {"schedulingGates": None, **_affinity(node_name)},
    }


def placed_on(node_names: Sequence[str], resource_version: str, uid: str) -> dict[str, Any]:
    """Return the merge patch that lets a waiting pod go to whichever of these nodes."""
    return {
        "metadata": {"uid": uid, "resourceVersion": resource_version},
        "spec": {"schedulingGates": None, **_affinity(*node_names)},
    }


def placements_of(plan: AttemptPlan) -> dict[str, dict[str, Any]]:
    """Return the place of each rank, as it is kept on the workload for the gates of its pods."""
    return {
        str(each.rank): {"node": each.node_name, "annotations": _hints(plan, each)}
        for each in sorted(plan.replicas, key=lambda replica: replica.rank)
    }


def _hints(plan: AttemptPlan, replica: ReplicaPlan) -> dict[str, str]:
    return compute_claim(plan.resources, replica.gpu_ids).annotations


def _affinity(*node_names: str) -> dict[str, Any]:
    """Return the affinity to nodes: the scheduler still binds, and refuses what cannot be."""
    # A term may name one node only (API validation); terms are alternatives.
    terms = {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [each]}]}
            for each in node_names
        ]
    }
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"affinity": {"nodeAffinity": affinity}}


def _models(plan: AttemptPlan) -> dict[str, Any]:
    """Return the affinity to nodes that have what was asked, where the cluster chooses."""
    if not plan.node_affinity:
        return {}
    wanted = [
        {"key": label, "operator": "In", "values": list(values)}
        for label, values in plan.node_affinity
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": wanted}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _wishes(plan: AttemptPlan, settings: KubernetesSettings) -> dict[str, Any]:
    """Return node selector and tolerations: what the scheduler here went by, it goes by too."""
    wishes: dict[str, Any] = {}
    tolerations: list[dict[str, Any]] = []
    if plan.spec is not None:
        asked = plan.spec.placement
        if asked.node_selector:
            wishes["nodeSelector"] = dict(sorted(asked.node_selector.items()))
        tolerations = [_toleration(each) for each in asked.tolerations]
    if settings.tolerates_control_plane:
        tolerations += [{"key": key, "operator": "Exists"} for key in CONTROL_PLANE]
    if tolerations:
        wishes["tolerations"] = tolerations
    return wishes


def _toleration(asked: Toleration) -> dict[str, Any]:
    entries = {
        "key": asked.key,
        "operator": asked.operator,
        "value": asked.value,
        "effect": asked.effect,
    }
    return {name: value for name, value in entries.items() if value}


def _restart(plan: AttemptPlan) -> str:
    if plan.job_type is JobType.SERVICE:
        return "Always"  # the only policy that a Deployment takes
    if plan.execution.restart is RestartPolicy.NEVER:
        return "Never"
    return "OnFailure"


def _container(
    plan: AttemptPlan,
    settings: KubernetesSettings,
    claim: DeviceClaim,
    volumes: PodVolumes,
    secret_keys: Mapping[str, str],
    port: int | None,
) -> dict[str, Any]:
    image = plan.execution.image or settings.default_image
    if not image:
        raise BackendError(
            Word.START_FAILED, "a job on a cluster needs an image; it has none and the cluster has"
            " no default"
        )  # fmt: skip
    container: dict[str, Any] = {
        "name": names.CONTAINER,
        "image": image,
        "env": _environment(plan, secret_keys, port),
        "resources": _resources(plan, claim),
        "securityContext": {"allowPrivilegeEscalation": False},
        "terminationMessagePath": REPORT_PATH,
        # What failed without a word of its own tells the end of its output.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if plan.execution.command:
        container["command"] = list(plan.execution.command)
    if plan.execution.working_dir:
        container["workingDir"] = plan.execution.working_dir
    if volumes.mounts:
        container["volumeMounts"] = list(volumes.mounts)
    if port:
        container["ports"] = [{"name": "main", "containerPort": port, "protocol": "TCP"}]
        container |= _probes(plan.execution.health, port)
    return container


def _resources(plan: AttemptPlan, claim: DeviceClaim) -> dict[str, Any]:
    asked = plan.resources
    memory, ephemeral = f"{asked.memory_mib}Mi", f"{asked.ephemeral_mib}Mi"
    devices = {name: str(count) for name, count in sorted(claim.resources.items())}
    requests = {"cpu": f"{asked.cpu_milli}m", "memory": memory}
    # No limit on CPU: a share under contention is what was asked for, a ceiling only slows.
    limits = {"memory": memory}
    if asked.ephemeral_mib:
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = ephemeral
    return {"requests": requests | devices, "limits": limits | devices}


def _environment(
    plan: AttemptPlan, secret_keys: Mapping[str, str], port: int | None
) -> list[dict[str, Any]]:
    """Return the environment; later names win, and the last ones are ours."""
    plain = {**plan.env, **plan.execution.env}
    ours = {
        "GPUPLANE_JOB_ID": str(plan.job_id),
        "GPUPLANE_JOB_NAME": plan.job_name,
        names.ATTEMPT_VARIABLE: str(plan.ref.attempt_id),
        "GPUPLANE_ATTEMPT": str(plan.attempt_number),
        "GPUPLANE_TENANT": plan.tenant_name,
        "GPUPLANE_PROJECT": plan.project_name,
        "GPUPLANE_OUTPUTS": REPORT_PATH,
    }
    if reports(plan):
        ours["GPUPLANE_PROGRESS"] = f"{REPORT_FOLDER}/progress"
        ours["GPUPLANE_CHECKPOINTS"] = f"{REPORT_FOLDER}/checkpoints"
    if plan.checkpoint_path:
        ours["GPUPLANE_CHECKPOINT_DIR"] = plan.checkpoint_path
    if plan.resume_from:
        ours["GPUPLANE_RESUME_FROM"] = plan.resume_from
    if plan.execution.seed is not None:
        ours["GPUPLANE_SEED"] = str(plan.execution.seed)
    if port:
        ours["PORT"] = str(port)
    entries: dict[str, dict[str, Any]] = {name: {"value": v} for name, v in plain.items()}
    for name, secret in secret_keys.items():
        entries[name] = {"valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
    entries |= {name: {"value": value} for name, value in ours.items()}
    entries["GPUPLANE_NODE"] = _field("spec.nodeName")
    entries |= _ranks(plan)
    return [{"name": name, **entry} for name, entry in sorted(entries.items())]


def _ranks(plan: AttemptPlan) -> dict[str, dict[str, Any]]:
    """Return the names that torch.distributed and its kin read; only for several replicas.

    A service has its rank alone. Where Kueue admits each of its pods it has none: a rank is given
    to a pod that is bound, which its kubelet may have started by then.
    """
    if is_by_pod(plan):
        return {}
    if plan.job_type is JobType.SERVICE:
        return {"GPUPLANE_RANK": _field(f"metadata.labels['{names.RANK}']")}
    if len(plan.replicas) < 2:
        return {"GPUPLANE_RANK": {"value": str(plan.replicas[0].rank)}}
    index = _field(f"metadata.annotations['{names.INDEX}']")
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    return {
        "GPUPLANE_RANK": index,
        "RANK": index,
        "WORLD_SIZE": {"value": str(len(plan.replicas))},
        "LOCAL_RANK": {"value": "0"},
        "LOCAL_WORLD_SIZE": {"value": "1"},
        "MASTER_ADDR": {"value": f"{name}-0.{name}"},
        "MASTER_PORT": {"value": str(MASTER_PORT)},
    }


def _field(path: str) -> dict[str, Any]:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probes(health: HealthCheck | None, port: int) -> dict[str, Any]:
    """Return readiness, start and liveness probes; a port without a check must take connections."""
    asked = health or HealthCheck()
    target = asked.port or port
    if asked.path:
        action: dict[str, Any] = {"httpGet": {"path": asked.path, "port": target}}
    else:
        action = {"tcpSocket": {"port": target}}
    period = max(1, round(asked.interval_s))
    timing = {
        "periodSeconds": period,
        "timeoutSeconds": max(1, round(asked.timeout_s)),
        "failureThreshold": asked.failure_threshold,
    }
    start = {**timing, "failureThreshold": max(1, round(asked.start_period_s / period))}
    probes = {"readinessProbe": action | timing, "startupProbe": action | start}
    if health is not None:
        # Only where somebody said what healthy means is it a reason to start again.
        probes["livenessProbe"] = action | timing
    return probes


def ranks_of(plan: AttemptPlan) -> Sequence[int]:
    """Return the ranks of a plan, ascending.

    Raises:
        BackendError: If they are not 0, 1, 2, …: an indexed Job numbers its pods itself.
    """
    ranks = sorted(each.rank for each in plan.replicas)
    if not ranks:
        raise BackendError(Word.START_FAILED, "the plan names no replica")
    if len(ranks) > 1 and ranks != list(range(len(ranks))):
        raise BackendError(Word.START_FAILED, f"the ranks {ranks} are not 0 to {len(ranks) - 1}")
    return ranks
