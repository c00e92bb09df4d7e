"""`gpuplane apply` among tenants: what another project owns is never taken for one's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.cli.conftest import CommandLine, Server
from tests.integration.cli.test_apply import JOB, actions, jobs_named, manifest


@pytest.fixture(scope="session")
def guilds(server: Server, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two tenants beside the admin's own, made once a server; one has a second project."""
    cli = CommandLine(server.home, tmp_path_factory.mktemp("guilds"))
    for name in ("smiths", "weavers"):
        cli.ok("tenants", "create", name, "--display-name", name)
    cli.ok("projects", "create", "loom", "--tenant", "weavers")


def placed(text: str, **where: str) -> str:
    words = "".join(f", {name}: {each}" for name, each in where.items())
    return text.replace("labels: {team: vision}", f"labels: {{team: vision}}{words}")


def held(cli: CommandLine, name: str) -> dict[tuple[str, str], tuple[str, int]]:
    return {
        (job["tenant"], job["project"]): (job["status"], job["gpu_count"])
        for job in jobs_named(cli, name)
    }


def is_going_on(status: str) -> bool:
    return status not in ("cancelled", "completed", "failed")


@pytest.mark.usefixtures("guilds")
def test_a_manifest_without_a_project_leaves_the_jobs_of_other_projects_alone(
    cli: CommandLine, tmp_path: Path
) -> None:
    theirs = JOB.format(name="shared", gpus=1, priority="normal")
    ours = JOB.format(name="shared", gpus=2, priority="normal")
    for where in ({"tenant": "smiths"}, {"tenant": "weavers", "project": "loom"}):
        file = manifest(tmp_path, placed(theirs, **where), "theirs.yaml")
        assert actions(cli, file, "--yes") == {"Job/shared": "create"}
    file = manifest(tmp_path, ours)
    assert actions(cli, file, "--yes") == {"Job/shared": "create"}
    assert actions(cli, file) == {"Job/shared": "unchanged"}
    named = manifest(tmp_path, placed(ours, project="default"), "named.yaml")
    assert actions(cli, named) == {"Job/shared": "unchanged"}  # the tenant is the caller's own
    found = held(cli, "shared")
    assert {place: gpus for place, (_, gpus) in found.items()} == {
        ("smiths", "default"): 1, ("weavers", "loom"): 1, ("default", "default"): 2,
    }  # fmt: skip
    assert all(is_going_on(status) for status, _ in found.values())
    for job in jobs_named(cli, "shared"):
        cli.ok("cancel", job["id"])


@pytest.mark.usefixtures("guilds")
def test_another_project_is_named_in_the_difference_and_only_its_job_is_replaced(
    cli: CommandLine, tmp_path: Path
) -> None:
    text = JOB.format(name="abroad", gpus=1, priority="normal")
    loom = {"tenant": "weavers", "project": "loom"}
    own = manifest(tmp_path, text, "own.yaml")
    assert "+ Job abroad: create" in cli.ok("apply", "-f", own, "--yes").out
    file = manifest(tmp_path, placed(text, **loom))
    done = cli.ok("apply", "-f", file, "--yes")
    assert "+ Job abroad in project loom of tenant weavers: create" in done.out
    manifest(tmp_path, placed(text.replace("gpu_count: 1", "gpu_count: 2"), **loom))
    done = cli.ok("apply", "-f", file, "--yes")
    assert "± Job abroad in project loom of tenant weavers: replace" in done.out
    (item,) = cli.ok("apply", "-f", file, "-o", "json").data["items"]
    assert (item["elsewhere"], item["action"]) == ("project loom of tenant weavers", "unchanged")
    jobs = jobs_named(cli, "abroad")
    old = next(job for job in jobs if (job["project"], job["gpu_count"]) == ("loom", 1))
    cli.wait_for(old["id"], "cancelled")
    assert is_going_on(held(cli, "abroad")["default", "default"][0])
    for job in jobs_named(cli, "abroad"):
        if is_going_on(job["status"]):
            cli.ok("cancel", job["id"])


@pytest.mark.usefixtures("guilds")
def test_a_tenant_a_project_and_an_earlier_job_are_named_in_full(
    cli: CommandLine, tmp_path: Path
) -> None:
    text = JOB.format(name="whole-names", gpus=1, priority="normal")
    file = manifest(tmp_path, placed(text, tenant="weav"))
    refused = cli("apply", "-f", file, "--yes")
    assert refused.code == 3
    assert "There is no tenant 'weav'." in refused.err
    manifest(tmp_path, placed(text, tenant="weavers", project="loo"))
    assert cli("apply", "-f", file, "--yes").code == 2
    cli.ok("apply", "-f", manifest(tmp_path, text, "first.yaml"), "--yes")
    later = text.replace("name: whole-names", "name: after-it")
    manifest(tmp_path, f"{later}  after: [{{job: whole-name}}]\n")
    refused = cli("apply", "-f", file, "--yes")
    assert refused.code == 3
    assert "There is no job 'whole-name'." in refused.err
    assert jobs_named(cli, "after-it") == []
    cli.ok("cancel", "whole-names")


@pytest.mark.usefixtures("guilds")
def test_a_project_of_the_same_name_that_another_tenant_gets_is_not_waited_for(
    cli: CommandLine, tmp_path: Path
) -> None:
    project = "kind: Project\nmetadata: {name: anvil, tenant: smiths}\n"
    text = JOB.format(name="not-in-it", gpus=1, priority="normal")
    both = f"apiVersion: gpuplane.io/v1\n{project}---\n{placed(text, project='anvil')}"
    file = manifest(tmp_path, both)
    refused = cli("apply", "-f", file, "--dry-run")
    assert (refused.code, "no such project" in refused.err) == (2, True), refused
    manifest(tmp_path, both.replace("project: anvil", "project: anvil, tenant: smiths"))
    assert actions(cli, file, "--dry-run") == {
        "Project/anvil": "create", "Job/not-in-it": "create",
    }  # fmt: skip


@pytest.mark.usefixtures("guilds")
def test_a_job_may_name_a_queue_that_is_declared_before_it(
    cli: CommandLine, tmp_path: Path
) -> None:
    door = (
        "apiVersion: gpuplane.io/v1\nkind: LocalQueue\n"
        "metadata: {name: gate, cluster: demo, tenant: smiths}\n"
        "spec: {clusterQueue: yard}\n"
    )
    queue = (
        "apiVersion: gpuplane.io/v1\nkind: ClusterQueue\n"
        "metadata: {name: yard, cluster: demo}\nspec: {coversEverything: true}\n"
    )
    text = placed(JOB.format(name="through", gpus=1, priority="normal"), tenant="smiths")
    job = text.replace("  cluster: demo\n", "  cluster: demo\n  queue: gate\n")
    file = manifest(tmp_path, f"{queue}---\n{door}---\n{job}")
    alone = manifest(tmp_path, job, "alone.yaml")
    refused = cli("apply", "-f", alone, "--dry-run")
    assert (refused.code, "no queue 'gate'" in refused.err) == (2, True), refused
    assert actions(cli, file, "--yes")["Job/through"] == "create"
    assert actions(cli, file) == {
        "ClusterQueue/yard": "unchanged", "LocalQueue/gate": "unchanged",
        "Job/through": "unchanged",
    }  # fmt: skip
    wide = cli.ok("quotas", "show", "yard", "--cluster", "demo", "-o", "wide").out
    assert "everything" in wide
    assert "preempts:" in wide
    cli.ok("cancel", "--wait", "through")
    cli.ok("queues", "rm", "--yes", "gate", "--cluster", "demo", "--tenant", "smiths")
    cli.ok("quotas", "rm", "yard", "--cluster", "demo", "--yes")


@pytest.mark.usefixtures("guilds")
def test_a_name_that_several_projects_have_ends_none_of_their_jobs(
    cli: CommandLine, tmp_path: Path
) -> None:
    text = JOB.format(name="twofold", gpus=1, priority="normal")
    for where in ({"tenant": "smiths"}, {"tenant": "weavers", "project": "loom"}):
        cli.ok("apply", "-f", manifest(tmp_path, placed(text, **where)), "--yes")
    refused = cli("cancel", "twofold")
    assert (refused.code, "2 jobs are meant by 'twofold'" in refused.err) == (2, True), refused
    assert "smiths/default" in refused.err
    assert "weavers/loom" in refused.err
    jobs = jobs_named(cli, "twofold")
    assert all(is_going_on(job["status"]) for job in jobs)
    cli.ok("cancel", "--wait", jobs[0]["id"])
    assert cli("cancel", "twofold").code == 2  # the other one is not taken for it
    cli.ok("cancel", jobs[1]["id"])


@pytest.mark.usefixtures("guilds")
def test_a_reservation_of_another_project_is_not_given_up_for_ones_own(
    cli: CommandLine, tmp_path: Path
) -> None:
    day = datetime.now(UTC).date() + timedelta(days=9)
    text = (
        "apiVersion: gpuplane.io/v1\nkind: Reservation\nmetadata: {name: seminar}\n"
        f"spec: {{cluster: demo, model: L4, count: 1, start: '{day}T09:00:00Z', "
        f"end: '{day}T17:00:00Z'}}\n"
    )
    theirs = text.replace("seminar}", "seminar, tenant: weavers, project: loom}")
    file = manifest(tmp_path, theirs, "theirs.yaml")
    assert actions(cli, file, "--yes") == {"Reservation/seminar": "create"}
    own = manifest(tmp_path, text.replace("count: 1", "count: 2"))
    assert actions(cli, own, "--yes") == {"Reservation/seminar": "create"}
    assert actions(cli, file) == {"Reservation/seminar": "unchanged"}
    rows = cli.ok("reservations", "ls", "-o", "json").data["items"]
    mine = [row for row in rows if row["name"] == "seminar" and row["state"] == "scheduled"]
    assert sorted(row["count"] for row in mine) == [1, 2]
    for row in mine:
        cli.ok("reservations", "rm", row["id"], "--yes")
