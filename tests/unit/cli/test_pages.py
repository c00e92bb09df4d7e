"""The reference pages say what the code does: commands, exit codes, fields, snippets."""

from __future__ import annotations

import re
from pathlib import Path

from gpuplane.cli.commands.apply import KINDS
from gpuplane.cli.errors import Exit
from gpuplane.cli.kinds.jobs import RUN
from gpuplane.cli.manifests import read_documents
from gpuplane.cli.table import COMMANDS
from gpuplane.domains.jobs.schemas import JobIn
from gpuplane.domains.jobs.schemas.parts import ExecutionBody
from gpuplane.entry.main import SERVER_COMMANDS

PAGES = Path(__file__).resolve().parents[3] / "docs" / "reference"
CLI = (PAGES / "cli.md").read_text(encoding="utf-8")
MANIFESTS = (PAGES / "manifests.md").read_text(encoding="utf-8")
ELSEWHERE = {"name", "labels", "project", "tenant_id", "project_id", "cluster_id", "spec",
             "idempotency_key"}  # fmt: skip
"""Fields of a job that a manifest writes elsewhere than in `spec`, or not at all."""


def words_of(page: str, heading: str) -> set[str]:
    """Return every word in code type within the table under a heading cell."""
    table = page.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return set(re.findall(r"`([^`]+)`", table))


def test_every_command_is_on_the_page() -> None:
    told = " ".join(words_of(CLI, "command")).split()
    assert {*COMMANDS, *SERVER_COMMANDS} - set(told) - {"retry", "suspend"} == set()
    assert "`retry`, `suspend`, " in CLI.replace("`cancel`, ", "")


def test_every_exit_code_is_on_the_page_with_its_meaning() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", CLI, re.M)
    assert {int(code) for code, _ in rows} == {int(each) for each in Exit}


def test_every_field_of_a_job_is_on_the_page() -> None:
    told = words_of(MANIFESTS, "field of `spec`")
    assert set(JobIn.model_fields) - ELSEWHERE - told == set()
    assert RUN in told
    run = words_of(MANIFESTS, "field of `run`")
    assert set(ExecutionBody.model_fields) - run == set()


def test_every_group_of_a_job_names_its_fields() -> None:
    told = words_of(MANIFESTS, "field of `spec`") | words_of(MANIFESTS, "field of `run`")
    for group in ("resources", "replicas", "placement", "retry"):
        inner = set(type(JobIn.model_fields[group].default).model_fields)
        assert inner - told == set(), group


def test_every_kind_is_on_the_page_in_the_order_in_which_it_is_made() -> None:
    kinds = re.findall(r"^\| `([A-Z]\w+)` \|", MANIFESTS, re.M)
    assert kinds == list(KINDS)


def test_every_manifest_on_the_page_can_be_read() -> None:
    snippets = re.findall(r"```yaml\n(.*?)```", MANIFESTS, re.S)
    found = [
        document
        for text in snippets
        for document in read_documents(text, "page", Path(), list(KINDS))
    ]
    assert {document.kind for document in found} >= {"Job", "Tenant", "Price", "ClusterQueue"}
    for document in found:
        if document.kind == "Job":
            spec = {
                name: each for name, each in document.spec.items() if name not in ("run", "after")
            }
            JobIn.model_validate({"name": document.name, **spec, "spec": document.spec["run"]})
