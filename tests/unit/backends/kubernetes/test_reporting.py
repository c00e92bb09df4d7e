"""Whom the reporter asks, and what it makes of what a job wrote."""

from __future__ import annotations

import pytest

from gpuplane.backends.interface import Phase
from gpuplane.backends.kubernetes.manifests.lastreports import MARK
from gpuplane.backends.kubernetes.reporting import Asked, plan_reads
from gpuplane.backends.kubernetes.reports import Report, read_report
from gpuplane.backends.kubernetes.views import ClusterView
from tests.unit.backends.kubernetes.builders import ID, a_main, a_pod, a_record, running


@pytest.mark.parametrize(
    ("progress", "checkpoints", "report"),
    [
        ("", "", Report()),
        ("0.1\n0.5\n", "/c/1\n", Report(0.5, "/c/1")),
        ('{"ratio": 1}\n0.', '{"path": "/c/2"}\n', Report(1.0, "/c/2")),
        ("2\n", "", Report(complaint="progress file: the ratio 2 is not between 0 and 1")),
        ("", "{}\n", Report(complaint="checkpoints file: the last line names no `path`")),
        (
            "1" + "0" * 4_000 + "\n",
            '{"path": "\\ud800"}\n',
            Report(
                complaint="progress file: the ratio 10000000000000000000 is not between 0 and 1; "
                "checkpoints file: `path` is no text that can be written"
            ),
        ),
    ],
)
def test_the_last_whole_line_of_each_file_is_the_report(
    progress: str, checkpoints: str, report: Report
) -> None:
    assert read_report(f"{progress}\n{MARK}\n{checkpoints}") == report


def test_those_that_wait_longest_are_asked_first_and_those_without_a_shell_never() -> None:
    asked = {
        (ID, 0, "a"): Asked(5.0),
        (ID, 1, "b"): Asked(3.0),
        (ID, 2, "c"): Asked(1.0, is_mute=True),
        (ID, 3, "d"): Asked(9.0),
    }
    assert plan_reads(asked, 6.0, 4) == [(ID, 1, "b"), (ID, 0, "a")]
    assert plan_reads(asked, 6.0, 1) == [(ID, 1, "b")]


def a_view() -> ClusterView:
    """Return a view in which two ranks run."""
    view = ClusterView()
    view.take_record(a_record(ranks=(0, 1)), 1)
    view.take_main(a_main())
    for rank in (0, 1):
        view.take_pod(a_pod(rank, state=running()))
    view.take_node("node-1", None)
    return view


def test_progress_of_one_rank_has_all_of_them_told_for_the_slowest_counts() -> None:
    view = a_view()
    cursor, _ = view.changed_since("")
    assert view.take_report(ID, 0, Report(0.4), 50)
    cursor, changed = view.changed_since(cursor)
    assert sorted((each.rank, each.progress_ratio) for each in changed) == [(0, 0.4), (1, None)]
    assert view.take_report(ID, 1, Report(0.2), 60)
    cursor, changed = view.changed_since(cursor)
    assert sorted((each.rank, each.progress_ratio) for each in changed) == [(0, 0.4), (1, 0.2)]
    assert not view.take_report(ID, 1, Report(0.2), 70)
    assert view.changed_since(cursor)[1] == []


def test_a_checkpoint_is_dated_by_when_it_was_first_read() -> None:
    view = a_view()
    view.take_report(ID, 0, Report(0.4, "/c/1"), 50)
    view.take_report(ID, 0, Report(0.5, "/c/1"), 60)
    seen = {each.rank: each for each in view.observe()}
    assert (seen[0].checkpoint, seen[0].checkpoint_at) == ("/c/1", 50)
    assert seen[0].phase in (Phase.RUNNING, Phase.UNREACHABLE)


def test_only_pods_that_run_are_asked() -> None:
    view = a_view()
    assert sorted(key[1] for key in view.reporting_pods()) == [0, 1]
    view.drop_pod(a_pod(0, state=running()))
    assert [key[1] for key in view.reporting_pods()] == [1]
    view.take_record(a_record(ranks=(0, 1), kind="Deployment"), 2)
    assert view.reporting_pods() == {}
