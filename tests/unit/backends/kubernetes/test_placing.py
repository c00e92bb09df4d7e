"""Which waiting pod gets which place."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.backends.kubernetes.names import PLACEMENT_GATE
from gpuplane.backends.kubernetes.placing import plan_places
from gpuplane.backends.kubernetes.shapes import Gate, Pod
from tests.unit.backends.kubernetes.builders import a_pod, a_service


def waiting(rank: int, uid: str, **metadata: Any) -> Pod:
    """Return a pod of a rank that waits for its place."""
    pod = a_pod(rank, phase="Pending", uid=uid, name=uid, **metadata)
    pod.spec.scheduling_gates, pod.spec.node_name = [Gate(PLACEMENT_GATE)], ""
    return pod


def test_of_two_waiting_pods_of_one_rank_the_older_gets_the_place() -> None:
    old = waiting(0, "old", creationTimestamp="2026-01-02T03:04:05Z")
    new = waiting(0, "new", creationTimestamp="2026-01-02T03:04:06Z")
    other = waiting(1, "other")
    found = plan_places(a_service(2, places=(0, 1)), [new, old, other])
    assert sorted(pod.metadata.uid for pod, _ in found) == ["old", "other"]


@pytest.mark.parametrize(
    ("phase", "deleted", "is_placed"),
    [("Running", "", False), ("Running", "2026-01-02T03:04:06Z", True), ("Failed", "", True)],
)
def test_a_rank_that_is_placed_has_no_place_for_another_until_its_pod_goes(
    phase: str, deleted: str, is_placed: bool
) -> None:
    placed = a_pod(0, phase=phase, uid="placed", deletionTimestamp=deleted)
    found = plan_places(a_service(1, places=(0,)), [placed, waiting(0, "next")])
    assert bool(found) is is_placed


def test_a_waiting_pod_that_is_over_takes_no_place() -> None:
    over = waiting(0, "a-over")
    over.status.phase = "Failed"
    [(pod, _)] = plan_places(a_service(1, places=(0,)), [over, waiting(0, "b-next")])
    assert pod.metadata.uid == "b-next"
