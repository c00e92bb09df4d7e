"""Which GPUs are given away, change by change."""

from __future__ import annotations

from gpuplane.operator.names import Vendor
from gpuplane.operator.rules.room import Hold, Room
from tests.unit.operator.builders import a_pod

HOLD = Hold("n1", Vendor.NVIDIA, 2)
JOB = ("team", "j")


def used(room: Room) -> dict[str, int]:
    return dict(room.used(Vendor.NVIDIA))


def test_bound_pods_count_until_they_are_over() -> None:
    room = Room()
    room.set_pod(a_pod("p", gpus=3))
    room.set_pod(a_pod("q", node="", gpus=3))
    assert used(room) == {"n1": 3}
    assert room.set_pod(a_pod("p", gpus=3, phase="Succeeded")) is True
    assert used(room) == {}


def test_a_pod_told_twice_counts_once() -> None:
    room = Room()
    for _ in range(2):
        room.set_pod(a_pod("p", gpus=3))
    assert used(room) == {"n1": 3}
    assert room.remove_pod("team", "p") is True
    assert room.remove_pod("team", "p") is False


def test_a_promise_counts_until_a_pod_of_its_job_is_bound_and_then_the_pod_does() -> None:
    room = Room()
    room.hold("u", JOB, HOLD)
    assert used(room) == {"n1": 2}
    room.set_pod(a_pod("p", node="n2", gpus=2, job="j"))
    assert used(room) == {"n2": 2}
    room.remove_pod("team", "p")
    assert used(room) == {"n1": 2}
    assert room.release("u") is True
    assert used(room) == {}


def test_a_promise_made_after_its_pod_was_bound_counts_nothing_more() -> None:
    room = Room()
    room.set_pod(a_pod("p", gpus=2, job="j"))
    room.hold("u", JOB, HOLD)
    assert used(room) == {"n1": 2}
    assert room.release("u") is False
    assert used(room) == {"n1": 2}


def test_the_named_gpus_of_a_node_are_known_while_their_pods_are() -> None:
    room = Room()
    room.set_pod(a_pod("p", gpus=2, ids="0, 3"))
    assert room.busy_ids() == {"n1": ("0", "3")}
    room.remove_pod("team", "p")
    assert room.busy_ids() == {}
