"""What a worker grants a manager is what Kueue needs there, and the order is in the names."""

import base64
import json

from gpuplane.kube.kueue.connections import why_unconnected
from gpuplane.kube.kueue.multikueue import (
    ACCOUNT,
    kubeconfig_text,
    list_worker_names,
    manager_objects,
    stale_workers,
    worker_name,
    worker_objects,
)
from gpuplane.kube.kueue.names import ApiVersion


def test_a_manager_may_neither_read_secrets_nor_nodes_of_a_worker() -> None:
    role = next(each for each in worker_objects() if each["kind"] == "ClusterRole")
    granted = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert granted.isdisjoint({"secrets", "nodes", "serviceaccounts", "namespaces", "*"})
    assert {"jobs", "pods", "workloads", "workloads/status"} <= granted


def test_names_of_workers_sort_in_the_order_of_preference() -> None:
    names = [worker_name(position, name) for position, name in enumerate(["z", "m", "a"])]
    assert names == sorted(names) == ["w01-z", "w02-m", "w03-a"]


def test_a_kubeconfig_holds_the_token_of_the_account_alone() -> None:
    assert kubeconfig_text("https://w", {}) is None
    data = {"token": base64.b64encode(b"abc").decode(), "ca.crt": "Q0E="}
    made = json.loads(kubeconfig_text("https://w", {"data": data}) or "")
    assert made["users"] == [{"name": ACCOUNT, "user": {"token": "abc"}}]
    cluster = {"server": "https://w", "certificate-authority-data": "Q0E="}
    assert made["clusters"] == [{"name": "worker", "cluster": cluster}]


def test_a_worker_is_known_in_the_words_of_each_version() -> None:
    for version in ApiVersion:
        made = manager_objects({"w01-a": "{}"}, version)
        assert [each["kind"] for each in made] == [
            "Secret",
            "MultiKueueCluster",
            "MultiKueueConfig",
            "AdmissionCheck",
        ]
        source = made[1]["spec"].get("clusterSource", made[1]["spec"])
        assert source["kubeConfig"]["location"] == made[0]["metadata"]["name"]


def test_only_workers_that_were_made_here_are_forgotten() -> None:
    ours = {"metadata": {"name": "w01-a", "labels": {"app.kubernetes.io/managed-by": "gpuplane"}}}
    theirs = {"metadata": {"name": "w09-x"}}
    assert stale_workers([ours, theirs], ["w01-b"]) == ["w01-a"]


def said_of(status: str, reason: str, message: str) -> str:
    condition = {"type": "Active", "status": status, "reason": reason, "message": message}
    return why_unconnected("w01-far", {"status": {"conditions": [condition]}})


def test_why_a_worker_is_not_connected_is_told_in_kueues_words_and_with_what_mends_it() -> None:
    no_kind = 'no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"'
    said = said_of("False", "ClientConnectionFailed", no_kind)
    assert (
        f"far: ClientConnectionFailed: {no_kind}. Install the definition of JobSet on far" in said
    )
    refused = said_of("False", "ClientConnectionFailed", "connection refused.")
    assert "connection refused. See that far runs" in refused
    assert "says nothing of far" in why_unconnected("w01-far", {"status": {}})
    assert "no MultiKueueCluster w01-far" in why_unconnected("w01-far", None)
    assert said_of("True", "Active", "Connected") == ""


def test_the_place_of_a_deleted_worker_renames_no_other() -> None:
    assert list_worker_names(["near", "", "far"]) == ["w01-near", "w03-far"]
