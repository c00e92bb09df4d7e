"""What our AdmissionCheck says: quota is given back at once, and what is held does not spin."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from gpuplane.core.ids import AttemptId
from gpuplane.core.workloads import Priority
from gpuplane.domains.jobs.service import OfferStanding
from gpuplane.loops.kueue.holding import EXTEND_MS, MAX_RETRY_S, decide_hold, plan_hold
from gpuplane.loops.kueue.workloads import ATTEMPT_LABEL, find_age, follow, instant_text
from tests.integration.kueue.stored import merge

ATTEMPT = AttemptId(UUID(int=7))
NOW = 1_800_000_000_000
MADE = NOW - 500_000
HOUR_MS = MAX_RETRY_S * 1000
OPEN = OfferStanding(True, "Nothing but quota holds it back.", None, Priority.NORMAL, 10)
FROZEN = OfferStanding(False, "Its cluster is frozen.", None, Priority.NORMAL, 10)


def closed(until: int) -> OfferStanding:
    return OfferStanding(False, "Its time window is closed.", until, Priority.NORMAL, 10)


def condition(kind: str, true: bool, reason: str = "", message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": str(true),
        "reason": reason or kind,
        "message": message,
        "lastTransitionTime": instant_text(MADE),
    }


def workload(*conditions: dict[str, Any], **status: Any) -> dict[str, Any]:
    """Return a Workload of ours whose check is at Pending, with its quota unless told otherwise."""
    template = {"metadata": {"labels": {ATTEMPT_LABEL: str(ATTEMPT)}}}
    return {
        "metadata": {
            "name": "one",
            "namespace": "space",
            "creationTimestamp": instant_text(MADE),
            "resourceVersion": "1",
        },
        "spec": {"podSets": [{"name": "main", "count": 1, "template": template}]},
        "status": {
            "conditions": list(conditions or (condition("QuotaReserved", True),)),
            "admissionChecks": [{"name": "gpuplane-hold", "state": "Pending", "message": ""}],
            **status,
        },
    }


def plan(found: dict[str, Any], standing: OfferStanding | None, now: int = NOW) -> Any:
    return plan_hold(follow(found), standing, set(), now)


def written(found: dict[str, Any], standing: OfferStanding, now: int = NOW) -> dict[str, Any]:
    """Return the Workload after what is planned was written."""
    status = plan(found, standing, now)
    assert status is not None
    kinds = {each["type"] for each in status.get("conditions", ())}
    kept = [each for each in found["status"]["conditions"] if each["type"] not in kinds]
    status = {**status, "conditions": [*kept, *status.get("conditions", ())]}
    made: dict[str, Any] = merge(found, {"status": status})
    return made


def hold_of(found: dict[str, Any]) -> dict[str, Any]:
    checks = found["status"]["admissionChecks"]
    hold: dict[str, Any] = next(each for each in checks if each["name"] == "gpuplane-hold")
    return hold


def given_back(found: dict[str, Any], requeue_at: int | None) -> dict[str, Any]:
    """Return the Workload after Kueue freed its quota, and maybe took the instant over."""
    evicted = [each for each in found["status"]["conditions"] if each["type"] == "Evicted"]
    conditions = [*evicted, condition("QuotaReserved", False, "Pending", evicted[0]["message"])]
    status: dict[str, Any] = {"conditions": conditions}
    if requeue_at is not None:
        status["requeueState"] = {"requeueAt": instant_text(requeue_at), "count": 2}
    made: dict[str, Any] = merge(found, {"status": status})
    return made


def put_off(standing: OfferStanding, until: int) -> dict[str, Any]:
    """Return a held Workload that gave its quota back and waits until then."""
    return written(given_back(written(workload(), standing), until), standing, NOW + 1_000)


def test_what_is_held_is_evicted_in_the_write_that_says_how_long() -> None:
    found = written(workload(), closed(NOW + 90_000))
    evicted = follow(found).state.conditions["Evicted"]
    assert (evicted.true, evicted.reason) == (True, "AdmissionCheck")
    assert "Its time window is closed." in evicted.message
    hold = hold_of(found)
    assert (hold["state"], hold["requeueAfterSeconds"]) == ("Retry", 91)
    assert hold["lastTransitionTime"] == instant_text(NOW)
    assert plan(found, closed(NOW + 90_000)) is None, "its quota is on the way back"
    assert plan(found, OPEN) is None, "it is let into the line again once it is back"


@pytest.mark.parametrize("since", [None, MADE - 60_000])
def test_a_hold_costs_no_place_in_line(since: int | None) -> None:
    standing = OfferStanding(False, "Frozen.", None, Priority.NORMAL, 10, since)
    assert find_age(follow(written(workload(), standing))) == (since or MADE)


def test_a_hold_is_not_taken_for_the_eviction_of_what_ran() -> None:
    found = follow(written(workload(), FROZEN))
    assert found.eviction is None
    assert not found.is_evicted


def test_other_checks_and_workers_answer_anew_when_the_quota_was_given_back() -> None:
    others = [
        {"name": "gpuplane-multikueue", "state": "Ready", "message": "it is there"},
        {"name": "silent", "state": "Pending", "message": "wait"},
    ]
    before = workload(clusterName="far")
    before["status"]["admissionChecks"] += others
    status = plan(before, FROZEN)
    told = {each["name"]: each for each in status["admissionChecks"]}
    assert told["gpuplane-multikueue"]["state"] == "Pending"
    assert told["silent"] == others[1]
    assert (status["clusterName"], "nominatedClusterNames" in status) == (None, False)


@pytest.mark.parametrize("state", ["Retry", "Rejected"])
def test_nothing_is_written_where_another_check_takes_the_quota_back(state: str) -> None:
    found = workload()
    found["status"]["admissionChecks"].append({"name": "theirs", "state": state})
    assert plan(found, FROZEN) is None


def test_the_check_waits_at_retry_only_until_kueue_took_the_instant_over() -> None:
    evicted = written(workload(), FROZEN)
    assert plan(given_back(evicted, None), FROZEN) is None
    assert plan(given_back(evicted, NOW + 60_000), FROZEN) is None, "an earlier one of others"
    status = plan(given_back(evicted, NOW + HOUR_MS), FROZEN)
    (hold,) = status["admissionChecks"]
    assert (hold["state"], hold["requeueAfterSeconds"]) == ("Pending", MAX_RETRY_S)
    assert "requeueState" not in status, "what Kueue applied stays Kueue's to take away"


@pytest.mark.parametrize("after_ms", [1_000, 30_000, HOUR_MS - EXTEND_MS])
def test_what_waits_is_left_alone_while_its_hold_lasts(after_ms: int) -> None:
    assert plan(put_off(FROZEN, NOW + HOUR_MS), FROZEN, NOW + after_ms) is None


def test_a_hold_that_lasts_is_extended_before_kueue_tries_it_again() -> None:
    found = put_off(FROZEN, NOW + HOUR_MS)
    late = NOW + HOUR_MS - EXTEND_MS + 1_000
    status = plan(found, FROZEN, late)
    (hold,) = status["admissionChecks"]
    assert (hold["state"], hold["requeueAfterSeconds"]) == ("Retry", MAX_RETRY_S)
    assert "conditions" not in status
    opens = late + 200_000
    assert plan(put_off(closed(opens), opens + 1_000), closed(opens), late) is None


@pytest.mark.parametrize("state", ["Pending", "Retry"])
def test_what_may_start_again_is_let_into_the_line_at_once(state: str) -> None:
    found = put_off(FROZEN, NOW + HOUR_MS)
    hold_of(found)["state"] = state
    after = written(found, OPEN, NOW + 5_000)
    hold = hold_of(after)
    assert (hold["state"], "requeueAfterSeconds" in hold) == ("Pending", False)
    assert after["status"]["requeueState"] == {"count": 2}
    assert plan(after, OPEN, NOW + 6_000) is None
    assert plan(after, FROZEN, NOW + 6_000) is None, "it is held when it has its quota"


def test_what_has_its_quota_again_is_evicted_again_whatever_the_check_still_says() -> None:
    found = put_off(FROZEN, NOW + HOUR_MS)
    found["status"]["conditions"] = [condition("QuotaReserved", True)]
    hold_of(found)["state"] = "Retry"
    assert follow(written(found, FROZEN, NOW + 5_000)).state.conditions["Evicted"].true


def test_what_got_its_quota_and_may_start_waits_for_no_instant_any_more() -> None:
    found = put_off(FROZEN, NOW + HOUR_MS)
    found["status"]["conditions"] = [condition("QuotaReserved", True)]
    after = written(found, OPEN, NOW + 5_000)
    assert hold_of(after)["state"] == "Ready"
    assert after["status"]["requeueState"] == {"count": 2}


def test_an_instant_that_others_set_is_left_to_them() -> None:
    at = {"requeueAt": instant_text(NOW + 60_000), "count": 1}
    waiting = workload(condition("QuotaReserved", False), requeueState=at)
    assert plan(waiting, OPEN) is None
    assert plan(waiting, FROZEN) is None
    ready = plan(workload(requeueState=at), OPEN)
    assert "requeueState" not in ready


@pytest.mark.parametrize(
    ("standing", "settled", "is_admitted", "expected"),
    [
        (OPEN, False, False, ("Ready", None)),
        (FROZEN, False, False, ("Retry", MAX_RETRY_S)),
        (closed(NOW + 59_500), False, False, ("Retry", 60)),
        (closed(NOW - 1), False, False, ("Retry", 1)),
        (closed(NOW + 2 * HOUR_MS), False, False, ("Retry", MAX_RETRY_S)),
        (None, False, False, ("Pending", None)),
        (FROZEN, True, True, ("Ready", None)),
        (FROZEN, True, False, ("Pending", None)),
    ],
)
def test_the_check_follows_the_standing(
    standing: OfferStanding | None,
    settled: bool,
    is_admitted: bool,
    expected: tuple[str, int | None],
) -> None:
    bound = {ATTEMPT} if settled else set()
    state, _, seconds = decide_hold(ATTEMPT, standing, bound, NOW, is_admitted=is_admitted)
    assert (state, seconds) == expected


def test_work_of_others_passes() -> None:
    assert decide_hold(None, None, set(), NOW, is_admitted=False)[::2] == ("Ready", None)
