"""Looks at one GPUWorkload: loads what is known, lets the rules decide, does the one step.

Owns every write for GPUWorkloads. A write of status or metadata names the resourceVersion that was
decided on; one that has become stale is dropped, and the change that made it so wakes the
workload again. Runs only while this replica leads.
"""

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from gpuplane.kit.clock import Clock, instant_to_text
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import AlreadyThere, Conflict, KubeError, NotThere
from gpuplane.kube.kinds import GPU_WORKLOAD, JOB
from gpuplane.operator.events import Announcer
from gpuplane.operator.meters import Meters
from gpuplane.operator.models import Models
from gpuplane.operator.names import FINALIZER, HOST_LABEL, OVER, RESOURCES, Phase
from gpuplane.operator.provisioning import Provisioner
from gpuplane.operator.rules.backoff import CHANCE_STEPS, compute_wait_ms
from gpuplane.operator.rules.jobs import build_job, job_name
from gpuplane.operator.rules.profiles import compute_profile, list_recommendations
from gpuplane.operator.rules.seen import Job, Workload, read_job, read_workload
from gpuplane.operator.rules.steps import (
    Await,
    Clear,
    Follow,
    Guard,
    Place,
    Placed,
    Refused,
    Rest,
    Search,
    decide_placement,
    decide_step,
)
from gpuplane.operator.world import Key, World

log = logging.getLogger(__name__)

CLEAR_S = 10.0
"""How soon a deletion is looked at again that no change has told of."""
PROVISION_S = 600.0
"""A request is watched; this is for an autoscaler that never answers."""
HELD_AGAIN_S = 30.0
"""How soon a reservation is tried again for which no node had room."""
STEPS_A_LOOK = 8
"""Steps of one workload in a row; a deletion needs two, a start three."""


class Chance(Protocol):
    """Draws whole numbers."""

    def randrange(self, start: int, /) -> int:
        """Return a number in [0, start)."""
        ...


@dataclass(frozen=True, slots=True)
class Queues:
    """How Kueue is used.

    Attributes:
        is_served: Whether the cluster has Kueue.
        default: LocalQueue of workloads that name none; empty leaves them out of Kueue.
    """

    is_served: bool = False
    default: str = ""

    def of(self, workload: Workload) -> str:
        """Return the LocalQueue of a workload, empty where it stands in none."""
        return (workload.queue or self.default) if self.is_served else ""


class Reconciler:
    """Brings GPUWorkloads forward."""

    def __init__(
        self,
        client: KubeClient,
        world: World,
        models: Models,
        queues: Queues,
        meters: Meters,
        announcer: Announcer,
        provisioner: Provisioner,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._client = client
        self._world = world
        self._models = models
        self._queues = queues
        self._meters = meters
        self._announcer = announcer
        self._provisioner = provisioner
        self._clock = clock
        self._chance = chance
        self._due_ms: dict[str, int] = {}

    def take_over(self) -> None:
        """Keep the GPUs of what earlier leaders placed, before anything else is placed."""
        for key in list(self._world.keys()):
            workload = self._world.find_workload(key)
            if workload is None or not workload.node:
                continue
            for job in self._world.jobs_of(workload):
                if workload.phase in OVER:
                    self._world.remember_run(workload, job, job.failure)
                elif job.name == job_name(workload) and not job.is_suspended:
                    self._world.promise(workload, job.name, job.node or workload.node)

    async def look(self, key: Key) -> float | None:
        """Do what is to be done for a workload; returns when to look again at the latest, in s.

        Raises:
            KubeError: If the cluster refused or did not answer; the next look is the retry.
        """
        for _ in range(STEPS_A_LOOK):
            workload = self._world.find_workload(key)
            if workload is None:
                return None
            again_s = await self._step(workload)
            if again_s is not None:
                return again_s or None
        return CLEAR_S

    async def _step(self, workload: Workload) -> float | None:
        """Do one step; None asks for the next at once, 0 says that changes will wake."""
        world = self._world
        jobs = world.jobs_of(workload)
        match decide_step(workload, jobs, world.pods_of(jobs), self._now_s()):
            case Rest():
                self._forget(workload)
                return 0
            case Guard():
                await self._write_finalizers(workload, [*workload.finalizers, FINALIZER])
                return None
            case Clear(jobs=old, finally_release=last):
                return await self._clear(workload, old, release=last)
            case Follow() as follow:
                await self._follow(workload, follow)
                return 0
            case Search(name=name):
                return await self._search(workload, name)
            case Await() as later:
                return await self._await(workload, later)
            case Place():
                return await self._place(workload)

    # Ends

    def _forget(self, workload: Workload) -> None:
        self._due_ms.pop(workload.uid, None)
        self._world.stop_waiting(workload)
        self._world.let_go(workload)

    async def _clear(
        self, workload: Workload, jobs: tuple[Job, ...], *, release: bool
    ) -> float | None:
        self._world.stop_waiting(workload)
        for job in jobs:
            if not job.is_going:
                # In the foreground: the Job stays until its pods are gone, and only then is the
                # workload placed anew.
                await self._client.delete(
                    JOB, job.name, job.namespace, propagation="Foreground", uid=job.uid
                )
        if jobs:
            return CLEAR_S
        self._forget(workload)
        if release:
            kept = [each for each in workload.finalizers if each != FINALIZER]
            await self._write_finalizers(workload, kept)
        return 0

    async def _search(self, workload: Workload, name: str) -> float | None:
        found = await self._client.find(JOB, name, workload.namespace)
        if found is not None and read_job(found).workload_uid == workload.uid:
            self._world.set_job(read_job(found))
            return None
        await self._fail(
            workload,
            "job_deleted",
            f"Job {name} was deleted before it was over; it is not run again",
        )
        return 0

    async def _fail(self, workload: Workload, reason: str, message: str) -> None:
        self._meters.failed.labels(reason).inc()
        await self._write_status(workload, {"phase": Phase.FAILED, "message": message})
        self._forget(workload)

    # The Job is there

    async def _follow(self, workload: Workload, follow: Follow) -> None:
        standing, job, world = follow.standing, follow.job, self._world
        world.stop_waiting(workload)
        self._due_ms.pop(workload.uid, None)
        if standing.phase in OVER or job.is_suspended:
            world.let_go(workload)
        elif standing.node:
            world.promise(workload, job.name, standing.node)
        status: dict[str, Any] = {
            "phase": standing.phase,
            "assignedNode": standing.node or None,
            "jobName": job.name,
            "message": standing.message,
            "observedGeneration": workload.generation,
        }
        is_new = workload.job != job.name
        if is_new:
            status["lastScheduleTime"] = self._instant()
            status |= self._advice(workload)
        is_same = (workload.phase, workload.node, workload.job, workload.message) == (
            standing.phase,
            standing.node,
            job.name,
            standing.message,
        )
        if not is_same:
            await self._write_status(workload, status)
        if standing.phase in OVER:
            world.remember_run(workload, job, job.failure)
        if standing.phase is not workload.phase:
            self._tell_phase(workload, follow)

    def _tell_phase(self, workload: Workload, follow: Follow) -> None:
        standing = follow.standing
        strategy = follow.job.strategy or workload.strategy.value
        was_placed = workload.phase in (Phase.SCHEDULED, Phase.RUNNING)
        if standing.phase in (Phase.SCHEDULED, Phase.RUNNING, Phase.SUCCEEDED) and not was_placed:
            self._meters.scheduled.labels(strategy).inc()
            self._meters.assigned.labels(strategy).inc(workload.gpus)
            self._announcer.tell(workload, "Normal", "Scheduled", standing.message)
        if standing.phase is Phase.SUCCEEDED:
            self._announcer.tell(workload, "Normal", "Succeeded", standing.message)
        if standing.phase is Phase.FAILED:
            self._meters.failed.labels("job_failed").inc()
            self._announcer.tell(workload, "Warning", "Failed", standing.message)

    def _advice(self, workload: Workload) -> dict[str, Any]:
        runs = self._world.runs_of(workload.model)
        if not runs:
            return {}
        return {
            "profile": compute_profile(runs),
            "recommendations": list_recommendations(runs, workload.gpus),
        }

    # The Job is not there yet

    async def _await(self, workload: Workload, later: Await) -> float | None:
        wake_s = float(max(1, later.wake_s - self._now_s()))
        reservation = workload.reservation
        assert reservation is not None, "only a reservation waits for its hour"
        start = instant_to_text(reservation.start_s * 1000)
        if not later.holds:
            await self._say(workload, Phase.PENDING, "", f"starts at {start}")
            return wake_s
        decision = self._decide(workload, with_victims=False)
        if isinstance(decision, Refused):
            told = f"{decision.sentence}; asked for at {start}"
            await self._say(workload, Phase.PENDING, "", told)
            self._world.wait_for_room(workload)
            return min(HELD_AGAIN_S, wake_s)
        self._world.stop_waiting(workload)
        self._world.promise(workload, job_name(workload), decision.node)
        told = (
            f"{workload.gpus} GPUs of {decision.node} are kept from other GPUWorkloads until "
            f"{start}; pods of others are not kept out"
        )
        await self._say(workload, Phase.SCHEDULING, decision.node, told)
        return wake_s

    async def _say(self, workload: Workload, phase: Phase, node: str, message: str) -> None:
        if (workload.phase, workload.node, workload.message) == (phase, node, message):
            return
        status = {"phase": phase, "assignedNode": node or None, "message": message}
        await self._write_status(workload, status)

    def _decide(self, workload: Workload, *, with_victims: bool) -> Placed | Refused:
        """Choose a node; what is kept for this workload is free for it, and is taken first."""
        world = self._world
        kept = world.room.find_hold(workload.uid)
        world.room.release(workload.uid)
        reserved = kept.node if kept else workload.node
        with self._meters.choice.labels(workload.strategy.value).time():
            return decide_placement(
                workload,
                world.nodes.values(),
                world.room.used(workload.vendor),
                world.room.busy_ids(),
                world.placed if with_victims else dict,
                chance=self._chance.randrange(1 << 30),
                mix=world.mix,
                reserved=reserved,
            )

    async def _place(self, workload: Workload) -> float | None:
        image = self._models.find(workload.model)
        if image is None:
            told = f"the operator has no image for model {workload.model}"
            return await self._refuse(workload, Refused("no_image", told))
        queue = self._queues.of(workload)
        # In a queue of Kueue it waits its turn there, and Kueue says who gives way.
        decision = self._decide(workload, with_victims=not queue)
        if isinstance(decision, Refused) and queue and decision.reason == "no_suitable_node":
            decision = Placed("", RESOURCES[workload.vendor][0])
        if isinstance(decision, Refused):
            self._meters.unfit.labels(workload.strategy.value).inc()
            return await self._refuse(workload, decision)
        # From here on nobody else is given these GPUs: there was no await since the choice.
        name = job_name(workload)
        if decision.node:
            self._world.promise(workload, name, decision.node)
        self._world.stop_waiting(workload)
        try:
            for victim in decision.victims:
                await self._preempt(victim, workload)
            node = self._world.nodes.get(decision.node)
            host = node.labels.get(HOST_LABEL, node.name) if node else decision.node
            manifest = build_job(
                workload, image, decision.node, host, decision.resource, queue=queue
            )
            made = await self._make_job(workload, manifest)
        except KubeError as error:
            self._world.let_go(workload)
            if isinstance(error, Conflict) or error.status in (0, 401, 429) or error.status >= 500:
                raise  # not the workload's fault: no retry of its is used up
            told = f"Job {name} could not be made: {error}"
            return await self._refuse(workload, Refused("job_creation_failed", told))
        if made is None:
            self._world.let_go(workload)
            told = f"a Job named {name} that is not ours is in the way; it is left alone"
            return await self._refuse(workload, Refused("job_creation_failed", told))
        self._world.note_answer(made)
        return None

    async def _make_job(self, workload: Workload, manifest: dict[str, Any]) -> Job | None:
        """Make the Job, or find the one that was made before; None if it is somebody else's."""
        try:
            made = await self._client.create(manifest)
        except AlreadyThere:
            name = manifest["metadata"]["name"]
            made = await self._client.get(JOB, name, workload.namespace)
        job = read_job(made)
        return job if job.workload_uid == workload.uid else None

    async def _preempt(self, key: Key, preemptor: Workload) -> None:
        """Take a workload off its node; its next look awaits the end of the old Job's pods."""
        victim = self._world.find_workload(key)
        if victim is None or victim.phase in OVER or not victim.job:
            return
        jobs = [job for job in self._world.jobs_of(victim) if job.name == victim.job]
        told = f"preempted by {preemptor.namespace}/{preemptor.name} of higher priority"
        status = {
            "phase": Phase.PENDING,
            "assignedNode": None,
            "jobName": None,
            "preemptionCount": victim.preemptions + 1,
            "message": told,
        }
        # First the record, then the deed: with the record every later leader deletes the old Job
        # before it makes another.
        await self._write_status(victim, status)
        self._world.room.release(victim.uid)
        for job in jobs:
            await self._client.delete(
                JOB, job.name, job.namespace, propagation="Foreground", uid=job.uid
            )
        self._meters.preempted.labels(victim.priority.value).inc()
        self._announcer.tell(victim, "Normal", "Preempted", told)

    async def _refuse(self, workload: Workload, refused: Refused) -> float | None:
        """Put a workload off that cannot be placed; changes of room wake it before its time."""
        self._world.wait_for_room(workload)
        now_ms = self._clock.now_ms()
        due_ms = self._due_of(workload)
        if now_ms < due_ms:
            await self._say(workload, Phase.PENDING, "", refused.sentence)
            return (due_ms - now_ms) / 1000
        if refused.reason == "no_suitable_node" and await self._provisioner.expects_nodes(
            workload, self._models.find(workload.model)
        ):
            told = f"{refused.sentence}; the autoscaler was asked for nodes"
            await self._say(workload, Phase.PENDING, "", told)
            return PROVISION_S
        if workload.retries >= workload.max_retries:
            told = f"Failed to schedule after {workload.max_retries} retries: {refused.sentence}"
            self._announcer.tell(workload, "Warning", "MaxRetriesExceeded", told)
            await self._fail(workload, refused.reason, told)
            return 0
        wait_ms = compute_wait_ms(
            workload.backoff_s, workload.retries, self._chance.randrange(CHANCE_STEPS)
        )
        status = {
            "phase": Phase.PENDING,
            "assignedNode": None,
            "retryCount": workload.retries + 1,
            "lastScheduleTime": self._instant(),
            "message": refused.sentence,
            "observedGeneration": workload.generation,
        }
        await self._write_status(workload, status)
        self._meters.failed.labels(refused.reason).inc()
        self._meters.retries.inc()
        self._due_ms[workload.uid] = now_ms + wait_ms
        return wait_ms / 1000

    def _due_of(self, workload: Workload) -> int:
        """Return when the next try counts; after a change of leader the wait goes on."""
        known = self._due_ms.get(workload.uid)
        if known is not None:
            return known
        if not workload.retries or not workload.scheduled_s:
            return 0
        waited = compute_wait_ms(workload.backoff_s, workload.retries - 1, 0)
        return workload.scheduled_s * 1000 + waited

    # Writing

    async def _write_status(self, workload: Workload, status: dict[str, Any]) -> None:
        patch = {"metadata": {"resourceVersion": workload.resource_version}, "status": status}
        await self._write(workload, patch, "status")

    async def _write_finalizers(self, workload: Workload, finalizers: list[str]) -> None:
        meta = {"resourceVersion": workload.resource_version, "finalizers": finalizers}
        await self._write(workload, {"metadata": meta}, None)

    async def _write(
        self, workload: Workload, patch: dict[str, Any], subresource: str | None
    ) -> None:
        try:
            written = await self._client.patch(
                GPU_WORKLOAD, workload.name, patch, workload.namespace, subresource=subresource
            )
        except NotThere:
            self._world.remove_workload(workload)
            return
        if "deletionTimestamp" in written["metadata"] and not written["metadata"].get("finalizers"):
            self._world.remove_workload(workload)
        else:
            self._world.set_workload(read_workload(written))

    def _now_s(self) -> int:
        return self._clock.now_ms() // 1000

    def _instant(self) -> str:
        return instant_to_text(self._now_s() * 1000).replace(".000Z", "Z")
