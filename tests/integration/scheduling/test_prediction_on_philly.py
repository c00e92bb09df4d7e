"""Durations learned online on a real trace, against the naive predictor."""

from __future__ import annotations

import pytest

from benchmarks.philly import compare, read_trace, trace_file

JOBS = 12_000


def test_half_the_error_of_the_naive_median_and_a_p90_that_holds_nine_times_in_ten() -> None:
    path = trace_file()
    if not path.exists():
        pytest.skip("the Philly trace is not here; GPUPLANE_DATA names its folder")
    found = compare(read_trace(path, JOBS))
    assert len(found.ours.errors) > 0.95 * JOBS
    assert found.ours.median_error() < found.naive.median_error() / 2
    assert abs(found.ours.coverage() - 0.9) < 0.04
    assert found.ours.coverage() > found.naive.coverage()
