"""From what a chart renders to what a job's Helm release is made of: pure.

Every object gets the labels of its attempt and belongs to one ConfigMap, the anchor: when that is
deleted the cluster collects all the rest, also what a late installation makes afterwards. Every
pod waits behind a gate until it is given its place, so none runs that was not admitted.

    part      pods that                                            their place
    device    ask for the job's GPUs                               of the rank each is given
    replica   run on, in a job without GPUs                        of the rank each is given
    helper    end by themselves, or run beside those with GPUs     any node of the job

Claims of a chart are made beside the release, not in it: data outlives an attempt.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuplane.backends.interface import AttemptPlan
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.chartamounts import check_total
from gpuplane.backends.kubernetes.manifests.chartrules import (
    LASTING,
    MEND,
    TEMPLATED,
    Object,
    check_amounts,
    check_object,
    check_pod,
    check_queued,
    containers_of,
    hooks_of,
    pod_spec_of,
    refusal,
    template_at,
)
from gpuplane.backends.kubernetes.manifests.chartshapes import find_misshapen
from gpuplane.backends.kubernetes.manifests.devices import (
    GPU_RESOURCES,
    NVIDIA_CORES,
    NVIDIA_MEMORY,
    NVIDIA_MEMORY_SHARE,
    compute_claim,
)
from gpuplane.backends.kubernetes.manifests.pods import (
    list_tolerations,
    owner_labels,
    placements_of,
    ranks_of,
)
from gpuplane.backends.kubernetes.manifests.standins import compute_stand_in
from gpuplane.backends.kubernetes.manifests.workloads import encode_manifest
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.core.quantities import BadQuantity, parse_quantity
from gpuplane.kube.tenancy import namespace_of

DEVICE, REPLICA, HELPER = "device", "replica", "helper"

SECRET_NAME = "$(GPUPLANE_SECRET)"
"""In a value: becomes the name of the Secret that holds the job's secrets."""

_TESTS = frozenset({"test", "test-success", "test-failure"})
DECIDED = (names.PREFIX, "kueue.x-k8s.io/", "nvidia.com/", "hami.io/")
"""Beginnings of labels and annotations that are not for a chart: ours, Kueue's, and those by which
HAMi and NVIDIA's own parts are told which GPU a pod gets."""
_DEVICES = (*GPU_RESOURCES, NVIDIA_CORES, NVIDIA_MEMORY, NVIDIA_MEMORY_SHARE)


@dataclass(frozen=True, slots=True)
class Release:
    """What a Helm release of an attempt is made of.

    Args:
        name: Of the release and of its anchor.
        anchor: What everything hangs on.
        objects: What the release holds, without their owner yet.
        claims: (name, spec) of claims that stay when the release goes.
        service: Name of the Service by which it is reached; empty where it has none.
        port: Its port, None where it has none.
    """

    name: str
    namespace: str
    anchor: Object
    objects: tuple[Object, ...]
    claims: tuple[tuple[str, Object], ...] = ()
    service: str = ""
    port: int | None = None


def rendered_name(plan: AttemptPlan) -> str:
    """Return the release name that templates see: the job's, so that claims are found again."""
    return f"{names.slug(plan.job_name)}-{plan.job_id.hex[-12:]}"


def values_of(plan: AttemptPlan) -> dict[str, Any]:
    """Return the values of a job's chart, with the name of its Secret where they ask for it."""
    chart = plan.execution.chart
    assert chart is not None
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    filled: dict[str, Any] = _filled(dict(chart.values), name)
    return filled


def compute_release(
    plan: AttemptPlan,
    settings: KubernetesSettings,
    cluster_id: str,
    rendered: Sequence[object],
) -> Release:
    """Return the release of an attempt.

    Args:
        rendered: The documents that `helm template` wrote.

    Raises:
        BackendError: If the chart may not run, or does not fit what the job asks for.
    """
    namespace = namespace_of(plan.tenant_name)
    ranks_of(plan)
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    labels = owner_labels(plan, cluster_id)
    given = {key: text for key, text in labels.items() if key.startswith(names.PREFIX)}
    kept, claims = [], []
    for document in rendered:
        obj = _read(document)
        if obj is None:
            continue
        check_object(obj, namespace)
        if plan.local_queue:
            check_queued(obj)
        if obj["kind"] == "PersistentVolumeClaim":
            claims.append((str(obj["metadata"]["name"]), dict(obj.get("spec") or {})))
        else:
            kept.append(_owned(obj, plan, settings, given))
    if not kept:
        raise refusal("the chart makes nothing", "Look at spec.chart.values.")
    devices = [obj for obj in kept if obj["metadata"]["labels"][names.PART] == DEVICE]
    check_total(plan, kept, devices)
    service, port = _find_address(plan, kept)
    if plan.local_queue:
        anchor = compute_stand_in(plan, settings, cluster_id, namespace)
    else:
        anchor = _config_map(plan, name, namespace, labels)
    return Release(name, namespace, anchor, tuple(kept), tuple(claims), service, port)


def _config_map(plan: AttemptPlan, name: str, namespace: str, labels: Mapping[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**labels, names.RELEASE: name},
            "annotations": {
                names.MANIFEST: encode_manifest(plan),
                names.PLACEMENTS: json.dumps(placements_of(plan), sort_keys=True),
            },
        },
    }


def wrap_chart(release: Release, source: Mapping[str, Any], owner_uid: str) -> dict[str, str]:
    """Return the files of a chart that holds exactly these objects, by path.

    So what Helm installs is what was checked, whatever the chart would render another time.

    Args:
        source: The `Chart.yaml` of the job's chart.
        owner_uid: Of the anchor.
    """
    reference = {
        "apiVersion": release.anchor["apiVersion"],
        "kind": release.anchor["kind"],
        "name": release.name,
        "uid": owner_uid,
        # Kueue leaves alone what a Job with a queue controls: that Job stands in line for it.
        "controller": release.anchor["kind"] == "Job",
        "blockOwnerDeletion": False,
    }
    chart = {
        "apiVersion": "v2",
        "name": str(source.get("name") or release.name),
        "version": str(source.get("version") or "0.0.0"),
        "appVersion": str(source.get("appVersion") or ""),
        "description": str(source.get("description") or "")[:200],
    }
    documents = [
        {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}}
        for obj in release.objects
    ]
    return {
        "Chart.yaml": json.dumps(chart),
        # Read as a file, so that nothing in it is a template again.
        "templates/objects.yaml": '{{ .Files.Get "objects.yaml" }}\n',
        "objects.yaml": "".join(f"---\n{json.dumps(each)}\n" for each in documents),
    }


def _filled(value: Any, secret: str) -> Any:
    if isinstance(value, str):
        return value.replace(SECRET_NAME, secret)
    if isinstance(value, dict):
        return {key: _filled(each, secret) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, secret) for each in value]
    return value


def _read(document: object) -> Object | None:
    """Return a rendered document as an object, None where there is nothing in it, or a test."""
    if document is None:
        return None
    if not isinstance(document, dict) or not _is_word(document.get("kind")):
        raise refusal("the chart renders something that is no object", "Look at the chart.")
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not _is_word(metadata.get("name")):
        raise refusal(f"a {document['kind']} of the chart has no name", "Look at the chart.")
    misshapen = find_misshapen(document)
    if misshapen:
        called = f"{document['kind']} {metadata['name']} of the chart"
        raise refusal(f"{called} cannot be read: {misshapen}", MEND)
    hooks = hooks_of(document)
    if hooks and hooks <= _TESTS:
        return None
    return {"apiVersion": "v1", **document}


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _owned(
    obj: Object, plan: AttemptPlan, settings: KubernetesSettings, given: Mapping[str, str]
) -> Object:
    """Return an object with the labels of its attempt, its pods behind the gate."""
    obj = _without_decided(obj)
    metadata = dict(obj["metadata"])
    metadata.pop("namespace", None)
    metadata["labels"] = {**(metadata.get("labels") or {}), **given, names.PART: HELPER}
    made: Object = {**obj, "metadata": metadata}
    if obj["kind"] == "ServiceAccount":
        # Not refused: `helm create` writes true into every chart, and its pods get none anyway.
        made["automountServiceAccountToken"] = False
    path = TEMPLATED.get(obj["kind"])
    if path is None:
        return made
    spec: Object = dict(made.get("spec") or {})
    called = f"{obj['kind']} {metadata['name']}"
    check_amounts(called, obj, pod_spec_of(obj))
    part = _part_of(plan, obj, called)
    metadata["labels"][names.PART] = part
    if not path:
        made["spec"] = _gated(called, spec, plan, settings, part)
        return made
    template = template_at(made, path, called)
    labels = (template.get("metadata") or {}).get("labels") or {}
    gated = {
        **template,
        "metadata": {**(template.get("metadata") or {}),
                     "labels": {**labels, **given, names.PART: part}},
        "spec": _gated(called, dict(template.get("spec") or {}), plan, settings, part),
    }  # fmt: skip
    made = _with(made, path, gated)
    if obj["kind"] == "CronJob":  # one run at a time was counted
        policy = made["spec"].get("concurrencyPolicy") or "Forbid"
        made["spec"] = {**made["spec"], "concurrencyPolicy": policy}
    if obj["kind"] == "StatefulSet":
        kept = {key: text for key, text in given.items() if key not in
                (names.ATTEMPT_ID, names.ATTEMPT, names.EPOCH)}  # fmt: skip
        made["spec"]["volumeClaimTemplates"] = [
            {**each, "metadata": {**told, "labels": {**(told.get("labels") or {}), **kept}}}
            for each in made["spec"].get("volumeClaimTemplates") or ()
            for told in (each.get("metadata") or {},)
        ]  # fmt: skip
    return made


def _without_decided(value: Any) -> Any:
    """Return a value without the labels and annotations by which what runs where is decided here.

    In the metadata of whatever is in it: of objects, of the templates of pods, Jobs and claims. A
    pod that brought a rank would be given node and GPUs of that replica, beside its own pod.
    Dropped and not refused: published charts have some for clusters where nobody else decides.
    """
    if isinstance(value, list):
        return [_without_decided(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: _without_decided(each) for key, each in value.items()}
    metadata = found.get("metadata")
    if isinstance(metadata, dict):
        kept = {
            part: {key: each for key, each in marks.items() if not key.startswith(DECIDED)}
            for part in ("labels", "annotations")
            if isinstance(marks := metadata.get(part), dict)
        }
        found["metadata"] = {**metadata, **kept}
    return found


def _with(obj: Object, path: Sequence[str], value: Object) -> Object:
    if not path:
        return value
    return {**obj, path[0]: _with(obj[path[0]], path[1:], value)}


def _gated(
    called: str, spec: Object, plan: AttemptPlan, settings: KubernetesSettings, part: str
) -> Object:
    check_pod(called, spec)
    gates = [each for each in spec.get("schedulingGates") or ()
             if each.get("name") != names.PLACEMENT_GATE]  # fmt: skip
    made = {
        **spec,
        "schedulingGates": [*gates, {"name": names.PLACEMENT_GATE}],
        # Else its service account decides, which may be one that has rights.
        "automountServiceAccountToken": False,
    }
    tolerated = [*(spec.get("tolerations") or ()), *list_tolerations(plan, settings)]
    if tolerated:  # their node was chosen by what the job tolerates
        made["tolerations"] = tolerated
    if part == DEVICE and compute_claim(plan.resources, ()).shares:
        made["schedulerName"] = settings.share_scheduler
    return made


def _part_of(plan: AttemptPlan, obj: Object, called: str) -> str:
    """Return what the pods of an object are in their job.

    Raises:
        BackendError: If they ask for other devices than the job does.
    """
    asked = _devices_of(pod_spec_of(obj))
    wanted = compute_claim(plan.resources, ()).resources
    if asked and not wanted:
        raise refusal(
            f"{called} asks for {_told(asked)}, and the job for no GPU",
            "Set gpu_count, or give values without GPUs.",
            "gpu_count",
        )
    if asked and asked != wanted:
        raise refusal(
            f"{called} asks for {_told(asked)}, and a replica of the job has {_told(wanted)}",
            "Have spec.chart.values and gpu_count say the same.",
            "gpu_count",
        )
    if asked and obj["kind"] not in LASTING:
        raise refusal(
            f"{called} asks for GPUs and ends by itself",
            "Run it as a batch job of its own.",
        )
    if asked:
        return DEVICE
    return REPLICA if obj["kind"] in LASTING and not wanted else HELPER


def _devices_of(spec: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for container in containers_of(spec):
        resources = container.get("resources") or {}
        both = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        for name, amount in both.items():
            if name in _DEVICES or name.startswith("nvidia.com/mig-"):
                found[name] = found.get(name, 0) + _count(amount)
    return {name: count for name, count in found.items() if count}


def _find_address(plan: AttemptPlan, objects: Sequence[Object]) -> tuple[str, int | None]:
    """Return name and port of the Service that is told: with the job's port, else the first."""
    found = [
        (str(obj["metadata"]["name"]), number)
        for obj in objects
        if obj["kind"] == "Service" and (obj.get("spec") or {}).get("clusterIP") != "None"
        for port in (obj.get("spec") or {}).get("ports") or ()
        if isinstance(number := port.get("port"), int)
    ]
    asked = plan.execution.port
    if asked:
        found = [each for each in found if each[1] == asked]
    return found[0] if found else ("", None)


def _told(devices: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(devices.items())) or "no GPU"


def _count(value: object) -> int:
    return int(_number(value))


def _number(value: object) -> Any:
    try:
        return parse_quantity(value)
    except BadQuantity as error:
        raise refusal(f"an amount of the chart cannot be read: {error}", "Mend it.") from None
