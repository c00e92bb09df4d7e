"""Lists and events, decoded only as far as is wanted."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gpuplane.kube import shapes
from gpuplane.kube.errors import Gone, KubeError, Unreadable
from gpuplane.kube.watching import Mark, decode_event, decode_object, decode_page


def a_pod(name: str = "a-0", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "labels": {"app": "a"},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
        },
        "spec": {
            "nodeName": "n1",
            "containers": [
                {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}, "image": "x"}
            ],
        },
        "status": {"phase": "Running", "hostIP": "10.0.0.1"},
    } | more


def a_page(*items: Any, **meta: Any) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "42"} | meta, "items": items}).encode()


def event(word: str, obj: Any) -> bytes:
    return json.dumps({"type": word, "object": obj}).encode()


def test_a_page_becomes_what_its_shape_names() -> None:
    page = decode_page(a_page(a_pod(), **{"continue": "next"}), shapes.SlimPod)
    assert page.items is not None
    pod = page.items[0]
    assert (pod.metadata.name, pod.spec.node_name) == ("a-0", "n1")
    assert pod.spec.containers is not None
    assert pod.spec.containers[0].resources == shapes.Resources(limits={"nvidia.com/gpu": "2"})
    assert (page.metadata.continue_, page.metadata.resource_version) == ("next", "42")
    assert "managedFields" not in shapes.as_dict(pod)["metadata"]


def test_a_list_without_items_is_an_empty_one() -> None:
    assert decode_page(b'{"metadata": {}, "items": null}', shapes.SlimPod).items is None


def test_the_objects_of_a_page_may_be_left_as_they_are() -> None:
    page = decode_page(a_page(a_pod("a"), {"metadata": 5}), msgspec.Raw)
    first, second = page.items or ()
    assert decode_object(first, shapes.SlimPod).metadata.name == "a"
    with pytest.raises(Unreadable):
        decode_object(second, shapes.SlimPod)


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b'{"items": []}', b'{"metadata": 1}'])
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match="no list of objects"):
        decode_page(data, dict[str, Any])


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(Unreadable, match="no object"):
        decode_object(b"<html>", dict[str, Any])


def test_an_event_brings_its_object_and_a_bookmark_its_version() -> None:
    word, pod = decode_event(event("ADDED", a_pod()), shapes.PodShape)
    assert isinstance(pod, shapes.PodShape)
    assert (word, pod.status and pod.status.host_ip) == ("ADDED", "10.0.0.1")
    mark = decode_event(event("BOOKMARK", {"metadata": {"resourceVersion": "99"}}), shapes.PodShape)
    assert mark[0] == "BOOKMARK"
    assert isinstance(mark[1], Mark)
    assert mark[1].resource_version == "99"


def test_an_error_event_is_the_error() -> None:
    with pytest.raises(Gone, match="too old"):
        decode_event(event("ERROR", {"code": 410, "reason": "Expired", "message": "too old"}), dict)
    with pytest.raises(KubeError) as caught:
        decode_event(event("ERROR", {"message": "no code"}), dict)
    assert caught.value.status == 500


def test_an_event_of_another_shape_is_left_out_but_moves_the_watch_on() -> None:
    odd = {"metadata": {"name": "a", "resourceVersion": "8", "labels": [1]}}
    word, mark = decode_event(event("MODIFIED", odd), shapes.SlimPod)
    assert isinstance(mark, Mark)
    assert (word, mark.resource_version) == ("UNREADABLE", "8")


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b'{"type": "ADDED"}', b"\xff\xfe", b'{"type": "ADDED", "object": ' + DEEP + b"}"],
    ids=["half", "list", "no object", "no text", "deep"],
)
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(Unreadable, match="no event"):
        decode_event(line, dict[str, Any])


@pytest.mark.parametrize("shape", [shapes.PodShape, shapes.SlimPod, shapes.BareObject])
def test_every_shape_of_a_pod_reads_the_same_pod(shape: Any) -> None:
    assert decode_object(json.dumps(a_pod()).encode(), shape).metadata.uid == "uid-a-0"


def test_a_node_keeps_what_is_allocatable_and_not_its_images() -> None:
    node = {
        "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "H100"}},
        "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}], "providerID": "x"},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}, "images": [{"names": ["y"]}]},
    }
    found = shapes.as_dict(decode_object(json.dumps(node).encode(), shapes.NodeShape))
    assert found["status"]["allocatable"] == {"nvidia.com/gpu": "8"}
    assert found["spec"]["providerID"] == "x"
    assert "images" not in found["status"]
