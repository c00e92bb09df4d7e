"""Kueue, credentials, API server and etcd fail under running work: nothing is lost or run twice.

One rig of this module's own is broken by one test after the other and whole again after each.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from gpuplane.backends.kubernetes import names
from gpuplane.kit.clock import Clock, SystemClock
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.kinds import (
    DEPLOYMENT,
    JOB,
    MUTATING_WEBHOOK,
    NAMESPACE,
    POD,
    SERVICE_ACCOUNT,
    VALIDATING_WEBHOOK,
)
from gpuplane.kube.tenancy import MANAGED
from rig.binaries import Binaries
from rig.processes import Part
from rig.rigs import Rig, RigPlan, running_rig
from tests.faults.inside import QUICK, Inside, inside
from tests.kubernetes.clusters.worlds import registered
from tests.kubernetes.faults.storms import door_before
from tests.waiting import wait_until_async

PLAN = RigPlan(nodes=[("cpu", 1), ("l4", 1)], process_nodes=[], kueue=True)
LOOKS = {
    "GPUPLANE_CLUSTERS_LOOK_S": "0.2",
    "GPUPLANE_CLUSTERS_CALL_S": "3",
    "GPUPLANE_CLUSTERS_RETRY_BASE_S": "0.5",
    "GPUPLANE_CLUSTERS_TRIES": "100",
    "GPUPLANE_CLUSTERS_BREAKER_FAILURES": "100",
}
"""Clusters are looked at often and given up late: the faults are shorter here than in life."""
DEADLINE_S = 60
GPU, FLAVOR = "nvidia.com/gpu", "nvidia-l4"


@pytest.fixture(scope="module")
def own(rig_binaries: Binaries) -> Iterator[Rig]:
    """A rig that only this module breaks."""
    with running_rig(PLAN) as rig:
        yield rig


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LOOKS.items():
        monkeypatch.setitem(QUICK, name, value)


class SkewedClock(SystemClock):
    """A machine's clock that is wrong by so much."""

    def __init__(self, off_s: int) -> None:
        self._off_ms = off_s * 1000

    def now_ms(self) -> int:
        return super().now_ms() + self._off_ms


@dataclass
class East:
    """A control plane and its cluster `east`, which the test reaches by itself too."""

    it: Inside
    cluster: Rig
    client: KubeClient

    async def submit(self, name: str, seconds: int, **more: Any) -> str:
        """Submit a job that runs so long, and return its id."""
        body = {
            "name": name,
            "cluster": "east",
            "gpu_count": 0,
            "memory_gb": 1,
            "deployment_type": "docker",
            "max_retries": 0,
            "spec": {"image": "busybox", "command": ["sleep", str(seconds)]},
            **more,
        }
        answer = await self.it.client.post("/jobs", json=body)
        assert answer.is_success, answer.text
        found: str = answer.json()["id"]
        return found

    async def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.it.client.get(f"/jobs/{job_id}")).json()
        return found

    async def until(self, job_id: str, status: str) -> None:
        """Wait until a job has a status; any other end fails at once with what it says."""

        async def there() -> bool:
            job = await self.job(job_id)
            assert job["status"] not in {"failed", "cancelled", "completed"} - {status}, job
            return bool(job["status"] == status)

        await self.wait(there, f"{job_id} is {status}", job_id)

    async def wait(
        self, holds: Callable[[], bool | Awaitable[bool]], what: str, job_id: str
    ) -> None:
        """Wait until something holds; where it never does, say how the job stands."""
        try:
            await wait_until_async(holds, what, deadline_s=DEADLINE_S, interval_s=0.1)
        except AssertionError as error:
            job = await self.job(job_id)
            why = (await self.it.client.get(f"/jobs/{job_id}/why")).json()
            cluster = (await self.it.client.get("/clusters/east")).json()
            raise AssertionError(f"{error}; {job}; {why}; {cluster}") from error

    async def until_state(self, state: str) -> dict[str, Any]:
        """Wait until the cluster has a state, and return what is shown of it."""

        async def there() -> dict[str, Any]:
            found: dict[str, Any] = (await self.it.client.get("/clusters/east")).json()
            return found if found["state"] == state else {}

        return await wait_until_async(
            there, f"east is {state}", deadline_s=DEADLINE_S, interval_s=0.1
        )

    async def made_for(self, job_id: str) -> list[str]:
        """Return the names of all Jobs that were ever made for a job and are there."""
        found = await self.client.list(JOB, labels={"gpuplane.io/job-id": job_id})
        return [each["metadata"]["name"] for each in found]

    async def assert_done_once(self, job_id: str) -> None:
        """Check that a job ended well in its first attempt, and that the books are whole."""
        await self.until(job_id, "completed")
        attempts = (await self.it.client.get(f"/jobs/{job_id}/attempts")).json()["items"]
        assert [each["number"] for each in attempts] == [1], attempts
        assert self.it.faults() == []


@asynccontextmanager
async def east(
    own: Rig,
    folder: Path,
    *,
    admission: str,
    clock: Clock | None = None,
    text: str = "",
    url: str = "",
) -> AsyncIterator[East]:
    """Run a control plane with the rig's cluster registered."""
    text = text or await asyncio.to_thread(own.manager.kubeconfig.read_text)
    admin = read_kubeconfig(await asyncio.to_thread(own.manager.kubeconfig.read_text))
    async with inside(folder, url, clock=clock) as it, KubeClient(admin) as client:
        await forget_tenants(client)
        await registered(it, "east", text, addons=[], admission=admission)
        yield East(it, own, client)


async def forget_tenants(client: KubeClient) -> None:
    """Take away the tenants of the control plane before: one of the same name is not the same."""
    spaces = await client.list(NAMESPACE, labels=MANAGED)
    held = [name for each in spaces if (name := each["metadata"]["name"]).startswith("tenant-")]
    for name in held:
        await client.delete(NAMESPACE, name)

    async def are_gone() -> bool:
        return not any([await client.find(NAMESPACE, name) for name in held])

    await wait_until_async(are_gone, "the tenants before are gone", deadline_s=DEADLINE_S)


async def open_queue(there: East) -> None:
    """Give the first tenant a queue of one GPU on the cluster."""
    flavors = [{"name": FLAVOR, "resources": [{"name": GPU, "nominalQuota": 1}]}]
    group = {"coveredResources": [GPU], "flavors": flavors}
    quota = {"name": "east-own", "resourceGroups": [group]}
    door = {"name": "main", "tenant": "default", "clusterQueue": "east-own"}
    for path, body in (("quotas", quota), ("queues", door)):
        answer = await there.it.client.post(f"/clusters/east/{path}", json=body)
        assert answer.status_code in (201, 409), answer.text


async def look_past_pods(client: KubeClient) -> None:
    """Have Kueue as the add-on installs it: while it is down, nobody's pod waits for it."""
    for kind, hook in ((MUTATING_WEBHOOK, "mpod.kb.io"), (VALIDATING_WEBHOOK, "vpod.kb.io")):
        for each in await client.list(kind):
            hooks = each["webhooks"]
            if any(one["name"] == hook for one in hooks):
                told = [
                    {**one, "failurePolicy": "Ignore"} if one["name"] == hook else one
                    for one in hooks
                ]
                await client.patch(kind, each["metadata"]["name"], {"webhooks": told})


async def grow_by_hand(there: East, job_id: str) -> None:
    """Have a service want a second replica as autoscalers do; its pod waits for Kueue."""
    labels = {names.JOB_ID: job_id}
    [main] = await there.client.list(DEPLOYMENT, labels=labels)
    name, space = main["metadata"]["name"], main["metadata"]["namespace"]
    wanted = {"spec": {"replicas": 2}}
    await there.client.patch(DEPLOYMENT, name, wanted, space, subresource="scale")

    async def is_made() -> bool:
        return len(await there.client.list(POD, space, labels)) == 2

    await there.wait(is_made, "the Deployment has made another pod", job_id)
    pods = await there.client.list(POD, space, labels)
    [waits] = [each for each in pods if not each["spec"].get("nodeName")]
    gates = [gate["name"] for gate in waits["spec"]["schedulingGates"]]
    assert gates == ["kueue.x-k8s.io/admission"], "nothing starts unasked"


@pytest.mark.timeout(300)
async def test_what_kueue_admits_waits_for_one_that_is_down_and_says_so(
    own: Rig, tmp_path: Path
) -> None:
    async with east(own, tmp_path, admission="kueue") as there:
        await open_queue(there)
        scales = {"job_type": "service", "replicas": {"count": 1, "min": 1, "max": 2}}
        web = await there.submit("web", 600, **scales)
        await there.until(web, "running")
        running = await there.submit("running", 4, gpu_count=1, gpu_type=FLAVOR)
        await there.until(running, "running")
        await look_past_pods(there.client)
        own.manager.parts["kueue"].kill()
        await grow_by_hand(there, web)
        waiting = await there.submit("waiting", 1, gpu_count=1, gpu_type=FLAVOR)

        async def told() -> bool:
            why = (await there.it.client.get(f"/jobs/{waiting}/why")).json()["sentence"]
            return "NotHandedOver" in why and "webhook" in why

        await there.wait(told, "the job says that Kueue does not answer", waiting)
        assert await there.made_for(waiting) == []
        await start_again(own.manager.parts["kueue"])
        await there.assert_done_once(running)
        await there.assert_done_once(waiting)
        assert len(await there.made_for(waiting)) == 1

        async def has_both() -> bool:
            return bool((await there.job(web))["replicas_ready"] == 2)

        await there.wait(has_both, "the pod that waited was admitted", web)
        await there.it.client.delete(f"/jobs/{web}")
        await there.until(web, "cancelled")


@pytest.mark.timeout(300)
async def test_jobs_outlive_an_api_server_that_is_away_and_an_etcd_that_is_killed(
    own: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It comes back because it is heard of again, not because a back-off ends.
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_RETRY_BASE_S", "3600")
    async with east(own, tmp_path, admission="embedded") as there:
        first = await there.submit("first", 8)
        await there.until(first, "running")
        server, etcd = (own.manager.parts[name] for name in ("kube-apiserver", "etcd"))
        server.kill()
        away = await there.until_state("NOT_AVAILABLE")
        assert away["state_reason"]
        assert (await there.job(first))["status"] == "running"
        second = await there.submit("second", 1)
        await start_again(server)
        await there.until_state("AVAILABLE")
        await there.assert_done_once(second)
        await there.assert_done_once(first)

        third = await there.submit("third", 2)
        await there.until(third, "running")
        etcd.kill()
        await start_again(etcd)
        fourth = await there.submit("fourth", 1)
        await there.assert_done_once(third)
        await there.assert_done_once(fourth)
        for job in (first, second, third, fourth):
            assert len(await there.made_for(job)) == 1


@pytest.mark.timeout(300)
async def test_jobs_outlive_credentials_that_expire_and_are_replaced(
    own: Rig, tmp_path: Path
) -> None:
    text = await asyncio.to_thread(own.manager.kubeconfig.read_text)
    async with KubeClient(read_kubeconfig(text)) as admin:
        account = await make_account(admin)
        issued = await admin.issue_token(account, "default", expires_s=600)
    document = yaml.safe_load(text)
    document["users"][0]["user"] = {"token": getattr(issued, "token", issued)}
    poor = yaml.safe_dump(document)
    async with east(own, tmp_path, admission="embedded", text=poor) as there:
        job = await there.submit("job", 600)
        await there.until(job, "running")
        # A token dies with its account, at once as far as the API server's cache goes.
        await there.client.delete(SERVICE_ACCOUNT, account, "default")
        away = await there.until_state("NOT_AVAILABLE")
        assert away["state_reason"].startswith("Unauthorized"), away["state_reason"]
        assert (await there.job(job))["status"] == "running"
        late = await there.submit("late", 1)
        answer = await there.it.client.put("/clusters/east/credentials", json={"kubeconfig": text})
        assert answer.status_code == 200, answer.text
        await there.until_state("AVAILABLE")
        await there.assert_done_once(late)
        assert (await there.job(job))["status"] == "running"
        assert len(await there.made_for(job)) == 1
        await there.it.client.delete(f"/jobs/{job}")
        await there.until(job, "cancelled")


@pytest.mark.timeout(300)
async def test_jobs_outlive_a_storm_in_which_every_request_is_one_too_many(
    own: Rig, tmp_path: Path
) -> None:
    text = await asyncio.to_thread(own.manager.kubeconfig.read_text)
    async with (
        door_before(read_kubeconfig(text)) as door,
        east(own, tmp_path, admission="embedded", text=door.kubeconfig) as there,
    ):
        first = await there.submit("first", 8)
        await there.until(first, "running")
        door.begin()
        away = await there.until_state("NOT_AVAILABLE")
        assert away["state_reason"].startswith("TooManyRequests"), away["state_reason"]
        second = await there.submit("second", 1)
        refused = door.refused
        await wait_until_async(
            lambda: door.refused >= refused + 10, "it is tried again", deadline_s=DEADLINE_S
        )
        assert (await there.job(first))["status"] == "running"
        assert (await there.job(second))["status"] == "queued"
        door.end()
        await there.until_state("AVAILABLE")
        for job in (first, second):
            await there.assert_done_once(job)
            assert len(await there.made_for(job)) == 1


@pytest.mark.parametrize("off_s", [30, -30], ids=["ahead", "behind"])
async def test_clocks_that_differ_by_30_s_lose_nothing_and_the_books_stay_whole(
    own: Rig, tmp_path: Path, off_s: int
) -> None:
    async with east(own, tmp_path, admission="embedded", clock=SkewedClock(off_s)) as there:
        job = await there.submit("job", 1)
        await there.assert_done_once(job)
        shown = await there.job(job)
        assert shown["queued_at"] <= shown["actual_start"] <= shown["actual_end"]
        assert (await there.until_state("AVAILABLE"))["state_reason"] == ""


@pytest.mark.postgresql
async def test_two_control_planes_of_one_database_run_each_job_once(
    own: Rig, tmp_path: Path, postgresql_migrated_url: str
) -> None:
    async with (
        east(own, tmp_path / "one", admission="embedded", url=postgresql_migrated_url) as one,
        second_plane(one, tmp_path / "two", postgresql_migrated_url),
    ):
        jobs = [await one.submit(f"job-{number}", 1) for number in range(4)]
        for job in jobs:
            await one.assert_done_once(job)
            assert len(await one.made_for(job)) == 1


async def start_again(part: Part) -> None:
    """Start a part again; it ends with the thread that starts it, so that is this one."""
    part.start()
    await asyncio.to_thread(part.wait_ready)


async def make_account(admin: KubeClient) -> str:
    """Make a ServiceAccount with every right; return its name, which is new."""
    name = f"mortal-{uuid4().hex[:8]}"
    meta = {"name": name, "namespace": "default"}
    await admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    await admin.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "cluster-admin",
            },
            "subjects": [{"kind": "ServiceAccount", **meta}],
        }
    )
    return name


@asynccontextmanager
async def second_plane(first: East, folder: Path, url: str) -> AsyncIterator[None]:
    """Run another control plane on the database of the first, with its sealing keys."""
    keys = first.it.control.parts.keys.folder
    await asyncio.to_thread(shutil.copytree, keys, folder / "home" / "keys")
    async with inside(folder, url):
        yield
