"""What a process sees, how it is stopped and what is said of its end."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from gpuplane.backends.interface import BackendError, Phase, ReplicaPlan, Stream
from gpuplane.core.ids import GpuId, ReplicaId
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import Mount, SecretReference
from gpuplane.kit.ids import new_id
from tests.contract.builders import a_plan
from tests.integration.local.conftest import Machine, is_alive, until_dead
from tests.waiting import wait_until_async


def files_that_hold(folder: Path, needle: bytes) -> list[Path]:
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a record that was just being replaced
            if path.is_file() and not path.is_symlink() and needle in path.read_bytes():
                found.append(path)
    return found


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def open_pipes(pid: int) -> set[str]:
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(path.readlink()))
    return {link for link in found if link.startswith(("pipe:", "socket:"))}


async def test_a_process_killed_by_a_signal_says_which(local: Machine) -> None:
    replica = await local.run("kill -SEGV $$")
    assert (replica.reason, replica.signal, replica.exit_code) == (Word.SIGNALLED, 11, 139)
    assert "SIGSEGV" in replica.message


async def test_a_command_that_is_not_there_is_a_failed_start(local: Machine) -> None:
    plan = a_plan(command=("no-such-program", "--help"))
    await local.backend.ensure_workload(plan, {})
    replica = await local.end_of(plan.ref)
    assert (replica.phase, replica.reason) == (Phase.EXITED, Word.START_FAILED)
    assert replica.exit_code == 127
    assert replica.message == "command not found: no-such-program"


async def test_a_file_that_is_no_program_is_a_failed_start(local: Machine) -> None:
    plan = a_plan(command=("/etc/passwd",))
    await local.backend.ensure_workload(plan, {})
    replica = await local.end_of(plan.ref)
    assert replica.reason == Word.START_FAILED
    assert "/etc/passwd cannot be executed: Permission denied" in replica.message


async def test_a_working_directory_that_is_not_there_is_a_failed_start(local: Machine) -> None:
    replica = await local.run("true", working_dir="missing")
    assert replica.reason == Word.START_FAILED
    assert "missing" in replica.message


async def test_a_job_without_a_command_is_refused(local: Machine) -> None:
    with pytest.raises(BackendError, match="needs a command"):
        await local.backend.ensure_workload(a_plan(command=(), image="python"), {})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"working_dir": "/etc"}, "working_dir '/etc' must be relative"),
        ({"working_dir": "a/../../b"}, "may not contain"),
        ({"mounts": (Mount("../secret", "/data"),)}, "mount name"),
        ({"mounts": (Mount("data", "/../../etc"),)}, "mount path"),
        ({"secrets": (SecretReference("key", path="/key"),)}, "by `env`"),
        ({"env": {"A": "x" * 140_000}}, "longer than 128 KiB"),
        ({"env": {"A=B": "x"}}, "name of a variable"),
    ],
)
async def test_what_this_machine_cannot_do_is_refused_before_the_start(
    local: Machine, fields: dict[str, object], text: str
) -> None:
    plan = a_plan(**fields)
    with pytest.raises(BackendError, match=text):
        await local.backend.ensure_workload(plan, {})
    assert not local.folder(plan.ref).exists()


async def test_the_environment_is_clean_and_holds_what_was_asked(
    local: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTROL_PLANE_ONLY", "1")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    text = await local.output("env", env={"GREETING": "grüß dich"}, secrets={"TOKEN": "s3cret"})
    env = dict(line.split("=", 1) for line in text.splitlines())
    assert "CONTROL_PLANE_ONLY" not in env
    assert env["GREETING"] == "grüß dich"
    assert env["TOKEN"] == "s3cret"
    assert env["TZ"] == "Europe/Berlin"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["GPUPLANE_RANK"] == "0"
    assert env["GPUPLANE_JOB_NAME"] == "a-job"
    assert {"PATH", "HOME", "TMPDIR", "USER"} <= env.keys()
    assert "RANK" not in env


async def test_a_secret_is_on_no_disk_and_in_no_argument(local: Machine) -> None:
    plan = await local.start("echo up; sleep 600", secrets={"TOKEN": "hunter2-needle"})
    await local.until_printed(plan.ref, "up")
    state = local.state(plan.ref)
    for name in ("supervisor_pid", "guard_pid"):
        assert b"hunter2" not in command_line(state[name])
    assert files_that_hold(local.backend.home, b'"format"') != []
    assert files_that_hold(local.backend.home, b"hunter2-needle") == []


async def test_the_gpus_of_a_replica_are_named_by_uuid(local: Machine) -> None:
    plan = a_plan(command=("/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES"))
    gpus = (GpuId("GPU-aaaa"), GpuId("GPU-bbbb"))
    replica = ReplicaPlan(ReplicaId(new_id()), 0, "machine", gpus)
    plan = type(plan)(
        **{name: getattr(plan, name) for name in plan.__slots__} | {"replicas": (replica,)}
    )
    await local.backend.ensure_workload(plan, {})
    await local.end_of(plan.ref)
    assert await local.text(plan.ref) == "GPU-aaaa,GPU-bbbb\n"


async def test_ranks_find_each_other(local: Machine) -> None:
    script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT"
    plan = await local.start(script, replica_count=2)
    await local.end_of(plan.ref)
    await local.end_of(plan.ref)
    first = (await local.text(plan.ref, 0)).split()
    second = (await local.text(plan.ref, 1)).split()
    assert first[:4] == ["0", "2", "0", "127.0.0.1"]
    assert second[:4] == ["1", "2", "1", "127.0.0.1"]
    assert first[4] == second[4]
    assert 1024 < int(first[4]) < 65_536


async def test_standard_input_is_empty(local: Machine) -> None:
    replica = await local.run("read line && exit 9; exit 4")
    assert replica.exit_code == 4


async def test_the_signals_of_a_process_are_as_a_shell_would_leave_them(local: Machine) -> None:
    text = await local.output("grep -E 'Sig(Ign|Blk)' /proc/self/status")
    # 32 and 33 are the C library's own and may be ignored since the machine was started.
    masks = [int(line.split()[1], 16) & 0x7FFFFFFF for line in text.splitlines()]
    assert masks == [0, 0]


async def test_no_descriptor_of_the_supervisor_reaches_a_process(local: Machine) -> None:
    assert (await local.output("ls /proc/self/fd")).split() == ["0", "1", "2", "3"]


async def test_sigterm_lets_a_job_end_in_its_own_way(local: Machine) -> None:
    plan = await local.start("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.02; done")
    await local.until_printed(plan.ref, "up")
    await local.backend.evict(plan.ref, 30.0, Word.PREEMPTED)
    replica = await local.end_of(plan.ref)
    assert (replica.reason, replica.exit_code) == (Word.PREEMPTED, 7)
    assert "bye" in await local.text(plan.ref)


async def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(local: Machine) -> None:
    plan = await local.start("trap '' TERM; echo up; while :; do sleep 600; done")
    await local.until_printed(plan.ref, "up")
    pid = local.state(plan.ref)["replicas"][0]["pid"]
    await local.backend.evict(plan.ref, 0.2, Word.CANCELLED)
    replica = await local.end_of(plan.ref)
    assert (replica.reason, replica.signal) == (Word.CANCELLED, signal.SIGKILL)
    assert not is_alive(pid)


async def test_a_second_eviction_may_shorten_the_grace(local: Machine) -> None:
    plan = await local.start("trap '' TERM; echo up; while :; do sleep 600; done")
    await local.until_printed(plan.ref, "up")
    await local.backend.evict(plan.ref, 600.0, Word.DRAINED)
    await wait_until_async(
        lambda: local.state(plan.ref)["replicas"][0]["phase"] == "stopping", "it is stopping"
    )
    await local.backend.evict(plan.ref, 0.0, Word.CANCELLED)
    replica = await local.end_of(plan.ref)
    assert (replica.reason, replica.signal) == (Word.DRAINED, signal.SIGKILL)


async def test_sigterm_reaches_a_child_in_a_session_of_its_own(local: Machine) -> None:
    child = "trap 'echo child-bye; exit 0' TERM; echo child-up; while :; do sleep 0.02; done"
    plan = await local.start(f'setsid /bin/sh -c "{child}" & wait; sleep 5')
    await local.until_printed(plan.ref, "child-up")
    await local.backend.evict(plan.ref, 30.0, Word.CANCELLED)
    await local.end_of(plan.ref)
    assert "child-bye" in await local.text(plan.ref)


async def test_a_child_that_outlives_its_parent_keeps_the_rest_of_the_grace(
    local: Machine,
) -> None:
    child = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    plan = await local.start(f'/bin/sh -c "{child}"; true')
    await local.until_printed(plan.ref, "up")
    await local.backend.evict(plan.ref, 30.0, Word.CANCELLED)
    await local.end_of(plan.ref)
    assert "saved" in await local.text(plan.ref)


async def test_what_a_job_leaves_behind_ends_with_it(local: Machine) -> None:
    plan = await local.start("setsid sleep 600 & echo $!; exit 0")
    replica = await local.end_of(plan.ref)
    assert replica.reason == Word.COMPLETED
    await until_dead(int(await local.text(plan.ref)))


async def test_a_double_fork_does_not_escape(local: Machine) -> None:
    script = (
        "(setsid sh -c '(env -i sleep 600 & echo $! >../pid) &' &); "
        "while [ ! -s ../pid ]; do sleep 0.01; done; echo up; "
        "while [ ! -e ../go ]; do sleep 0.01; done; exit 0"
    )
    plan = await local.start(script)
    await local.until_printed(plan.ref, "up")
    folder = local.folder(plan.ref).replica(0)
    pid = int((folder / "pid").read_text())
    assert is_alive(pid)
    (folder / "go").touch()
    assert (await local.end_of(plan.ref)).reason == Word.COMPLETED
    await until_dead(pid)


async def test_processor_time_and_memory_are_told_at_the_end(local: Machine) -> None:
    code = "x = bytearray(50 << 20); sum(range(3_000_000))"
    plan = a_plan(command=("python3", "-c", code))
    await local.backend.ensure_workload(plan, {})
    replica = await local.end_of(plan.ref)
    assert replica.exit_code == 0
    assert replica.cpu_ms is not None
    assert replica.cpu_ms >= 10
    assert replica.memory_peak_mib is not None
    assert 50 <= replica.memory_peak_mib < 500


async def test_a_time_out_is_kept_by_the_supervisor_alone(local: Machine) -> None:
    plan = await local.start("echo up; sleep 600", max_duration_s=1, grace_s=1)
    local.backend.close()
    await wait_until_async(lambda: local.state(plan.ref).get("is_over"), "it ended without us")
    await local.reopen()
    replica = await local.end_of(plan.ref)
    assert replica.reason == Word.TIMED_OUT
    assert "1 s" in replica.message


async def test_a_checkpoint_signal_reaches_only_who_handles_it(local: Machine) -> None:
    child = "trap 'echo saved' USR1; echo up; while :; do sleep 0.02; done"
    plan = await local.start(f'/bin/sh -c "{child}"; true')
    await local.running(plan.ref)
    await local.until_printed(plan.ref, "up")
    await local.backend.request_checkpoint(plan.ref)
    await local.until_printed(plan.ref, "saved")
    assert (await local.seen(plan.ref)).phase is Phase.RUNNING


async def test_a_checkpoint_of_a_finished_attempt_is_refused(local: Machine) -> None:
    plan = await local.start("true")
    await local.end_of(plan.ref)
    with pytest.raises(BackendError):
        await local.backend.request_checkpoint(plan.ref)


async def test_standard_error_is_kept_apart(local: Machine) -> None:
    plan = await local.start("echo out; echo err >&2")
    await local.end_of(plan.ref)
    assert await local.text(plan.ref) == "out\n"
    assert await local.text(plan.ref, stream=Stream.STDERR) == "err\n"


async def test_a_supervisor_has_a_session_of_its_own_and_no_pipe_to_the_control_plane(
    local: Machine,
) -> None:
    plan = await local.start("echo up; sleep 600")
    await local.until_printed(plan.ref, "up")
    state = local.state(plan.ref)
    for pid in (state["supervisor_pid"], state["guard_pid"]):
        assert os.getsid(pid) != os.getsid(0)
        assert open_pipes(pid) & open_pipes(os.getpid()) == set()
