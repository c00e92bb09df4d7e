"""The rig's kubelet: runs the pods of process nodes as processes of this machine.

A process node is a Node with the label `rig.gpuplane.io/kind: process`. This program keeps its
status and lease, takes the pods that are bound to it and writes their status; logs and exec are
served by rig-streams from the records it leaves. It never touches other nodes or their pods.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from rig.api import Access, raise_with_reason, watch
from rig.containers import instant
from rig.pods import PodRun
from rig.podspecs import PodFiles
from rig.volumes import CLAIMS, Provisioner

Object = dict[str, Any]
KIND_LABEL = "rig.gpuplane.io/kind"
NOT_READY = "rig.gpuplane.io/not-ready"
LEASE_S = 40
RENEW_S = 10.0  # the kubelet's own
STATUS_RENEWALS = 6  # a status every minute; the lease says in between that the node is alive
AGAIN_S = 0.5  # after the API server went away
log = logging.getLogger("rig.kubelet")


class Kubelet:
    """Serves every process node of one cluster."""

    def __init__(self, client: httpx2.AsyncClient, pods: Path, streams_port: int) -> None:
        self._client = client
        self._pods = pods
        self._port = streams_port
        self._address = _find_address()
        self._nodes: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, tuple[PodRun, asyncio.Task[None]]] = {}
        self._not_ready: dict[str, bool] = {}

    async def run(self, ready: Path) -> None:
        """Serve nodes, and claims to folders, until cancelled."""
        selector = {"labelSelector": f"{KIND_LABEL}=process"}
        claims = Provisioner(self._client, self._pods.with_name("volumes"))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(CLAIMS, {}, claims.see_claim))
            group.create_task(self._follow("/api/v1/nodes", selector, self._see_node, ready.touch))

    async def close(self) -> None:
        """End every process of every pod."""
        tasks = [task for _, task in self._runs.values()] + list(self._nodes.values())
        for run, _ in self._runs.values():
            run.kill()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(
        self,
        path: str,
        parameters: dict[str, str],
        see: Callable[[str, Object], Awaitable[None]],
        listed: Callable[[], object] = lambda: None,
    ) -> None:
        """List and watch for ever, through restarts of the API server and lost versions."""
        known: dict[str, Object] = {}
        while True:
            try:
                answer = await self._client.get(path, params=parameters)
                raise_with_reason(answer)
                page = answer.json()
                found = {one["metadata"]["uid"]: one for one in page["items"]}
                for uid in known.keys() - found.keys():
                    await see("DELETED", known.pop(uid))
                for uid, one in found.items():
                    known[uid] = one
                    await see("ADDED", one)
                listed()
                version = page["metadata"]["resourceVersion"]
                async for kind, one in watch(self._client, path, version, **parameters):
                    if kind == "ERROR":
                        log.info("watch of %s: %s", path, one.get("message"))
                        break
                    if kind == "BOOKMARK":
                        continue
                    known[one["metadata"]["uid"]] = one
                    if kind == "DELETED":
                        del known[one["metadata"]["uid"]]
                    await see(kind, one)
            except (httpx2.HTTPError, json.JSONDecodeError) as error:
                log.info("%s: %r", path, error)
                await asyncio.sleep(AGAIN_S)
            except Exception:  # one strange object must not end the service of all others
                log.exception("%s", path)
                await asyncio.sleep(AGAIN_S)

    async def _see_node(self, kind: str, node: Object) -> None:
        name = node["metadata"]["name"]
        self._not_ready[name] = NOT_READY in (node["metadata"].get("annotations") or {})
        if kind == "DELETED":
            task = self._nodes.pop(name, None)
            if task is not None:
                task.cancel()
        elif name not in self._nodes:
            self._nodes[name] = asyncio.ensure_future(self._serve_node(name))
        elif _says_ready(node) == self._not_ready[name]:
            await self._renew_status(name)

    async def _serve_node(self, name: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew(name))
            parameters = {"fieldSelector": f"spec.nodeName={name}"}
            group.create_task(self._follow("/api/v1/pods", parameters, self._see_pod))

    async def _renew(self, name: str) -> None:
        turn = 0
        while True:
            try:
                if turn % STATUS_RENEWALS == 0:
                    await self._renew_status(name)
                await self._renew_lease(name)
                turn += 1
            except httpx2.HTTPError as error:
                log.info("node %s: %r", name, error)
                await asyncio.sleep(AGAIN_S)
                continue
            await asyncio.sleep(RENEW_S)

    async def _renew_status(self, name: str) -> None:
        down = self._not_ready.get(name, False)
        now = instant()

        def condition(kind: str, status: str, reason: str, message: str) -> Object:
            return {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
            }

        ready = condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")
        if down:
            ready = condition("Ready", "False", "KubeletNotReady", "container runtime is down")
        status = {
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "enough"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "enough"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "enough"),
                ready,
            ],
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
        }
        await self._patch(f"/api/v1/nodes/{name}/status", {"status": status})

    async def _renew_lease(self, name: str) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}"
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_S,
            "renewTime": instant().replace("Z", ".000000Z"),
        }
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        answer = await self._client.patch(
            path,
            params={"fieldManager": "rig-kubelet", "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            content=json.dumps({**lease, "metadata": {"name": name}, "spec": spec}),
        )
        raise_with_reason(answer)

    async def _see_pod(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            running = self._runs.pop(uid, None)
            if running is not None:
                running[0].kill()
                running[1].cancel()
                running[0].clear()
            return
        if uid in self._runs:
            self._runs[uid][0].update(pod)
            return
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            if pod["metadata"].get("deletionTimestamp"):
                await self._remove(pod)
            return  # it ran to its end before this kubelet was started
        if _was_started(pod) and pod["spec"].get("restartPolicy") == "Never":
            await self._report(pod, _lost_status(pod))  # its processes went with their kubelet
            pod["status"]["phase"] = "Failed"
            return
        meta = pod["metadata"]
        base = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self._pods / meta["namespace"] / meta["name"]),
            "HOSTNAME": pod["spec"].get("hostname") or meta["name"],
            "KUBERNETES_SERVICE_HOST": str(self._client.base_url.host),
            "KUBERNETES_SERVICE_PORT": str(self._client.base_url.port),
        }
        pod["status"] |= {"hostIP": "127.0.0.1", "podIP": self._address}
        run = PodRun(
            pod,
            PodFiles(self._pods, pod, self._fetch),
            base,
            self._address,
            self._report,
            self._remove,
            self._tell,
        )
        self._runs[uid] = (run, asyncio.ensure_future(self._run_pod(run)))
        run.update(pod)

    async def _run_pod(self, run: PodRun) -> None:
        try:
            await run.run()
        except Exception:  # one pod's fault is not the others'; it is in the log with its place
            log.exception("pod %s", run.pod["metadata"]["name"])

    async def _fetch(self, path: str) -> Object | None:
        answer = await self._until_answered(lambda: self._client.get(path))
        if answer.status_code == 404:
            return None
        raise_with_reason(answer)
        found: Object = answer.json()
        return found

    async def _report(self, pod: Object, status: Object) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        answer = await self._until_answered(
            lambda: self._send_patch(path, {"metadata": {"uid": meta["uid"]}, "status": status})
        )
        if answer.status_code not in (404, 409):  # gone, or another of its name by now
            raise_with_reason(answer)

    async def _remove(self, pod: Object) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        answer = await self._until_answered(
            lambda: self._client.request("DELETE", path, json=options)
        )
        if answer.status_code not in (404, 409):
            raise_with_reason(answer)

    async def _tell(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """Write an event; one that cannot be written is no reason to stop a pod."""
        meta = pod["metadata"]
        now = instant()
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": "kubelet", "host": pod["spec"]["nodeName"]},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        with suppress(httpx2.HTTPError):
            await self._client.post(f"/api/v1/namespaces/{meta['namespace']}/events", json=event)

    async def _until_answered(
        self, ask: Callable[[], Awaitable[httpx2.Response]]
    ) -> httpx2.Response:
        """Ask until the API server answers: a kubelet outlives its restarts."""
        while True:
            try:
                answer = await ask()
            except httpx2.TransportError as error:
                log.info("API server: %r", error)
            else:
                if answer.status_code != 429 and answer.status_code < 500:
                    return answer
            await asyncio.sleep(AGAIN_S)

    async def _send_patch(self, path: str, patch: Object) -> httpx2.Response:
        return await self._client.patch(
            path,
            headers={"Content-Type": "application/strategic-merge-patch+json"},
            content=json.dumps(patch),
        )

    async def _patch(self, path: str, patch: Object) -> None:
        raise_with_reason(await self._send_patch(path, patch))


def _was_started(pod: Object) -> bool:
    return any(one.get("containerID") for one in pod["status"].get("containerStatuses") or [])


def _lost_status(pod: Object) -> Object:
    """Return what a kubelet says of containers that it cannot find any more."""
    ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "not found"}
    statuses = [
        one | {"ready": False, "started": False, "state": {"terminated": ended}}
        for one in pod["status"]["containerStatuses"]
    ]
    return {"phase": "Failed", "containerStatuses": statuses}


def _says_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _find_address() -> str:
    """Return this machine's address towards others, which its pods have as theirs.

    Loopback would be refused in EndpointSlices; where the machine has nothing else, an address of
    the usual pod network says as little as a pod that nobody can reach.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # sends nothing: it asks for the route
            found = str(probe.getsockname()[0])
        except OSError:
            return "10.244.0.1"
    return "10.244.0.1" if found.startswith("127.") else found


async def _serve(arguments: argparse.Namespace) -> None:
    token = arguments.tokens.read_text().partition(",")[0]
    async with Access(arguments.url, arguments.authority, token).async_client() as client:
        kubelet = Kubelet(client, arguments.pods, arguments.port)
        serving = asyncio.ensure_future(kubelet.run(arguments.ready))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        try:
            await serving
        except asyncio.CancelledError:
            await kubelet.close()


def main() -> int:
    """Serve the process nodes of one cluster until SIGTERM."""
    parser = argparse.ArgumentParser(prog="rig.kubelet", description=main.__doc__)
    parser.add_argument("--url", required=True, help="the API server")
    parser.add_argument("--authority", type=Path, required=True, help="its certificate authority")
    parser.add_argument(
        "--tokens", type=Path, required=True, help="a token file; the first is used"
    )
    parser.add_argument("--pods", type=Path, required=True, help="folder for the pods' files")
    parser.add_argument("--port", type=int, required=True, help="the port of rig-streams")
    parser.add_argument("--ready", type=Path, required=True, help="a file made once nodes are seen")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("httpcore2").setLevel(logging.WARNING)
    if sys.version_info < (3, 12):  # from there on it is the default: no thread for each container
        asyncio.get_event_loop_policy().set_child_watcher(asyncio.PidfdChildWatcher())
    asyncio.run(_serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
