"""A mixed load: scripts of a client's calls, each safe to repeat from its beginning.

Every POST carries an idempotency key that the script's name makes, so a script that was cut short
by the death of its server is simply run again: what was done answers as it did, the rest is done.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.looks import POLL_S, UNFINISHED, Looks, get
from tests.faults.planes import Died, Plane
from tests.waiting import wait_until_async

OVER = frozenset({"completed", "failed", "cancelled"})
SETTLE_S = 100.0
LONG = "nvidia-h100-80gb"
"""Where jobs run that last until they are cancelled: there are 64, so they are in nobody's way."""
LATER_S = 0.7
"""How far ahead a scheduled start lies."""

Script = Callable[["Client"], Awaitable[None]]


class Load:
    """What was asked of one home over all its lives, and what was acknowledged."""

    def __init__(self, folder: Path) -> None:
        """Make a load whose local jobs each append a line to a file here when they start."""
        self.starts = folder / "starts"
        self.acknowledged: dict[str, str] = {}
        self.ends: dict[str, frozenset[str]] = {}
        self.local: set[str] = set()
        self.valid_tokens: dict[str, str] = {}
        self.revoked_tokens: dict[str, str] = {}
        self.open: dict[str, Script] = {}
        self.rounds = 0
        self.looks = Looks()
        self.remembered: dict[str, Any] = {}

    async def run(self, plane: Plane, *, fresh: bool = True) -> None:
        """Run what was cut short, and one more round of everything; ends when the plane dies.

        Where as many scripts as a round has lie there cut short, they are first run to their end.
        """
        if fresh and len(self.open) < len(SCRIPTS):
            self.rounds += 1
            for script in SCRIPTS:
                self.open[f"r{self.rounds}-{script.__name__.replace('_', '-')}"] = script
        results = await asyncio.gather(
            *(self._run(plane, name, script) for name, script in list(self.open.items())),
            return_exceptions=True,
        )
        wrong = [
            result
            for result in results
            if isinstance(result, BaseException) and not isinstance(result, Died)
        ]
        if len(wrong) > 1:
            raise AssertionError("\n".join(map(str, wrong))) from wrong[0]
        if wrong:
            raise wrong[0]

    async def _run(self, plane: Plane, name: str, script: Script) -> None:
        await script(Client(self, plane, name))
        del self.open[name]

    async def settle(self, plane: Plane) -> None:
        """Run what was cut short to its end and wait until every job is over."""
        await self.run(plane, fresh=False)
        assert not self.open, f"the plane died while it settled: {sorted(self.open)}"

        async def all_over() -> bool:
            return not await left(plane)

        try:
            await wait_until_async(
                all_over, "every job is over", deadline_s=SETTLE_S, interval_s=POLL_S
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; left: {await left(plane)}") from error

    async def faults(self, plane: Plane) -> list[str]:
        """Return what is wrong with how everything ended."""
        jobs = await list_jobs(plane)
        found: list[str] = []
        by_id = {job["id"]: job for job in jobs}
        for name, job_id in self.acknowledged.items():
            if job_id not in by_id:
                found.append(f"{name} was acknowledged as {job_id} and is lost")
            elif by_id[job_id]["status"] not in self.ends[name]:
                said = by_id[job_id].get("reason"), by_id[job_id].get("status_message")
                found.append(f"{name} ended {by_id[job_id]['status']} {said}")
        by_name = Counter(job["name"] for job in jobs if job.get("array_id") is None)
        found += [f"{name} exists {n} times" for name, n in by_name.items() if n != 1]
        return found + self._start_faults(jobs) + await self._token_faults(plane)

    async def _token_faults(self, plane: Plane) -> list[str]:
        found = []
        for name, token in self.valid_tokens.items():
            if await plane.knows(token) == (name in self.revoked_tokens):
                word = "revoked" if name in self.revoked_tokens else "valid"
                found.append(f"the {word} token of {name} is taken for the other")
        return found

    def _start_faults(self, jobs: Sequence[dict[str, Any]]) -> list[str]:
        lines = self.starts.read_text().splitlines() if self.starts.exists() else []
        counts = Counter(lines)
        found = [f"{line} was started {n} times" for line, n in counts.items() if n != 1]
        started = Counter(line.split()[0] for line in lines)
        found += [f"{job} had {n} attempts" for job, n in started.items() if n != 1]
        found += [
            f"{job['name']} completed and was never started"
            for job in jobs
            if job["name"] in self.local and job["status"] == "completed" and not started[job["id"]]
        ]
        return found


@dataclass
class Client:
    """One script's way to the plane: calls with keys of its own, and what it expects."""

    load: Load
    plane: Plane
    name: str
    calls: int = field(default=0)

    async def submit(self, body: dict[str, Any], *ends: str, suffix: str = "") -> str:
        """Submit a job under the script's name and return its id."""
        name = self.name + suffix
        self.load.ends[name] = frozenset(ends)
        if body["cluster"] == "local":
            self.load.local.add(name)
        made = await self.do("POST", "/jobs", {"name": name, **body})
        found: str = made["id"]
        before = self.load.acknowledged.setdefault(name, found)
        assert before == found, f"{name} was made twice: {before} and {found}"
        return found

    async def do(self, method: str, path: str, body: Any = None, *allowed: int) -> Any:
        """Send one call that writes, under a key of its own; its answer's body.

        Args:
            method: Of HTTP.
            path: Below the API's prefix.
            body: What is sent.
            allowed: Statuses that are no failure beside the 2xx.
        """
        self.calls += 1
        key = f"{self.name}-{self.calls}" if method == "POST" else None
        answer = await self.plane.ask(method, path, body, key=key)
        assert answer.is_success or answer.status_code in allowed, (
            f"{self.name}: {method} {path}: {answer.status_code} {answer.text}"
        )
        return answer.json() if answer.content else None

    async def until(self, job_id: str, *statuses: str) -> str:
        """Wait until a job has one of these statuses, is paused or is over; return its status."""

        job: dict[str, Any] = {}

        async def there() -> str:
            nonlocal job
            job = await self.load.looks.job(self.plane, job_id)
            status: str = job["status"]
            is_paused = job["condition"] == "Paused"
            return status if is_paused or status in OVER or status in statuses else ""

        try:
            return await wait_until_async(there, f"{self.name} is {statuses}", deadline_s=SETTLE_S)
        except AssertionError as error:
            said = [job.get(key) for key in ("status", "condition", "reason", "status_message")]
            others = await left(self.plane)
            raise AssertionError(f"{error}; it is {said}; left: {others}") from error

    async def once(self, job_id: str, *statuses: str) -> None:
        """Wait until a job has one of these statuses, unless the script saw that before.

        What has happened to the job since is the script's own doing: it may never be so again.
        """
        key = f"{self.name}/{statuses}"
        if key not in self.load.remembered:
            await self.until(job_id, *statuses)
            self.load.remembered[key] = True

    async def until_scaled(self, job_id: str, count: int) -> None:
        """Wait until a service has so many replicas, or does not run any more."""

        async def there() -> bool:
            job = await get(self.plane, f"/jobs/{job_id}")
            scale = (job["current_attempt"] or {}).get("scale")
            if job["status"] in OVER or not scale:
                return True
            return bool(scale["present"] == count and scale["ready"] == count)

        await wait_until_async(
            there, f"{self.name} has {count} replicas", deadline_s=SETTLE_S, interval_s=POLL_S
        )

    def remembered(self, what: str, make: Callable[[], Any]) -> Any:
        """Return a value that is made once and is the same when the script is run again."""
        key = f"{self.name}/{what}"
        if key not in self.load.remembered:
            self.load.remembered[key] = make()
        return self.load.remembered[key]

    def start_line(self) -> list[str]:
        """Return the command that says that a local job was started."""
        return ["/bin/sh", "-c", f"echo $GPUPLANE_JOB_ID $GPUPLANE_ATTEMPT >> '{self.load.starts}'"]


async def many_simulated(client: Client) -> None:
    for n in range(3):
        await client.submit(simulated(0.1 * n), "completed", suffix=f"-{n}")


async def a_gang(client: Client) -> None:
    body = simulated(0.2, replicas={"count": 2}, gpu_type="nvidia-a100-80gb")
    await client.submit(body, "completed")


async def many_local(client: Client) -> None:
    for n in range(2):
        await client.submit(local(client), "completed", suffix=f"-{n}")


async def a_local_array(client: Client) -> None:
    await client.submit(local(client, array={"size": 2, "limit": 1}), "completed")


async def a_job_that_fails_twice(client: Client) -> None:
    retry = {"delay_seconds": 0, "jitter": 0.0}
    await client.submit(simulated(0.05, exit_code=3, max_retries=1, retry=retry), "failed")


async def a_cancelled_one(client: Client) -> None:
    job = await client.submit(simulated(3600.0, gpu_type=LONG), "cancelled")
    await client.until(job, "running")
    await client.do("DELETE", f"/jobs/{job}")


async def a_cancelled_local_one(client: Client) -> None:
    body = local(client)
    body["spec"] = {"command": ["/bin/sleep", "600"], "grace_s": 1}
    job = await client.submit(body, "cancelled")
    await client.until(job, "running")
    await client.do("DELETE", f"/jobs/{job}")


async def one_cancelled_at_once(client: Client) -> None:
    job = await client.submit(simulated(3600.0, gpu_type=LONG), "cancelled")
    await client.do("DELETE", f"/jobs/{job}")


async def a_later_one_and_its_follower(client: Client) -> None:
    start = client.remembered("start", lambda: stamp(time.time() + LATER_S))
    body = simulated(0.1, scheduled_start=start)
    job = await client.submit(body, "completed", suffix="-first")
    await client.submit(simulated(0.1, after=[{"job_id": job}]), "completed", suffix="-then")


async def a_suspended_one(client: Client) -> None:
    job = await client.submit(simulated(3600.0, gpu_type=LONG, spec={"grace_s": 0}), "cancelled")
    await client.once(job, "running")
    await client.do("POST", f"/jobs/{job}/suspend", {}, 409)
    await client.once(job, "pending", "queued")
    await client.do("POST", f"/jobs/{job}/resume", None, 409)
    await client.do("DELETE", f"/jobs/{job}")


async def a_preempted_one(client: Client) -> None:
    body = simulated(3600.0, gpu_type=LONG, priority="low", preemptible=True)
    job = await client.submit(body, "cancelled")
    await client.once(job, "running")
    await client.do("POST", f"/jobs/{job}/preempt", {"grace_s": 0}, 409)
    await client.do("DELETE", f"/jobs/{job}")


async def higher_ones_that_take_devices(client: Client) -> None:
    low = simulated(
        3600.0, priority="low", preemptible=True, gpu_type="nvidia-tesla-t4", gpu_count=4,
        replicas={"count": 2},
    )  # fmt: skip
    job = await client.submit(low, "cancelled", suffix="-low")
    await client.once(job, "running")
    high = simulated(0.2, priority="critical", gpu_type="nvidia-tesla-t4", gpu_count=4)
    await client.until(await client.submit(high, "completed", suffix="-high"))
    await client.do("DELETE", f"/jobs/{job}")


async def a_service_that_grows_and_shrinks(client: Client) -> None:
    body = simulated(
        3600.0, gpu_type=LONG, job_type="service",
        replicas={"count": 1, "min": 0, "max": 2, "scale_to_zero": True},
    )  # fmt: skip
    body["spec"] = {"grace_s": 0}
    job = await client.submit(body, "cancelled")
    await client.once(job, "running")
    for wanted in (2, 0):
        if client.remembered(f"scaled to {wanted}", list) == []:
            await client.do("PUT", f"/jobs/{job}/scale", {"replicas": wanted}, 409)
            await client.until_scaled(job, wanted)
            client.remembered(f"scaled to {wanted}", list).append(True)
    await client.do("DELETE", f"/jobs/{job}")


async def one_that_reports(client: Client) -> None:
    job = await client.submit(simulated(3600.0, gpu_type=LONG), "cancelled")
    await client.once(job, "running")
    await client.do("POST", f"/jobs/{job}/progress", {"progress": 0.5}, 409)
    await client.do("POST", f"/jobs/{job}/checkpoints", {"path": "/checkpoints/1"}, 409)
    await client.do("PUT", f"/jobs/{job}/priority", {"priority": "high"}, 409)
    await client.do("DELETE", f"/jobs/{job}")


async def one_tried_again_by_hand(client: Client) -> None:
    job = await client.submit(simulated(0.05, exit_code=1, max_retries=0), "failed")
    await client.until(job)
    await client.do("POST", f"/jobs/{job}/retry", None, 409)


async def one_with_a_secret(client: Client) -> None:
    name = client.name
    await client.do("POST", "/secrets", {"name": name, "value": "hidden"})
    body = local(client)
    body["spec"]["secrets"] = [{"name": name, "env": "HIDDEN"}]
    await client.submit(body, "completed")


async def a_webhook(client: Client) -> None:
    body = {"url": "http://127.0.0.1:9/away", "kinds": ["job.completed"]}
    made = await client.do("POST", "/webhooks", body)
    await client.until(await client.submit(simulated(0.05), "completed"))
    await client.do("DELETE", f"/webhooks/{made['webhook']['id']}", None, 404)


async def a_reservation(client: Client) -> None:
    now = client.remembered("now", time.time)
    body = {"cluster": "demo", "model": "nvidia-l4", "count": 1}
    body |= {"start": stamp(now + 3600), "end": stamp(now + 7200)}
    made = await client.do("POST", "/capacity/reservations", body)
    await client.do("DELETE", f"/capacity/reservations/{made['id']}", None, 409)


async def a_drained_node(client: Client) -> None:
    body = simulated(3600.0, gpu_type="nvidia-v100-32gb", spec={"grace_s": 0})
    job = await client.submit(body, "cancelled")
    await client.once(job, "running")
    for name in ("v100-01", "v100-02"):
        node = f"/clusters/demo/nodes/{name}"

        async def is_drained(node: str = node) -> bool:
            return not (await get(client.plane, node))["draining"]

        await client.do("POST", f"{node}/drain", {"wait_s": 0})
        await wait_until_async(
            is_drained, f"{name} is drained", deadline_s=SETTLE_S, interval_s=POLL_S
        )
        await client.do("POST", f"{node}/uncordon")
    await client.do("DELETE", f"/jobs/{job}")


async def an_operators_day(client: Client) -> None:
    await client.do("POST", "/clusters/demo/nodes/l4-01/cordon")
    await client.do("POST", "/clusters/demo/nodes/l4-01/uncordon")
    start = client.remembered("start", lambda: time.time() + 86_400)
    window = {"start": stamp(start), "end": stamp(start + 60), "reason": "new cables"}
    windows = "/clusters/demo/maintenance-windows"
    made = await client.do("POST", windows, {"node": "l4-02", **window})
    await client.do("DELETE", f"{windows}/{made['id']}", None, 404)
    await client.do("POST", "/clusters/demo/freeze", {"reason": client.name})
    await client.do("POST", "/clusters/demo/thaw")


async def people_who_come_and_go(client: Client) -> None:
    tenant = (await client.do("POST", "/tenants", {"name": client.name}))["id"]
    await client.do("PATCH", f"/tenants/{tenant}", {"display_name": "They"}, 404)
    project = (await client.do("POST", "/projects", {"name": "p", "tenant_id": tenant}))["id"]
    place = {"tenant_id": tenant, "project_id": project}
    for kind in ("stays", "goes"):
        name = f"{client.name}-{kind}"
        user = (await client.do("POST", "/users", {"name": name, **place}))["id"]
        await client.do("PUT", "/memberships", {"user_id": user, "role": "member", **place}, 404)
        made = await client.do("POST", "/tokens", {"name": "t", "user_id": user})
        client.load.valid_tokens[name] = made["token"]
        if kind == "stays":
            continue
        client.load.revoked_tokens[name] = made["token"]
        await client.do("DELETE", f"/tokens/{made['id']}", None, 404)
        await client.do("DELETE", f"/users/{user}", None, 404)
    spare = await client.do("POST", "/projects", {"name": "spare", "tenant_id": tenant})
    await client.do("DELETE", f"/projects/{spare['id']}", None, 404)
    gone = await client.do("POST", "/tenants", {"name": f"{client.name}-gone"})
    await client.do("DELETE", f"/tenants/{gone['id']}", None, 404)


SCRIPTS: Sequence[Script] = (
    many_simulated, a_gang, many_local, a_local_array, a_job_that_fails_twice, a_cancelled_one,
    a_cancelled_local_one, one_cancelled_at_once, a_later_one_and_its_follower, a_suspended_one,
    a_preempted_one, higher_ones_that_take_devices, a_service_that_grows_and_shrinks,
    one_that_reports, one_tried_again_by_hand,
    one_with_a_secret, a_webhook, a_reservation, a_drained_node, an_operators_day,
    people_who_come_and_go,
)  # fmt: skip


def stamp(seconds: float) -> str:
    """Return an instant as RFC 3339."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"


def simulated(duration_s: float, exit_code: int = 0, **more: Any) -> dict[str, Any]:
    """Return a job on the simulated cluster."""
    body = {"cluster": "demo", "gpu_count": 1, **more}
    behaviour = {"duration_s": duration_s, "exit_code": exit_code}
    body["spec"] = {"simulated": behaviour, **more.get("spec", {})}
    return body


def local(client: Client, **more: Any) -> dict[str, Any]:
    """Return a job on this machine that says when it is started, and is never tried again."""
    return {
        "cluster": "local",
        "cpu_cores": 0.05,
        "memory_gb": 0.05,
        "resources": {"ephemeral_storage_gb": 0.1},
        "max_retries": 0,
        "spec": {"command": client.start_line()},
        **more,
    }


async def list_jobs(plane: Plane) -> list[dict[str, Any]]:
    """Return every job there is."""
    jobs: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = await get(plane, "/jobs?limit=500" + (f"&cursor={cursor}" if cursor else ""))
        jobs += page["items"]
        cursor = page.get("next_cursor") or ""
        if not cursor:
            return jobs


async def left(plane: Plane) -> list[tuple[str, str, str, str]]:
    """Return (name, status, condition, reason) of jobs that are not over."""
    page = await get(plane, f"/jobs?limit=50&{UNFINISHED}")
    return [
        (job["name"], job["status"], job.get("condition", ""), job.get("reason", ""))
        for job in page["items"]
    ]
