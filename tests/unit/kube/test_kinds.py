"""Kinds and their paths."""

from __future__ import annotations

import pytest

from gpuplane.kube import kinds
from gpuplane.kube.readers import selector_text


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (kinds.POD.path("ml", "a-0"), "/api/v1/namespaces/ml/pods/a-0"),
        (kinds.POD.path(), "/api/v1/pods"),
        (kinds.NODE.path(None, "n1"), "/api/v1/nodes/n1"),
        (kinds.NODE.path("ignored"), "/api/v1/nodes"),
        (kinds.JOB.path("ml"), "/apis/batch/v1/namespaces/ml/jobs"),
        (
            kinds.CLUSTER_QUEUE.at("v1beta2").path(None, "q"),
            "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/q",
        ),
        (
            kinds.CLUSTER_ROLE.path(None, "system:node"),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
        ),
    ],
)
def test_a_kind_knows_its_paths(path: str, expected: str) -> None:
    assert path == expected


@pytest.mark.parametrize("name", ["", "..", "a/b", "a?x=1", "%2e%2e", "a b", "x" * 254, "ä"])
def test_a_name_that_leads_elsewhere_stands_in_no_path(name: str) -> None:
    with pytest.raises(ValueError, match="no name of an object"):
        kinds.POD.path("ml", name)
    with pytest.raises(ValueError, match="no name of an object"):
        kinds.POD.path(name, "a")


def test_an_object_of_a_namespace_needs_one() -> None:
    with pytest.raises(ValueError, match="needs a namespace"):
        kinds.POD.path(None, "a")


def test_an_object_leads_to_its_kind_in_its_own_version() -> None:
    found = kinds.find_kind({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"})
    assert found is not None
    assert (found.plural, found.version, str(found)) == (
        "workloads",
        "v1beta2",
        "workloads.kueue.x-k8s.io",
    )
    assert kinds.find_kind({"apiVersion": "v1", "kind": "Pod"}) is kinds.POD
    assert kinds.find_kind({"apiVersion": "example.com/v1", "kind": "Pod"}) is None


@pytest.mark.parametrize("obj", [{}, {"kind": "Pod"}, {"apiVersion": "v1"}, {"kind": 1}])
def test_an_object_without_a_kind_is_refused(obj: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="names no apiVersion or no kind"):
        kinds.find_kind(obj)


@pytest.mark.parametrize("version", ["v1?dryRun=All", "", "v1#x", "v 1", ".."])
def test_a_version_that_leads_elsewhere_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="no name of an object"):
        kinds.find_kind({"apiVersion": f"batch/{version}", "kind": "Job"})


def test_no_two_kinds_of_the_table_are_the_same() -> None:
    names = [(kind.group, kind.kind) for kind in kinds.KINDS]
    assert len(names) == len(set(names))
    assert len(names) > 40


def test_a_mapping_is_a_selector_of_equal_values() -> None:
    assert selector_text({"b": "2", "a": "1"}) == "a=1,b=2"
    assert selector_text("a in (1,2)") == "a in (1,2)"
    assert selector_text({}) is selector_text("") is selector_text(None) is None
