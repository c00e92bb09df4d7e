"""Kill -9 wherever it hurts: nothing runs on unseen, nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuplane.backends.interface import AttemptPlan, AttemptRef, Phase, Tombstoned
from gpuplane.backends.local.folders import AttemptFolder
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.backends.local.supervisor import records
from gpuplane.core.reasons import Word
from tests.contract.builders import a_plan
from tests.integration.local.conftest import Machine, is_alive, until_dead
from tests.waiting import wait_until_async

FAMILY = """
sleep 601 & echo $! >../pids
setsid sleep 602 & echo $! >>../pids
(setsid sh -c '(sleep 603 & echo $! >>../pids; exec sleep 604) &' &)
sleep 605 & echo $! >>../pids
while [ $(wc -l <../pids) -lt 4 ]; do sleep 0.01; done
echo up
wait
"""


async def start_family(local: Machine) -> tuple[AttemptRef, list[int]]:
    """Start a job with children, a session of its own and a double fork; return all of them."""
    plan = await local.start(FAMILY)
    await local.until_printed(plan.ref, "up")
    text = (local.folder(plan.ref).replica(0) / "pids").read_text()
    pids = [int(line) for line in text.split()]
    assert len(pids) == 4
    return plan.ref, [*pids, local.state(plan.ref)["replicas"][0]["pid"]]


async def test_when_the_supervisor_is_killed_its_descendants_end_and_the_attempt_is_lost(
    local: Machine,
) -> None:
    ref, pids = await start_family(local)
    state = local.state(ref)
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    replica = await local.end_of(ref)
    assert (replica.phase, replica.reason) == (Phase.LOST, Word.SUPERVISOR_LOST)
    assert replica.exit_code is None
    assert replica.started_at is not None
    assert replica.ended_at is not None
    await until_dead(*pids, state["guard_pid"])
    assert await local.seen(ref) == replica


async def test_a_daemon_without_environment_does_not_outlive_a_killed_supervisor(
    local: Machine,
) -> None:
    daemon = "(setsid env -i sh -c '(sleep 606 & echo $! >../pids) &' &)"
    plan = await local.start(
        f"{daemon}; while [ ! -s ../pids ]; do sleep 0.01; done; echo up; sleep 600"
    )
    await local.until_printed(plan.ref, "up")
    pid = int((local.folder(plan.ref).replica(0) / "pids").read_text())
    assert is_alive(pid)
    os.kill(local.state(plan.ref)["supervisor_pid"], signal.SIGKILL)
    replica = await local.end_of(plan.ref)
    assert replica.reason == Word.SUPERVISOR_LOST
    await until_dead(pid)


async def test_when_the_guard_is_killed_the_attempt_is_ended(local: Machine) -> None:
    ref, pids = await start_family(local)
    state = local.state(ref)
    os.kill(state["guard_pid"], signal.SIGKILL)
    replica = await local.end_of(ref)
    assert (replica.phase, replica.reason) == (Phase.EXITED, Word.SUPERVISOR_LOST)
    assert "guard" in replica.message
    await until_dead(*pids, state["supervisor_pid"])


@pytest.mark.parametrize("cgroup_base", [None, ""], ids=["with a cgroup", "without a cgroup"])
async def test_when_both_are_killed_at_once_the_next_look_ends_what_is_left(
    local: Machine, cgroup_base: str | None
) -> None:
    local.factory.settings = LocalSettings(
        node_name="machine",
        lock_folder=local.factory.settings.lock_folder,
        cgroup_base=cgroup_base,
    )
    await local.reopen()
    ref, pids = await start_family(local)
    state = local.state(ref)
    os.kill(state["supervisor_pid"], signal.SIGSTOP)  # so that it cannot act between the two
    os.kill(state["guard_pid"], signal.SIGKILL)
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    await until_dead(state["guard_pid"], state["supervisor_pid"])
    replica = await local.end_of(ref)
    assert (replica.phase, replica.reason) == (Phase.LOST, Word.SUPERVISOR_LOST)
    await until_dead(*pids)
    assert await local.seen(ref) == replica


async def test_a_lost_attempt_is_announced_without_anyone_asking(local: Machine) -> None:
    ref, _ = await start_family(local)
    await local.backend.wait_changed(0)
    os.kill(local.state(ref)["supervisor_pid"], signal.SIGKILL)
    await asyncio.wait_for(local.backend.wait_changed(60.0), 20.0)
    await local.end_of(ref)
    assert (local.folder(ref).path / records.LOST).exists()


async def test_a_lost_attempt_never_starts_again(local: Machine) -> None:
    plan = await local.start("echo ran >>../runs; sleep 600")
    runs = local.folder(plan.ref).replica(0) / "runs"
    await wait_until_async(runs.exists, "it runs")
    os.kill(local.state(plan.ref)["supervisor_pid"], signal.SIGKILL)
    await local.end_of(plan.ref)
    await local.backend.ensure_workload(plan, {})
    assert (await local.seen(plan.ref)).phase is Phase.LOST
    assert runs.read_text() == "ran\n"


async def test_after_a_restart_of_the_machine_what_ran_is_lost(local: Machine) -> None:
    ref, _ = await start_family(local)
    os.kill(local.state(ref)["supervisor_pid"], signal.SIGKILL)
    folder = local.folder(ref)
    await wait_until_async(lambda: not folder.is_held(), "the guard is gone")
    (folder.path / records.LOST).unlink(missing_ok=True)
    fate = folder.fate()
    assert fate is not None
    records.write_record(str(folder.path / records.FATE), {**fate, "boot_id": "another boot"})
    replica = await local.end_of(ref)
    assert (replica.phase, replica.message) == (Phase.LOST, "the machine was restarted")


# A client process that ensures one attempt (or evicts it) and can be killed in the middle.
CLIENT = """
import asyncio, pickle, sys
from pathlib import Path
from gpuplane.backends.interface import BackendError
from gpuplane.backends.local.backend import LocalBackend
from gpuplane.kit.clock import SystemClock
from gpuplane.kit import failpoints
home, verb, plan, settings = pickle.load(sys.stdin.buffer)
failpoints.arm_from_environment()

async def main():
    backend = LocalBackend(Path(home), SystemClock(), settings)
    print("ready", flush=True)
    try:
        if verb == "ensure":
            await backend.ensure_workload(plan, {})
        else:
            await backend.evict(plan.ref, 0.0, "Cancelled")
        print("done", flush=True)
    except BackendError as error:
        print(type(error).__name__, flush=True)

asyncio.run(main())
"""


def client(
    local: Machine, verb: str, plan: AttemptPlan, failpoint: str = ""
) -> subprocess.Popen[bytes]:
    """Start a control plane of its own that does one thing, and dies where it is told."""
    import pickle

    source = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": f"{source / 'src'}:{source}",
            "GPUPLANE_FAILPOINTS": failpoint,
        },
    )
    assert process.stdin is not None
    pickle.dump((str(local.backend.home), verb, plan, local.factory.settings), process.stdin)
    process.stdin.close()
    return process


async def finished(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Return a client's exit code and what it said last."""
    assert process.stdout is not None
    text = await asyncio.to_thread(process.stdout.read)
    process.stdout.close()
    return await asyncio.to_thread(process.wait), text.decode().split()[-1]


def counting_plan(local: Machine, counter: Path, duration_s: float = 0.0) -> AttemptPlan:
    """Return a plan whose command adds a line to a file each time that it runs."""
    script = f"echo $$ >>{counter}; sleep {duration_s}"
    return a_plan(command=("/bin/sh", "-c", script))


@pytest.mark.parametrize(
    "failpoint",
    [
        "local.ensure.accepted",
        "local.ensure.prepared",
        "local.launch.spawned",
        "local.launch.handed_over",
        "local.ensure.claimed",
    ],
)
async def test_a_control_plane_killed_while_it_ensures_starts_exactly_once(
    local: Machine, tmp_path: Path, failpoint: str
) -> None:
    counter = tmp_path / "count"
    plan = counting_plan(local, counter)
    code, _ = await finished(client(local, "ensure", plan, failpoint))
    assert code == -signal.SIGKILL
    await local.backend.ensure_workload(plan, {})
    replica = await local.end_of(plan.ref)
    assert replica.reason == Word.COMPLETED
    assert len(counter.read_text().splitlines()) == 1


async def test_a_control_plane_killed_while_it_evicts_leaves_an_eviction_that_can_be_repeated(
    local: Machine, tmp_path: Path
) -> None:
    counter = tmp_path / "count"
    plan = counting_plan(local, counter)
    code, _ = await finished(client(local, "evict", plan, "local.evict.recorded"))
    assert code == -signal.SIGKILL
    await local.backend.evict(plan.ref, 0.0, Word.CANCELLED)
    with pytest.raises(Tombstoned):
        await local.backend.ensure_workload(plan, {})
    assert not counter.exists()


async def test_two_control_planes_that_ensure_at_once_start_once(
    local: Machine, tmp_path: Path
) -> None:
    counter = tmp_path / "count"
    plan = counting_plan(local, counter, duration_s=0.2)
    answers = await asyncio.gather(
        *(finished(client(local, "ensure", plan)) for _ in range(4)),
        local.backend.ensure_workload(plan, {}),
    )
    assert [answer for answer in answers if answer] == [(0, "done")] * 4
    replica = await local.end_of(plan.ref)
    assert replica.reason == Word.COMPLETED
    assert len(counter.read_text().splitlines()) == 1


@pytest.mark.parametrize("turn", range(8))
async def test_an_eviction_that_races_the_start_leaves_nothing_running(
    local: Machine, tmp_path: Path, turn: int
) -> None:
    counter = tmp_path / "count"
    plan = counting_plan(local, counter, duration_s=600)

    async def ensure() -> str:
        try:
            await local.backend.ensure_workload(plan, {})
        except Tombstoned:
            return "tombstoned"
        return "started"

    async def evict() -> str:
        # Spread over the 25 ms that a start takes, so that the two meet at different points.
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=turn * 0.004)
        await local.backend.evict(plan.ref, 0.0, Word.CANCELLED)
        return "evicted"

    answer, _ = await asyncio.gather(ensure(), evict())
    replica = await local.end_of(plan.ref)
    assert replica.reason == Word.CANCELLED
    if answer == "tombstoned":
        assert replica.started_at is None
        assert not counter.exists()
    if counter.exists():
        await until_dead(int(counter.read_text()))


async def test_a_supervisor_that_starts_after_the_tombstone_runs_nothing(
    local: Machine, tmp_path: Path
) -> None:
    counter = tmp_path / "count"
    plan = counting_plan(local, counter)
    # The client has looked and seen no tombstone; it is stopped there, and the eviction wins.
    process = client(local, "ensure", plan)
    assert process.stdout is not None
    ready = await asyncio.to_thread(process.stdout.readline)
    assert ready == b"ready\n"
    await local.backend.evict(plan.ref, 0.0, Word.CANCELLED)
    code, answer = await finished(process)
    assert code == 0
    replica = await local.end_of(plan.ref)
    assert replica.reason == Word.CANCELLED
    assert answer in ("Tombstoned", "done")
    started = replica.started_at is not None
    assert counter.exists() <= started


async def test_the_records_of_an_unknown_version_are_left_alone(local: Machine) -> None:
    plan = await local.start("sleep 600")
    await local.running(plan.ref)
    folder = local.folder(plan.ref)
    fate = folder.fate()
    assert fate is not None
    records.write_record(str(folder.path / records.FATE), {**fate, "format": 99})
    assert (await local.seen(plan.ref)).phase is Phase.UNREACHABLE
    records.write_record(str(folder.path / records.FATE), fate)
    assert (await local.seen(plan.ref)).phase is Phase.RUNNING


async def test_a_torn_state_record_is_read_as_starting(local: Machine) -> None:
    plan = await local.start("sleep 600")
    await local.running(plan.ref)
    folder: AttemptFolder = local.folder(plan.ref)
    whole = (folder.path / records.STATE).read_text()
    (folder.path / records.STATE).write_text(whole[:40])
    assert (await local.seen(plan.ref)).phase is Phase.STARTING
    (folder.path / records.STATE).write_text(whole)
    assert (await local.seen(plan.ref)).phase is Phase.RUNNING
