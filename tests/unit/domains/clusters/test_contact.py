"""When a cluster that does not answer is tried again, and what it is called meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from gpuplane.core.ids import ClusterId
from gpuplane.domains.clusters.rules import (
    Cluster,
    ClusterState,
    ContactPolicy,
    HealthCheck,
    decide_reached,
    decide_unreached,
    may_be_tried,
)
from gpuplane.domains.clusters.service import LookTimes

S = 1000


def a_cluster(state: ClusterState = ClusterState.AVAILABLE, **more: Any) -> Cluster:
    """Return a cluster in a state."""
    given: dict[str, Any] = {
        "id": ClusterId(UUID(int=1)), "name": "east", "kind": "kubernetes", "simulated": False,
        "state": state, "state_reason": "", "labels": {}, "notes": (), "config": {},
        "frozen": False, "frozen_reason": "", "preemption_policy": {}, "inventory_generation": 0,
        "created_at": 0, "updated_at": 0, "version": 1,
    }  # fmt: skip
    return Cluster(**{**given, **more})


def test_a_check_is_as_new_as_the_last_look_that_found_it() -> None:
    checks = tuple(HealthCheck(kind, "healthy", "", 100) for kind in ("api_server", "nodes"))
    cluster, looks = a_cluster(health=checks), LookTimes()
    assert looks.checks_of(cluster) == checks
    looks.note(cluster.id, 900)
    assert [each.checked_at for each in looks.checks_of(cluster)] == [900, 900]
    looks.note(ClusterId(UUID(int=2)), 2_000)
    stored = replace(cluster, health=(replace(checks[0], checked_at=1_000), checks[1]))
    assert [each.checked_at for each in looks.checks_of(stored)] == [1_000, 900]
    looks.forget(cluster.id)
    assert looks.checks_of(cluster) == checks


def fail(cluster: Cluster, now: int, policy: ContactPolicy | None = None) -> Cluster:
    """Return a cluster after a look that failed."""
    changes = decide_unreached(cluster, "refused", now, policy or ContactPolicy())
    changes["failed_at"] = tuple(changes["failed_at"])
    return replace(cluster, **changes)


def test_it_is_tried_again_after_30_60_and_120_s_and_is_error_when_the_last_fails_too() -> None:
    cluster, now, waits = a_cluster(), 0, []
    states = []
    for _ in range(4):
        cluster = fail(cluster, now)
        assert cluster.next_try_at is not None
        waits.append((cluster.next_try_at - now) // S)
        states.append(cluster.state)
        now = cluster.next_try_at
    assert waits == [30, 60, 120, 300]
    assert states == [ClusterState.NOT_AVAILABLE] * 3 + [ClusterState.ERROR]
    assert cluster.not_available_since == 0
    assert "tried 4 times" in cluster.state_reason


def test_it_is_not_asked_while_it_backs_off() -> None:
    cluster = fail(a_cluster(), 1_000)
    assert [may_be_tried(cluster, at) for at in (1_001, 30_999, 31_000)] == [False, False, True]


def test_five_failures_in_five_minutes_open_the_breaker() -> None:
    cluster = a_cluster()
    policy = ContactPolicy(tries=100, base_ms=1)
    for at in range(5):
        cluster = fail(cluster, at * 10 * S, policy)
    assert cluster.next_try_at == 40 * S + policy.breaker_open_ms


def test_failures_longer_ago_than_the_window_do_not_count() -> None:
    cluster = a_cluster()
    policy = ContactPolicy(tries=100, base_ms=1)
    for at in range(5):
        cluster = fail(cluster, at * 301 * S, policy)
    assert len(cluster.failed_at) == 1
    assert cluster.next_try_at is not None
    assert cluster.next_try_at < 4 * 301 * S + policy.breaker_open_ms


@pytest.mark.parametrize("failures", [1, 4])
def test_an_answer_makes_it_available_again_and_forgets_the_failures(failures: int) -> None:
    cluster = a_cluster()
    for at in range(failures):
        cluster = fail(cluster, at)
    again = decide_reached(cluster)
    assert again["state"] is ClusterState.AVAILABLE
    assert (again["failures"], again["failed_at"], again["next_try_at"]) == (0, [], None)
    assert again["not_available_since"] is None


def test_an_answer_of_one_that_is_well_changes_nothing() -> None:
    assert decide_reached(a_cluster()) == {}


@pytest.mark.parametrize(
    "state", [ClusterState.REGISTERING, ClusterState.DRAINING, ClusterState.DELETING]
)
def test_a_state_that_a_run_owns_is_not_changed_by_a_look(state: ClusterState) -> None:
    cluster = a_cluster(state)
    assert "state" not in decide_unreached(cluster, "refused", 5)
    assert "state" not in decide_reached(replace(cluster, failures=1))


def test_a_registration_that_failed_is_not_mended_by_an_answer() -> None:
    cluster = a_cluster(ClusterState.ERROR, state_reason="RightsMissing")
    assert "state" not in decide_reached(cluster)
    assert "state" not in decide_unreached(cluster, "refused", 5)


def test_a_registration_that_failed_is_not_mended_by_an_outage_and_an_answer_after_it() -> None:
    cluster = a_cluster(ClusterState.ERROR, state_reason="RightsMissing")
    cluster = fail(fail(cluster, 5), 40 * S)
    assert (cluster.failures, cluster.not_available_since) == (2, None)
    again = decide_reached(cluster)
    assert again == {"failures": 0, "failed_at": [], "next_try_at": None}
