"""One pod on a process node, from its binding to its removal, told truthfully in its status.

Restarts back off from one second instead of the kubelet's ten, so that tests of crash loops end.
Annotations that make real trouble: `rig.gpuplane.io/oom-kill: <container>` and
`rig.gpuplane.io/evict: <message>`. An image that begins with `does-not-exist/` cannot be pulled.
"""

from __future__ import annotations

import asyncio
import signal
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from rig.containers import Container, Ended, instant
from rig.podspecs import MountRefused, PodFiles, SpecRefused, read_quantity
from rig.probes import Probe, watch_probe

Object = dict[str, Any]
BACK_OFF_S = 1.0
BACK_OFF_MAX_S = 30.0
RETRY_S = 1.0  # for a volume or a secret that is not there yet
NO_IMAGE = "does-not-exist/"
OOM_KILL = "rig.gpuplane.io/oom-kill"
EVICT = "rig.gpuplane.io/evict"
DEFAULT_GRACE_S = 30.0


class Stopped(Exception):
    """The pod is to end now, for a reason its status names."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.message = message


class PodRun:
    """Runs one pod.

    Args:
        pod: The pod as it was bound.
        files: Its folders.
        base: The environment that every container has.
        address: The pod's and its node's address.
        report: Writes a status to the API server.
        remove: Takes the pod away from the API server, once nothing of it runs.
        tell: Writes an event: type, reason, message.
    """

    def __init__(
        self,
        pod: Object,
        files: PodFiles,
        base: dict[str, str],
        address: str,
        report: Callable[[Object, Object], Awaitable[None]],
        remove: Callable[[Object], Awaitable[None]],
        tell: Callable[[Object, str, str, str], Awaitable[None]],
    ) -> None:
        self.pod = pod
        self._files = files
        self._base = base
        self._address = address
        self._report = report
        self._remove = remove
        self._tell = tell
        self._started_at = instant()
        spec = pod["spec"]
        self._init = [self._container(one) for one in spec.get("initContainers") or []]
        self._main = [self._container(one) for one in spec["containers"]]
        self._initialized = not self._init
        self._is_over = False
        self._has_finished = False
        self._reporting = asyncio.Lock()  # the answers of two writes may come in either order
        self._stop: asyncio.Future[Stopped] = asyncio.get_running_loop().create_future()
        self._deletion = asyncio.Event()
        self._spec_of = {
            one["name"]: one for one in [*(spec.get("initContainers") or []), *spec["containers"]]
        }

    def _container(self, spec: Object) -> Container:
        limit = ((spec.get("resources") or {}).get("limits") or {}).get("memory")
        return Container(
            spec["name"], self._files.folder, memory_limit=read_quantity(limit) if limit else None
        )

    def update(self, pod: Object) -> None:
        """Take a newer version of the pod: its deletion or an annotation that makes trouble."""
        self.pod = pod
        annotations = pod["metadata"].get("annotations") or {}
        if pod["metadata"].get("deletionTimestamp"):
            self._deletion.set()
            self._end(Stopped("", ""))
        elif EVICT in annotations:
            self._end(Stopped("Evicted", annotations[EVICT]))
        for container in self._main:
            if annotations.get(OOM_KILL) == container.name and not container.restarts:
                container.kill_for_memory()

    def kill(self) -> None:
        """End every process of the pod at once."""
        for container in self._init + self._main:
            container.signal_all(signal.SIGKILL)

    def clear(self) -> None:
        """Remove the pod's files."""
        self._files.clear()

    def _end(self, why: Stopped) -> None:
        if not self._stop.done():
            self._stop.set_result(why)

    async def run(self) -> None:
        """Run the pod to its end, and remove it once it is deleted."""
        self._files.take()
        phase, why = await self._run_until_stopped()
        await self._finish(phase, why)
        await self._deletion.wait()
        await self._remove(self.pod)

    async def _run_until_stopped(self) -> tuple[str, Stopped | None]:
        """Return the phase the pod ends in and why, if it was ended from outside."""
        work = asyncio.ensure_future(self._work())
        deadline_s = self.pod["spec"].get("activeDeadlineSeconds")
        either: set[asyncio.Future[Any]] = {work, self._stop}
        try:
            done, _ = await asyncio.wait(either, timeout=deadline_s, return_when=FIRST_COMPLETED)
        except asyncio.CancelledError:  # the pod was taken away without being asked to end
            work.cancel()
            raise
        if work in done:
            return work.result(), None
        why = Stopped(
            "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
        )
        if self._stop.done():
            why = self._stop.result()
        await self._end_containers()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        codes = [one.last.exit_code if one.last else 1 for one in self._main]
        return "Failed" if any(codes) or why.reason else "Succeeded", why

    async def _end_containers(self) -> None:
        meta, spec = self.pod["metadata"], self.pod["spec"]
        grace_s = meta.get("deletionGracePeriodSeconds")
        if grace_s is None:
            grace_s = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
        # Sidecars outlive the others, as kubelets do it.
        for part in (self._main, self._init):
            running = [one for one in part if one.process is not None]
            await asyncio.gather(*(self._end_one(one, float(grace_s)) for one in running))

    async def _end_one(self, container: Container, grace_s: float) -> None:
        hook = (self._spec_of[container.name].get("lifecycle") or {}).get("preStop") or {}
        if "exec" in hook and container.command is not None and "running" in container.state:
            with suppress(OSError, TimeoutError):
                process = await asyncio.create_subprocess_exec(
                    *hook["exec"]["command"],
                    cwd=container.command.folder,
                    env=container.command.environment,
                )
                async with asyncio.timeout(grace_s):
                    await process.wait()
        if "running" in container.state:
            await container.end(grace_s)
            # Its own task has yet to read how it ended.
            for _ in range(100):
                if "running" not in container.state:
                    return
                await asyncio.sleep(0.02)

    async def _work(self) -> str:
        """Prepare, run the init containers in order, then the others; returns the last phase."""
        image = self._missing_image()
        if image is not None:
            await self._refuse_image(image)
        await self._prepare()
        for container in self._init:
            if not await self._run_init(container):
                return "Failed"
        self._initialized = True
        runs = [asyncio.ensure_future(self._run_container(one)) for one in self._main]
        try:
            ended = await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
        self._is_over = True
        grace_s = float(self.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S))
        await asyncio.gather(*(self._end_one(one, grace_s) for one in self._init))
        return "Succeeded" if all(one.exit_code == 0 for one in ended) else "Failed"

    def _missing_image(self) -> tuple[Container, str] | None:
        for container in self._init + self._main:
            image = self._spec_of[container.name]["image"]
            if image.startswith(NO_IMAGE):
                return container, image
        return None

    async def _refuse_image(self, missing: tuple[Container, str]) -> None:
        container, image = missing
        said = f'failed to pull and unpack image "{image}": not found'
        container.state = {"waiting": {"reason": "ErrImagePull", "message": said}}
        await self._tell(self.pod, "Warning", "Failed", f'Failed to pull image "{image}": {said}')
        await self._report_running()
        await asyncio.sleep(BACK_OFF_S)
        back_off = f'Back-off pulling image "{image}"'
        container.state = {"waiting": {"reason": "ImagePullBackOff", "message": back_off}}
        await self._tell(self.pod, "Normal", "BackOff", back_off)
        await self._report_running()
        await asyncio.Event().wait()  # until the pod is deleted or its deadline passes

    async def _prepare(self) -> None:
        """Make volumes, waiting for what is not there yet."""
        told = False
        while True:
            try:
                await self._files.make_volumes()
                return
            except MountRefused as error:
                if not told:
                    said = f"MountVolume.SetUp failed: {error}"
                    await self._tell(self.pod, "Warning", "FailedMount", said)
                    await self._report_running()
                    told = True
            await asyncio.sleep(RETRY_S)

    async def _find_command(self, container: Container) -> None:
        while True:
            try:
                container.command = await self._files.command(
                    self._spec_of[container.name], self._base
                )
                return
            except SpecRefused as error:
                waiting = {"reason": "CreateContainerConfigError", "message": str(error)}
                if container.state != {"waiting": waiting}:
                    container.state = {"waiting": waiting}
                    await self._tell(self.pod, "Warning", "Failed", f"Error: {error}")
                    await self._report_running()
            await asyncio.sleep(RETRY_S)

    async def _run_init(self, container: Container) -> bool:
        """Run an init container to its success; one that restarts always is a sidecar."""
        sidecar = self._spec_of[container.name].get("restartPolicy") == "Always"
        run = asyncio.ensure_future(self._run_container(container, init=True))
        if sidecar:
            started = asyncio.ensure_future(container.has_started.wait())
            await asyncio.wait({started, run}, return_when=FIRST_COMPLETED)
            started.cancel()
            return True
        try:
            return (await run).exit_code == 0
        finally:
            run.cancel()

    async def _run_container(self, container: Container, *, init: bool = False) -> Ended:
        """Run one container and its restarts; returns how it ended for good."""
        await self._find_command(container)
        back_off_s = BACK_OFF_S
        while True:
            ended = await self._run_once(container, probes=not init)
            restarts = self._restarts(container, ended, init=init)
            if not restarts or self._is_over or self._stop.done():
                return ended
            said = f"back-off {back_off_s:.0f}s restarting failed container={container.name}"
            container.state = {"waiting": {"reason": "CrashLoopBackOff", "message": said}}
            await self._tell(self.pod, "Warning", "BackOff", said)
            await self._report_running()
            await asyncio.sleep(back_off_s)
            back_off_s = min(BACK_OFF_MAX_S, back_off_s * 2)
            container.restarts += 1

    def _restarts(self, container: Container, ended: Ended, *, init: bool) -> bool:
        own = self._spec_of[container.name].get("restartPolicy")
        policy = own or self.pod["spec"].get("restartPolicy", "Always")
        if policy == "Always" and not (init and own is None):
            return True
        return policy != "Never" and ended.exit_code != 0

    async def _run_once(self, container: Container, *, probes: bool) -> Ended:
        ended = await container.start()
        if ended is None:
            spec = self._spec_of[container.name]
            watching = asyncio.ensure_future(self._probe(container, spec if probes else {}))
            try:
                ended = await container.wait()
            finally:
                watching.cancel()
        container.ready = container.started = False
        container.last = ended
        container.state = ended.state(container.container_id)
        await self._report_running()
        return ended

    async def _probe(self, container: Container, spec: Object) -> None:
        """Say that a container is started and ready, as its probes see it."""

        async def set_started(*, good: bool) -> None:
            if not good:
                await self._kill_unhealthy(container)

        async def set_ready(*, good: bool) -> None:
            if container.ready != good:
                container.ready = good
                await self._report_running()

        async def stay_alive(*, good: bool) -> None:
            if not good:
                await self._kill_unhealthy(container)

        await self._report_running()
        if "startupProbe" in spec:
            await watch_probe(Probe(spec["startupProbe"], spec), container, set_started, once=True)
        container.started = True
        container.has_started.set()
        watches = []
        if "livenessProbe" in spec:
            watches.append(watch_probe(Probe(spec["livenessProbe"], spec), container, stay_alive))
        if "readinessProbe" in spec:
            watches.append(watch_probe(Probe(spec["readinessProbe"], spec), container, set_ready))
        else:
            await set_ready(good=True)
        await asyncio.gather(*watches)

    async def _kill_unhealthy(self, container: Container) -> None:
        said = f"Container {container.name} failed its probe, will be restarted"
        await self._tell(self.pod, "Warning", "Unhealthy", said)
        grace_s = self.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
        await container.end(float(grace_s))

    async def _report_running(self) -> None:
        """Write the status of a pod, unless its end was written: a sidecar may end last."""
        async with self._reporting:
            if self._has_finished:
                return
            running = any(one.process is not None for one in self._main)
            await self._report(self.pod, self._status("Running" if running else "Pending"))

    async def _finish(self, phase: str, why: Stopped | None) -> None:
        status = self._status(phase)
        if why is not None and why.reason:
            status |= {"reason": why.reason, "message": why.message}
        for condition in status["conditions"]:
            if condition["type"] in ("Ready", "ContainersReady"):
                condition["reason"] = "PodCompleted" if phase == "Succeeded" else "PodFailed"
        async with self._reporting:
            self._has_finished = True
            await self._report(self.pod, status)

    def _status(self, phase: str) -> Object:
        ready = bool(self._main) and all(one.ready for one in self._main) and phase == "Running"
        truths = {
            "PodReadyToStartContainers": True,
            "Initialized": self._initialized,
            "ContainersReady": ready,
            "Ready": ready,
        }
        now = instant()
        conditions = [
            {"type": name, "status": str(value), "lastTransitionTime": now}
            for name, value in truths.items()
        ]
        status: Object = {
            "phase": phase,
            "conditions": conditions,
            "startTime": self._started_at,
            "hostIP": "127.0.0.1",
            "containerStatuses": [self._container_status(one, phase) for one in self._main],
        }
        if phase != "Pending":
            status |= {"podIP": self._address, "podIPs": [{"ip": self._address}]}
        if self._init:
            status["initContainerStatuses"] = [
                self._container_status(one, phase) for one in self._init
            ]
        return status

    def _container_status(self, container: Container, phase: str) -> Object:
        image = self._spec_of[container.name]["image"]
        state = container.state
        if "waiting" in state and phase in ("Succeeded", "Failed") and container.last:
            state = container.last.state(container.container_id)
        status: Object = {
            "name": container.name,
            "image": image,
            "imageID": image if container.process else "",
            "ready": container.ready,
            "started": container.started,
            "restartCount": container.restarts,
            "state": state,
        }
        if container.process is not None:
            status["containerID"] = container.container_id
        if container.restarts and container.last is not None:
            status["lastState"] = container.last.state(container.container_id)
        return status
