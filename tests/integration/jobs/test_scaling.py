"""Services that grow and shrink while they run, over HTTP and through the real loops."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

from sqlalchemy import update

from gpuplane.backends.interface import AttemptRef, Phase, ReplicaObservation, ScaleObservation
from gpuplane.core.ids import AttemptId, JobId
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.tables import AttemptRow
from gpuplane.domains.placements import service as placements
from gpuplane.entry.checking import checks_at
from tests.integration.jobs.worlds import World


async def _service(world: World, *, running: bool = True, **fields: Any) -> dict[str, Any]:
    """Submit a service of one T4 that may have up to two replicas, or none."""
    body = {
        "name": "web",
        "job_type": "service",
        "gpu_type": "T4",
        "gpu_count": 1,
        "replicas": {"count": 1, "min": 0, "max": 3, "scale_to_zero": True},
        "spec": {"command": ["serve"]},
        **fields,
    }
    job = await world.submit(**body)
    if running:
        await world.turn(2)
        assert (await world.job(job["id"]))["status"] == "running"
    return job


async def _scale(world: World, job: dict[str, Any], n: int, status: int = 200) -> dict[str, Any]:
    return await world.ask("PUT", f"/jobs/{job['id']}/scale", status, json={"replicas": n})


async def _ranks(world: World, job: dict[str, Any]) -> list[tuple[int, str]]:
    found = await world.job(job["id"])
    return [(each["rank"], each["phase"]) for each in found["current_attempt"]["replicas"]]


async def _replicas(world: World, job: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await world.job(job["id"]))["current_attempt"]["replicas"]
    return found


async def _held(world: World) -> list[tuple[int, str]]:
    """Return (rank, GPU) of all that is held."""
    rows = await world.server.database.read(placements.list_open)
    return sorted((row.rank, row.gpu_id) for row in rows if row.gpu_id is not None)


async def _seconds_held(world: World, job: dict[str, Any]) -> list[float]:
    """Return how long each rank of a job that is over held its GPU, by rank."""
    ids = [JobId(UUID(job["id"]))]
    rows = await world.server.database.read(lambda s: placements.list_for_jobs(s, ids))
    held = sorted((row for row in rows if row.gpu_id is not None), key=lambda row: row.rank)
    return [((row.to_at or 0) - row.from_at) / 1000 for row in held]


async def _faults(world: World) -> list[str]:
    """Return what `db check` would tell of jobs, allocations and the ledger."""
    found: list[str] = []
    for check in checks_at(world.server.clock.now_ms()).values():
        found += await world.server.database.read(check)
    return found


async def test_a_service_grows_by_one_and_shrinks_by_one_and_only_that_is_metered(
    any_world: World,
) -> None:
    world = any_world
    job = await _service(world)
    world.server.clock.advance(100)
    scaled = await _scale(world, job, 2)
    assert (scaled["replicas_wanted"], scaled["replicas_ready"]) == (2, 1)
    await world.turn(2)
    assert await _ranks(world, job) == [(0, "running"), (1, "running")]
    assert len({gpu for _, gpu in await _held(world)}) == 2
    assert await _faults(world) == []
    world.server.clock.advance(100)
    await _scale(world, job, 1)
    await world.turn(2)
    assert await _ranks(world, job) == [(0, "running")]
    assert [rank for rank, _ in await _held(world)] == [0]
    world.server.clock.advance(100)
    await world.ask("DELETE", f"/jobs/{job['id']}")
    await world.turn(2)
    done = await world.job(job["id"])
    assert done["status"] == "cancelled"
    first, second = await _seconds_held(world, job)
    assert second >= 100
    assert first >= second + 200
    assert abs(float(done["actual_cost"]) - (first + second) * 0.4 / 3600) < 0.00001
    assert await _held(world) == []
    assert await _faults(world) == []
    kinds = await world.kinds(job["id"])
    assert [each for each in kinds if each in ("job.scaled", "job.grown", "job.shrunk")] == [
        "job.scaled", "job.grown", "job.scaled", "job.shrunk",
    ]  # fmt: skip


async def test_a_replica_that_finds_no_room_waits_with_the_usual_reason(world: World) -> None:
    job = await _service(world)
    await _scale(world, job, 3)
    await world.turn(4)
    assert await _ranks(world, job) == [(0, "running"), (1, "running")]
    told = (await world.job(job["id"]))["current_attempt"]["scale"]
    assert (told["wanted"], told["present"], told["ready"], told["reason"]) == (
        3, 2, 2, "InsufficientGpu",
    )  # fmt: skip
    why = await world.ask("GET", f"/jobs/{job['id']}/why")
    assert "1 of 3 replicas waits" in why["sentence"]
    [listed] = (await world.ask("GET", "/jobs?replicas_missing=true"))["items"]
    assert (listed["id"], listed["scale"]) == (job["id"], told)
    assert (told["missing"], told["message"] in why["sentence"]) == (1, True)
    await _scale(world, job, 2)
    await world.turn(2)
    assert (await world.ask("GET", "/jobs?replicas_missing=true"))["items"] == []
    assert (await world.job(job["id"]))["current_attempt"]["scale"]["reason"] == ""
    assert await _faults(world) == []


async def test_an_added_replica_lies_as_the_spreading_of_its_job_says(world: World) -> None:
    apart = await _service(world, gpu_type=None, placement={"spreading": "spread"})
    together = await _service(
        world, name="pair", gpu_type="H100-80GB", placement={"spreading": "same_node"}
    )
    for job in (apart, together):
        await _scale(world, job, 3)
    await world.turn(4)
    assert len({each["node"] for each in await _replicas(world, apart)}) == 3
    assert len(await _replicas(world, together)) == 3
    assert len({each["node"] for each in await _replicas(world, together)}) == 1
    assert await _faults(world) == []


async def test_an_added_replica_waits_for_a_node_where_its_job_has_none(world: World) -> None:
    job = await _service(world, placement={"spreading": "spread"})
    await _scale(world, job, 2)
    await world.turn(3)
    assert await _ranks(world, job) == [(0, "running")]
    told = (await world.job(job["id"]))["current_attempt"]["scale"]
    assert told["reason"] == "AffinityUnsatisfied"
    # From none it starts anywhere: there is no replica to be apart from.
    for wanted in (0, 1):
        await _scale(world, job, wanted)
        await world.turn(3)
    assert await _ranks(world, job) == [(1, "running")]


async def test_what_waits_is_placed_when_another_job_ends(world: World) -> None:
    job = await _service(world)
    other = await _service(world, name="other")
    await world.turn(2)
    await _scale(world, job, 2)
    await world.turn(2)
    assert await _ranks(world, job) == [(0, "running")]
    await world.ask("DELETE", f"/jobs/{other['id']}")
    await world.turn(3)
    assert await _ranks(world, job) == [(0, "running"), (1, "running")]
    assert await _faults(world) == []


async def test_a_service_scaled_to_zero_runs_on_costs_nothing_and_grows_again(world: World) -> None:
    job = await _service(world)
    world.server.clock.advance(90)
    await _scale(world, job, 0)
    await world.turn(2)
    cost = (await world.job(job["id"]))["actual_cost"]
    await world.after(1000)
    found = await world.job(job["id"])
    assert (found["status"], found["current_attempt"]["replicas"]) == ("running", [])
    assert (found["replicas_wanted"], found["actual_cost"]) == (0, cost)
    [attempt] = (await world.ask("GET", f"/jobs/{job['id']}/attempts"))["items"]
    assert (attempt["replicas"], attempt["most_gpus"], len(attempt["nodes"])) == ([], 1, 1)
    assert await _held(world) == []
    assert await _faults(world) == []
    await _scale(world, job, 2)
    await world.turn(4)
    assert await _ranks(world, job) == [(1, "running"), (2, "running")]
    assert (await world.ask("GET", f"/jobs/{job['id']}/logs"))["rank"] == 1
    found = await world.job(job["id"])
    assert (found["status"], found["attempt_count"]) == ("running", 1)
    assert await _faults(world) == []


async def test_a_service_without_replicas_that_somebody_deleted_on_its_cluster_comes_back(
    world: World,
) -> None:
    job = await _service(world)
    await _scale(world, job, 0)
    await world.turn(2)
    found = await world.job(job["id"])
    attempt = found["current_attempt"]
    gone = [ScaleObservation(AttemptRef(AttemptId(UUID(attempt["id"])), 1), 0, is_gone=True)]
    for changes in (1, 0):
        write, now = world.server.database.write, world.server.clock.now_ms()
        assert await write("gone", lambda s, n=now: jobs.note_scales(s, gone, n)) == changes  # type: ignore[misc]  # the default binds the loop's
    await world.turn(2)
    lost = await world.job(job["id"])
    assert (lost["status"], lost["reason"]) == ("pending", "DeletedOnCluster")
    await world.after(60)
    back = await world.job(job["id"])
    assert (back["status"], back["attempt_count"]) == ("running", 2)
    assert await _ranks(world, job) == [(0, "running")]
    assert await _faults(world) == []


async def test_a_service_without_replicas_is_cancelled_and_suspended(world: World) -> None:
    for verb, path, status in (
        ("POST", "suspend", "pending"),
        ("DELETE", "", "cancelled"),
    ):
        job = await _service(world)
        await _scale(world, job, 0)
        await world.turn(2)
        await world.ask(verb, f"/jobs/{job['id']}/{path}".rstrip("/"))
        await world.turn(2)
        assert (await world.job(job["id"]))["status"] == status
        assert await _faults(world) == []


async def test_a_replica_that_was_placed_and_not_told_ends_with_its_service(world: World) -> None:
    job = await _service(world)
    await _scale(world, job, 2)
    await world.loops["scheduler"].run_once()
    assert [rank for rank, _ in await _held(world)] == [0, 1]
    await world.ask("DELETE", f"/jobs/{job['id']}")
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "cancelled"
    assert await _held(world) == []
    assert await _faults(world) == []


async def test_a_service_ends_whose_start_was_never_noted_and_that_grew_since(
    world: World,
) -> None:
    job = await _service(world)
    await _scale(world, job, 2)
    await world.loops["scheduler"].run_once()
    # As after a death between the start and its note: the observer saw it run all the same.
    await world.server.database.write(
        "forget", lambda s: s.execute(update(AttemptRow).values(ensured_at=None))
    )
    await world.ask("DELETE", f"/jobs/{job['id']}")
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "cancelled"
    assert await _held(world) == []
    assert await _faults(world) == []


async def test_a_grown_service_that_is_preempted_comes_back_with_what_was_asked(
    world: World,
) -> None:
    job = await _service(world, priority="spot")
    await _scale(world, job, 2)
    await world.turn(2)
    world.server.clock.advance(3600)
    await world.submit(gpu_type="T4", gpu_count=2, priority="high", spec={"command": ["x"]},
                       job_type="service")  # fmt: skip
    await world.turn(4)
    await world.after(60)
    found = await world.job(job["id"])
    assert (found["status"], found["replicas_wanted"]) == ("queued", None)
    assert [rank for rank, _ in await _held(world)] == [0, 0]
    assert await _faults(world) == []


async def test_a_replica_waits_for_quota_like_any_work(world: World) -> None:
    await _limit_t4(world, 1, 201)
    door = {"name": "main", "tenant": "default", "clusterQueue": "team"}
    await world.ask("POST", "/clusters/sim/queues", 201, json=door)
    job = await _service(world)
    await _scale(world, job, 2)
    await world.turn(2)
    told = (await world.job(job["id"]))["current_attempt"]["scale"]
    assert told["reason"] == "QuotaExceeded"
    await _limit_t4(world, 2)
    await world.turn(3)
    assert await _ranks(world, job) == [(0, "running"), (1, "running")]
    await _scale(world, job, 0)
    await world.turn(2)
    await _service(world, name="other", gpu_count=2)  # all of the quota is there for it
    assert await _faults(world) == []


async def _limit_t4(world: World, nominal: int, status: int = 200) -> None:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": nominal}
    flavors = [{"name": "nvidia-t4", "resources": [quota]}]
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]
    path, verb = "/clusters/sim/quotas", "POST"
    if status == 200:
        path, verb = f"{path}/team", "PUT"
    body = {"resourceGroups": groups, **({"name": "team"} if verb == "POST" else {})}
    await world.ask(verb, path, status, json=body)


async def _lose(world: World, attempt: dict[str, Any], rank: int) -> None:
    """Let the loops see that the node of one replica is gone."""
    ref = AttemptRef(AttemptId(UUID(attempt["id"])), attempt["number"])
    now = world.server.clock.now_ms()
    lost = ReplicaObservation(ref, rank, Phase.LOST, ended_at=now, reason="NodeLost")
    await world.server.database.write(
        "tests.lose", lambda s: jobs.take_in(s, [lost], lambda text: b"", lambda: 0.0, now)
    )


async def test_a_wrong_number_a_fixed_service_and_one_that_waits_are_refused(world: World) -> None:
    job = await _service(world, replicas={"count": 1, "max": 2})
    low = await _scale(world, job, 0, 422)
    assert (low["code"], low["field"]) == ("job_scale_invalid", "replicas")
    assert (await _scale(world, job, 3, 422))["code"] == "job_scale_invalid"
    fixed = await _service(world, running=False, replicas={"count": 1})
    assert (await _scale(world, fixed, 2, 409))["code"] == "job_not_scalable"
    waits = await _service(world, running=False, replicas={"count": 1, "max": 2}, gpu_count=2)
    assert (await _scale(world, waits, 2, 409))["code"] == "job_wrong_status"


async def test_a_replica_that_is_lost_is_no_shrinking_and_ends_the_attempt(world: World) -> None:
    job = await _service(world, max_retries=0)
    await _scale(world, job, 2)
    await world.turn(2)
    attempt = (await world.job(job["id"]))["current_attempt"]
    await _lose(world, attempt, rank=1)
    await world.turn(3)
    found = await world.job(job["id"])
    assert (found["status"], found["reason"]) == ("failed", "NodeLost")
    assert await _held(world) == []
    assert await _faults(world) == []


async def test_histories_of_scaling_keep_every_promise(world: World) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    ids = [(await _service(world, name=f"web-{n}"))["id"] for n in range(2)]
    for number in range(40):
        at = chance.randrange(2)
        ids[at] = await _step(world, chance, ids[at], f"web-{number}")
        assert await _faults(world) == [], f"seed {seed}, step {number}"
    for job_id in ids:
        await world.http.delete(f"/api/v1/jobs/{job_id}")
    await world.turn(3)
    assert await _held(world) == [], f"seed {seed}"
    assert await _faults(world) == [], f"seed {seed}"


async def _step(world: World, chance: random.Random, job_id: str, name: str) -> str:
    """Do one thing to a service, or let one loop look; return the service of its place then."""
    what = chance.choice(("scale", "scale", "loop", "loop", "loop", "turn", "wait", "odd"))
    path = f"/api/v1/jobs/{job_id}"
    if what == "scale":
        answer = await world.http.put(f"{path}/scale", json={"replicas": chance.randrange(4)})
        assert answer.status_code in (200, 409), answer.text
    elif what == "loop":
        await world.loops[chance.choice(("scheduler", "dispatcher", "observer"))].run_once()
    elif what == "turn":
        await world.turn()
    elif what == "wait":
        world.server.clock.advance(chance.uniform(0, 400))
    else:
        found = await world.job(job_id)
        replicas = (found["current_attempt"] or {}).get("replicas") or []
        odd = chance.choice(("lose", "suspend", "resume", "cancel"))
        if odd == "lose" and replicas:
            await _lose(world, found["current_attempt"], chance.choice(replicas)["rank"])
        elif odd in ("suspend", "resume"):
            await world.http.post(f"{path}/{odd}")
        elif odd == "cancel":
            await world.http.delete(path)
            return str((await _service(world, running=False, name=name))["id"])
    return job_id
