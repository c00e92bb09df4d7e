"""Work starts only where it ends inside its window and before a deadline that cancels it."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuplane.core.forecast.forecasting import forecast
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.windows import find_fitting_window
from gpuplane.core.workloads import TimeWindow, WindowEnd
from tests.builders import NOW, World, a_node, a_workload

BERLIN = "Europe/Berlin"
HOUR = 3600


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(BERLIN)).timestamp() * 1000)


def night(at_end: WindowEnd = WindowEnd.FINISH) -> TimeWindow:
    return TimeWindow(22 * 60, 6 * 60, BERLIN, at_end=at_end)


def word_at(now: int, **changes: Any) -> Word | None:
    world = World([a_node()], pending=[a_workload().having(queued_at=now, **changes).build()])
    waiting = decide(world.snapshot(), Policy(), now, 0).waiting
    return waiting[0].reason.word if waiting else None


@pytest.mark.parametrize("at_end", [WindowEnd.FINISH, WindowEnd.STOP])
@pytest.mark.parametrize(
    ("instant", "hours", "word"),
    [
        ("2025-06-10T22:00", 8, None),
        ("2025-06-11T02:00", 4, None),
        ("2025-06-11T02:01", 4, Word.WINDOW_TOO_SHORT),
        # No window is as long as that: waiting for one would be waiting for ever.
        ("2025-06-11T02:01", 9, None),
        ("2025-06-11T12:00", 4, Word.TIME_WINDOW),
    ],
)
def test_work_starts_where_it_ends_before_its_window_closes(
    at_end: WindowEnd, instant: str, hours: int, word: Word | None
) -> None:
    changes = {"window": night(at_end), "estimated_duration_s": hours * HOUR}
    assert word_at(at(instant), **changes) is word


def test_work_of_unknown_length_or_with_checkpoints_starts_whenever_the_window_is_open() -> None:
    late = at("2025-06-11T05:59")
    assert word_at(late, window=night()) is None
    kept = night(WindowEnd.CHECKPOINT)
    assert word_at(late, window=kept, estimated_duration_s=4 * HOUR) is None


def test_only_the_night_the_clock_goes_back_is_long_enough_for_nine_hours() -> None:
    found = find_fitting_window(night(), at("2025-10-20T12:00"), 9 * HOUR)
    assert found == (at("2025-10-25T22:00"), at("2025-10-26T06:00"))


def test_the_forecast_starts_such_work_when_the_next_window_opens() -> None:
    now = at("2025-06-11T05:00")
    job = a_workload().having(window=night(), estimated_duration_s=4 * HOUR, queued_at=now).build()
    world = World([a_node()], pending=[job])
    found = forecast(world.snapshot(), Policy(), now, 0)
    assert found.estimates[job.job_id].start == at("2025-06-11T22:00")


@pytest.mark.parametrize(
    ("left_s", "is_cancelled", "word"),
    [(600, True, None), (599, True, Word.DEADLINE), (599, False, None), (-1, False, None)],
)
def test_work_that_its_deadline_would_cancel_is_not_begun(
    left_s: int, is_cancelled: bool, word: Word | None
) -> None:
    deadline = NOW + left_s * 1000
    changes = {"deadline": deadline, "is_cancelled_at_deadline": is_cancelled}
    assert word_at(NOW, estimated_duration_s=600, **changes) is word


def test_a_deadline_means_nothing_for_work_of_unknown_length() -> None:
    assert word_at(NOW, deadline=NOW + 1, is_cancelled_at_deadline=True) is None
