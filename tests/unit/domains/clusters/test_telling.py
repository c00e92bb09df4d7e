"""Why a cluster takes no work, in one sentence for each of its states."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.domains.clusters.rules import ClusterState
from gpuplane.domains.clusters.service import describe_closed, describe_silence
from tests.unit.domains.clusters.test_contact import a_cluster

SILENT = "Cluster east has not answered since 1970-01-01T00:00:05.000Z."


@pytest.mark.parametrize(
    ("state", "facts", "told"),
    [
        (ClusterState.AVAILABLE, {}, ""),
        (ClusterState.REGISTERING, {}, "Cluster east is still being registered."),
        (ClusterState.NOT_AVAILABLE, {"not_available_since": 5_000}, SILENT),
        (ClusterState.ERROR, {"not_available_since": 5_000}, SILENT),
        (ClusterState.ERROR, {}, "Cluster east could not be registered."),
        (ClusterState.DRAINING, {}, "Cluster east is being drained and takes no new work."),
        (ClusterState.DELETING, {}, "Cluster east is being deleted and takes no work any more."),
    ],
)
def test_a_cluster_that_takes_no_work_says_why(
    state: ClusterState, facts: dict[str, Any], told: str
) -> None:
    assert describe_closed(a_cluster(state, **facts)) == told


def test_only_a_cluster_that_does_not_answer_is_silent() -> None:
    assert describe_silence(a_cluster()) == ""
    assert describe_silence(a_cluster(ClusterState.ERROR, not_available_since=5_000)) == SILENT
