"""What time alone does to jobs, through the real monitor."""

from __future__ import annotations

from pathlib import Path

from gpuplane.core.workloads import Priority
from gpuplane.domains.jobs.service import UptimeTargets, WaitTargets
from gpuplane.kit.clock import instant_to_text
from gpuplane.kit.sealing import SealingKeys
from tests.integration.jobs.worlds import World, running_world, runs_for


def later(world: World, seconds: float) -> str:
    return instant_to_text(world.server.clock.now_ms() + int(seconds * 1000))


async def test_a_job_stands_in_line_at_its_scheduled_start_and_not_before(world: World) -> None:
    job = await world.submit(scheduled_start=later(world, 60), spec=runs_for(10))
    assert (job["status"], job["reason"]) == ("pending", "ScheduledStart")
    await world.after(58)
    assert (await world.job(job["id"]))["status"] == "pending"
    await world.after(3)
    assert (await world.job(job["id"]))["status"] == "running"


async def test_a_job_that_runs_too_long_is_stopped_and_fails(world: World) -> None:
    job = await world.submit(max_duration_seconds=60, max_retries=0, spec=runs_for(3600))
    await world.turn(2)
    await world.after(61)
    await world.after(1)
    failed = await world.job(job["id"])
    assert (failed["status"], failed["reason"]) == ("failed", "MaxDurationExceeded")


async def test_a_missed_deadline_is_told_once_after_the_grace(world: World) -> None:
    job = await world.submit(deadline=later(world, 100), spec=runs_for(3600))
    await world.turn(2)
    await world.after(125)
    assert "job.deadline_missed" not in await world.kinds(job["id"])
    await world.after(10)
    await world.after(60)
    assert (await world.kinds(job["id"])).count("job.deadline_missed") == 1
    assert (await world.job(job["id"]))["status"] == "running"


async def test_a_missed_deadline_cancels_a_job_that_asked_for_it(world: World) -> None:
    job = await world.submit(
        deadline=later(world, 100), deadline_action="cancel", spec=runs_for(3600)
    )
    waiting = await world.submit(
        deadline=later(world, 100),
        deadline_action="cancel",
        gpu_type="H100",
        gpu_count=8,
        replicas={"count": 3},
        spec=runs_for(10),
    )  # fmt: skip - the call reads as one line
    await world.turn(2)
    await world.after(131)
    await world.after(1)
    for job_id in (job["id"], waiting["id"]):
        ended = await world.job(job_id)
        assert (ended["status"], ended["reason"]) == ("cancelled", "DeadlineMissed")


async def test_a_spent_budget_is_told_pauses_or_cancels_as_asked(world: World) -> None:
    jobs = {}
    for action in ("warn", "pause", "cancel"):
        job = await world.submit(
            gpu_type="H100",
            gpu_count=1,
            budget_limit="2.00",
            budget_action=action,
            spec=runs_for(36_000),
        )  # fmt: skip - the call reads as one line
        jobs[action] = job["id"]
    await world.turn(2)
    await world.after(1700)
    assert [(await world.job(each))["status"] for each in jobs.values()] == ["running"] * 3
    await world.after(200)
    await world.after(10)
    warned = await world.job(jobs["warn"])
    assert (warned["status"], float(warned["actual_cost"]) > 2) == ("running", True)
    assert (await world.kinds(jobs["warn"])).count("job.budget_exceeded") == 1
    paused = await world.job(jobs["pause"])
    assert (paused["status"], paused["condition"]) == ("pending", "Paused")
    for action, verb in (("pause", "resume"), ("cancel", "retry")):
        refused = await world.ask("POST", f"/jobs/{jobs[action]}/{verb}", 409)
        assert refused["code"] == "budget_spent"
    cancelled = await world.job(jobs["cancel"])
    assert (cancelled["status"], cancelled["reason"]) == ("cancelled", "BudgetExceeded")
    assert "of a budget of 2.00" in cancelled["status_message"]


async def test_a_closed_window_stops_a_job_and_lets_it_go_on_when_it_opens(world: World) -> None:
    clock = world.server.clock
    minute = 60_000
    clock.advance((minute - clock.now_ms() % minute) / 1000)
    start, end = clock.now_ms(), clock.now_ms() + 10 * minute
    window = {
        "start": instant_to_text(start)[11:16],
        "end": instant_to_text(end)[11:16],
        "zone": "UTC",
        "at_end": "stop",
    }
    job = await world.submit(window=window, spec=runs_for(36_000))
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "running"
    await world.after(601)
    await world.after(1)
    stopped = await world.job(job["id"])
    assert (stopped["status"], stopped["reason"]) == ("queued", "OutsideTimeWindow")
    await world.after(86_400 - 600)
    await world.turn()
    assert (await world.job(job["id"]))["status"] == "running"


async def test_a_job_in_a_window_that_may_finish_runs_beyond_it(world: World) -> None:
    clock = world.server.clock
    clock.advance((60_000 - clock.now_ms() % 60_000) / 1000)
    window = {
        "start": instant_to_text(clock.now_ms())[11:16],
        "end": instant_to_text(clock.now_ms() + 600_000)[11:16],
        "zone": "UTC",
    }
    job = await world.submit(window=window, spec=runs_for(36_000))
    await world.turn(2)
    await world.after(900)
    assert (await world.job(job["id"]))["status"] == "running"


async def test_a_job_that_is_not_seen_running_in_time_fails_to_start(world: World) -> None:
    job = await world.submit(max_retries=0, spec=runs_for(10, startup_s=3600))
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "scheduled"
    await world.after(601)
    await world.after(1)
    failed = await world.job(job["id"])
    assert (failed["status"], failed["reason"]) == ("failed", "StartTimeout")


async def test_long_waits_are_told_at_four_fifths_of_the_target_and_beyond_it(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    targets = WaitTargets({Priority.HIGH: 100_000})
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys, targets=targets) as world:
        never = {"gpu_type": "H100", "gpu_count": 8, "replicas": {"count": 3}}
        job = await world.submit(priority="high", spec=runs_for(10), **never)
        other = await world.submit(priority="normal", spec=runs_for(10), **never)
        told = "job.wait_target_at_risk", "job.wait_target_breached"
        for seconds, expected in ((65, [0, 0]), (22, [1, 0]), (20, [1, 1]), (60, [1, 1])):
            await world.after(seconds)
            kinds = await world.kinds(job["id"])
            assert [kinds.count(each) for each in told] == expected
        assert not set(told) & set(await world.kinds(other["id"]))


async def test_a_service_that_is_down_is_told_at_four_fifths_of_what_its_class_allows(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    uptimes = UptimeTargets({Priority.NORMAL: 900_000}, window_ms=10_000_000)
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys, uptimes=uptimes) as world:
        job = await world.submit(
            job_type="service",
            max_retries=5,
            retry={"delay_seconds": 3000, "jitter": 0},
            spec={**runs_for(200, exit_code=1), "restart": "Never"},
        )  # fmt: skip - the call reads as one line
        await world.turn(2)
        assert (await world.job(job["id"]))["due_at"] is None
        await world.after(200)
        assert (await world.job(job["id"]))["condition"] == "BackingOff"
        told = "job.uptime_risk", "job.uptime_breached"
        for seconds, expected in ((600, [0, 0]), (300, [1, 0]), (5, [1, 0]), (295, [1, 1])):
            await world.after(seconds)
            kinds = await world.kinds(job["id"])
            assert [kinds.count(each) for each in told] == expected
        assert (await world.job(job["id"]))["condition"] == "BackingOff"
        await world.after(1800)
        assert (await world.job(job["id"]))["status"] == "running"
        assert (await world.kinds(job["id"])).count("job.uptime_breached") == 1


async def test_a_suspended_service_is_not_down(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    uptimes = UptimeTargets({Priority.NORMAL: 900_000}, window_ms=1_000_000)
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys, uptimes=uptimes) as world:
        job = await world.submit(job_type="service", spec=runs_for(36_000))
        await world.turn(2)
        await world.after(100)
        for verb in ("suspend", "resume"):
            await world.ask("POST", f"/jobs/{job['id']}/{verb}", json={})
            await world.turn(3)
            await world.after(300)
        assert (await world.job(job["id"]))["status"] == "running"
        await world.ask("POST", f"/jobs/{job['id']}/preempt", json={})
        await world.after(1)
        assert not [each for each in await world.kinds(job["id"]) if "uptime" in each]


async def test_looking_again_changes_nothing(world: World) -> None:
    job = await world.submit(deadline=later(world, 10), spec=runs_for(3600))
    await world.turn(2)
    await world.after(50)
    before = await world.job(job["id"])
    kinds = await world.kinds(job["id"])
    for _ in range(3):
        await world.loops["monitor"].run_once()
    assert await world.job(job["id"]) == {**before, "actual_cost": before["actual_cost"]}
    assert await world.kinds(job["id"]) == kinds


async def test_what_a_job_costs_beside_its_budgets_currency_is_told_once(world: World) -> None:
    job = await world.submit(
        gpu_type="H100",
        gpu_count=1,
        budget_limit="2.00",
        budget_action="cancel",
        spec=runs_for(36_000),
    )  # fmt: skip - the call reads as one line
    await world.turn(2)
    price = {"item": "H100", "price": "4000", "currency": "EUR", "cluster": "sim"}
    await world.ask("POST", "/prices", 201, json=price)
    await world.after(3600)
    await world.after(60)
    found = await world.ask("GET", f"/jobs/{job['id']}/events?limit=200")
    told = [each for each in found["items"] if each["kind"] == "job.budget_not_counting"]
    assert len(told) == 1
    assert "EUR, which its budget of 2.00 USD does not count" in told[0]["message"]


async def test_a_budget_is_in_the_currency_of_the_prices_where_the_job_runs(world: World) -> None:
    price = {"item": "H100", "price": "4.00", "currency": "EUR", "cluster": "sim"}
    await world.ask("POST", "/prices", 201, json=price)
    job = await world.submit(
        gpu_type="H100",
        gpu_count=1,
        budget_limit="0.0001",
        budget_action="cancel",
        spec=runs_for(36_000),
    )  # fmt: skip - the call reads as one line
    await world.turn(2)
    await world.after(60)
    await world.after(60)
    over = await world.job(job["id"])
    assert (over["status"], over["currency"]) == ("cancelled", "EUR")
    assert "EUR of a budget of 0.0001." in over["status_message"]


async def test_a_price_in_a_mistyped_currency_is_refused_over_http(world: World) -> None:
    price = {"item": "L4", "price": "1000", "currency": "USS"}
    refused = await world.ask("POST", "/prices", 422, json=price)
    assert "USD" in str(refused)


async def test_what_a_job_used_is_told_by_the_queue_it_was_admitted_through(world: World) -> None:
    job = await world.submit(gpu_type="H100", gpu_count=1, spec=runs_for(3600))
    await world.turn(2)
    await world.after(600)
    queue = (await world.job(job["id"]))["queue"]
    assert queue
    by_queue = await world.ask("GET", "/usage?group_by=queue")
    assert [row["keys"]["queue"] for row in by_queue["rows"]] == [queue]
    only = await world.ask("GET", f"/usage?group_by=job&queue={queue}")
    assert [row["keys"]["job"] for row in only["rows"]] == [job["id"]]
