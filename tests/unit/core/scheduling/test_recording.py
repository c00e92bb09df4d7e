"""Stored inputs of decisions: read back as they were, or refused with what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpuplane.core.fleet.facts import Allocation, MigPlacement, Taint
from gpuplane.core.quota.specs import AdmissionMode
from gpuplane.core.scheduling.policy import Flavor, PlacementPolicy, Policy, Snapshot
from gpuplane.core.scheduling.recording import (
    Recording,
    RecordingFormatError,
    decode_recording,
    encode_recording,
)
from gpuplane.core.scheduling.reservations import Reservation
from gpuplane.core.topology.named import named_topology
from gpuplane.core.workloads import (
    NetworkRequest,
    Priority,
    TimeWindow,
    Toleration,
    WindowEnd,
)
from tests.builders import CLUSTER, H100, NOW, World, a_fleet, a_node, a_tree, a_workload, an_id

TOPOLOGY = named_topology("nvswitch-8", 8)


def a_rich_snapshot() -> Snapshot:
    """Return a snapshot in which every kind of value occurs."""
    nodes = [
        a_node("a", topology=TOPOLOGY, labels={"zone": "x"}, taints=(Taint("gpu", "only"),)),
        a_node("b", topology=TOPOLOGY, mig={0: (("1g.10gb", 0), ("3g.40gb", 4))}, unhealthy=(3,)),
    ]
    job = a_workload("mig").mig("1g.10gb").build()
    held = Allocation(
        job.job_id, nodes[1].node_id, mig=MigPlacement(nodes[1].gpus[0].gpu_id, "1g.10gb", 0)
    )
    window = TimeWindow(60, 120, "Europe/Berlin", (1, 2), WindowEnd.STOP)
    asked = a_workload("asked").placement(
        network=NetworkRequest(), tolerations=(Toleration("gpu", "Exists"),), data=("images",)
    )
    pending = asked.having(
        window=window, inherited_priority=Priority.HIGH, clusters=(CLUSTER,), labels={"k": "v"}
    ).build()
    return Snapshot(
        generation=3,
        pending=(pending,),
        running=(),
        fleets=(a_fleet(*nodes, allocations=[held]),),
        quotas=a_tree(mode=AdmissionMode.FAIR_SHARING),
        flavors={"fast": Flavor("fast", H100, {"zone": "x"})},
        preempted_last_hour={CLUSTER: 2},
        preemptions_leave_at={CLUSTER: (NOW + 1, NOW + 2)},
        reservations=(
            Reservation(an_id("r"), CLUSTER, H100, 2, NOW, NOW + 1, "lab", "p"),  # type: ignore[arg-type]  # a test's id
        ),
    )


def test_every_kind_of_value_comes_back_as_it_was() -> None:
    policy = replace(Policy(), placement=PlacementPolicy.BALANCED)
    before = Recording(a_rich_snapshot(), policy, NOW, 5)
    after = decode_recording(encode_recording(before))
    for name in ("generation", "pending", "running", "flavors", "preempted_last_hour"):
        assert getattr(after.snapshot, name) == getattr(before.snapshot, name)
    assert after.snapshot.reservations == before.snapshot.reservations
    assert (after.policy, after.now, after.seed) == (policy, NOW, 5)
    old, new = before.snapshot.fleets[0], after.snapshot.fleets[0]
    assert new.nodes == old.nodes
    assert (new.gpu_free_milli == old.gpu_free_milli).all()
    assert {key: each.tolist() for key, each in new.mig_free.items()} == {
        key: each.tolist() for key, each in old.mig_free.items()
    }


def test_equal_link_matrices_are_written_once() -> None:
    written = json.loads(encode_recording(Recording(a_rich_snapshot(), Policy(), NOW, 0)))
    assert len(written["shared"]) == 1
    topologies = [node["topology"] for node in written["snapshot"]["fleets"][0]["nodes"]]
    assert topologies == [0, 0]


def changed(**change: Any) -> bytes:
    written = json.loads(encode_recording(Recording(World([a_node()]).snapshot(), Policy(), 0, 0)))
    return json.dumps({**written, **change}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        changed(format=2),
        changed(policy={"no_such_field": 1}),
        changed(policy={"topology_weight": "forty"}),
        changed(snapshot={"pending": []}),
    ],
)
def test_what_is_no_recording_is_refused(data: bytes) -> None:
    with pytest.raises(RecordingFormatError, match="no recording"):
        decode_recording(data)
