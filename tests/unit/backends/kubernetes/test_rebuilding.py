"""What is read of a cluster whose database was lost: only workloads that their records know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuplane.backends.kubernetes.manifests.workloads import encode_manifest
from gpuplane.backends.kubernetes.names import ATTEMPT_ID, JOB_ID, MANIFEST, TENANT_ID
from gpuplane.backends.kubernetes.rebuilding import read_attempt
from gpuplane.core.workloads import DeploymentType, JobSpec, JobType
from gpuplane.kit.ids import new_id
from tests.contract.builders import a_plan
from tests.unit.backends.kubernetes.builders import ID, a_record


def a_job(**metadata: Any) -> dict[str, Any]:
    """Return the Job of the attempt as a cluster has it."""
    labels = {ATTEMPT_ID: str(ID), JOB_ID: str(new_id()), TENANT_ID: str(new_id())}
    told = {
        MANIFEST: encode_manifest(
            replace(a_plan(), spec=JobSpec("j", JobType.BATCH, DeploymentType.DOCKER))
        )
    }
    own = {"name": "j", "namespace": "tenant-t", "labels": labels, "annotations": told}
    return {"metadata": {**own, **metadata}}


def test_a_workload_where_its_record_says_is_found() -> None:
    found = read_attempt(a_job(), a_record())
    assert found is not None
    assert (found.attempt_id, found.tenant_name) == (ID, "default")


@pytest.mark.parametrize(
    "metadata",
    [
        {"namespace": "tenant-x"},
        {"name": "another"},
        {"annotations": {MANIFEST: '{"a":' * 5_000}},
        {"annotations": {}},
        {"annotations": None},
    ],
)
def test_a_workload_elsewhere_or_that_cannot_be_read_is_none(metadata: dict[str, Any]) -> None:
    assert read_attempt(a_job(**metadata), a_record()) is None
