"""Ports, health checks and restarts of a service on this machine."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

from gpuplane.backends.interface import AttemptPlan, AttemptRef, Phase, ReplicaObservation
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import HealthCheck, JobType, RestartPolicy
from tests.contract.builders import a_plan
from tests.integration.local.conftest import Machine
from tests.waiting import wait_until_async

# Answers 200 on /ok until the file `sick` appears, 503 afterwards; /slow never answers.
SERVER = """
import http.server, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/slow":
            time.sleep(600)
        good = self.path == "/ok" and not os.path.exists("sick")
        self.send_response(200 if good else 503)
        self.end_headers()
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""

QUICK = HealthCheck(path="/ok", interval_s=0.02, timeout_s=1.0, failure_threshold=2)


def a_service(script: str = SERVER, **fields: Any) -> AttemptPlan:
    return a_plan(
        command=(sys.executable, "-I", "-S", "-c", script),
        job_type=JobType.SERVICE,
        **{"port": 0, "health": QUICK, **fields},
    )


async def until_seen(
    local: Machine, ref: AttemptRef, what: str, **facts: Any
) -> ReplicaObservation:
    """Return rank 0 once it shows these facts."""

    async def shown() -> ReplicaObservation | None:
        replica = await local.seen(ref)
        fits = all(getattr(replica, name) == value for name, value in facts.items())
        return replica if fits else None

    found = await wait_until_async(shown, what)
    assert found is not None
    return found


async def quick_restarts(local: Machine) -> None:
    local.factory.settings = replace(local.factory.settings, restart_delay_s=0.05)
    await local.reopen()


async def test_a_service_gets_a_port_and_is_ready_once_it_answers(local: Machine) -> None:
    plan = a_service()
    await local.backend.ensure_workload(plan, {})
    replica = await until_seen(local, plan.ref, "it is ready", ready=True)
    assert replica.phase is Phase.RUNNING
    assert replica.port is not None
    assert replica.url == f"http://127.0.0.1:{replica.port}"
    reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)
    writer.write(b"GET /ok HTTP/1.0\r\n\r\n")
    assert b"200" in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_a_connection_is_enough_where_no_path_is_named(local: Machine) -> None:
    plan = a_service(health=replace(QUICK, path=""))
    await local.backend.ensure_workload(plan, {})
    assert (await until_seen(local, plan.ref, "it is ready", ready=True)).port


async def test_a_service_that_does_not_answer_well_is_not_ready(local: Machine) -> None:
    plan = a_service(health=replace(QUICK, path="/bad", start_period_s=0.0))
    await local.backend.ensure_workload(plan, {})
    replica = await wait_for_message(local, plan.ref, "answered 503")
    assert (replica.phase, replica.ready) == (Phase.RUNNING, False)


async def test_a_service_that_never_answers_is_not_ready(local: Machine) -> None:
    health = replace(QUICK, path="/slow", timeout_s=0.1, start_period_s=0.0)
    plan = a_service(health=health)
    await local.backend.ensure_workload(plan, {})
    replica = await wait_for_message(local, plan.ref, "no answer within 0.1 s")
    assert replica.ready is False


async def test_failures_in_the_start_period_do_not_count(local: Machine) -> None:
    plan = a_service(
        "import time; time.sleep(600)",
        restart=RestartPolicy.ALWAYS,
        health=replace(QUICK, interval_s=0.01, start_period_s=600.0),
    )
    await local.backend.ensure_workload(plan, {})
    replica = await local.running(plan.ref)
    assert (replica.ready, replica.restart_count) == (False, 0)


async def test_a_sick_service_is_started_again(local: Machine) -> None:
    await quick_restarts(local)
    script = f"import os\nif os.path.exists('sick'): os.remove('sick')\n{SERVER}"
    plan = a_service(script, restart=RestartPolicy.ON_FAILURE)
    await local.backend.ensure_workload(plan, {})
    await until_seen(local, plan.ref, "it is ready", ready=True)
    (local.folder(plan.ref).replica(0) / "work" / "sick").touch()
    replica = await until_seen(local, plan.ref, "it is well again", ready=True, restart_count=1)
    assert replica.phase is Phase.RUNNING


async def test_a_service_that_fails_starts_again_with_growing_pauses(local: Machine) -> None:
    await quick_restarts(local)
    plan = await local.start(
        "echo start >>../starts; exit 1", restart=RestartPolicy.ON_FAILURE, grace_s=1
    )
    starts = local.folder(plan.ref).replica(0) / "starts"
    await wait_until_async(
        lambda: starts.exists() and len(starts.read_text().splitlines()) >= 4, "four starts"
    )
    replica = await local.seen(plan.ref)
    assert replica.restart_count >= 3
    assert replica.phase in (Phase.STARTING, Phase.RUNNING)
    await local.backend.evict(plan.ref, 0.0, Word.CANCELLED)
    assert (await local.end_of(plan.ref)).reason == Word.CANCELLED


async def test_a_service_that_ends_well_stays_ended_on_failure_only(local: Machine) -> None:
    replica = await local.run("exit 0", restart=RestartPolicy.ON_FAILURE)
    assert (replica.reason, replica.restart_count) == (Word.COMPLETED, 0)


async def test_a_service_that_ends_well_starts_again_when_always_is_asked(local: Machine) -> None:
    await quick_restarts(local)
    plan = await local.start("exit 0", restart=RestartPolicy.ALWAYS)

    async def restarted() -> ReplicaObservation | None:
        replica = await local.seen(plan.ref)
        return replica if replica.restart_count >= 2 else None

    replica = await wait_until_async(restarted, "it started three times")
    assert replica is not None
    assert replica.phase in (Phase.STARTING, Phase.RUNNING)


async def test_a_command_that_is_not_there_is_not_tried_again(local: Machine) -> None:
    plan = a_plan(command=("no-such-program",), restart=RestartPolicy.ALWAYS)
    await local.backend.ensure_workload(plan, {})
    replica = await local.end_of(plan.ref)
    assert (replica.reason, replica.restart_count) == (Word.START_FAILED, 0)


async def wait_for_message(local: Machine, ref: AttemptRef, text: str) -> ReplicaObservation:
    async def told() -> ReplicaObservation | None:
        replica = await local.seen(ref)
        return replica if text in replica.message else None

    found = await wait_until_async(told, f"the message says {text!r}")
    assert found is not None
    return found
