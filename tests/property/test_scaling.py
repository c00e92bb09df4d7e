"""However a service is scaled, its ranks, its use of quota and what it waits for stay right."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.ids import AttemptId, NodeId, ReplicaId
from gpuplane.core.reasons import Word
from gpuplane.domains.jobs.rules import Attempt, Replica
from gpuplane.domains.jobs.rules.scaling import (
    choose_leaving,
    count_missing,
    growth_id,
    has_left,
    list_staying,
    number_next,
    sum_usage,
)
from tests.examples import examples

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), st.integers(0, 5)),
        st.tuples(st.just("grow"), st.integers(0, 2)),
        st.tuples(st.just("cluster takes"), st.integers(0, 5)),
        st.tuples(st.just("ends"), st.integers(0, 5)),
    ),
    max_size=40,
)


def an_attempt() -> Attempt:
    """Return a running attempt of a service with one replica."""
    blank = Attempt(
        id=AttemptId(UUID(int=1)), job_id=None, number=1, epoch=1, cluster_id=None,  # type: ignore[arg-type]  # not looked at
        state="running", stop_intent=None, stop_reason="", stop_message="", stop_deadline=None,
        evict_sent_at=None, grace_s=1, admitted_at=0, ensured_at=0, started_at=0, ended_at=None,
        exit_code=None, signal=None, exit_reason="", exit_message="", lost_gpu_ms=None,
        cluster_queue="q", local_queue="c/q", quota_usage=(), explanation=None, forgotten=False,
        version=1, replicas_wanted=1,
    )  # fmt: skip
    return _added(blank, 0)


def _added(attempt: Attempt, flavor: int) -> Attempt:
    rank = attempt.next_rank
    usage = ((f"flavor-{flavor}", "nvidia.com/gpu", 1000),)
    new = Replica(
        id=ReplicaId(UUID(int=100 + rank)), attempt_id=attempt.id, rank=rank,
        node_id=NodeId(UUID(int=7)), node_name="n", gpu_ids=(), gpu_milli=1000, mig_device=None,
        phase="running", ready=True, started_at=0, ended_at=None, exit_code=None, signal=None,
        reason="", message="", url=None, restart_count=0, quota_usage=usage,
    )  # fmt: skip
    replicas = (*attempt.replicas, new)
    return replace(
        attempt, replicas=replicas, next_rank=rank + 1, quota_usage=sum_usage(replicas)
    )  # fmt: skip - the call reads as one line


def _moved(attempt: Attempt, step: str, number: int) -> Attempt:
    """Return the attempt after one step of its history, as the services make them."""
    replicas = attempt.replicas
    if step == "scale":
        ids = {each.id for each in choose_leaving(attempt, number)}
        left = tuple(replace(r, leaving_at=5) if r.id in ids else r for r in replicas)
        return replace(attempt, replicas_wanted=number, replicas=left)
    if step == "grow":
        return _added(attempt, number) if count_missing(attempt) else attempt
    if step == "cluster takes":
        taken = tuple(
            replace(r, phase="exited", reason=str(Word.SCALED_DOWN)) if i == number else r
            for i, r in enumerate(replicas)
        )
    else:  # one that was asked to leave has ended
        taken = tuple(
            replace(r, phase="exited") if i == number and r.leaving_at else r
            for i, r in enumerate(replicas)
        )
    kept = tuple(each for each in taken if not has_left(attempt, each))
    return replace(attempt, replicas=kept, quota_usage=sum_usage(kept))


@examples(200)
@given(STEPS)
def test_any_history_of_growing_and_shrinking_keeps_the_books(
    steps: list[tuple[str, int]],
) -> None:
    attempt, used = an_attempt(), {0}
    for step, number in steps:
        before, attempt = attempt, _moved(attempt, step, number)
        fresh = {each.rank for each in attempt.replicas} - {r.rank for r in before.replicas}
        assert not fresh & used, "no rank is given twice"
        used |= fresh
        wanted = attempt.replicas_wanted or 0
        assert len(list_staying(attempt)) <= max(wanted, len(list_staying(before)))
        if step == "scale":
            assert len(list_staying(attempt)) <= wanted
        assert sum(n for _, _, n in attempt.quota_usage) == 1000 * len(attempt.replicas)
        assert count_missing(attempt) == max(0, wanted - len(list_staying(attempt)))
        assert growth_id(attempt) != growth_id(before) or not fresh
        assert count_missing(replace(attempt, state="stopping")) == 0
        assert number_next(replace(attempt, scale_number=9), 3) == 10
