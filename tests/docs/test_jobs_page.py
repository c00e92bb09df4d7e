"""The page of what a job sees, against jobs that really run."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import msgspec

from gpuplane.api.oidc import GroupGrant, OidcIssuer
from gpuplane.backends.local import environments
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from tests.docs.pages import ROOT, blocks_of
from tests.integration.cli.conftest import CommandLine

PAGE = ROOT / "docs" / "reference" / "jobs.md"
TEXT = PAGE.read_text(encoding="utf-8")
OIDC = ROOT / "docs" / "reference" / "oidc.md"
SHELL_MADE = {"PWD", "SHLVL", "_", "OLDPWD", "LC_CTYPE"}
"""Names that a shell or Python adds by itself."""


def names_in_source() -> set[str]:
    """Return every environment name that the local backend's module writes as a key."""
    tree = ast.parse(Path(environments.__file__).read_text(encoding="utf-8"))
    keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
    keys += [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    texts = {key.value for key in keys if isinstance(key, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and text.isupper()}


def test_every_name_that_a_job_is_given_is_on_the_page() -> None:
    names = names_in_source()
    assert "GPUPLANE_OUTPUTS" in names
    assert {name for name in names if f"`{name}`" not in TEXT} == set()


def test_a_job_finds_nothing_in_its_environment_that_the_page_does_not_name(
    cli: CommandLine,
) -> None:
    script = "import os; print(*os.environ, sep='\\n')"
    words = ["--mount", "name:/data", "--checkpoint", "--seed", "1", "-e", "OWN=1"]
    done = cli.ok("run", "-q", *words, "--", sys.executable, "-c", script)
    inherited = set(LocalSettings().inherited_env)
    found = set(done.out.split()) - SHELL_MADE - inherited - {"OWN"}
    assert {"GPUPLANE_MOUNT_NAME", "GPUPLANE_CHECKPOINT_DIR", "GPUPLANE_SEED"} <= found
    assert {name for name in found if f"`{name}`" not in TEXT} == set()


def test_the_job_of_the_page_reports_progress_checkpoint_and_outputs(cli: CommandLine) -> None:
    [script] = [block.text for block in blocks_of(PAGE) if block.language == "python"]
    cli.ok("run", "-q", "-n", "reports", "--", sys.executable, "-c", script)
    job = cli.job("reports")
    assert job["progress"] == 0.5
    assert job["last_checkpoint"] == "/checkpoints/step-100"
    assert job["outputs"] == {"accuracy": 0.9}


def test_every_status_and_condition_is_on_the_page() -> None:
    words = [*JobStatus, *filter(None, Condition)]
    assert [word for word in words if f"`{word}`" not in TEXT] == []


def test_the_issuers_of_the_page_are_read_and_every_field_is_explained() -> None:
    [block] = [block for block in blocks_of(OIDC) if block.language == "json"]
    [issuer] = msgspec.json.decode(block.text, type=tuple[OidcIssuer, ...])
    assert len(issuer.group_grants) == 3
    fields = {*OidcIssuer.__dataclass_fields__, *GroupGrant.__dataclass_fields__} - {"group"}
    text = OIDC.read_text(encoding="utf-8")
    assert {field for field in fields if f"`{field}`" not in text} == set()
