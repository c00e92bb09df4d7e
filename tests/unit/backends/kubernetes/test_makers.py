"""Which ranks of a chart are missing, and whether something will make their pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuplane.backends.interface import Phase
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.makers import is_unmade, list_missing, plan_heirs
from gpuplane.backends.kubernetes.outcomes import compute_outcomes
from gpuplane.backends.kubernetes.records import RELEASE_KIND, STAND_IN
from gpuplane.backends.kubernetes.settling import LOOK_S
from gpuplane.backends.kubernetes.shapes import Gate, Main, Pod, Reference
from gpuplane.backends.kubernetes.sights import VANISHED_MS
from gpuplane.core.reasons import Word
from tests.unit.backends.kubernetes.builders import a_main, a_pod, a_record, a_sight, running


def a_maker(
    name: str, replicas: int = 1, *, kind: str = "Deployment", part: str = "device", **metadata: Any
) -> dict[str, Any]:
    """Return an object of a chart that makes pods."""
    return {
        "kind": kind,
        "metadata": {"name": name, "labels": {names.PART: part}, **metadata},
        "spec": {"replicas": replicas},
    }


def made_by(
    maker: str, uid: str, rank: int | None = None, *, part: str = "device", **metadata: Any
) -> Pod:
    """Return a pod of a Deployment as it runs; one without a rank waits for it."""
    pod = a_pod(state=running(), uid=uid, name=uid, **metadata)
    pod.metadata.labels = {names.PART: part, "pod-template-hash": "abc"}
    if rank is not None:
        pod.metadata.labels[names.RANK] = str(rank)
    else:
        pod.spec.scheduling_gates = [Gate(names.PLACEMENT_GATE)]
    pod.metadata.owner_references = [Reference(kind="ReplicaSet", name=f"{maker}-abc")]
    return pod


def installed(kind: str, *, suspend: bool = False) -> Main:
    """Return what an installed release hangs on."""
    main = a_main("Job" if kind == STAND_IN else kind, suspend=suspend)
    done = names.INSTALLED if kind == STAND_IN else names.RELEASED
    main.metadata.annotations = {done: "true"}
    return main


@pytest.mark.parametrize("kind", [STAND_IN, RELEASE_KIND])
def test_a_rank_without_a_pod_is_missing_only_of_a_release_that_is_installed_and_wanted(
    kind: str,
) -> None:
    record, main = a_record(kind=kind), installed(kind)
    assert list_missing(record, main, []) == (0,)
    assert list_missing(record, main, [made_by("web", "w", 0)]) == ()
    assert list_missing(record, main, [a_pod(phase="Failed")]) == (0,)
    assert list_missing(record, None, []) == ()
    assert list_missing(record, a_main(kind), []) == (), "it is being installed"
    assert list_missing(record, installed(kind, suspend=True), []) == (), "it stands in line"
    evicted = a_record(kind=kind, evict_reason="Cancelled", evict_at=30)
    assert list_missing(evicted, main, []) == ()
    assert list_missing(a_record(kind="Deployment"), main, []) == ()


def test_a_replica_whose_deployment_is_gone_will_not_be_made_again() -> None:
    sight = a_sight(made_by("web", "w", 0), gone=("w",))
    assert is_unmade((0,), sight, [])
    assert is_unmade((0,), sight, [a_maker("web", 0)]), "scaled down it makes none either"
    assert is_unmade((0,), sight, [a_maker("web", deletionTimestamp="2026-01-02T03:04:05Z")])
    assert is_unmade((0,), sight, [a_maker("db", part="helper")])
    assert is_unmade((0,), a_sight(), []), "also where nobody saw its pod"
    assert not is_unmade((0,), sight, [a_maker("web")])
    assert not is_unmade((0,), a_sight(), [a_maker("web")])


def test_a_deployment_that_replaces_a_pod_loses_none() -> None:
    old, new = made_by("web", "old", 0), made_by("web", "new")
    web = a_maker("web")
    assert not is_unmade((0,), a_sight(old, new, gone=("old",)), [web])
    new.spec.scheduling_gates = []  # it ran before the old one went, and has no rank
    assert not is_unmade((0,), a_sight(old, new, gone=("old",)), [web])
    assert not is_unmade((0,), a_sight(new), [web])


def test_one_of_two_deployments_that_is_deleted_loses_its_replica_though_the_other_is_whole() -> (
    None
):
    gone, there = made_by("a", "a", 0), made_by("b", "b", 1)
    sight = a_sight(gone, there, record=a_record((0, 1), STAND_IN), gone=("a",))
    assert is_unmade((0,), sight, [a_maker("b")])
    assert not is_unmade((0,), sight, [a_maker("b", 2)]), "it makes one more, which takes the rank"
    going = made_by("b", "b", 1, deletionTimestamp="2026-01-02T03:04:05Z")
    both = replace(sight, pods=(gone, going))
    assert not is_unmade((0,), both, [a_maker("a"), a_maker("b")])


def test_replica_sets_of_a_deployment_count_once_and_stateful_sets_make_pods_by_and_by() -> None:
    owned = a_maker("web-abc", kind="ReplicaSet", ownerReferences=[{"kind": "Deployment"}])
    assert is_unmade((0,), a_sight(made_by("web", "w", 0), gone=("w",)), [owned])
    assert not is_unmade((0,), a_sight(), [a_maker("rs", kind="ReplicaSet")])
    first = a_pod(state=running())
    first.metadata.labels[names.PART] = "device"
    first.metadata.owner_references = [Reference(kind="StatefulSet", name="db")]
    assert not is_unmade((1,), a_sight(first), [a_maker("db", 2, kind="StatefulSet")])


@pytest.mark.parametrize("kind", [STAND_IN, RELEASE_KIND])
def test_what_was_taken_away_because_nothing_makes_it_is_told_as_deleted_on_the_cluster(
    kind: str,
) -> None:
    record = a_record(kind=kind)
    late = record.at + VANISHED_MS
    for sight in (
        a_sight(made_by("web", "w", 0), record=record, gone=("w",)),
        a_sight(record=record),
    ):
        outcome = compute_outcomes(replace(sight, main=None), late)[0]
        assert (outcome.phase, outcome.reason) == (Phase.LOST, Word.DELETED)


def test_a_replica_that_nothing_makes_is_told_within_half_a_minute() -> None:
    assert VANISHED_MS + 2 * LOOK_S * 1000 <= 30_000


def test_a_pod_that_ran_before_the_one_went_that_it_replaces_takes_over_its_rank() -> None:
    old, new = made_by("web", "old", 0, part="replica"), made_by("web", "new", part="replica")
    other = made_by("cache", "other", part="replica")
    for each in (new, other):  # all ranks were taken when they were let go
        each.spec.scheduling_gates = []
    record, main = a_record(kind=RELEASE_KIND), installed(RELEASE_KIND)
    both = a_sight(old, new, other, record=record, main=main)
    assert plan_heirs(both, is_long=True) == [], "the rank has its pod still"
    left = replace(both, gone=frozenset({"old"}))
    [(heir, rank)] = plan_heirs(left, is_long=False)
    assert (heir.metadata.uid, rank) == ("new", 0)
    unseen = replace(both, pods=(other, new))
    assert plan_heirs(unseen, is_long=False) == [], "another of its own maker may come"
    assert [heir.metadata.uid for heir, _ in plan_heirs(unseen, is_long=True)] == ["new"]
    coming = made_by("web", "coming", part="replica")
    assert plan_heirs(replace(left, pods=(*left.pods, coming)), is_long=False) == []
    old.metadata.labels[names.PART] = new.metadata.labels[names.PART] = "device"
    assert plan_heirs(left, is_long=True) == [], "one with GPUs has a rank or waits"
