"""`gpuplane run`: the plan, the streams, the exit code, Ctrl-C, a server that goes and comes."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.cli.conftest import CommandLine, Server, simulated, start_server
from tests.waiting import wait_until

PY = "python3"


def test_a_first_command_prints_what_it_prints_and_ends_well(cli: CommandLine) -> None:
    done = cli("run", "--", PY, "-c", "print('hello')")
    assert (done.code, done.out) == (0, "hello\n")
    assert done.err.startswith("plan: local on ")


def test_both_streams_stay_apart_and_the_exit_code_is_the_jobs(cli: CommandLine) -> None:
    script = "import sys; print('to out'); print('to err', file=sys.stderr); sys.exit(7)"
    done = cli("run", "-q", "--", PY, "-c", script)
    assert done.code == 7
    assert done.out == "to out\n"
    assert done.err.splitlines()[0] == "to err"
    assert "exit code 7" in done.err


def test_a_job_killed_by_a_signal_ends_with_128_and_the_signal(cli: CommandLine) -> None:
    done = cli("run", "-q", "--", PY, "-c", "import os; os.kill(os.getpid(), 9)")
    assert done.code == 128 + 9


def test_a_command_that_does_not_exist_ends_with_127(cli: CommandLine) -> None:
    done = cli("run", "-q", "--", "no-such-program-here")
    assert done.code == 127


def test_output_comes_while_the_job_runs(cli: CommandLine) -> None:
    script = "print('first', flush=True); import time; time.sleep(60)"
    started = cli.start("run", "-q", "-n", "talks", "--", PY, "-c", script)
    assert started.stdout is not None
    assert started.stdout.readline() == "first\n"
    assert started.poll() is None
    cli.ok("cancel", "talks")
    _, err = started.communicate(timeout=60)
    assert started.returncode != 0
    assert "talks cancelled" in err


def test_detached_prints_the_id_alone(cli: CommandLine) -> None:
    done = cli.ok("run", "-d", "-n", "detached", "--", "true")
    assert re.fullmatch(r"[0-9a-f-]{36}\n", done.out)
    assert cli.wait_for(done.out.strip(), "completed")["name"] == "detached"


def test_environment_arguments_and_labels_reach_the_job(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "more.env").write_text("# a comment\nexport FROM_FILE='a b'\nPLAIN=c\n")
    done = cli(
        "run", "-q", "-e", "COLOUR=green", "--env-file", "more.env", "-l", "team=vision",
        "-n", "labelled", "--",
        PY, "-c", "import os; print(os.environ['COLOUR'], os.environ['FROM_FILE'])",
    )  # fmt: skip
    assert done.out == "green a b\n"
    assert cli.job("labelled")["labels"] == {"team": "vision"}


def test_a_working_directory_is_sent_without_what_is_ignored(
    cli: CommandLine, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    (source / "main.py").write_text("import os; print(sorted(os.listdir('.')))")
    (source / "data" / "big.bin").write_bytes(b"x" * 10_000)
    (source / ".gpuplaneignore").write_text("data/\n")
    done = cli("run", "--workdir", "source", "--", PY, "main.py")
    assert done.code == 0, done
    assert "main.py" in done.out
    assert "data" not in done.out
    digest = cli.job(done_name(cli, "python3-main"))["spec"]["workspace_digest"]
    again = cli("run", "--workdir", "source", "--", PY, "main.py")
    assert again.out == done.out
    assert cli.job(done_name(cli, "python3-main"))["spec"]["workspace_digest"] == digest


def done_name(cli: CommandLine, prefix: str) -> str:
    rows = cli.ok("ps", "-a", "--name", prefix, "-o", "json").data["items"]
    return str(max(rows, key=lambda row: row["created_at"])["id"])


def test_artifacts_come_back(cli: CommandLine, tmp_path: Path) -> None:
    script = "import os; os.makedirs('out'); open('out/model.txt', 'w').write('weights')"
    cli.ok("run", "-q", "-n", "leaves", "--artifact", "out/model.txt", "--", PY, "-c", script)
    cli.ok("jobs", "artifacts", "leaves", "--to", "fetched")
    assert (tmp_path / "fetched" / "out" / "model.txt").read_text() == "weights"


def test_a_secret_reaches_the_job_and_is_shown_nowhere(cli: CommandLine) -> None:
    cli.ok("secrets", "set", "api-key", stdin="s3cr3t-value\n")
    done = cli("run", "-n", "knows", "--secret", "api-key", "--",
               PY, "-c", "import os; print(len(os.environ['API_KEY']))")  # fmt: skip
    assert (done.code, done.out) == (0, "12\n")
    shown = [cli.ok("jobs", "show", "knows", "-o", "json"), cli.ok("secrets", "ls", "-o", "yaml")]
    assert "s3cr3t-value" not in "".join(each.out + each.err for each in shown)


def test_an_array_ends_with_the_worst_of_its_jobs(cli: CommandLine) -> None:
    script = "import os, sys; sys.exit(int(os.environ['GPUPLANE_ARRAY_INDEX']) == 1)"
    done = cli("run", "-n", "sweep", "--array", "3", "--", PY, "-c", script)
    assert done.code == 1
    assert "1 of 3 did not complete" in done.err


def test_ctrl_c_cancels_the_job_and_says_so(cli: CommandLine) -> None:
    started = cli.start("run", "-q", "-n", "interrupted", "--", PY, "-c",
                        "print('up', flush=True); import time; time.sleep(60)")  # fmt: skip
    assert started.stdout is not None
    assert started.stdout.readline() == "up\n"
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "cancelling the job" in err
    assert cli.job("interrupted")["status"] == "cancelled"


def test_ctrl_c_may_leave_the_job_alone(cli: CommandLine) -> None:
    started = cli.start("run", "-q", "-n", "left-alone", "--on-interrupt", "leave", "--", PY, "-c",
                        "print('up', flush=True); import time; time.sleep(60)")  # fmt: skip
    assert started.stdout is not None
    started.stdout.readline()
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=60)
    assert started.returncode == 130
    assert cli.job("left-alone")["status"] == "running"
    cli.ok("cancel", "--wait", "left-alone")


def test_a_waiting_job_says_why(cli: CommandLine) -> None:
    started = cli.start("run", "--cluster", "demo", "--gpus", "8", "--gpu-model", "H100",
                        "--replicas", "9", "-n", "waits", "--", "train")  # fmt: skip
    assert started.stderr is not None
    told: list[str] = []

    def says_why() -> bool:
        assert started.stderr is not None
        told.append(started.stderr.readline())
        return "GangIncomplete" in told[-1] and "queued" in told[-1]

    wait_until(says_why, "the reason is told", deadline_s=30)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=60)
    assert cli.job("waits")["status"] == "cancelled"


def test_a_dry_run_shows_the_plan_and_submits_nothing(cli: CommandLine) -> None:
    done = cli.ok("run", "--dry-run", "-n", "only-planned", "--cluster", "demo", "--gpus", "1",
                  "--gpu-model", "H100", "--duration", "1h", "--", "train")  # fmt: skip
    assert "plan: demo (simulated: nothing is executed)" in done.err
    assert "2.99 USD" in done.err or "about 3." in done.err
    assert "cheaper:" in done.err
    assert cli("jobs", "show", "only-planned").code == 3


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--gpus", "1", "--gpu-model", "H1000", "--", "x"], 2, "H1000"),
        (["--gpus", "-1", "--", "x"], 2, "--gpus"),
        (["--cluster", "nowhere", "--", "x"], 2, "demo, local"),
        (["--deadline", "yesterday", "--", "x"], 2, "+2h"),
        (["--time-window", "25-26", "--", "x"], 2, "22:00-06:00"),
        (["--gpus", "999", "--gpu-model", "H100", "--cluster", "demo", "--", "x"], 2, ""),
        (["--type", "service", "--deployment-type", "helm", "--", "x"], 2, "Helm"),
        ([], 2, "What should run?"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(
    cli: CommandLine, words: list[str], code: int, told: str
) -> None:
    done = cli("run", *words)
    assert done.code == code, done
    assert told in done.err
    assert "Traceback" not in done.err


def test_nobody_answering_is_exit_code_5_and_names_the_command(cli: CommandLine) -> None:
    done = cli("ps", env={"GPUPLANE_HOME": str(cli.folder / "nothing")})
    assert done.code == 5
    assert "gpuplane up" in done.err
    other = cli("ps", env={"GPUPLANE_URL": "http://127.0.0.1:9", "GPUPLANE_TOKEN": "x"})
    assert other.code == 5


def test_the_local_admin_token_is_not_sent_elsewhere(cli: CommandLine) -> None:
    done = cli("ps", env={"GPUPLANE_URL": "http://127.0.0.1:9"})
    assert done.code == 4
    assert "GPUPLANE_TOKEN" in done.err


def test_a_wrong_token_is_refused(cli: CommandLine) -> None:
    assert cli("ps", env={"GPUPLANE_TOKEN": "gp_wrong"}).code == 4


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ends_and_comes_back_costs_no_output(
    own_server: Server, tmp_path: Path, how: signal.Signals
) -> None:
    cli = CommandLine(own_server.home, tmp_path)
    gate = tmp_path / "gate"
    script = (
        "import os, time, sys\nprint('before', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)\n"
        "print('after', flush=True)\nsys.exit(4)"
    )
    started = cli.start("run", "-n", "survives", "--", PY, "-c", script)
    assert started.stdout is not None
    assert started.stdout.readline() == "before\n"
    own_server.stop(how)
    told = (own_server.home / "log.jsonl").read_text()
    assert "graceful shutdown exceeded" not in told, "it waited for who follows"
    again = start_server(own_server.home)
    own_server.process = again.process
    gate.write_text("go")
    out, err = started.communicate(timeout=60)
    assert (started.returncode, out) == (4, "after\n"), err
    assert "the control plane is back" in err


def test_options_after_the_command_are_the_commands(cli: CommandLine) -> None:
    done = cli("run", "-q", "--", "echo", "--gpus", "7", "-d")
    assert done.out == "--gpus 7 -d\n"


def test_submitting_twice_with_one_key_makes_one_job(cli: CommandLine) -> None:
    words = [*simulated("--idempotency-key", "once", name="keyed"), "--", "x"]
    assert cli.ok(*words).out == cli.ok(*words).out
    cli.ok("cancel", "keyed")


def test_a_reader_that_leaves_early_is_no_error(cli: CommandLine) -> None:
    ended = subprocess.run(
        ["bash", "-c", "set -o pipefail; python3 -m gpuplane --help | head -1 && exit 0"],
        env=cli.environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in ended.stderr
