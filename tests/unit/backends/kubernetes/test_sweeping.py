"""What is left over and what is not: orphans, and claims that nobody needs any more."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from gpuplane.backends.kubernetes.names import DISPATCHED
from gpuplane.backends.kubernetes.records import FORGOTTEN, NEVER, Outcome, Record
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.shapes import Condition
from gpuplane.backends.kubernetes.sweeping import (
    DAY_MS,
    UNUSED_SINCE,
    WITHDRAWN,
    find_orphans,
    find_unread,
    find_withdrawn,
    is_kept,
    is_overdue,
    plan_claims,
)
from gpuplane.core.reasons import Word
from gpuplane.kube.kueue.keeping import ARCHIVED
from gpuplane.loops.offers import WITHDRAW_REASON
from tests.unit.backends.kubernetes.builders import ID, START, START_MS, a_main, a_record

JOB = str(uuid.UUID(int=5))
NOW = START_MS + 3_600_000
KEY = ("tenant-t", "checkpoints-5", "c")


def a_claim(since: int | None = None, job: str = JOB) -> dict[str, Any]:
    """Return a claim of a job, unused since an instant."""
    return {
        "metadata": {
            "namespace": "tenant-t",
            "name": "checkpoints-5",
            "uid": "c",
            "labels": {"gpuplane.io/job-id": job} if job else {},
            "annotations": {} if since is None else {UNUSED_SINCE: str(since)},
        }
    }


def of_job(**changes: Any) -> Record:
    """Return the record of an attempt of the job."""
    return a_record(job_id=JOB, **changes)


def over(reason: str = "") -> Record:
    """Return the record of an attempt that is over, evicted for a reason if one is given."""
    return of_job(fate=NEVER, evict_reason=reason)


def test_a_workload_without_a_record_is_an_orphan_once_it_is_old() -> None:
    main = a_main()
    main.metadata.creation_timestamp = START
    assert find_orphans([main], {}, NOW, 600) == [main]
    assert find_orphans([main], {}, START_MS + 599_000, 600) == []
    assert find_orphans([main], {ID: a_record()}, NOW, 600) == []


def test_a_workload_that_names_no_attempt_is_left_alone() -> None:
    main = a_main()
    main.metadata.creation_timestamp = START
    main.metadata.labels = {}
    assert find_orphans([main], {}, NOW, 600) == []


def test_what_was_dispatched_and_is_over_is_kept_until_it_was_read_or_nobody_will() -> None:
    main = a_main()
    main.metadata.creation_timestamp = START
    main.metadata.labels |= {DISPATCHED: "hub"}
    main.status.conditions = [Condition(type="Failed", status="True")]
    assert is_kept(main)
    assert find_unread([main], {}, NOW, 600) == [main]
    assert find_unread([main], {ID: a_record()}, NOW, 600) == []  # somebody will
    main.metadata.annotations |= {ARCHIVED: "true"}
    assert not is_kept(main)
    assert find_unread([main], {}, NOW, 600) == []
    main.metadata.annotations.clear()
    main.status.conditions = []
    assert not is_kept(main)  # its manager may end it at any time


def test_a_claim_is_needed_while_an_attempt_of_its_job_is_open() -> None:
    plan = plan_claims([a_claim()], [of_job()], NOW, 7)
    assert (plan.mark, plan.unmark, plan.delete) == ((), (), ())


def test_a_claim_that_nobody_needs_is_marked_first_and_deleted_after_its_days() -> None:
    assert plan_claims([a_claim()], [over()], NOW, 7).mark == (KEY,)
    young, old = NOW - 7 * DAY_MS + 1, NOW - 7 * DAY_MS
    assert plan_claims([a_claim(young)], [over()], NOW, 7).delete == ()
    assert plan_claims([a_claim(old)], [], NOW, 7).delete == (KEY,)


@pytest.mark.parametrize("text", ["²", "1" * 5_000, "-1", "soon"])
def test_a_claim_marked_with_what_is_no_instant_is_marked_anew(text: str) -> None:
    claim = a_claim()
    claim["metadata"]["annotations"] = {UNUSED_SINCE: text}
    plan = plan_claims([claim], [over()], NOW, 7)
    assert (plan.mark, plan.delete) == ((KEY,), ())


def test_a_claim_that_is_needed_again_is_no_longer_marked() -> None:
    assert plan_claims([a_claim(1)], [of_job()], NOW, 7).unmark == (KEY,)


def test_a_job_that_comes_back_keeps_its_checkpoints_however_late() -> None:
    plan = plan_claims([a_claim(1)], [over(str(Word.SUSPENDED))], NOW, 7)
    assert (plan.unmark, plan.delete) == ((KEY,), ())


def test_a_forgotten_attempt_needs_nothing() -> None:
    gone = msgspec.structs.replace(over(str(Word.SUSPENDED)), fate=FORGOTTEN)
    assert plan_claims([a_claim()], [gone], NOW, 7).mark == (KEY,)


def test_the_volumes_of_a_tenant_are_never_swept() -> None:
    plan = plan_claims([a_claim(1, job="")], [], NOW, 7)
    assert (plan.mark, plan.unmark, plan.delete) == ((), (), ())


def test_a_withdrawn_offer_is_forgotten_once_it_is_old_however_far_it_had_come() -> None:
    assert WITHDRAWN == WITHDRAW_REASON
    unstarted = over(WITHDRAWN)
    started = of_job(evict_reason=WITHDRAWN, outcomes={"0": Outcome("exited", WITHDRAWN, 30)})
    for record, since in ((unstarted, 20), (started, 30)):
        assert find_withdrawn([record], since + 7_001, 7) == [record]
        assert find_withdrawn([record], since + 7_000, 7) == []


def test_what_never_started_is_forgotten_whatever_forbade_it() -> None:
    record = over(str(Word.CANCELLED))
    assert find_withdrawn([record], NOW, 7) == [record]


def test_what_runs_comes_back_or_has_output_that_is_kept_is_not_forgotten_by_a_sweep() -> None:
    ended = {"0": Outcome("exited", str(Word.CANCELLED), 30)}
    runs, stops = of_job(), of_job(evict_reason=WITHDRAWN)
    cancelled = of_job(evict_reason=str(Word.CANCELLED), outcomes=ended)
    forgotten = of_job(fate=FORGOTTEN)
    kept = [runs, stops, cancelled, forgotten, over(str(Word.SUSPENDED))]
    assert find_withdrawn(kept, NOW, 7) == []


@pytest.mark.parametrize(
    ("reason", "debug", "kept_s"),
    [
        (Word.COMPLETED, False, 3_600),
        (Word.COMPLETED, True, 7 * 86_400),
        (Word.NON_ZERO_EXIT, False, 86_400),
        (Word.NON_ZERO_EXIT, True, 7 * 86_400),
    ],
)
def test_pods_are_kept_by_how_they_ended_and_whether_somebody_wants_to_look(
    reason: Word, debug: bool, kept_s: int
) -> None:
    ends = {"0": Outcome("exited", str(reason), NOW)}
    record = a_record(outcomes=ends, keeps_longer=debug)
    last = NOW + kept_s * 1000
    settings = KubernetesSettings()
    assert not is_overdue(record, settings, last, has_workload=True)
    assert is_overdue(record, settings, last + 1, has_workload=True)
    assert not is_overdue(record, settings, last + 1, has_workload=False)


def test_what_was_evicted_goes_at_once_and_a_service_with_it() -> None:
    ends = {"0": Outcome("exited", "Cancelled", NOW)}
    evicted = a_record(outcomes=ends, evict_reason="Cancelled", keeps_longer=True)
    lasting = a_record(kind="Deployment", outcomes=ends)
    for record in (evicted, lasting):
        assert is_overdue(record, KubernetesSettings(), NOW, has_workload=True)


def test_what_another_cluster_sent_is_never_swept_but_by_it() -> None:
    main = a_main()
    main.metadata.creation_timestamp = START
    main.metadata.labels["kueue.x-k8s.io/multikueue-origin"] = "manager"
    assert find_orphans([main], {}, NOW, 600) == []
    evicted = a_record(evict_reason="Cancelled", outcomes={"0": Outcome("exited", "x", START_MS)})
    assert is_overdue(evicted, KubernetesSettings(), NOW, has_workload=True)
    sent = msgspec.structs.replace(evicted, is_dispatched=True)
    assert not is_overdue(sent, KubernetesSettings(), NOW, has_workload=True)
