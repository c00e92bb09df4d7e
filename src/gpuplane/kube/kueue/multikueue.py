"""MultiKueue: what a worker grants a manager, and how the manager knows its workers.

Owns the objects of both sides. The manager reaches out to its workers with an account that may do
what Kueue does there and nothing else. Pure: writing them is done by who connects clusters.

Source: kubernetes-sigs/kueue v0.15.0, examples/multikueue/create-multikueue-kubeconfig.sh (the
rights that MultiKueue needs on a worker), apis/kueue/v1beta2/multikueue_types.go.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpuplane.kube.accounts import Object, account_objects
from gpuplane.kube.kueue.names import (
    GROUP,
    MANAGED_LABEL,
    MANAGED_VALUE,
    MULTIKUEUE_CONTROLLER,
    ApiVersion,
)

NAMESPACE = "kueue-system"
ACCOUNT = "gpuplane-multikueue"
TOKEN_SECRET = "gpuplane-multikueue-token"
CONFIG = "gpuplane-multikueue"
CHECK = "gpuplane-multikueue"
SECRET_KEY = "kubeconfig"
_LABELS = {MANAGED_LABEL: MANAGED_VALUE}
_WORKER_SECRET = re.compile(r"gpuplane-w\d{2,}-.+")
_WORKER = re.compile(r"w\d{2,3}-.+")
_COPY = ("create", "delete", "get", "list", "watch")
RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("batch", "jobs", _COPY),
    ("batch", "jobs/status", ("get",)),
    ("", "pods", _COPY),
    ("", "pods/status", ("get",)),
    ("jobset.x-k8s.io", "jobsets", _COPY),
    ("jobset.x-k8s.io", "jobsets/status", ("get",)),
    (GROUP, "workloads", (*_COPY, "update", "patch")),
    (GROUP, "workloads/status", ("get", "update", "patch")),
    (GROUP, "clusterqueues", ("get", "list", "watch")),
    (GROUP, "localqueues", ("get", "list", "watch")),
)
"""(group, resource, verbs) that a manager needs on a worker: no secrets, no nodes, no more."""


def worker_objects() -> tuple[Object, ...]:
    """Return the account on a worker that a manager comes with, its rights and its token."""
    return account_objects(NAMESPACE, ACCOUNT, TOKEN_SECRET, RULES, _LABELS)


def worker_name(position: int, cluster: str) -> str:
    """Return what a worker is called on its manager: names sort in the order of preference.

    Kueue's incremental dispatcher nominates workers by name, three at a time; the order in
    MultiKueueConfig alone means nothing to it.
    """
    return f"w{position + 1:02d}-{cluster}"


def list_worker_names(places: Sequence[str]) -> list[str]:
    """Return what the workers at these places are called on their manager; empty ones are none."""
    return [worker_name(position, each) for position, each in enumerate(places) if each]


def kubeconfig_text(server: str, token_secret: Mapping[str, Any]) -> str | None:
    """Return the kubeconfig of the account on a worker, None while its token is not made yet."""
    data = token_secret.get("data") or {}
    if "token" not in data:
        return None
    cluster = {"server": server}
    if "ca.crt" in data:
        cluster["certificate-authority-data"] = data["ca.crt"]
    token = base64.b64decode(data["token"]).decode()
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "worker", "cluster": cluster}],
            "users": [{"name": ACCOUNT, "user": {"token": token}}],
            "contexts": [{"name": "worker", "context": {"cluster": "worker", "user": ACCOUNT}}],
            "current-context": "worker",
        }
    )


def manager_objects(
    workers: Mapping[str, str], version: ApiVersion, order: Sequence[str] | None = None
) -> tuple[Object, ...]:
    """Return what a manager knows its workers by.

    Args:
        workers: Name on the manager to the kubeconfig, in the order of preference.
        version: Of Kueue's API.
        order: All that are dispatched to, where some are known to the manager already and out of
            reach just now; without it those given.
    """
    made: list[Object] = []
    for name, kubeconfig in workers.items():
        encoded = base64.b64encode(kubeconfig.encode()).decode()
        made.append(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {
                    "name": secret_name(name),
                    "namespace": NAMESPACE,
                    "labels": _LABELS,
                },
                "data": {SECRET_KEY: encoded},
            }
        )
        source: Object = {"kubeConfig": {"location": secret_name(name), "locationType": "Secret"}}
        spec = source if version is ApiVersion.V1BETA1 else {"clusterSource": source}
        made.append(_object(version, "MultiKueueCluster", name, spec))
    made.append(config_object(version, list(order or workers)))
    parameters = {"apiGroup": GROUP, "kind": "MultiKueueConfig", "name": CONFIG}
    spec = {"controllerName": MULTIKUEUE_CONTROLLER, "parameters": parameters}
    made.append(_object(version, "AdmissionCheck", CHECK, spec))
    return tuple(made)


def config_object(version: ApiVersion, order: Sequence[str]) -> Object:
    """Return what names the workers of a manager, one at least, by their names there."""
    return _object(version, "MultiKueueConfig", CONFIG, {"clusters": list(order)})


def names_of_worker(cluster: str, known: Sequence[str], secrets: Sequence[str]) -> list[str]:
    """Return what a cluster is called on a manager, by the names and the Secrets that it keeps."""
    prefix = secret_name("")
    candidates = {*known, *(each.removeprefix(prefix) for each in secrets)}
    pattern = re.compile(rf"w\d{{2,}}-{re.escape(cluster)}")
    return sorted(each for each in candidates if pattern.fullmatch(each))


def secret_name(worker: str) -> str:
    """Return the name of the Secret with a worker's kubeconfig."""
    return f"gpuplane-{worker}"


def stale_secrets(found: Sequence[Mapping[str, Any]], wanted: Sequence[str]) -> list[str]:
    """Return Secrets with kubeconfigs that we made for workers that are none any more."""
    kept = {secret_name(each) for each in wanted}
    return sorted(
        each["metadata"]["name"]
        for each in found
        if (each["metadata"].get("labels") or {}).get(MANAGED_LABEL) == MANAGED_VALUE
        and _WORKER_SECRET.fullmatch(each["metadata"]["name"])
        and each["metadata"]["name"] not in kept
    )


def cluster_of_worker(worker: str) -> str:
    """Return the name of the cluster that a manager knows by this name."""
    return worker.partition("-")[2]


def places_of_workers(names: Sequence[str]) -> list[str]:
    """Return the clusters that a manager knows by these names, each at its place, best first."""
    places = {int(each[1:].partition("-")[0]): cluster_of_worker(each) for each in names
              if _WORKER.fullmatch(each)}  # fmt: skip
    return [places.get(number, "") for number in range(1, max(places, default=0) + 1)]


def stale_workers(found: Sequence[Mapping[str, Any]], wanted: Sequence[str]) -> list[str]:
    """Return MultiKueueClusters that we made and that are workers no more."""
    return sorted(
        each["metadata"]["name"]
        for each in found
        if (each["metadata"].get("labels") or {}).get(MANAGED_LABEL) == MANAGED_VALUE
        and each["metadata"]["name"] not in wanted
    )


def _object(version: ApiVersion, kind: str, name: str, spec: Object) -> Object:
    return {
        "apiVersion": version.group_version,
        "kind": kind,
        "metadata": {"name": name, "labels": _LABELS},
        "spec": spec,
    }
