"""Long questions to the decision core, answered by a real child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpuplane.core.forecast.estimates import ForecastLimits
from gpuplane.core.ids import JobId
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.kit.sealing import SealingKeys
from gpuplane.loops.deciding.process import DecisionBounds, DecisionFailed, DecisionProcess
from gpuplane.loops.deciding.questions import (
    WhatOfJob,
    WhatToStart,
    WhenEachStarts,
    decision_ms,
)
from tests.builders import NOW, a_fleet, a_tree, a_workload, an_id
from tests.integration.jobs.worlds import running_world, runs_for
from tests.integration.scheduling.asking import OfOurs
from tests.waiting import wait_until, wait_until_async

ROOT = Path(__file__).parents[3]
ALWAYS = DecisionBounds(inline_ms=0, worth_ratio=0)
"""Every question goes to the child, however small."""


@pytest.fixture(autouse=True)
def _child_knows_our_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")


@contextmanager
def deciding(bounds: DecisionBounds = ALWAYS) -> Iterator[DecisionProcess]:
    process = DecisionProcess(bounds)
    try:
        yield process
    finally:
        process.close()


def a_snapshot(pending: int = 3) -> Snapshot:
    workloads = [a_workload(f"job-{index}").gpus(4).build() for index in range(pending)]
    return Snapshot(1, tuple(workloads), (), (a_fleet(count=1),), a_tree())


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return text[text.rfind(")") + 2] not in "ZX"


async def test_the_child_answers_as_this_process_would() -> None:
    snapshot, policy = a_snapshot(), Policy()
    job_id = snapshot.pending[2].job_id
    with deciding() as process:
        for question in (
            WhatToStart(snapshot, policy, NOW, 0),
            WhatOfJob(snapshot, job_id, policy, NOW, 0, ForecastLimits(), True),
            WhenEachStarts(snapshot, policy, NOW, 0),
        ):
            assert repr(await process.ask(question)) == repr(question.answer())
        assert process.pid == await process.ask(OfOurs("pid"))
        assert process.pid != os.getpid()


async def test_what_is_answered_quickly_needs_no_child() -> None:
    question = WhatToStart(a_snapshot(), Policy(), NOW, 0)
    with deciding(DecisionBounds()) as process:
        assert len((await process.ask(question)).placed) == 2
        assert process.pid is None


async def test_a_question_stays_when_packing_it_would_take_as_long_as_answering_it() -> None:
    question = WhatToStart(a_snapshot(), Policy(), NOW, 0)
    bounds = DecisionBounds(inline_ms=0, worth_ratio=2 * question.cost_ms / question.travel_ms)
    with deciding(bounds) as process:
        assert len((await process.ask(question)).placed) == 2
        assert process.pid is None


async def test_a_long_queue_on_a_large_fleet_is_expected_to_take_long() -> None:
    small = a_snapshot()
    many = tuple(a_workload(f"job-{index}").build() for index in range(2_000))
    assert decision_ms(small) < 2 < 20 < decision_ms(replace(small, pending=many))


async def test_the_child_has_no_database_and_none_of_our_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUPLANE_DATABASE_URL", "postgresql://secret@nowhere/")
    with deciding() as process:
        environment = await process.ask(OfOurs("environment"))
        files = await process.ask(OfOurs("files"))
    assert isinstance(environment, dict)
    assert isinstance(files, list)
    assert not any(key.startswith("GPUPLANE_") for key in environment)
    assert not any(".db" in each or "socket" in each for each in files)


def test_the_child_loads_the_decision_core_and_little_else() -> None:
    code = "import gpuplane.loops.deciding.child, sys; print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(child.stdout.split())
    assert "gpuplane.core.scheduling.cycle" in loaded
    parts = ("db", "domains", "api", "backends", "entry", "kit", "loops.planner")
    unwanted = tuple(f"gpuplane.{each}" for each in parts)
    assert [each for each in loaded if each.startswith((*unwanted, "sqlalchemy", "fastapi"))] == []


async def test_a_child_that_is_killed_is_replaced() -> None:
    with deciding() as process:
        first = await process.ask(OfOurs("pid"))
        assert isinstance(first, int)
        os.kill(first, signal.SIGKILL)
        await wait_until_async(lambda: not is_alive(first), "the child is gone")
        second = await process.ask(OfOurs("pid"))
        assert isinstance(second, int)
        assert second not in (first, os.getpid())


async def test_a_question_that_takes_too_long_is_given_up_and_the_next_is_answered() -> None:
    with deciding(replace(ALWAYS, timeout_s=1.0)) as process:
        await process.ask(OfOurs("pid"))
        with pytest.raises(DecisionFailed, match="GPUPLANE_DECISIONS_TIMEOUT_S"):
            await process.ask(OfOurs("for ever"))
        assert await process.ask(OfOurs("pid")) == process.pid


async def test_a_question_that_needs_too_much_memory_harms_the_child_alone() -> None:
    with deciding(replace(ALWAYS, memory_mib=1024)) as process:
        with pytest.raises(DecisionFailed, match="GPUPLANE_DECISIONS_MEMORY_MIB"):
            await process.ask(OfOurs("memory"))
        assert await process.ask(OfOurs("pid")) == process.pid


async def test_what_is_wrong_in_a_question_comes_back_as_text() -> None:
    question = WhatOfJob(
        a_snapshot(), JobId(an_id("nobody")), Policy(), NOW, 0, ForecastLimits(), False
    )
    with deciding() as process:
        with pytest.raises(DecisionFailed, match="is not among the pending"):
            await process.ask(question)
        assert await process.ask(OfOurs("pid")) == process.pid


async def test_a_child_that_nobody_asks_is_stopped() -> None:
    with deciding(replace(ALWAYS, idle_s=0.05)) as process:
        pid = await process.ask(OfOurs("pid"))
        assert isinstance(pid, int)
        await wait_until_async(lambda: process.pid is None, "the child is let go")
        await wait_until_async(lambda: not is_alive(pid), "the child is gone")
        again = await process.ask(OfOurs("pid"))
        assert again != pid


async def test_closing_ends_a_child_that_thinks() -> None:
    with deciding() as process:
        pid = await process.ask(OfOurs("pid"))
        assert isinstance(pid, int)
        process.close()
        assert not is_alive(pid)
        with pytest.raises(DecisionFailed, match="stopping"):
            await process.ask(OfOurs("pid"))


PARENT = """
import asyncio
from gpuplane.loops.deciding.process import DecisionBounds, DecisionProcess
from tests.integration.scheduling.asking import OfOurs

async def main():
    process = DecisionProcess(DecisionBounds(inline_ms=0, worth_ratio=0))
    print(await process.ask(OfOurs("pid")), flush=True)
    await process.ask(OfOurs("for ever"))

asyncio.run(main())
"""


def test_a_child_that_thinks_ends_with_its_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout:
        pid = int(parent.stdout.readline())
        try:
            assert is_alive(pid)
            wait_until(lambda: cpu_ticks(pid) > 30, "the child thinks about the second question")
        finally:
            parent.kill()
    wait_until(lambda: not is_alive(pid), "the child is gone")
    assert not is_alive(pid)


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


async def test_jobs_are_placed_and_foretold_by_children(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys, bounds=ALWAYS) as world:
        first, second, third = [
            await world.submit(gpu_type="H100", gpu_count=count, spec=runs_for(600))
            for count in (8, 8, 2)
        ]
        await world.turn(2)
        assert world.turns.pid is not None
        states = [(await world.job(each["id"]))["status"] for each in (first, second, third)]
        assert states == ["running", "running", "queued"]
        why = await world.ask("GET", f"/jobs/{third['id']}/why?change=true")
        assert (why["reason"], why["change"]["field"]) == ("InsufficientGpu", "gpu_type")
        schedule = await world.ask("GET", "/clusters/sim/schedule")
        assert third["id"] in [row["job_id"] for row in schedule["rows"]]
        estimate = await world.ask(
            "POST", "/jobs/estimate", json={"name": "asked", "cluster": "sim", "gpu_count": 8}
        )
        assert not estimate["fits_now"]
        assert world.questions.pid not in (None, world.turns.pid)


async def test_a_forecast_that_cannot_be_had_is_refused_with_a_word_and_a_time(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    bounds = replace(ALWAYS, memory_mib=1)
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys, bounds=bounds) as world:
        job = await world.submit(gpu_type="T4", gpu_count=1, spec=runs_for(600))
        answer = await world.http.get(f"/api/v1/jobs/{job['id']}/why?change=true")
        assert (answer.status_code, answer.json()["code"]) == (503, "forecast_unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert (await world.ask("GET", f"/jobs/{job['id']}/why"))["status"] == "queued"
