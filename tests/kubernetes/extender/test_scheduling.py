"""The extender beside a real kube-scheduler: pods are placed, and their GPUs written down."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.kubernetes.extender.running import Object, Scheduling
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until


@pytest.fixture
def scheduling(rig: RunningCluster, namespace: str, tmp_path: Path) -> Iterator[Scheduling]:
    name = f"x-{uuid.uuid4().hex[:8]}"
    found = Scheduling(rig, namespace, name, tmp_path)
    yield found
    for pod in found.pods():
        found.api.delete(f"/api/v1/namespaces/{namespace}/pods/{pod}")
    found.api.close()


AddNodes = Callable[..., list[str]]


def links_of(rig: RunningCluster, node: str, uuids: list[str]) -> list[str]:
    """Return the links between GPUs of a node, as its own matrix says them."""
    api = rig.api()
    annotations = (api.find(f"/api/v1/nodes/{node}") or {})["metadata"]["annotations"]
    api.close()
    register = json.loads(annotations["hami.io/node-nvidia-register"])
    places = [[device["id"] for device in register].index(each) for each in uuids]
    rows = [line.split() for line in annotations["gpuplane.io/topology"].splitlines()[1:]]
    return [rows[i][1 + j] for i in places for j in places if i < j]


def test_pods_get_the_best_joined_gpus_and_no_gpu_twice(
    rig: RunningCluster, scheduling: Scheduling, add_nodes: AddNodes
) -> None:
    (node,) = add_nodes("v100", 1, scheduling.name, **{scheduling.name: "yes"})
    with scheduling.extender("--bind") as url, scheduling.scheduler(url, binds=True):
        for name in ("a", "b", "c"):
            scheduling.make_pod(name, 2)
        wait_until(lambda: all(scheduling.gpus_of(name) for name in "abc"), "all have their GPUs")
        given = [scheduling.gpus_of(name) for name in "abc"]
    assert set(scheduling.nodes_of().values()) == {node}
    assert len({gpu for gpus in given for gpu in gpus}) == 6, "no GPU is given out twice"
    for gpus in given:
        assert links_of(rig, node, gpus) == ["NV2"], "two NVLinks join the pairs of a DGX-1"


def test_gpus_are_written_down_where_kube_scheduler_binds(
    scheduling: Scheduling, add_nodes: AddNodes
) -> None:
    add_nodes("h100", 1, scheduling.name, **{scheduling.name: "yes"})
    with scheduling.extender() as url, scheduling.scheduler(url):
        for name in ("a", "b"):
            scheduling.make_pod(name, 4)
        wait_until(lambda: all(scheduling.nodes_of().values()), "both are bound")
        wait_until(lambda: all(scheduling.gpus_of(name) for name in "ab"), "both have their GPUs")
    assert not set(scheduling.gpus_of("a")) & set(scheduling.gpus_of("b"))


def test_a_gang_starts_whole_or_not_at_all(scheduling: Scheduling, add_nodes: AddNodes) -> None:
    add_nodes("h100", 2, scheduling.name, **{scheduling.name: "yes"})
    with scheduling.extender("--bind") as url, scheduling.scheduler(url, binds=True):
        scheduling.make_gang("train", 3, range(3), 8)
        wait_until(
            lambda: "2 of them fit now" in scheduling.message_of("train-2"), "it is told why"
        )
        assert set(scheduling.nodes_of().values()) == {""}
        add_nodes("h100", 1, f"{scheduling.name}-more", **{scheduling.name: "yes"})
        wait_until(
            lambda: all(scheduling.nodes_of().values()),
            "the third node lets it start",
            deadline_s=40,
        )
    assert len(set(scheduling.nodes_of().values())) == 3


def test_pods_are_scheduled_while_the_extender_is_down(
    scheduling: Scheduling, add_nodes: AddNodes
) -> None:
    (node,) = add_nodes("h100", 1, scheduling.name, **{scheduling.name: "yes"})
    with scheduling.extender("--bind") as url:
        pass
    with scheduling.scheduler(url, binds=True):
        scheduling.make_pod("a", 2)
        wait_until(lambda: scheduling.nodes_of() == {"a": node}, "it is bound without us")
    assert scheduling.gpus_of("a") == []


def test_two_replicas_give_the_same_answer(scheduling: Scheduling, add_nodes: AddNodes) -> None:
    nodes = add_nodes("v100", 3, scheduling.name, **{scheduling.name: "yes"})
    with scheduling.extender("--bind") as url, scheduling.scheduler(url, binds=True):
        for name, gpus in (("a", 3), ("b", 6)):
            scheduling.make_pod(name, gpus)
        wait_until(lambda: all(scheduling.nodes_of().values()), "both are bound")
        with scheduling.extender() as second:
            for gpus in (1, 2, 4, 8):
                pod = question(scheduling, gpus)
                body = {"Pod": pod, "Nodes": None, "NodeNames": nodes}
                wait_until(partial(agree, url, second, body), "both have seen the pods")
                assert ask(url, "prioritize", body) == ask(second, "prioritize", body)


def test_two_replicas_that_bind_at_once_give_no_gpu_twice(
    scheduling: Scheduling, add_nodes: AddNodes
) -> None:
    (node,) = add_nodes("h100", 1, scheduling.name, **{scheduling.name: "yes"})
    names = [f"p{number}" for number in range(8)]
    for name in names:
        scheduling.make_pod(name, 1)
    pods = scheduling.pods()
    with (
        scheduling.extender("--bind") as one,
        scheduling.extender("--bind") as other,
        ThreadPoolExecutor(8) as threads,
    ):
        urls = (one, other) * 4
        questions = [binding(pods[name], node) for name in names]
        answers = list(threads.map(ask, urls, ["bind"] * 8, questions))
    assert answers == [b'{"Error":""}'] * 8
    given = [scheduling.gpus_of(name) for name in names]
    assert len({gpu for gpus in given for gpu in gpus}) == 8
    assert set(scheduling.nodes_of().values()) == {node}


def binding(pod: Object, node: str) -> Object:
    """Return the question that binds a pod to a node."""
    metadata = pod["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }


def question(scheduling: Scheduling, gpus: int) -> Object:
    """Return a pod that is only asked about."""
    limits = {"nvidia.com/gpu": str(gpus)}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    metadata = {"name": "asked", "namespace": scheduling.namespace, "uid": f"asked-{gpus}"}
    return {"metadata": metadata, "spec": {"containers": containers}}


def agree(one: str, other: str, body: Object) -> bool:
    """Tell whether two replicas let a pod go to the same nodes."""
    return ask(one, "filter", body) == ask(other, "filter", body)


def ask(url: str, verb: str, body: Object) -> bytes:
    """Return an extender's answer."""
    request = Request(f"{url}/{verb}", json.dumps(body).encode(), method="POST")
    with urlopen(request, timeout=20) as answer:
        found: bytes = answer.read()
        return found
