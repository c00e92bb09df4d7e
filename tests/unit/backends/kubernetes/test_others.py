"""What pods of other people take of a node is gone for our jobs, and comes back when they go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from gpuplane.backends.interface import GpuObservation, NodeObservation
from gpuplane.backends.kubernetes.others import Amounts, OtherPod, Others, read_take
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import GpuId
from gpuplane.core.reasons import TAKEN_BY_OTHERS

NODE = NodeObservation(
    "n1",
    True,
    8000,
    1000,
    5000,
    tuple(GpuObservation(GpuId(f"G{index}"), index, "a100", 40_960) for index in range(4)),
)


def a_pod(node: str = "n1", **spec: Any) -> OtherPod:
    """Return a stranger's pod; `spec` is that of the API."""
    return msgspec.convert(
        {"metadata": {"name": "p", "namespace": "x"}, "spec": {"nodeName": node, **spec}}, OtherPod
    )


def asks(**requests: Any) -> dict[str, Any]:
    """Return a container that asks for these; `gpu` for devices."""
    gpu = requests.pop("gpu", None)
    return {"resources": {"requests": requests | ({"nvidia.com/gpu": gpu} if gpu else {})}}


def gpus_left(node: NodeObservation) -> list[str]:
    """Return the GPUs that a job may have."""
    return [gpu.gpu_id for gpu in node.gpus if gpu.healthy]


def test_a_pod_takes_the_larger_of_what_runs_and_what_comes_first_and_its_runtimes_overhead() -> (
    None
):
    pod = a_pod(
        containers=[asks(cpu="500m", memory="100Mi"), asks(cpu=1)],
        initContainers=[
            asks(cpu="4", memory="10Mi"),
            {**asks(memory="30Mi"), "restartPolicy": "Always"},
        ],
        overhead={"cpu": "250m"},
    )
    assert read_take(pod).amounts == Amounts(4250, 130, 0, 0)


def test_what_is_asked_for_a_whole_pod_stands_in_place_of_what_its_containers_ask_for() -> None:
    pod = a_pod(
        containers=[asks(cpu="500m", memory="100Mi", gpu=1)], resources={"requests": {"cpu": "2"}}
    )
    assert read_take(pod).amounts == Amounts(2000, 100, 0, 1)


def test_a_limit_without_a_request_is_the_request_and_parts_are_rounded_up() -> None:
    pod = a_pod(containers=[{"resources": {"limits": {"memory": "1", "cpu": "1n"}}}])
    assert read_take(pod).amounts == Amounts(1, 1, 0, 0)


def test_pods_that_are_alike_are_kept_once() -> None:
    first, second = (a_pod(containers=[asks(cpu=1)]) for _ in range(2))
    assert read_take(first) is read_take(second)


def test_a_node_is_shown_without_what_strangers_take_until_they_are_gone() -> None:
    others = Others()
    take = read_take(a_pod(containers=[asks(cpu=2, memory="300Mi", gpu=2)]))
    assert others.change("x/p", None, take)
    left = others.without(NODE, ())
    assert (left.cpu_milli, left.memory_mib) == (6000, 700)
    assert gpus_left(left) == ["G0", "G1"]
    assert left.gpus[3].message == f"{TAKEN_BY_OTHERS} x/p"
    assert not others.change("x/p", take, take)
    assert others.change("x/p", take, None)
    assert others.without(NODE, ()) == NODE
    assert others.by_node == {}


def test_a_strangers_gpu_is_never_one_that_a_job_of_ours_holds() -> None:
    others = Others()
    others.change("x/p", None, read_take(a_pod(containers=[asks(gpu=2)])))
    held = {GpuId("G3"), GpuId("G2"), GpuId("G1")}
    assert gpus_left(others.without(NODE, held)) == ["G1", "G2", "G3"]


def test_which_gpus_are_taken_out_stays_as_it_was_while_it_can() -> None:
    others = Others()
    one = read_take(a_pod(containers=[asks(gpu=1)]))
    others.change("x/p", None, one)
    assert gpus_left(others.without(NODE, {GpuId("G3")})) == ["G0", "G1", "G3"]
    assert gpus_left(others.without(NODE, ())) == ["G0", "G1", "G3"]
    others.change("x/q", None, one)
    assert gpus_left(others.without(NODE, ())) == ["G0", "G1"]


HALVES = (("3g.20gb", 0), ("3g.20gb", 4))
CUT = replace(
    NODE,
    gpus=tuple(
        replace(gpu, mig_enabled=gpu.index > 1, mig_instances=HALVES if gpu.index > 1 else ())
        for gpu in NODE.gpus
    ),
)


def instances_left(node: NodeObservation) -> list[MigPlacement]:
    """Return the MIG instances that a job may have."""
    return [MigPlacement(gpu.gpu_id, *each) for gpu in node.gpus for each in gpu.mig_instances]


def test_a_strangers_mig_instance_is_gone_until_it_is_given_back_and_no_whole_gpu_with_it() -> None:
    others = Others()
    container = {"resources": {"limits": {"nvidia.com/mig-3g.20gb": 1, "nvidia.com/gpu": 1}}}
    take = read_take(a_pod(containers=[container]))
    others.change("x/p", None, take)
    left = others.without(CUT, ())
    assert instances_left(left) == instances_left(CUT)[:3]
    assert gpus_left(left) == ["G0", "G2", "G3"]  # of the whole ones, the last
    held = set(instances_left(CUT)[1:])
    others = Others()
    others.change("x/p", None, take)
    assert instances_left(others.without(CUT, (), held)) == instances_left(CUT)[1:]
    assert instances_left(others.without(CUT, ())) == instances_left(CUT)[1:]  # as it was
    others.change("x/p", take, None)
    assert others.without(CUT, ()) == CUT


def test_instances_of_another_profile_are_left_alone() -> None:
    others = Others()
    container = {"resources": {"limits": {"nvidia.com/mig-1g.5gb": 3}}}
    others.change("x/p", None, read_take(a_pod(containers=[container])))
    assert instances_left(others.without(CUT, ())) == instances_left(CUT)


def test_a_pod_that_takes_nothing_changes_nothing() -> None:
    others = Others()
    assert not others.change("x/p", None, read_take(a_pod()))
