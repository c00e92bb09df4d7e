"""Services whose pods Kueue admits one by one: ranks of bound pods, and how each of them ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gpuplane.backends.interface import Phase, Tombstoned
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.observing import find_wanted
from gpuplane.backends.kubernetes.placing import list_open_ranks
from gpuplane.backends.kubernetes.ranking import (
    compute_ends,
    list_unlabelled,
    list_unranked,
    name_winners,
    observe,
)
from gpuplane.backends.kubernetes.records import (
    Record,
    decide_accept,
    decide_evict,
    decide_ranks,
    decide_settle,
    decide_start,
    decide_told,
)
from gpuplane.backends.kubernetes.shapes import Gate, Main, Pod
from gpuplane.backends.kubernetes.sights import VANISHED_MS, Sight
from gpuplane.core.reasons import Word
from tests.unit.backends.kubernetes.builders import (
    END_MS,
    ID,
    NODE,
    REF,
    a_pod,
    a_service,
    a_sight,
    ended,
    running,
)

NOW = END_MS + 60_000
LIMIT = 5
MADE = "2026-01-02T03:04:{:02}Z"


def a_queued(pods: int = 0) -> Record:
    """Return the record of a started service, with ranks of its pods `uid-0`, `uid-1`, …"""
    made = decide_accept(
        None, REF, 10, namespace="tenant-t", kind="Deployment", name="j", ranks=[0, 1], by_pod=True
    )
    return ranked(decide_start(made, REF, 20), *(f"uid-{each}" for each in range(pods)))


def ranked(record: Record, *uids: str, at: int = 30) -> Record:
    given = decide_ranks(record, uids, at, LIMIT)
    assert given is not None
    return given


def bound(number: int, *, node: str = NODE, **more: Any) -> Pod:
    """Return a pod without a rank of its own, bound to a node."""
    pod = a_pod(number, creationTimestamp=MADE.format(number), **{"state": running(), **more})
    pod.metadata.labels.pop(names.RANK)
    pod.spec.node_name = node
    return pod


def seen(record: Record, wanted: int, *pods: Pod, gone: tuple[str, ...] = ()) -> Sight:
    return a_sight(*pods, record=record, main=a_service(wanted), gone=gone)


def settled(sight: Sight, now: int = NOW) -> Sight:
    """Return what is seen once the ends that it shows are recorded."""
    record = decide_settle(sight.record, compute_ends(sight, now))
    assert record is not None
    return replace(sight, record=record)


def kueue_stopped(message: str) -> list[dict[str, str]]:
    """Return the condition that Kueue puts on a pod that it ends."""
    said = {"reason": "WorkloadEvicted", "message": message}
    return [{"type": "TerminationTarget", "status": "True", **said}]


def test_pods_get_ranks_in_their_order_once_they_are_bound_and_never_two() -> None:
    record = a_queued()
    assert record.ranks == ()
    sight = seen(record, 3, bound(2), bound(1), bound(0, node=""))
    assert [pod.metadata.uid for pod in list_unranked(sight)] == ["uid-1", "uid-2"]
    record = ranked(record, "uid-1", "uid-2")
    assert {rank: given.uid for rank, given in record.pods.items()} == {"0": "uid-1", "1": "uid-2"}
    assert ranked(record, "uid-2", "uid-1") == record
    assert ranked(record, "uid-0").ranks == (0, 1, 2)
    assert list_unranked(replace(sight, record=record)) == []


def test_a_rank_is_told_on_its_pod_also_by_whoever_did_not_give_it() -> None:
    record = ranked(a_queued(), "uid-1", "uid-0")
    first, second = bound(0), bound(1)
    first.metadata.labels[names.RANK] = "1"
    told = seen(record, 2, first, second, bound(2))
    assert [(pod.metadata.uid, rank) for pod, rank in list_unlabelled(told)] == [("uid-1", 0)]
    assert list_unlabelled(replace(told, gone=frozenset({"uid-1"}))) == []


def test_nothing_of_an_attempt_that_was_evicted_gets_a_rank() -> None:
    record = decide_evict(a_queued(1), REF, "Cancelled", NOW)
    assert ranked(record, "uid-1") == record


def test_no_more_ranks_are_given_while_too_many_ends_are_not_taken_in() -> None:
    record = a_queued(LIMIT)
    gone = tuple(f"uid-{each}" for each in range(LIMIT))
    pods = [bound(each, state=ended(143)) for each in range(LIMIT)]
    full = settled(seen(record, LIMIT, *pods, gone=gone)).record
    assert ranked(full, "uid-9") == full
    told = decide_told(full, REF, [], LIMIT, (), 2)
    assert (told.ranks, told.outcomes, told.pods) == ((), {}, {})
    assert ranked(told, "uid-9").ranks == (LIMIT,)


def test_what_is_seen_is_every_rank_and_one_without_a_node_for_pods_that_wait() -> None:
    behind = bound(1, node="", state=None)
    behind.spec.scheduling_gates = [Gate("kueue.x-k8s.io/admission")]
    [first, waiting] = observe(seen(a_queued(1), 2, bound(0), behind))
    assert (first.rank, first.phase, first.node_name, first.by_pod) == (
        0,
        Phase.RUNNING,
        NODE,
        True,
    )
    assert (waiting.rank, waiting.phase, waiting.node_name) == (1, Phase.STARTING, "")
    [only] = observe(seen(a_queued(1), 1, bound(0)))
    assert only.rank == 0
    [nothing] = observe(seen(a_queued(), 0))
    assert (nothing.rank, nothing.phase, nothing.node_name) == (0, Phase.STARTING, "")


def test_why_no_node_has_room_for_what_kueue_admitted_is_told() -> None:
    said = {"reason": "Unschedulable", "message": "0/5 nodes are available"}
    full = [{"type": "PodScheduled", "status": "False", **said}]
    [waiting] = observe(seen(a_queued(), 1, bound(0, node="", state=None, conditions=full)))
    assert waiting.message == "Unschedulable: 0/5 nodes are available"


@pytest.mark.parametrize(
    ("conditions", "wanted", "word"),
    [
        (kueue_stopped("Preempted to accommodate a workload"), 2, Word.PREEMPTED),
        (kueue_stopped("The workload is deactivated"), 2, Word.EVICTED),
        ([], 2, Word.EVICTED),
        ([], 1, Word.SCALED_DOWN),
        (kueue_stopped("Preempted to accommodate a workload"), 1, Word.PREEMPTED),
        (
            [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
            2,
            Word.DRAINED,
        ),
    ],
)
def test_a_rank_ends_with_its_pod_by_whoever_took_that_away_and_the_service_goes_on(
    conditions: list[dict[str, str]], wanted: int, word: Word
) -> None:
    last = bound(1, state=ended(143), conditions=conditions, deletionTimestamp=MADE.format(9))
    sight = settled(seen(a_queued(2), wanted, bound(0), last, gone=("uid-1",)))
    outcome = sight.record.outcomes["1"]
    assert (outcome.reason, outcome.ended_at, outcome.node_name) == (word, END_MS, NODE)
    assert list(sight.record.outcomes) == ["1"]
    assert not sight.record.is_over
    assert compute_ends(sight, NOW) == {}


def test_a_pod_that_its_kubelet_evicted_ends_its_rank_and_keeps_it_while_it_is_there() -> None:
    failed = bound(0, phase="Failed", reason="Evicted", message="disk", state=ended(137))
    sight = settled(seen(a_queued(1), 1, failed))
    assert sight.record.outcomes["0"].reason == Word.EVICTED
    assert list_unranked(sight) == []
    kept = decide_told(sight.record, REF, [], 1, ["uid-0"], LIMIT)
    assert kept.ranks == (0,)


def test_a_pod_whose_rank_was_dropped_gets_no_other_from_who_still_sees_it() -> None:
    sight = settled(seen(a_queued(1), 1, bound(0, state=ended(143)), gone=("uid-0",)))
    dropped = decide_told(sight.record, REF, [], 1, (), LIMIT)
    assert (dropped.ranks, dropped.past) == ((), ("uid-0",))
    assert list_unranked(seen(dropped, 1, bound(0))) == []
    assert ranked(dropped, "uid-0") == dropped
    assert ranked(dropped, "uid-1").ranks == (1,)


def test_ends_that_were_not_taken_in_yet_are_kept() -> None:
    pods = (bound(0, state=ended(143)), bound(1, state=ended(143)))
    record = settled(seen(a_queued(2), 2, *pods, gone=("uid-0", "uid-1"))).record
    assert decide_told(record, REF, [], 1, (), LIMIT).ranks == (1,)
    assert decide_told(record, REF, [0], 2, (), LIMIT).ranks == (0,)


def test_the_cluster_is_followed_beyond_the_most_for_what_it_admits_runs() -> None:
    record = msgspec.structs.replace(a_queued(), most=3)
    assert find_wanted(seen(record, 5)) == 5
    assert find_wanted(seen(a_queued(), 2)) == 2
    assert list_open_ranks(record) is None


def test_a_pod_that_is_not_heard_of_yet_is_waited_for() -> None:
    sight = seen(a_queued(1), 1)
    assert compute_ends(sight, 30 + VANISHED_MS) == {}
    assert compute_ends(sight, 31 + VANISHED_MS)[0].reason == Word.EVICTED


def test_a_deployment_that_somebody_deleted_ends_the_attempt_with_or_without_replicas() -> None:
    nothing: Main | None = None
    for record, pods, gone in (
        (a_queued(1), (bound(0, state=ended(143)),), ("uid-0",)),
        (a_queued(), (), ()),
    ):
        sight = replace(seen(record, 1, *pods, gone=gone), main=nothing)
        assert compute_ends(sight, 20 + VANISHED_MS - 1) == {}
        after = settled(sight)
        assert after.record.is_over
        assert [each.reason for each in observe(after)] == [Word.DELETED]
        assert [each.phase for each in observe(after)] == [Phase.LOST]
        assert settled(after).record == after.record
        with pytest.raises(Tombstoned):
            decide_told(after.record, REF, [], 9, (), LIMIT)


def test_an_evicted_attempt_is_over_when_its_ranks_are_and_no_pod_is_left() -> None:
    record = decide_evict(a_queued(1), REF, "Cancelled", NOW)
    assert not record.is_over
    [still] = observe(seen(record, 2, bound(0), bound(1, node="")))
    assert (still.rank, still.phase) == (0, Phase.RUNNING)
    after = settled(seen(record, 2, bound(0, state=ended(143)), gone=("uid-0",)))
    assert after.record.is_over
    assert [each.phase for each in observe(after)] == [Phase.EXITED]

    queued = decide_evict(a_queued(), REF, "Cancelled", NOW)
    [going] = observe(seen(queued, 1, bound(0, node="")))
    assert going.phase is Phase.STOPPING
    [gone] = observe(seen(queued, 1))
    assert (gone.phase, gone.reason, gone.ended_at) == (Phase.EXITED, "Cancelled", NOW)


def test_a_preempted_rank_names_whom_it_made_room_for_where_the_uid_is_one_of_ours() -> None:
    winner = "0190a000-0000-7000-8000-00000000000a"
    said = f"Preempted to accommodate a workload (UID: 7, JobUID: {winner}) due to prioritization"
    last = bound(1, state=ended(143), conditions=kueue_stopped(said))
    sight = seen(a_queued(2), 2, bound(0), last, gone=("uid-1",))
    ends = compute_ends(sight, NOW)
    named = name_winners(ends, {winner: ID}.get)
    assert {rank: each.for_attempt for rank, each in named.items()} == {1: str(ID)}
    record = decide_settle(sight.record, named)
    assert record is not None
    told = observe(replace(sight, record=record))
    assert [(each.rank, each.for_attempt) for each in told[:2]] == [(0, None), (1, ID)]
    assert name_winners(ends, {"another": ID}.get) == ends
