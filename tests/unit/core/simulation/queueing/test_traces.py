"""Traces are read by their columns, and what cannot be meant is named to the line and column."""

from __future__ import annotations

import pytest

from gpuplane.core.simulation.queueing.traces import (
    Trace,
    TraceError,
    TraceFilter,
    WindowError,
    read_trace,
)

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.9,8,23615.2,6214e9
2017-10-01 00:00:00,10.0,2,20.0,11cb48
"""


def read(text: str, **kept: object) -> Trace:
    return read_trace(text.splitlines(), TraceFilter(**kept))  # type: ignore[arg-type]  # few words


def test_the_columns_of_the_format_are_read() -> None:
    trace = read("job_id,arrival_s,duration_s,gpu_count\na,5,60,8\nb,0,30,1\n")
    assert trace.names == ("b", "a")
    assert trace.arrival_ms == (0, 5_000)
    assert trace.duration_ms == (30_000, 60_000)
    assert trace.gpus == (1, 8)
    assert trace.lines == (3, 2)
    assert trace.estimate_ms == ()


def test_the_other_names_of_the_columns_are_known_in_any_order() -> None:
    trace = read("num_gpus,user,service_sec,arrival_s,job_id\n4,u,90,7,x\n")
    assert (trace.names, trace.arrival_ms, trace.duration_ms, trace.gpus) == (
        ("x",), (7_000,), (90_000,), (4,),
    )  # fmt: skip
    assert trace.gpus_column == "num_gpus"


def test_jobs_of_one_instant_stand_in_the_order_of_the_file() -> None:
    trace = read("job_id,arrival_s,duration_s,gpu_count\na,1.7,9,1\nb,1.2,9,1\nc,0,9,1\n")
    assert trace.names == ("c", "a", "b")
    assert trace.arrival_ms == (0, 1_000, 1_000)


def test_times_are_cut_to_whole_ticks() -> None:
    text = ["arrival_s,duration_s,gpu_count", "0.999,12.345,1.0"]
    assert read_trace(text).duration_ms == (12_000,)
    assert read_trace(text, tick_ms=100).duration_ms == (12_300,)
    assert read_trace(text, tick_ms=1).arrival_ms == (999,)


def test_timestamps_count_from_the_first_job_or_from_the_window() -> None:
    assert read(PHILLY).arrival_ms == (0, 713_583_000, 716_515_000)
    trace = read(PHILLY, since="2017-10-09", until="2017-10-09T07:00:00")
    assert trace.arrival_ms == (22_383_000,)
    assert trace.duration_ms == (2_951_000,)


def test_a_zone_in_a_timestamp_counts() -> None:
    text = "timestamp,duration,num_gpus\n2017-10-09 02:00:00+02:00,1,1\n2017-10-09 00:00:01,1,1\n"
    assert read(text).arrival_ms == (0, 1_000)


def test_only_the_wanted_clusters_count() -> None:
    assert read(PHILLY, clusters=frozenset({"11cb48"})).gpus == (2, 1)
    assert read(PHILLY, clusters=frozenset({"11cb48", "6214e9"})).gpus == (2, 8, 1)


def test_a_window_of_seconds_moves_the_origin() -> None:
    text = "arrival_s,duration_s,gpu_count\n5,1,1\n10,1,1\n20,1,1\n"
    assert read(text, since="10", until="20").arrival_ms == (0,)


def test_estimates_are_read_where_there_are_some() -> None:
    assert read("arrival_s,duration_s,gpu_count,estimate_s\n0,5,1,9\n").estimate_ms == (9_000,)


def test_blank_lines_and_a_byte_order_mark_mean_nothing() -> None:
    trace = read("\ufeffarrival_s,duration_s,gpu_count\n\n0,5,1\n , ,\n1,5,1\n\n")
    assert trace.lines == (3, 5)
    assert trace.names == ("3", "5")


def test_a_quoted_value_may_hold_a_comma_and_a_line_end() -> None:
    lines = ["job_id,arrival_s,duration_s,gpu_count\n", '"a,\n', 'b",0,5,1\n', "c,x,5,1\n"]
    with pytest.raises(TraceError, match="line 4, column arrival_s"):
        read_trace(lines)


def test_a_header_alone_is_a_trace_of_no_jobs() -> None:
    assert len(read("arrival_s,duration_s,gpu_count\n")) == 0


HEADER = "job_id,arrival_s,duration_s,gpu_count\na,0,5,1\n"
SECONDS = "expected seconds from 0 to 1e12, such as 90 or 12.5"
COUNT = "expected a whole number of GPUs from 1 to 1e12"
INSTANT = "expected an instant such as 2017-10-09 07:01:55"
MISSING = "it is missing: the header has"


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("", "line 1", "the file is empty; expected a line with the names of the columns"),
        (
            "job_id,duration_s,gpu_count\n",
            "line 1, column arrival_s",
            f"{MISSING} job_id, duration_s, gpu_count; expected arrival_s or timestamp",
        ),
        (
            "arrival_s,gpu_count\n",
            "line 1, column duration_s",
            f"{MISSING} arrival_s, gpu_count; expected duration_s or service_sec or duration",
        ),
        (
            "arrival_s,duration_s,gpu_count,gpu_count\n",
            "line 1, column gpu_count",
            "the header names it twice; expected each column once",
        ),
        (f"{HEADER}b,soon,5,1\n", "line 3, column arrival_s", f"'soon' stands there; {SECONDS}"),
        (f"{HEADER}b,1,-5,1\n", "line 3, column duration_s", f"'-5' stands there; {SECONDS}"),
        (f"{HEADER}b,1,nan,1\n", "line 3, column duration_s", f"'nan' stands there; {SECONDS}"),
        (f"{HEADER}b,1,,1\n", "line 3, column duration_s", f"nothing stands there; {SECONDS}"),
        (f"{HEADER}b,1,5,1.5\n", "line 3, column gpu_count", f"'1.5' stands there; {COUNT}"),
        (f"{HEADER}b,1,5,0\n", "line 3, column gpu_count", f"'0' stands there; {COUNT}"),
        (
            f"{HEADER}b,1,5\n",
            "line 3",
            "3 values where the header has 4 names; expected as many as there are columns",
        ),
        (
            "timestamp,duration,num_gpus\nyesterday,5,1\n",
            "line 2, column timestamp",
            f"'yesterday' stands there; {INSTANT}",
        ),
        (
            "arrival_s,duration_s,gpu_count,estimate_s\n1,2,3,?\n",
            "line 2, column estimate_s",
            f"'?' stands there; {SECONDS}",
        ),
        (
            f'{HEADER}"b,1,5,1\n',
            "line 3",
            "unexpected end of data; expected comma-separated values",
        ),
    ],
)
def test_what_cannot_be_meant_is_named(text: str, place: str, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(text)
    assert str(caught.value) == f"{place}: {said}"


def test_clusters_need_their_column() -> None:
    with pytest.raises(TraceError, match="there is no column 'cluster'"):
        read(HEADER, clusters=frozenset({"a"}))


def test_a_bound_is_written_as_the_file_writes_instants() -> None:
    with pytest.raises(WindowError, match="since '60': expected an instant such as"):
        read(PHILLY, since="60")
    with pytest.raises(WindowError, match="until '2017-10-09': expected seconds"):
        read(HEADER, until="2017-10-09")
