"""The commands that look: lists, why, queue, timeline, usage, events, logs, in every form."""

from __future__ import annotations

import json
import re
import select
import signal
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml

from tests.integration.cli.conftest import CommandLine, Server, simulated, start_server
from tests.waiting import wait_until

READS = [
    ["ps"], ["ps", "-a"], ["jobs", "ls"], ["queue"], ["events"], ["usage"],
    ["clusters", "ls"], ["clusters", "show", "demo"], ["clusters", "preemption", "demo"],
    ["clusters", "maintenance", "demo"], ["clusters", "grants", "local"],
    ["nodes", "ls"], ["nodes", "ls", "demo"], ["nodes", "show", "t4-01"], ["fleet", "demo"],
    ["timeline", "demo"],
    ["timeline", "demo", "--by", "gpu"], ["timeline", "--cluster", "demo"],
    ["quotas", "ls", "--cluster", "demo"], ["quotas", "usage", "--cluster", "demo"],
    ["quotas", "usage", "--cluster", "demo", "--by", "tenant"],
    ["queues", "ls", "--cluster", "demo"], ["cohorts", "ls", "--cluster", "demo"],
    ["tenants", "ls"], ["tenants", "members", "default"], ["projects", "ls"],
    ["projects", "show", "default/default"], ["users", "ls"], ["users", "whoami"],
    ["tokens", "ls"], ["secrets", "ls"], ["prices", "ls"], ["reservations", "ls"],
    ["webhooks", "ls"], ["topology", "tree", "demo"],
]  # fmt: skip


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_every_read_has_every_form(cli: CommandLine, words: list[str]) -> None:
    table = cli.ok(*words)
    assert "\x1b" not in table.out
    assert isinstance(json.loads(cli.ok(*words, "-o", "json").out), dict)
    assert isinstance(yaml.safe_load(cli.ok(*words, "-o", "yaml").out), dict)
    assert "Traceback" not in cli.ok(*words, "-o", "wide").err


def test_a_cluster_is_a_tree_down_to_its_mig_instances(cli: CommandLine) -> None:
    short = cli.ok("topology", "tree", "demo").out.splitlines()
    assert short[0] == "cluster demo"
    assert any(re.fullmatch(r" +node h100-01  \(8 GPUs, NVSwitch, .*\)", line) for line in short)
    wide = cli.ok("topology", "tree", "demo", "-o", "wide").out.splitlines()
    assert any(re.fullmatch(r" +mig 3g\.40gb@4", line) for line in wide)
    assert cli("topology", "tree", "nowhere").code == 3


def test_a_job_is_found_by_name_id_and_a_unique_part_of_either(cli: CommandLine) -> None:
    identity = cli.ok(*simulated(name="to-be-found"), "--", "x").out.strip()
    for key in ("to-be-found", "to-be-fou", identity, identity[:18], identity[-8:]):
        assert cli.job(key)["id"] == identity
    # The last two are ends of ids that no year could begin with.
    for key in ("nothing-of-that-name", "00000000", "e6000000", "ffffffff"):
        answer = cli("jobs", "show", key)
        assert (answer.code, f"There is no job '{key}'." in answer.err) == (3, True)
    cli.ok("cancel", "to-be-found")


def test_who_one_is_is_told_without_what_there_is_not(cli: CommandLine) -> None:
    told = cli.ok("users", "whoami").out
    assert re.search(r"role=admin", told)
    assert "None" not in told
    assert "[]" not in told


def test_what_is_preempted_by_hand_is_told_to_be_stopping(cli: CommandLine) -> None:
    identity = cli.ok(*simulated("--gpus", "1", name="by-hand"), "--", "x").out.strip()
    cli.wait_for(identity, "running")
    assert cli.ok("jobs", "preempt", identity).out == "by-hand running (Stopping)\n"
    cli.ok("cancel", identity)


def test_what_ends_or_changes_a_job_takes_no_part_of_its_name(cli: CommandLine) -> None:
    identity = cli.ok(*simulated(name="build-2"), "--", "x").out.strip()
    for words in (
        ("cancel", "build"), ("suspend", "build"), ("resume", "build"), ("retry", "build"),
        ("jobs", "priority", "build", "low"), ("jobs", "preempt", "build"),
        ("exec", "build", "--", "true"), simulated("--after", "build", name="later"),
    ):  # fmt: skip
        refused = cli(*words, *(["--", "x"] if words[0] == "run" else []))
        assert refused.code == 3, words
        assert "There is no job 'build'." in refused.err
        assert "build-2" in refused.err
    assert cli("cancel", identity[-4:]).code == 3  # four letters may be of any id
    job = cli.job("build-2")
    assert job["condition"] not in ("Paused", "Stopping")
    assert job["priority"] == "normal"
    assert job["status"] not in ("cancelled", "completed", "failed")
    cli.ok("cancel", "--wait", identity[:30])
    assert cli.job(identity)["status"] == "cancelled"


def test_the_end_of_an_id_that_lists_show_is_enough_to_cancel(cli: CommandLine) -> None:
    identity = cli.ok(*simulated(name="by-its-end"), "--", "x").out.strip()
    assert identity[-8:] in cli.ok("ps", "--name", "by-its-end").out
    cli.ok("cancel", "--wait", identity[-8:])
    assert cli.job(identity)["status"] == "cancelled"


def test_of_one_name_the_unfinished_job_is_meant_and_two_of_them_are_ambiguous(
    cli: CommandLine,
) -> None:
    first = cli.ok(*simulated(name="twin"), "--", "x").out.strip()
    cli.ok("cancel", "--wait", first)
    second = cli.ok(*simulated(name="twin"), "--", "x").out.strip()
    assert cli.job("twin")["id"] == second
    third = cli.ok(*simulated(name="twin"), "--", "x").out.strip()
    refused = cli("cancel", "twin")
    assert refused.code == 2
    assert second in refused.err
    assert third in refused.err
    cli.ok("cancel", second, third)


def test_why_names_the_reason_the_filters_and_the_smallest_change(cli: CommandLine) -> None:
    words = ["--gpus", "8", "--gpu-model", "H100", "--replicas", "9"]
    cli.ok(*simulated(*words, name="too-wide"), "--", "train")

    def has_reason() -> bool:
        return bool(cli.job("too-wide")["reason"])

    wait_until(has_reason, "the scheduler has looked at it", deadline_s=30, interval_s=0.2)
    done = cli.ok("why", "too-wide")
    assert "too-wide is queued: GangIncomplete" in done.out
    assert re.search(r"GpuModelMismatch +12 ", done.out)
    assert "smallest change that would start it now" in done.out
    answer = cli.ok("why", "too-wide", "-o", "json").data
    assert answer["change"]["field"] == "replicas.count"
    rows = cli.ok("queue", "--no-forecast", "-o", "json").data["items"]
    assert next(row for row in rows if row["name"] == "too-wide")["position"] >= 1
    cli.ok("cancel", "too-wide")


def test_the_queue_tells_the_start_of_every_job_beside_one_that_runs_again(
    cli: CommandLine,
) -> None:
    node = ["--gpus", "8", "--gpu-model", "A100", "--priority", "high", "--duration", "1h"]
    again = cli.ok(*simulated(*node, name="again"), "--", "x").out.strip()
    cli.wait_for(again, "running")
    cli.ok("cancel", "--wait", again)
    holding = [
        cli.ok(*simulated(*node, name=f"holding-{n}"), "--", "x").out.strip() for n in range(2)
    ]
    for each in holding:
        cli.wait_for(each, "running")
    cli.ok("retry", again)
    waiting = cli.ok(*simulated(*node, name="waiting"), "--", "x").out.strip()
    rows = {each["id"]: each for each in cli.ok("queue", "-o", "json").data["items"]}
    for each in (again, waiting):
        assert cli.job(each)["estimated_start"] is None, "nothing old is told"
        told = cli.ok("jobs", "schedule", each, "-o", "json").data["estimated_start"]
        apart = instant_of(rows[each]["estimated_start"]) - instant_of(told)
        assert abs(apart) < timedelta(minutes=2)
    cli.ok("cancel", again, waiting, *holding)


def instant_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_the_timeline_draws_what_runs_solid_and_what_is_expected_light(cli: CommandLine) -> None:
    identity = cli.ok(*simulated("--gpus", "2", "--gpu-model", "T4", "--duration", "30m",
                                 name="drawn"), "--", "x").out.strip()  # fmt: skip
    cli.wait_for(identity, "running")
    drawn = cli.ok("timeline", "demo").out
    assert "demo (simulated)" in drawn
    line = next(each for each in drawn.splitlines() if each.startswith("drawn"))
    assert "█" in line
    assert "░" in line
    assert max(map(len, drawn.splitlines())) <= 120
    by_gpu = cli.ok("timeline", "demo", "--by", "gpu", "-n", "200")
    assert re.search(r"t4-0\d/\d T4", by_gpu.out)
    assert "drawn" in by_gpu.err
    cli.ok("cancel", identity)


def test_usage_adds_up_and_keeps_the_simulated_apart(cli: CommandLine) -> None:
    cli.ok("run", "-q", "--", "true")
    cli.ok("run", "-q", "--cluster", "demo", "--gpus", "1", "--gpu-model", "L4",
           "--sim-duration", "1", "-n", "metered", "--", "x")  # fmt: skip
    done = cli.ok("usage", "--by", "job", "--lines")
    assert re.search(r"^total simulated: .* USD$", done.out, re.M)
    assert re.search(r"^metered \([0-9a-f]{8}\) +0.00", done.out, re.M)
    devices = cli.ok("usage", "-o", "json").data["devices"]
    assert devices["adds_up"] is True
    for cluster in devices["clusters"]:
        assert sum(cluster["states_ms"].values()) == cluster["wall_clock_ms"]
    row = cli.ok("usage", "--by", "job", "--job", "metered", "-o", "json").data["usage"]["rows"][0]
    assert row["simulated"] is True
    assert row["cost"]["USD"] > "0"


def test_events_tell_the_life_of_a_job_in_order(cli: CommandLine) -> None:
    cli.ok("run", "-q", "-n", "eventful", "--", "true")
    told = cli.ok("events", "--job", "eventful", "--kind", "job.*", "-o", "json").data["items"]
    kinds = [event["kind"] for event in told]
    wanted = ["job.pending", "job.queued", "job.scheduled", "job.running", "job.completed"]
    assert [kind for kind in kinds if kind in wanted] == wanted


def test_events_are_followed_as_they_happen(cli: CommandLine) -> None:
    started = cli.start("events", "-f", "--kind", "job.completed")
    cli.ok("run", "-q", "-n", "followed", "--", "true")
    assert started.stdout is not None
    seen: list[str] = []

    def told() -> bool:
        if not seen:
            cli.ok("run", "-q", "-n", "followed", "--", "true")
        assert started.stdout is not None
        seen.append(started.stdout.readline())
        return "followed completed" in seen[-1]

    wait_until(told, "the event is told", deadline_s=30)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=30)
    assert started.returncode == 130


def test_events_are_followed_on_when_the_server_is_back(own_server: Server, tmp_path: Path) -> None:
    cli = CommandLine(own_server.home, tmp_path)
    started = cli.start("events", "-f", "--kind", "job.*", "-o", "json")
    try:
        assert started.stdout is not None
        assert started.stderr is not None
        lines = iter(started.stdout.readline, "")

        def told() -> bool:
            cli.ok(*simulated("--", "x", name="before"))  # it may not follow yet when one is made
            return bool(select.select([started.stdout], [], [], 0.5)[0])

        wait_until(told, "an event is told", deadline_s=30)
        own_server.stop()
        assert "waiting for it" in started.stderr.readline()
        own_server.process = start_server(own_server.home).process
        cli.ok(*simulated("--", "x", name="afterwards"))
        events = map(json.loads, lines)
        found = next(each for each in events if "afterwards" in each["message"])
        assert found["kind"] == "job.pending"
        started.send_signal(signal.SIGINT)
        started.communicate(timeout=30)
        assert started.returncode == 130
    finally:
        started.kill()
        started.communicate()


def test_logs_show_each_stream_where_it_belongs_and_the_tail_of_one(cli: CommandLine) -> None:
    script = "import sys; [print(n) for n in range(100)]; print('oops', file=sys.stderr)"
    cli.ok("run", "-q", "-n", "printed", "--", "python3", "-c", script)
    done = cli.ok("logs", "printed")
    assert done.out.splitlines() == [str(n) for n in range(100)]
    assert done.err == "oops\n"
    assert cli.ok("logs", "printed", "--tail", "2", "--stdout").out == "98\n99\n"
    assert cli.ok("logs", "printed", "--stderr").err == "oops\n"
    assert cli.ok("logs", "-f", "printed").out == done.out


def test_a_simulated_log_is_called_simulated(cli: CommandLine) -> None:
    words = simulated("--sim-log", "pretended", duration="1", name="pretender")
    cli.ok(*words, "--", "x")
    cli.wait_for("pretender", "completed")
    done = cli.ok("logs", "pretender")
    assert "pretended" in done.out
    assert done.err.startswith("simulated:")
    assert "(simulated)" in cli.ok("jobs", "show", "pretender").out


def test_a_job_in_detail_has_its_attempts_manifest_and_differences(cli: CommandLine) -> None:
    cli("run", "-q", "-n", "detail-a", "--", "sh", "-c", "exit 5")
    cli("run", "-q", "-n", "detail-b", "-e", "X=1", "--", "true")
    shown = cli.ok("jobs", "show", "detail-a").out
    assert re.search(r"exit code: +5", shown)
    attempt = cli.ok("jobs", "attempts", "detail-a", "-o", "json").data["items"][0]
    assert attempt["exit_code"] == 5
    assert "command" in cli.ok("jobs", "manifest", "detail-a").out
    wide = cli.ok("jobs", "manifest", "detail-a", "-o", "wide").out
    assert re.search(r"captured: +\d", wide)
    assert re.search(r"each replica: .*cpu_milli=", wide)
    assert "spec.env.X" in cli.ok("jobs", "compare", "detail-a", "detail-b").out
    assert "local" in cli.ok("jobs", "schedule", "detail-a").out


def test_colours_are_left_out_of_pipes_and_on_wish(cli: CommandLine) -> None:
    assert "\x1b" not in cli.ok("clusters", "show", "demo", env={"FORCE_COLOR": "1"}).out
