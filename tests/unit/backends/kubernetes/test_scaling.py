"""Services that scale: what is wanted, which ranks a scaler took, which pod gets which place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gpuplane.backends.interface import AUTOSCALER, OURSELVES, AttemptRef, Phase, Tombstoned
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.observing import (
    find_scaler,
    find_wanted,
    has_vanished,
    observe_attempt,
)
from gpuplane.backends.kubernetes.outcomes import compute_outcomes
from gpuplane.backends.kubernetes.placing import find_strays, list_open_ranks, plan_places
from gpuplane.backends.kubernetes.records import (
    Record,
    decide_accept,
    decide_evict,
    decide_scale,
    decide_settle,
    decide_start,
)
from gpuplane.backends.kubernetes.shapes import Main, Manager, Pod
from gpuplane.backends.kubernetes.sights import VANISHED_MS, Sight
from gpuplane.backends.kubernetes.views import ClusterView
from gpuplane.core.reasons import Word
from tests.unit.backends.kubernetes.builders import (
    END_MS,
    REF,
    a_main,
    a_pod,
    a_record,
    a_service,
    a_sight,
    ended,
    running,
)

NOW = END_MS + 5_000


def scaling(*ranks: int, **changes: Any) -> Record:
    return a_record(ranks, "Deployment", most=3, **changes)


def seen(record: Record, main: Main, *pods: Pod, gone: tuple[str, ...] = ()) -> Sight:
    return a_sight(*pods, record=record, main=main, gone=gone)


def waiting(name: str) -> Pod:
    """Return a pod without a rank that waits behind the gate."""
    found = a_pod(phase="Pending", uid=f"uid-{name}")
    found.metadata.name = name
    del found.metadata.labels[names.RANK]
    spec = {"schedulingGates": [{"name": names.PLACEMENT_GATE}]}
    return msgspec.convert(
        {**msgspec.to_builtins(found), "spec": spec,
         "metadata": {**_camel(found), "creationTimestamp": "2026-01-01T00:00:00Z"}}, Pod,
    )  # fmt: skip


def _camel(pod: Pod) -> dict[str, Any]:
    return {"name": pod.metadata.name, "uid": pod.metadata.uid, "labels": pod.metadata.labels}


def test_a_deployment_wants_what_it_asks_for_up_to_the_most() -> None:
    assert find_wanted(seen(scaling(0), a_service(2))) == 2
    assert find_wanted(seen(scaling(0), a_service(9))) == 3
    assert find_wanted(seen(scaling(0), a_service(0))) == 0


def test_one_that_was_not_let_go_is_fixed_or_was_evicted_says_nothing() -> None:
    assert find_wanted(seen(scaling(0), a_main("Deployment"))) is None
    assert find_wanted(seen(a_record(kind="Deployment"), a_service(2))) is None
    evicted = decide_evict(scaling(0), REF, "Cancelled", NOW)
    assert find_wanted(seen(evicted, a_service(2))) is None


def test_a_pod_that_went_because_fewer_are_wanted_ends_its_rank_when_it_ended() -> None:
    pods = (a_pod(0, state=running()), a_pod(1, state=ended(143)))
    sight = seen(scaling(0, 1), a_service(1), *pods, gone=("uid-1",))
    outcomes = compute_outcomes(sight, NOW)
    assert list(outcomes) == [1]
    assert (outcomes[1].reason, outcomes[1].ended_at) == (Word.SCALED_DOWN, END_MS)
    record = decide_settle(sight.record, outcomes)
    assert record is not None
    assert not record.is_over
    [first, second] = observe_attempt(replace(sight, record=record))
    assert (first.phase, second.phase, second.reason) == (
        Phase.RUNNING, Phase.EXITED, Word.SCALED_DOWN,
    )  # fmt: skip


def test_a_pod_that_went_and_is_to_come_again_is_no_shrinking() -> None:
    pods = (a_pod(0, state=running()), a_pod(1, state=ended(143)))
    assert compute_outcomes(seen(scaling(0, 1), a_service(2), *pods, gone=("uid-1",)), NOW) == {}


def test_a_pod_that_still_ends_holds_its_rank() -> None:
    going = a_pod(1, state=running(), deletionTimestamp="2026-01-02T03:04:05Z")
    sight = seen(scaling(0, 1), a_service(1), a_pod(0, state=running()), going)
    assert compute_outcomes(sight, NOW) == {}


def test_a_service_scaled_to_zero_is_over_only_when_it_was_evicted() -> None:
    sight = seen(scaling(0), a_service(0), a_pod(0, state=ended(143)), gone=("uid-0",))
    record = decide_settle(sight.record, compute_outcomes(sight, NOW))
    assert record is not None
    assert not record.is_over
    evicted = decide_evict(record, REF, "Cancelled", NOW)
    assert evicted.is_over
    with pytest.raises(Tombstoned):
        decide_scale(evicted, REF, [1], 9)


def test_ranks_change_by_number_and_what_left_is_forgotten_with_its_rank() -> None:
    sight = seen(scaling(0, 1), a_service(1), a_pod(0, state=running()))
    record = decide_settle(sight.record, compute_outcomes(sight, NOW))
    assert record is not None
    told = decide_scale(record, REF, [0], 3)
    assert (told.ranks, told.outcomes, told.scale) == ((0,), {}, 3)
    assert decide_scale(told, REF, [0, 1, 2], 2) == told
    assert decide_scale(told, REF, [0, 2], 4).ranks == (0, 2)
    with pytest.raises(Tombstoned):
        decide_scale(None, AttemptRef(REF.attempt_id, 1), [0], 1)


def test_a_place_of_a_rank_that_left_is_given_to_no_pod() -> None:
    main = a_service(2, places=(0, 1))
    sight = seen(scaling(0, 1), a_service(1), a_pod(0, state=running()))
    record = decide_settle(sight.record, compute_outcomes(sight, NOW))
    assert record is not None
    pods = [a_pod(0, state=running()), waiting("j-a"), waiting("j-b")]
    assert plan_places(main, pods, list_open_ranks(record)) == []
    more = decide_scale(record, REF, [0, 2], 1)
    [(pod, patch)] = plan_places(
        a_service(2, places=(0, 2)), pods, list_open_ranks(more)
    )  # fmt: skip - the call reads as one line
    assert (pod.metadata.name, patch["metadata"]["labels"][names.RANK]) == ("j-a", "2")


def test_a_pod_on_a_place_that_is_not_its_own_is_found() -> None:
    pods = [a_pod(0, state=running()), a_pod(1, state=running()), a_pod(1, state=running())]
    pods[2].metadata.name, pods[2].metadata.uid = "j-9", "uid-9"
    assert [pod.metadata.uid for pod in find_strays(scaling(0, 1), pods)] == ["uid-1"]
    assert [pod.metadata.uid for pod in find_strays(scaling(1), pods[:2])] == ["uid-0"]
    assert find_strays(a_record((0, 1), "Deployment"), pods) == []


def test_a_service_without_replicas_whose_deployment_somebody_deleted_is_told_as_gone() -> None:
    view = ClusterView()
    record = decide_accept(
        None, REF, 10, namespace="tenant-t", kind="Deployment", name="j", ranks=(), most=3
    )
    record, main = decide_start(record, REF, 20), a_service(0)
    view.take_record(record, 1)
    view.note_vanished(20 + VANISHED_MS - 1)
    assert view.scales_since("") == [], "it may not have been heard of yet"
    view.take_main(main)
    view.note_vanished(NOW)
    assert [(each.wanted, each.is_gone) for each in view.scales_since("")] == [(0, False)]
    view.drop_main(main)
    view.note_vanished(NOW)
    assert [(each.ref, each.is_gone) for each in view.scales_since("")] == [(REF, True)]
    cursor, _ = view.changed_since("")
    view.note_vanished(NOW + 5_000)
    assert view.scales_since(cursor) == []
    view.take_record(decide_evict(record, REF, "DeletedOnCluster", NOW), 2)
    view.note_vanished(NOW)
    assert view.scales_since("") == []


def test_one_that_has_replicas_tells_by_them_that_its_deployment_is_gone() -> None:
    sight = Sight(record=scaling(0))
    assert not has_vanished(sight, NOW)
    assert compute_outcomes(sight, NOW)[0].reason == Word.DELETED


def test_what_is_wanted_is_told_once_for_each_change() -> None:
    view = ClusterView()
    record = decide_accept(
        None, REF, 10, namespace="tenant-t", kind="Deployment", name="j", ranks=(0,), most=3
    )
    view.take_record(decide_start(record, REF, 20), 1)
    view.take_main(a_service(2))
    assert [each.wanted for each in view.scales_since("")] == [2]
    cursor, _ = view.changed_since("")
    assert view.scales_since(cursor) == []
    view.take_main(a_service(1))
    assert [(each.ref, each.wanted) for each in view.scales_since(cursor)] == [(REF, 1)]


def written(*managers: tuple[str, str, str]) -> Main:
    """Return a Deployment as (manager, time, field of its spec) wrote it."""
    main = a_service(2)
    told = [
        {
            "manager": who,
            "time": at,
            "fieldsV1": {"f:spec": {f"f:{what}": {}}},
            "operation": "Update",
        }
        for who, at, what in managers
    ]
    main.metadata.managed_fields = msgspec.convert(told, list[Manager])
    return main


@pytest.mark.parametrize(
    ("manager", "by"),
    [
        ("kube-controller-manager", AUTOSCALER),
        ("keda", AUTOSCALER),
        ("keda-operator", AUTOSCALER),
        ("kubectl", "kubectl"),
        ("gpuplane", OURSELVES),
    ],
)
def test_who_moved_a_number_is_whoever_wrote_it_last(manager: str, by: str) -> None:
    early, late = "2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z"
    main = written(
        ("gpuplane", early, "replicas"), (manager, late, "replicas"), ("other", late, "paused")
    )
    view = ClusterView()
    view.take_record(scaling(0), 1)
    view.take_main(main)
    assert [each.by for each in view.scales_since("")] == [by]
    assert find_scaler(a_service(2)) == "", "where nothing tells"


def test_a_rank_that_is_not_of_a_service_any_more_is_not_told() -> None:
    view = ClusterView()
    view.take_record(scaling(0, 1), 1)
    view.take_main(a_service(2))
    assert [each.rank for each in view.observe()] == [0, 1]
    view.take_record(decide_scale(scaling(0, 1), REF, [1], 1), 2)
    assert [each.rank for each in view.observe()] == [1]
    view.take_record(decide_scale(scaling(0, 1), REF, [], 2), 3)
    assert view.observe() == []
