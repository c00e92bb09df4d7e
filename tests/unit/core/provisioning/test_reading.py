"""Reading a specification: what is meant by it, and each refusal with its field and fix."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gpuplane.core.provisioning.problems import BadSpec
from gpuplane.core.provisioning.reading import parse_cluster_spec
from gpuplane.core.provisioning.specs import GPU_TAINT_KEY, Taint, document_of
from tests.unit.core.provisioning.specifications import documents, gpus_of, specs


def changed(name: str, path: str, value: Any) -> dict[str, Any]:
    """A document with one field changed; None takes it out."""
    document = copy.deepcopy(documents()[name])
    at: Any = document
    *way, last = [int(word) if word.isdigit() else word for word in path.split(".")]
    for word in way:
        at = at[word]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return document


def problems_of(document: object) -> dict[str, str]:
    with pytest.raises(BadSpec) as refused:
        parse_cluster_spec(document, gpus_of)
    assert all(each.reason.endswith(".") for each in refused.value.problems)
    return {each.field: f"{each.reason} {each.fix}" for each in refused.value.problems}


REFUSED = [
    ("train-eu", "apiVersion", "v1", "apiVersion", "gpuplane.io/v1"),
    ("train-eu", "kind", "Cluster", "kind", "ClusterSpecification"),
    ("train-eu", "metadata.name", "Train EU", "metadata.name", "lower case"),
    ("train-eu", "metadata.name", None, "metadata.name", "missing"),
    ("train-eu", "spec.platform", "oke", "spec.platform", "eks, aks, gke"),
    ("train-eu", "spec.regoin", "x", "spec.regoin", "'region'"),
    ("train-eu", "spec.region", "eu west", "spec.region", "region of the cloud"),
    ("train-eu", "spec.zones", ["eu-west-1a"], "spec.zones", "2 (EKS"),
    ("train-eu", "spec.zones", "eu-west-1a", "spec.zones", "no list"),
    ("train-eu", "spec.kubernetesVersion", 1.33, "spec.kubernetesVersion", "quotes"),
    ("train-eu", "spec.kubernetesVersion", "1.33.1", "spec.kubernetesVersion", "minor"),
    ("train-eu", "spec.endpoint", {"publicCidrs": ["0.0.0.0/0"]},
     "spec.endpoint.publicCidrs[0]", "nearly everyone"),
    ("train-eu", "spec.endpoint", {"publicCidrs": ["10.0.0.1/8"]},
     "spec.endpoint.publicCidrs[0]", "bits of the host"),
    ("train-eu", "spec.network", {"cidr": "8.8.0.0/16"}, "spec.network.cidr", "private"),
    ("train-eu", "spec.network", {"cidr": "10.0.0.0/8"}, "spec.network.cidr", "/16 to /20"),
    ("train-eu", "spec.network", {"subnets": {"eu-west-1a": "subnet-1"}},
     "spec.network.subnets", "one subnet for each zone"),
    ("eks-existing", "spec.network.cidr", "10.0.0.0/16", "spec.network.cidr", "one of them"),
    ("train-eu", "spec.project", "acme", "spec.project", "no such field"),
    ("train-eu", "spec.owner", "R&D", "spec.owner", "lower case"),
    ("train-eu", "spec.tags", {"a": "${x}"}, "spec.tags.a", "lower case"),
    ("train-eu", "spec.nodePools", [], "spec.nodePools", "min of 1"),
    ("train-eu", "spec.nodePools.0.min", 0, "spec.nodePools", "min of 1"),
    ("train-eu", "spec.nodePools.0.min", 9, "spec.nodePools[0].min", "more than max 4"),
    ("train-eu", "spec.nodePools.0.max", True, "spec.nodePools[0].max", "no whole number"),
    ("train-eu", "spec.nodePools.0.name", "h100", "spec.nodePools[1].name", "twice"),
    ("train-eu", "spec.nodePools.0.diskGiB", 5, "spec.nodePools[0].diskGiB", "20 to 16000"),
    ("train-eu", "spec.nodePools.0.spot", "yes", "spec.nodePools[0].spot", "true or false"),
    ("train-eu", "spec.nodePools.1.zones", ["eu-west-1c"],
     "spec.nodePools[1].zones", "none of the cluster"),
    ("train-eu", "spec.nodePools.1.zones", None, "spec.nodePools[1].zones", "exactly one"),
    ("train-eu", "spec.nodePools.2.efa", True, "spec.nodePools[2].efa", "p5.48xlarge"),
    ("train-eu", "spec.nodePools.2.taints.0.effect", "Never",
     "spec.nodePools[2].taints[0].effect", "NoSchedule"),
    ("train-eu", "spec.nodePools.1.labels", {"pool": "${file}"},
     "spec.nodePools[1].labels.pool", "label"),
    ("train-eu", "spec.nodePools.1.gpu", {"model": "A100-80GB", "count": 8},
     "spec.nodePools[1].gpu.model", "8 nvidia-h100-80gb"),
    ("train-eu", "spec.nodePools.0.gpu", {"model": "B2000"},
     "spec.nodePools[0].gpu.model", "Nearest"),
    ("train-eu", "spec.nodePools.0.gpu", {"model": "gaudi2"},
     "spec.nodePools[0].gpu.model", "images and taints"),
    ("serve-we", "spec.nodePools.1.name", "a100-80", "spec.nodePools[1].name", "12 lower"),
    ("serve-we", "spec.zones", ["1", "2"], "spec.zones[0]", "westeurope-1"),
    ("serve-we", "spec.adminGroups", ["admins"], "spec.adminGroups[0]", "object id"),
    ("train-us", "spec.project", None, "spec.project", "missing"),
    ("train-us", "spec.nodePools.0.gpu", {"model": "T4"},
     "spec.nodePools[0].instanceType", "no nvidia-t4 on e2-standard-4"),
    ("lab", "spec.machines", None, "spec.machines", "missing"),
    ("lab", "spec.machines.sha256", {}, "spec.machines.sha256", "sha256sum"),
    ("lab", "spec.machines.sha256.amd64", "abc", "spec.machines.sha256.amd64", "64 hex"),
    ("lab", "spec.machines.endpoint", "https://x", "spec.machines.endpoint", "name or address"),
    ("lab", "spec.kubernetesVersion", "1.33.1", "spec.kubernetesVersion", "+k3s1"),
    ("lab", "spec.nodePools", [], "spec.nodePools", "no such field"),
    ("hall-2", "spec.kubernetesVersion", "1.30.1", "spec.kubernetesVersion", "1.31"),
    ("hall-2", "spec.machines.caCertHash", "md5:1", "spec.machines.caCertHash", "sha256:"),
    ("hall-2", "spec.machines.podCidr", "10.42.0.1/16", "spec.machines.podCidr", "no range"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "value", "field", "said"), REFUSED)
def test_a_field_that_cannot_be_meant_is_named_with_its_fix(
    name: str, path: str, value: Any, field: str, said: str
) -> None:
    found = problems_of(changed(name, path, value))
    assert said in found.get(field, f"not among {found}")


@pytest.mark.parametrize("document", [None, [], "x", {"spec": 1}, {"spec": {"nodePools": [3]}}])
def test_what_is_no_specification_at_all_is_refused(document: object) -> None:
    assert problems_of(document)


def test_every_problem_is_told_at_once() -> None:
    document = changed("train-eu", "spec.region", "eu west")
    document["spec"]["nodePools"][0]["max"] = 0
    document["spec"]["colour"] = "red"
    assert set(problems_of(document)) >= {
        "spec.region", "spec.nodePools[0].max", "spec.colour",
    }  # fmt: skip


def test_the_gpus_of_a_pool_are_those_of_its_instance_type() -> None:
    pools = {pool.name: pool for pool in specs()["train-eu"].pools}
    assert (pools["h100"].gpu_model, pools["h100"].gpu_count) == ("nvidia-h100-80gb", 8)
    assert (pools["l4-spot"].gpu_model, pools["l4-spot"].gpu_count) == ("nvidia-l4", 4)
    assert pools["system"].gpu_count == 0
    assert pools["h100"].all_taints[0].key == GPU_TAINT_KEY


def test_a_taint_of_gpu_nodes_that_is_given_is_not_set_twice() -> None:
    taint = {"key": GPU_TAINT_KEY, "value": "mine", "effect": "NoExecute"}
    document = changed("train-eu", "spec.nodePools.1.taints", [taint])
    pool = parse_cluster_spec(document, gpus_of).pools[1]
    assert [(each.key, each.value) for each in pool.all_taints] == [(GPU_TAINT_KEY, "mine")]
    assert isinstance(pool.all_taints[0], Taint)


@pytest.mark.parametrize("name", sorted(specs()))
def test_a_specification_is_written_as_it_is_read(name: str) -> None:
    spec = specs()[name]
    assert parse_cluster_spec(document_of(spec), gpus_of) == spec
