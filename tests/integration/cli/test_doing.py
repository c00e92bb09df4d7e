"""The commands that do: verbs on jobs, and the nouns that administrators manage."""

from __future__ import annotations

from tests.integration.cli.conftest import CommandLine, simulated


def test_a_suspended_job_is_held_back_until_it_is_resumed(cli: CommandLine) -> None:
    cli.ok(*simulated(name="held"), "--", "x")
    cli.ok("suspend", "held", "--reason", "maintenance")
    cli.wait_for("held", "pending")
    assert cli.job("held")["condition"] == "Paused"
    cli.ok("resume", "held")
    cli.wait_for("held", "running")
    cli.ok("cancel", "--wait", "held")
    assert cli.job("held")["status"] == "cancelled"


def test_a_failed_job_is_tried_again_by_hand(cli: CommandLine) -> None:
    assert cli("run", "-q", "-n", "again", "--", "sh", "-c", "exit 3").code == 3
    cli.ok("retry", "again")
    cli.wait_for("again", "failed")
    assert len(cli.ok("jobs", "attempts", "again", "-o", "json").data["items"]) == 2


def test_one_job_that_is_refused_does_not_keep_the_others(cli: CommandLine) -> None:
    cli.ok(*simulated(name="one-of-two"), "--", "x")
    done = cli("cancel", "no-such-job", "one-of-two")
    assert done.code == 3
    assert "no-such-job" in done.err
    cli.wait_for("one-of-two", "cancelled")


def test_exec_runs_beside_the_job_and_ends_as_it_ends(cli: CommandLine) -> None:
    cli.ok("run", "-d", "-n", "hosts", "-e", "COLOUR=red", "--", "sleep", "60")
    cli.wait_for("hosts", "running")
    done = cli("exec", "hosts", "--", "sh", "-c", "echo $COLOUR; echo no >&2; exit 9")
    assert (done.code, done.out, done.err) == (9, "red\n", "no\n")
    echoed = cli("exec", "-i", "hosts", "cat", stdin="sent")
    assert echoed.out == "sent"
    cli.ok("cancel", "--wait", "hosts")
    assert cli("exec", "hosts", "--", "true").code != 0


def test_the_priority_of_a_job_is_changed(cli: CommandLine) -> None:
    cli.ok(*simulated(name="climbs"), "--", "x")
    cli.ok("jobs", "priority", "climbs", "high")
    assert cli.job("climbs")["priority"] == "high"
    cli.ok("cancel", "climbs")


def test_a_service_is_scaled_by_hand(cli: CommandLine) -> None:
    limits = ("--type", "service", "--max-replicas", "2")
    cli.ok(*simulated(*limits, name="scales"), "--", "x")
    cli.wait_for("scales", "running")
    assert cli.ok("jobs", "scale", "scales", "2").out.startswith("scales is to have 2 replicas, ")
    assert cli.job("scales")["replicas_wanted"] == 2
    assert "2 replicas" in cli.ok("jobs", "show", "scales").out
    refused = cli("jobs", "scale", "scales", "3")
    assert refused.code == 2
    assert "Give 1 to 2." in refused.err
    cli.ok("cancel", "scales")


def test_a_user_with_a_token_of_its_own_may_do_what_its_role_says(cli: CommandLine) -> None:
    cli.ok("tenants", "create", "guild", "--display-name", "Guild")
    cli.ok("projects", "create", "lab", "--tenant", "guild")
    cli.ok("users", "create", "ada", "--tenant", "guild", "--project", "guild/lab",
           "--email", "ada@example.com")  # fmt: skip
    cli.ok("users", "grant", "ada", "viewer", "--project", "guild/lab")
    token = cli.ok("tokens", "create", "laptop", "--user", "ada").out.strip()
    address = cli.ok("users", "whoami", "-o", "json").data["name"]
    assert address == "admin"
    as_ada = {"GPUPLANE_TOKEN": token}
    assert cli.ok("users", "whoami", "-o", "json", env=as_ada).data["name"] == "ada"
    assert cli.ok("ps", "-a", env=as_ada).code == 0
    refused = cli("run", "--cluster", "demo", "--", "x", env=as_ada)
    assert refused.code == 4
    assert "job:write" in refused.err
    cli.ok("users", "grant", "ada", "member", "--project", "guild/lab")
    words = simulated(name="of-ada", duration="1")
    assert cli.ok(*words, "--", "x", env=as_ada).code == 0
    assert cli.job("of-ada")["project"] == "lab"
    assert "ada" in cli.ok("tenants", "members", "guild").out
    cli.ok("tokens", "revoke", "laptop", "--user", "ada")
    assert cli("ps", env=as_ada).code == 4


def test_a_secret_is_set_again_as_a_new_version_and_removed(cli: CommandLine) -> None:
    assert "version 1" in cli.ok("secrets", "set", "rotates", stdin="one").out
    assert "version 2" in cli.ok("secrets", "set", "rotates", stdin="two").out
    cli.ok("secrets", "rm", "rotates", "--yes")
    assert "rotates" not in cli.ok("secrets", "ls").out
    assert cli("secrets", "set", "empty", stdin="").code == 2


def test_a_price_is_set_and_shown_exactly(cli: CommandLine) -> None:
    cli.ok("prices", "set", "V100-32GB", "0.8125", "--cluster", "demo")
    assert "0.8125 USD" in cli.ok("prices", "ls", "--cluster", "demo", "--item", "V100-32GB").out


def test_a_frozen_cluster_starts_nothing_until_it_thaws(cli: CommandLine) -> None:
    cli.ok("clusters", "freeze", "demo", "--reason", "inventory")
    try:
        cli.ok(*simulated(name="shivers", duration="1"), "--", "x")
        assert "inventory" in cli.ok("clusters", "ls").out
        assert cli.job("shivers")["status"] in ("pending", "queued")
    finally:
        cli.ok("clusters", "thaw", "demo")
    cli.wait_for("shivers", "completed")


def test_a_cluster_is_dedicated_to_one_tenant_and_opened_again(cli: CommandLine) -> None:
    said = cli.ok("clusters", "dedicate", "demo", "--to", "default").out
    try:
        assert "demo is open to default alone" in said
        assert "gpuplane.io/dedicated-to" in cli.ok("clusters", "show", "demo").out
    finally:
        assert "open to everyone" in cli.ok("clusters", "dedicate", "demo", "--everyone").out
    assert cli("clusters", "dedicate", "demo").code == 2


def test_a_node_is_cordoned_drained_and_taken_back(cli: CommandLine) -> None:
    def state(name: str) -> str:
        rows = cli.ok("nodes", "ls", "--cluster", "demo", "-o", "json").data["items"]
        row = next(each for each in rows if each["name"] == name)
        return "draining" if row["draining"] else "cordoned" if row["cordoned"] else "ready"

    refused = cli("nodes", "cordon", "t4-0", "--cluster", "demo")
    assert (refused.code, "There is no node 't4-0'." in refused.err) == (3, True)
    assert "Nearest names: t4-01, t4-02" in refused.err
    cli.ok("nodes", "cordon", "v100-02")
    assert state("v100-02") == "cordoned"
    cli.ok("nodes", "uncordon", "v100-02")
    assert state("v100-02") == "ready"
    assert "drains" in cli.ok("nodes", "drain", "v100-02", "--wait", "1s").out
    cli.ok("nodes", "uncordon", "v100-02")


def test_maintenance_is_announced_listed_and_withdrawn(cli: CommandLine) -> None:
    cli.ok("clusters", "maintenance", "demo", "--announce", "new cables", "--from", "+1d",
           "--to", "+2d", "--node", "t4-02")  # fmt: skip
    rows = cli.ok("clusters", "maintenance", "demo", "-o", "json").data["items"]
    assert [(row["node"], row["reason"]) for row in rows] == [("t4-02", "new cables")]
    left = cli.ok("clusters", "maintenance", "demo", "--withdraw", rows[0]["id"], "-o", "json")
    assert left.data["items"] == []


def test_gpus_are_reserved_and_given_up(cli: CommandLine) -> None:
    cli.ok("reservations", "create", "--cluster", "demo", "--gpu-model", "T4", "--gpus", "2",
           "--from", "+1d", "--to", "+2d", "--name", "workshop")  # fmt: skip
    shown = cli.ok("reservations", "show", "workshop").out
    assert "workshop" in shown
    assert "given up" in cli.ok("reservations", "rm", "workshop", "--yes").out


def test_a_webhook_shows_its_secret_once_and_is_deleted(cli: CommandLine) -> None:
    made = cli.ok("webhooks", "create", "https://example.com/hook", "--kind", "job.completed",
                  "-o", "json").data  # fmt: skip
    assert made["secret"]
    identity = made["webhook"]["id"]
    assert made["secret"] not in cli.ok("webhooks", "ls", "-o", "json").out
    cli.ok("webhooks", "set", identity, "--disable")
    assert "disabled" in cli.ok("webhooks", "ls").out
    cli.ok("webhooks", "rm", identity, "--yes")


def test_the_demo_fills_the_cluster_and_running_it_twice_is_harmless(cli: CommandLine) -> None:
    cli.ok("demo", "--size", "30")
    first = [job["id"] for job in demo_jobs(cli)]
    cli.ok("demo", "--size", "30")
    assert sorted(job["id"] for job in demo_jobs(cli)) == sorted(first)
    assert len(first) >= 30
    assert {job["tenant"] for job in demo_jobs(cli)} == {
        "demo-vision", "demo-language", "demo-platform",
    }  # fmt: skip
    cli.ok("demo", "--stop")
    for job in demo_jobs(cli):
        cli.wait_for(job["id"], "cancelled", "completed", "failed")


def demo_jobs(cli: CommandLine) -> list[dict[str, str]]:
    rows = cli.ok("ps", "-a", "-n", "1000", "-o", "json").data["items"]
    return [row for row in rows if "gpuplane-demo" in row["labels"]]


def test_a_tenant_gets_a_quota_a_door_and_a_cohort(cli: CommandLine) -> None:
    on = ("--cluster", "demo")
    cli.ok("tenants", "create", "museum")
    cli.ok("quotas", "set", *on, "museum", "--gpu", "V100=4:2", "--cohort", "arts")
    assert "nvidia-v100-32gb:gpu=4" in cli.ok("quotas", "ls", *on).out
    cli.ok("queues", "set", *on, "default", "--tenant", "museum", "--leads-to", "museum")
    asked = cli("quotas", "set", *on, "museum", "--gpu", "V100=2")
    assert (asked.code, "--yes" in asked.err) == (2, True)
    assert "nvidia-v100-32gb nvidia.com/gpu nominalQuota: 4 → 2" in asked.err
    cli.ok("quotas", "set", *on, "museum", "--gpu", "V100=2", "--yes")
    assert "Nearest names: museum" in cli("quotas", "rm", "mus", *on).err
    elsewhere = cli("run", "--tenant", "mus", "--cluster", "demo", "--", "x")
    assert (elsewhere.code, "There is no tenant 'mus'." in elsewhere.err) == (3, True)
    row = cli.ok("quotas", "show", "mus", *on, "-o", "json").data
    assert row["cohort"] == "arts"
    assert row["preemption"]["reclaimWithinCohort"] == "Never"
    cli.ok("quotas", "set", *on, "museum", "--reclaim-within-cohort", "any", "--yes")
    row = cli.ok("quotas", "show", "museum", *on, "-o", "json").data
    assert row["preemption"]["reclaimWithinCohort"] == "Any"
    quota = row["resourceGroups"][0]["flavors"][0]["resources"][0]
    assert (quota["nominalQuota"], quota["borrowingLimit"]) == ("2", "2")
    cli.ok("cohorts", "set", *on, "arts", "--weight", "2")
    rows = cli.ok("cohorts", "ls", *on, "-o", "json").data["items"]
    assert next(row for row in rows if row["name"] == "arts")["members"] == ["museum"]
    assert cli("quotas", "rm", *on, "museum", "--yes").code == 4
    door = ("queues", "rm", *on, "default", "--tenant", "museum")
    assert cli(*door).code == 2
    cli.ok(*door, "--yes")
    unasked = cli("quotas", "rm", *on, "museum")
    assert (unasked.code, "--yes" in unasked.err) == (2, True)
    cli.ok("quotas", "show", "museum", *on)
    cli.ok("quotas", "rm", *on, "museum", "--yes")
    assert cli("quotas", "set", *on, "museum", "--gpu", "V100").code == 2
    ahead = cli.ok("quotas", "set", *on, "ahead", "--gpu", "nvidia-l40s=4")
    assert "has no node of nvidia-l40s" in ahead.err
    cli.ok("quotas", "rm", *on, "ahead", "--yes")
    unknown = cli("quotas", "set", *on, "museum", "--gpu", "H1000=4")
    assert unknown.code != 0
    assert "Nearest models: nvidia-h100" in unknown.err


def test_setting_tenants_up_and_dispatching_are_refused_where_there_is_no_kueue(
    cli: CommandLine,
) -> None:
    queue, limit = ("--queue", "main=team:batch"), ("--limit", "nvidia.com/gpu=8")
    refused = cli("clusters", "onboard", "demo", "default", *queue, *limit)
    assert refused.code == 2
    assert "demo is simulated: tenants need no setting up there." in refused.err
    assert cli("clusters", "offboard", "demo", "default", "--yes").code == 2
    assert cli("clusters", "onboard", "demo", "default", "--queue", "main").code == 2
    dispatched = cli("clusters", "multikueue", "demo", "--worker", "local", "--queue", "team")
    assert dispatched.code == 2
    assert "demo does not admit by Kueue." in dispatched.err
    assert cli("quotas", "adopt", "--cluster", "demo", "team").code == 3
    assert cli("cohorts", "adopt", "--cluster", "demo", "team").code == 3
