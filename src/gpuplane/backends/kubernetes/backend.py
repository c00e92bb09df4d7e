"""The Kubernetes backend: verbs of the contract on records, objects and informers of one cluster.

Keeps nothing that the cluster does not say, but for archived logs: a new object on the same
cluster goes on where the last one ended. Never binds a pod and never touches what has not our
label.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from gpuplane.backends.interface import (
    AttemptPlan,
    AttemptRef,
    BackendError,
    ExecResult,
    LogChunk,
    Observation,
    Probe,
    ReplicaChanges,
    ReplicaObservation,
    Stream,
    Unavailable,
)
from gpuplane.backends.kubernetes import dispatched, scaling, starting
from gpuplane.backends.kubernetes.archive import LogArchive
from gpuplane.backends.kubernetes.chartplaces import ChartTools
from gpuplane.backends.kubernetes.creating import PodTroubles
from gpuplane.backends.kubernetes.fencing import RecordStore
from gpuplane.backends.kubernetes.inventory import observe_node
from gpuplane.backends.kubernetes.names import ATTEMPT_ID
from gpuplane.backends.kubernetes.records import (
    FORGOTTEN,
    STARTED,
    Record,
    decide_evict,
    decide_forget,
)
from gpuplane.backends.kubernetes.releasing import Releases
from gpuplane.backends.kubernetes.reporting import Reporter
from gpuplane.backends.kubernetes.served import NO_ROUTES, Served, read_classes
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.settling import Settler, delete_main
from gpuplane.backends.kubernetes.shapes import Pod
from gpuplane.backends.kubernetes.sights import pods_by_rank
from gpuplane.backends.kubernetes.tailing import LogTails
from gpuplane.backends.kubernetes.views import ClusterView
from gpuplane.backends.kubernetes.watching import ClusterWatch
from gpuplane.core.ids import AttemptId
from gpuplane.kit.clock import Clock
from gpuplane.kit.tasks import end_tasks
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import KubeError, NotThere, Unreachable
from gpuplane.kube.kinds import JOB_SET, POD, ROUTE, SCALED_OBJECT, STORAGE_CLASS
from gpuplane.kube.tenancy import walled_namespace

NOTHING_KEPT = "NothingKept"
"""The word of a BackendError for an attempt of which nothing is kept."""

SILENT_S = 60.0
"""How long a cluster may not be heard of before what runs on it counts as unreachable. A watch
that is quiet gets a bookmark about once a minute, so failures must be seen as well."""

_FOLLOW_S = 1.0
"""How often a follower asks whether the attempt is over when nothing is written."""

_CHUNK_BYTES = 65_536


class KubernetesBackend:
    """One Kubernetes cluster.

    Args:
        client: Of the cluster; closed with the backend.
        cluster_id: The id under which the product knows it; on the label of all that is ours.
        home: The product's home; archived logs lie below it.
        clock: Tells when something was observed.
        settings: Limits and habits.
        charts: What jobs with Helm charts need on this server; without it they are refused.
    """

    kind = "kubernetes"
    on_return: Callable[[], None] | None = None
    """Called when the cluster, which could not be reached, is heard of again."""

    def __init__(
        self,
        client: KubeClient,
        cluster_id: str,
        home: Path,
        clock: Clock,
        settings: KubernetesSettings | None = None,
        charts: ChartTools | None = None,
    ) -> None:
        self.client = client
        self.cluster_id = cluster_id
        self.settings = settings or KubernetesSettings()
        self._clock = clock
        self._view = ClusterView()
        self._changed = asyncio.Event()
        archive = home / "kubernetes" / cluster_id / "logs"
        self._archive = LogArchive(archive, self.settings.max_log_bytes)
        self._output = asyncio.Event()
        self._tails = LogTails(client, self._archive, self.settings.log_followers, self._output.set)
        space = self.settings.records_namespace
        self._records = RecordStore(client, self._view, cluster_id, space)
        self._releases = Releases(
            client,
            self._records,
            cluster_id,
            self.settings,
            charts or ChartTools(),
            home / "kubernetes" / "helm",
            clock.now_ms,
        )
        self._settler = Settler(
            client,
            self._view,
            self._records,
            self._tails,
            clock,
            self.settings,
            cluster_id,
            self._is_silent,
            self.forget,
            self._releases.uninstall,
            self._releases.withdraw,
        )
        self._reporter = Reporter(client, self._view, clock, self.settings, self._changed.set)
        self._troubles = PodTroubles(client, self._view, clock, self._changed.set)
        self._watch = ClusterWatch(
            client,
            self._view,
            cluster_id,
            space,
            clock,
            self._note_change,
            (*self.settings.former_ids, *self.settings.manager_ids),
            # Where Kueue admits, the cluster itself knows what is free.
            sees_others=self.settings.admission == "embedded",
            returned=self._note_return,
        )
        self._served = Served()
        self._starts: WeakValueDictionary[AttemptId, asyncio.Lock] = WeakValueDictionary()
        self._opening: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to listen to the cluster; may be called again after a failure.

        Raises:
            Unavailable: If it cannot be reached or read now, or is being let go of.
        """
        if self._opening is None or (self._opening.done() and self._failed_to_open()):
            self._opening = asyncio.create_task(self._open(), name=f"open:{self.cluster_id}")
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            # `stop` ended the opening: whoever waited for it is not cancelled itself.
            task = asyncio.current_task()
            if not opening.cancelled() or (task is not None and task.cancelling()):
                raise
            raise Unavailable("Unreachable", "the cluster is being let go of") from None

    async def stop(self) -> None:
        """Let go of the cluster; what runs goes on."""
        tasks = (self._opening, self._settling, self._reporting, self._asking)
        # An opening that failed was told of by whoever waited for it.
        await end_tasks([task for task in tasks if task is not None and not task.done()])
        await self._settler.stop()
        await self._releases.stop()
        await self._reporter.stop()
        await self._tails.stop()
        await self._watch.stop()
        await self.client.close()

    async def probe(self) -> Probe:
        """Return whether the cluster answers, and what it promises; see `Backend`."""
        with starting.told():
            version = await self.client.version()
        await self.open()
        notes = [
            "Standard output and standard error of a pod come as one stream.",
            "CPU is a share under contention, not a ceiling; memory and disk are enforced.",
        ]
        if self.settings.admission == "embedded":
            notes.append("Nodes are chosen here and bound by the cluster's own scheduler.")
        if not self._served.default_class:
            notes.append("It has no default StorageClass: checkpoints live as long as their pod.")
        return Probe(
            reachable=not self._is_silent(),
            kind=self.kind,
            version=version.text,
            notes=tuple(notes),
        )

    async def observe(self) -> Observation:
        """Return nodes, GPUs and every attempt not yet forgotten; see `Backend`."""
        await self._open_and_heard()
        held, instances = self._view.held_gpus(), self._view.held_instances()
        nodes = tuple(
            self._watch.others.without(observe_node(each), held, instances)
            for each in self._watch.node_facts()
        )
        replicas = tuple(self._view.observe())
        scales = tuple(self._view.scales_since(""))
        return Observation(self._watch.inventory, self._clock.now_ms(), nodes, replicas, scales)

    async def observe_replicas_since(self, cursor: str) -> ReplicaChanges:
        """Return the replicas that changed since the cursor; see `ObservesChanges`."""
        await self._open_and_heard()
        scales = tuple(self._view.scales_since(cursor))
        position, replicas = self._view.changed_since(cursor)
        now = self._clock.now_ms()
        return ReplicaChanges(position, self._watch.inventory, now, tuple(replicas), scales)

    async def wait_changed(self, timeout_s: float) -> None:
        """Return when an informer saw something new, or after timeout_s; see `Backend`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    async def ensure_workload(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        """Start the attempt unless it was started already or was evicted; see `Backend`."""
        async with self._one_at_a_time(plan.ref):
            if plan.execution.chart is not None:
                await self._releases.ensure(plan, secrets)
            else:
                await self._start(starting.ensure_started, plan, secrets)

    async def check_chart(self, plan: AttemptPlan) -> None:
        """Return if the chart of a job may run; see `ChecksCharts`."""
        with starting.told():
            await self._releases.check(plan)

    async def take_dispatched(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        """Keep a record of what another cluster sent here; see `Dispatches`."""
        async with self._one_at_a_time(plan.ref):
            await self._start(dispatched.take, plan, secrets)

    async def read_end(self, ref: AttemptRef) -> tuple[ReplicaObservation, ...]:
        """Return how what was sent elsewhere ended; see `Dispatches`."""
        await self.open()
        with starting.told():
            return await dispatched.read_end(self.client, self._records, ref, self._clock.now_ms())

    async def scale(self, plan: AttemptPlan, secrets: dict[str, str], grace_s: float) -> None:
        """Have a started service run exactly the replicas of the plan; see `Scales`.

        Which pods go is the cluster's to say, and with what grace is in their template; but where
        Kueue admits each, those that are to leave are named.
        """
        await self.open()
        with starting.told():
            await scaling.scale(
                self.client,
                self._records,
                self._view,
                plan,
                self.settings.remembered_pods,
                grace_s,
            )
        self._note_change()

    async def set_wanted(self, ref: AttemptRef, wanted: int) -> None:
        """Ask for so many replicas; see `DecidesScale`."""
        record = await self._kept(ref)
        with starting.told():
            await scaling.set_wanted(self.client, record, wanted, has_keda=self._served.keda)
        self._note_change()

    async def evict(self, ref: AttemptRef, grace_s: float, reason: str) -> None:
        """Stop an attempt, or forbid its start; see `Backend`."""
        await self.open()
        now = self._clock.now_ms()
        with starting.told():
            record = await self._records.change(
                ref.attempt_id, lambda found: decide_evict(found, ref, reason, now)
            )
            if record is not None and record.name and record.fate != FORGOTTEN:
                await self._end(record, round(grace_s))
        self._note_change()

    async def forget(self, ref: AttemptRef) -> None:
        """Drop what is kept of an attempt that is over; see `Backend`."""
        await self.open()
        now = self._clock.now_ms()
        with starting.told():
            record = await self._records.change(
                ref.attempt_id, lambda found: decide_forget(found, ref, now)
            )
            if record is None:
                return
            await asyncio.to_thread(self._archive.forget, ref.attempt_id)
            main = self._view.main(ref.attempt_id)
            if main is not None:
                await delete_main(self.client, main)
        self._note_change()

    async def read_logs(
        self, ref: AttemptRef, rank: int, stream: Stream, offset: int, limit_bytes: int
    ) -> LogChunk:
        """Return a run of bytes of a replica's output; see `ReadsLogs`."""
        record = await self._kept(ref)
        if stream is Stream.STDERR:
            return LogChunk(rank, stream, offset, b"")
        await self._refresh(record, rank)
        data = await asyncio.to_thread(
            self._archive.read, ref.attempt_id, rank, offset, limit_bytes
        )
        return LogChunk(rank, stream, offset, data)

    async def follow_logs(
        self, ref: AttemptRef, ranks: Sequence[int], stdout_offset: int, stderr_offset: int
    ) -> AsyncIterator[LogChunk]:
        """Yield output as it is written until the attempt is over; see `ReadsLogs`.

        All output is standard output here, so `stderr_offset` is never reached.
        """
        record = await self._kept(ref)
        offsets = dict.fromkeys(ranks, stdout_offset)
        is_over = False
        for rank in ranks:
            await self._refresh(record, rank)
        while True:
            self._output.clear()
            wrote = False
            for rank in ranks:
                while data := await asyncio.to_thread(
                    self._archive.read, ref.attempt_id, rank, offsets[rank], _CHUNK_BYTES
                ):
                    yield LogChunk(rank, Stream.STDOUT, offsets[rank], data, self._clock.now_ms())
                    offsets[rank] += len(data)
                    wrote = True
            if is_over and not wrote:
                return
            # Once more after the end is known: what came in between is not lost.
            latest = self._view.record(ref.attempt_id)
            is_over = latest is None or latest.is_over
            if not is_over and not wrote:
                self._follow_running(ref.attempt_id, ranks)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_FOLLOW_S):
                        await self._output.wait()

    async def exec(
        self, ref: AttemptRef, rank: int, command: Sequence[str], stdin: bytes, timeout_s: float
    ) -> ExecResult:
        """Run a command in a replica's container; see `Executes`.

        A command that takes longer than timeout_s answers 124, as `timeout` does.
        """
        record = await self._kept(ref)
        pod = self._pod(record.id, rank)
        if pod is None or pod.main is None or pod.main.state.running is None:
            raise BackendError(NOTHING_KEPT, f"rank {rank} of {ref.attempt_id} does not run")
        try:
            with starting.told():
                done = await self.client.exec(
                    pod.metadata.name,
                    pod.metadata.namespace,
                    pod.container_name,
                    command,
                    stdin,
                    timeout_s,
                )
        except Unavailable as error:
            if "Timeout" not in error.message:
                raise
            return ExecResult(124, b"", error.message.encode())
        limit = self.settings.max_exec_bytes
        return ExecResult(done.exit_code, done.stdout[:limit], done.stderr[:limit])

    async def sweep(self) -> None:
        """Delete what is left over in the cluster now; it is done by itself every ten minutes."""
        await self._open_and_heard()
        with starting.told():
            await self._settler.sweep()

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, ref: AttemptRef) -> AsyncIterator[None]:
        """Hear the cluster first, and start one attempt only once at the same time."""
        await self.open()
        lock = self._starts.setdefault(ref.attempt_id, asyncio.Lock())
        async with lock:
            with starting.told_at_start():
                yield
        self._note_change()

    async def _start(
        self, start: starting.Start, plan: AttemptPlan, secrets: dict[str, str]
    ) -> None:
        await start(
            self.client,
            self._records,
            plan,
            secrets,
            self.settings,
            self.cluster_id,
            self._served,
            self._clock.now_ms,
        )

    async def _open(self) -> None:
        with starting.told():
            made = walled_namespace(self.settings.records_namespace, {})
            await starting.ensure_namespace(self.client, made)
            group, keda, classes = await asyncio.gather(
                self.client.served(JOB_SET.group),
                self.client.served(SCALED_OBJECT.group),
                self.client.list(STORAGE_CLASS),
            )
            no_routes = await self._why_no_routes()
            # Sets that may not be listed are not made either: their ends would never be seen.
            jobsets = group is not None and await self.client.can_i("list", JOB_SET)
        names, default = read_classes(classes)
        self._served = Served(jobsets, keda is not None, names, default, no_routes)
        if not await self._watch.start(jobsets=self._served.jobsets, routes=not no_routes):
            raise Unavailable("Unreachable", self._watch.trouble or "the first lists took too long")
        self._settling = asyncio.create_task(self._settler.run(), name=f"settle:{self.cluster_id}")
        self._reporting = asyncio.create_task(
            self._reporter.run(), name=f"report:{self.cluster_id}"
        )
        self._asking = asyncio.create_task(self._troubles.run(), name=f"ask:{self.cluster_id}")
        self._settler.wake()

    async def _why_no_routes(self) -> str:
        """Return why no Routes can be made: not served, or not allowed; empty where they can."""
        if await self.client.served(ROUTE.group) is None:
            return NO_ROUTES
        denied = [each for each in ("list", "create") if not await self.client.can_i(each, ROUTE)]
        if not denied:
            return ""
        return f"the credentials of the cluster may not {' or '.join(denied)} routes.{ROUTE.group}"

    def _failed_to_open(self) -> bool:
        task = self._opening
        return task is not None and (task.cancelled() or task.exception() is not None)

    def _note_change(self) -> None:
        self._changed.set()
        self._settler.wake()

    def _note_return(self) -> None:
        self._note_change()
        if self.on_return is not None:
            self.on_return()

    def _is_silent(self) -> bool:
        return self._watch.is_silent(SILENT_S)

    async def _open_and_heard(self) -> None:
        """Begin to listen; what is known of a cluster that fell silent says nothing of now.

        Raises:
            Unavailable: If it cannot be reached, or was not heard of for too long.
        """
        await self.open()
        if self._is_silent():
            raise Unavailable("Unreachable", self._watch.trouble or "the cluster is silent")

    async def _end(self, record: Record, grace_s: int) -> None:
        """Delete the pods of an attempt with this grace, then what would make new ones."""
        labels = {ATTEMPT_ID: str(record.id)}
        if record.by_pod:  # first what would have Kueue admit another pod for each that goes
            await self._delete_workload(record)
        for rank, pod in self._ranks(record.id).items():
            if record.fate == STARTED and pod in self._view.pods(record.id):
                self._tails.follow(pod, record.id, rank)
        for found in await self.client.list(POD, record.namespace, labels):
            metadata = found["metadata"]
            await self.client.delete(
                POD, metadata["name"], record.namespace, uid=metadata["uid"], grace_s=grace_s
            )
        # A release is taken away by Helm, which the settler waits for; its pods are ended now.
        # What was dispatched here goes when its manager's does: alone it would be made again.
        if not record.is_release and not record.is_dispatched:
            await self._delete_workload(record)

    async def _delete_workload(self, record: Record) -> None:
        """Delete what makes the pods of an attempt; what only has its name is left alone."""
        kind = starting.kind_named(record.kind)
        found = await self.client.find(kind, record.name, record.namespace)
        labels = {} if found is None else found["metadata"].get("labels") or {}
        if found is not None and labels.get(ATTEMPT_ID) == record.attempt_id:
            uid = found["metadata"]["uid"]
            await self.client.delete(kind, record.name, record.namespace, uid=uid)

    def _ranks(self, attempt_id: AttemptId) -> dict[int, Pod]:
        sight = self._view.sight(attempt_id)
        return pods_by_rank(sight) if sight is not None else {}

    def _pod(self, attempt_id: AttemptId, rank: int) -> Pod | None:
        pod = self._ranks(attempt_id).get(rank)
        alive = {each.metadata.uid for each in self._view.pods(attempt_id)}
        return pod if pod is not None and pod.metadata.uid in alive else None

    async def _kept(self, ref: AttemptRef) -> Record:
        await self.open()
        record = self._view.record(ref.attempt_id)
        if record is None or record.fate == FORGOTTEN:
            raise BackendError(NOTHING_KEPT, f"nothing is kept of attempt {ref.attempt_id}")
        return record

    async def _refresh(self, record: Record, rank: int) -> None:
        """Have the archive hold what the replica has written until now, as far as it is there."""
        if record.is_over and self._archive.has(record.id, rank):
            return
        pod = self._pod(record.id, rank)
        if pod is None or pod.main is None:
            return
        # What a full disk does not take is read again; what is archived can be shown meanwhile.
        with contextlib.suppress(NotThere, Unreachable, OSError):
            try:
                await self._tails.read_off(pod, record.id, rank)
            except KubeError as error:
                raise starting.backend_error(error) from error

    def _follow_running(self, attempt_id: AttemptId, ranks: Sequence[int]) -> None:
        for rank in ranks:
            pod = self._pod(attempt_id, rank)
            if pod is not None and pod.main is not None and pod.main.state.running is not None:
                self._tails.follow(pod, attempt_id, rank)
