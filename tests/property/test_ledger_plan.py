"""The pure plan of the ledger: any changes at any instants, and the rows still tile."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.capacity import DeviceState
from gpuplane.core.ids import GpuId, JobId, ProjectId, TenantId
from gpuplane.domains.usage.rules import (
    DAY_MS,
    DeviceChange,
    LedgerPlan,
    NewInterval,
    OpenInterval,
    Share,
    end_interval,
    plan_changes,
    split_days,
)

DEVICES = [GpuId("GPU-a"), GpuId("GPU-b")]
BEGIN = 1_000_000


def a_share(number: int) -> Share:
    who = UUID(int=number)
    return Share(who, TenantId(who), ProjectId(who), 100, JobId(who))


class Ledger:
    """Intervals in memory: executes plans as the repository does, and nothing else."""

    def __init__(self) -> None:
        self.rows: dict[UUID, NewInterval] = {}
        self.ends: dict[UUID, int] = {}
        self.made = 0

    def run(self, plan: LedgerPlan) -> None:
        for interval_id in plan.dropped:
            del self.rows[interval_id]
        for interval_id, at in plan.ended:
            assert interval_id not in self.ends
            self.ends[interval_id] = at
        for new in plan.begun:
            self.made += 1
            self.rows[UUID(int=self.made)] = new
            if new.to_at is not None:
                self.ends[UUID(int=self.made)] = new.to_at

    def open(self) -> dict[GpuId, OpenInterval]:
        return {
            row.gpu_id: OpenInterval(key, row.gpu_id, row.from_at, row.state, row.shares)
            for key, row in self.rows.items()
            if key not in self.ends
        }

    def ended(self) -> dict[GpuId, int]:
        found: dict[GpuId, int] = {}
        for key, at in self.ends.items():
            gpu_id = self.rows[key].gpu_id
            found[gpu_id] = max(at, found.get(gpu_id, at))
        return found

    def of(self, gpu_id: GpuId) -> list[tuple[int, int | None]]:
        return sorted(
            (
                (row.from_at, self.ends.get(key))
                for key, row in self.rows.items()
                if row.gpu_id == gpu_id
            ),
            key=lambda pair: pair[0],
        )


steps = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 60_000, 3_600_000, -3_600_000, -1]),
        st.sampled_from(DEVICES),
        st.one_of(st.none(), st.sampled_from(list(DeviceState))),
        st.lists(st.integers(1, 4), unique=True, max_size=3),
    ),
    max_size=40,
)


@given(steps)
def test_any_changes_at_any_instants_leave_rows_that_tile(
    history: list[tuple[int, GpuId, DeviceState | None, list[int]]],
) -> None:
    ledger, now = Ledger(), BEGIN
    for tick, gpu_id, state, holders in history:
        now += tick
        current = ledger.open()
        if state is None:
            plan = LedgerPlan()
            if gpu_id in current:
                end_interval(plan, current[gpu_id], now)
        else:
            shares = tuple(a_share(number) for number in holders)
            change = DeviceChange(gpu_id, state, shares)
            plan = plan_changes(current, ledger.ended(), [change], now)
        ledger.run(plan)
        for each in DEVICES:
            rows = ledger.of(each)
            assert all(to_at is None or to_at > from_at for from_at, to_at in rows)
            assert all(left[1] == right[0] for left, right in pairwise(rows))
        if state is not None:
            found = ledger.open()[gpu_id]
            assert (found.state, len(found.shares)) == (state, len(holders))


def test_a_change_that_changes_nothing_writes_nothing() -> None:
    ledger = Ledger()
    change = DeviceChange(DEVICES[0], DeviceState.BUSY, (a_share(2), a_share(1)))
    ledger.run(plan_changes({}, {}, [change], BEGIN))
    again = DeviceChange(DEVICES[0], DeviceState.BUSY, (a_share(1), a_share(2)))
    plan = plan_changes(ledger.open(), {}, [again], BEGIN + 5)
    assert (plan.ended, plan.dropped, plan.begun) == ([], [], [])


@given(start=st.integers(0, 10**12), length=st.integers(0, 40 * DAY_MS))
def test_days_tile_the_window_and_each_lies_within_one_day(start: int, length: int) -> None:
    days = split_days(start, start + length)
    assert sum(high - low for _, low, high in days) == length
    assert all(left[2] == right[1] for left, right in pairwise(days))
    assert all(low // DAY_MS == (high - 1) // DAY_MS for _, low, high in days)
    assert len({day for day, _, _ in days}) == len(days)
