"""The page about imports names every feature that the code has a table for."""

from __future__ import annotations

import re

import pytest

from gpuplane.core.imports.argo import fields
from gpuplane.core.imports.kfp import platforms
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "imports.md").read_text()
NAMED = set(re.findall(r"`([A-Za-z]+)`", PAGE))
TABLES = {
    "Kubernetes' additions": (platforms.LEFT_OUT, platforms.REFUSED),
    "workflows": (fields.WORKFLOW_LEFT_OUT, fields.WORKFLOW_REFUSED),
    "templates": (fields.TEMPLATE_LEFT_OUT, fields.TEMPLATE_REFUSED),
    "containers": (fields.CONTAINER_LEFT_OUT,),
}
PROBES = {"readinessProbe", "livenessProbe", "startupProbe", "name"}
"""Told as `probes`; a container's name is no feature."""


@pytest.mark.parametrize("what", TABLES)
def test_every_feature_of_the_tables_is_on_the_page(what: str) -> None:
    names = {name for table in TABLES[what] for name in table} - PROBES
    assert names
    assert sorted(names - NAMED) == []
