"""Where charts of jobs may come from is said at submit, and what can never start is not retried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.kubernetes.chartplaces import find_own
from gpuplane.core.addresses import is_below_any
from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import ChartRequest
from gpuplane.domains.jobs.errors import BadJob
from gpuplane.domains.jobs.rules.endings import decide_after_failure
from gpuplane.domains.jobs.service import SubmitLimits
from gpuplane.domains.jobs.service.submitting import check_chart
from tests.unit.domains.jobs.builders import a_job

PLACE = "https://charts.example.com/stable"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (
            {"name": "web", "version": "1.0.0", "repo": "https://evil.example.com"},
            "spec.chart.repo",
        ),
        ({"name": "web", "version": "1.0.0", "repo": f"{PLACE}x"}, "spec.chart.repo"),
        ({"name": "oci://evil.example.com/web", "version": "1.0.0"}, "spec.chart.name"),
        ({"name": "web", "repo": PLACE}, "spec.chart.version"),
    ],
    ids=["elsewhere", "beside", "oci", "no version"],
)
def test_a_chart_from_where_none_may_come_is_refused_at_submit(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadJob) as refused:
        check_chart(ChartRequest(**fields), SubmitLimits(chart_sources=(PLACE,)))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("fields", "sources"),
    [
        ({"name": "web", "version": "1.0.0", "repo": PLACE}, (PLACE,)),
        ({"name": "./web"}, ()),
        ({"name": "web", "repo": "https://evil.example.com"}, None),
    ],
    ids=["below", "of the working directory", "not known here"],
)
def test_a_chart_that_may_be_used_or_is_judged_elsewhere_is_taken(
    fields: dict[str, Any], sources: tuple[str, ...] | None
) -> None:
    check_chart(ChartRequest(**fields), SubmitLimits(chart_sources=sources), has_workspace=True)


@pytest.mark.parametrize(
    ("address", "is_below"),
    [
        (PLACE, True),
        (f"{PLACE}/team", True),
        (f"{PLACE}/", True),
        (f"{PLACE}-other", False),
        ("https://charts.example.com", False),
    ],
)
def test_an_address_lies_below_a_place_only_as_a_whole(address: str, is_below: bool) -> None:
    assert is_below_any(address, ["", f"{PLACE}/"]) is is_below


@pytest.mark.parametrize(
    ("fields", "limits", "field", "fix"),
    [
        ({"name": "web", "version": "2.0.0"}, {}, "spec.chart.name", "GPUPLANE_CLUSTERS_CHARTS"),
        ({"name": "./web"}, {}, "spec.workspace_digest", "--workdir"),
        ({"name": "web"}, {"has_helm": False}, "deployment_type", "GPUPLANE_CLUSTERS_HELM"),
    ],
    ids=["unknown", "no working directory", "no helm"],
)
def test_a_chart_that_can_be_nowhere_is_refused_at_submit(
    fields: dict[str, Any], limits: dict[str, Any], field: str, fix: str
) -> None:
    known = SubmitLimits(chart_sources=(), has_chart=lambda *_: False, **limits)
    with pytest.raises(BadJob) as refused:
        check_chart(ChartRequest(**fields), known)
    assert refused.value.field == field
    assert fix in refused.value.fix


def test_charts_of_the_server_are_found_by_name_and_version_and_nothing_outside_its_folder(
    tmp_path: Path,
) -> None:
    charts = tmp_path / "charts"
    for folder in (charts / "web", tmp_path / "other"):
        folder.mkdir(parents=True)
        (folder / "Chart.yaml").write_text("name: web\n")
    (charts / "web-1.0.0.tgz").write_text("packed")
    assert find_own(str(charts), "web", "") == charts / "web"
    assert find_own(str(charts), "web", "1.0.0") == charts / "web-1.0.0.tgz"
    assert find_own(str(charts), "web", "1.0.1") is None
    assert find_own(str(charts), "../other", "") is None
    assert find_own("", "web", "") is None


def test_a_start_that_is_refused_is_not_tried_again_and_one_that_failed_is() -> None:
    job = a_job()
    assert job.spec.retry.max_retries > 0
    refused = decide_after_failure(job, str(Word.START_REFUSED), "No such chart.", 0.0, 1)
    assert (refused.status, refused.due_at) == (JobStatus.FAILED, None)
    assert "not tried again" in refused.message
    failed = decide_after_failure(job, str(Word.START_FAILED), "Helm: time-out.", 0.0, 1)
    assert failed.status is JobStatus.PENDING
