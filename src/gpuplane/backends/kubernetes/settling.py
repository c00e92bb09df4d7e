"""What the backend does on its own: places gated pods, records ends, deletes what is kept too long.

One task a cluster, woken by changes. Each piece of work is idempotent and is looked at again until
it holds, so a crash or a cluster that cannot be reached only delays it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from gpuplane.backends.interface import AttemptRef, BackendError
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.failures import Failures
from gpuplane.backends.kubernetes.fencing import RecordStore
from gpuplane.backends.kubernetes.makers import is_unmade, list_makers, list_missing, plan_heirs
from gpuplane.backends.kubernetes.placing import find_strays, list_open_ranks, plan_places
from gpuplane.backends.kubernetes.ranking import (
    compute_ends,
    list_unlabelled,
    list_unranked,
    name_winners,
)
from gpuplane.backends.kubernetes.records import (
    FORGOTTEN,
    STAND_IN,
    STARTED,
    Record,
    decide_ranks,
    decide_settle,
    takes_ranks,
)
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.shapes import Main, Pod
from gpuplane.backends.kubernetes.sights import VANISHED_MS, pods_by_rank
from gpuplane.backends.kubernetes.standing import Step, plan_step, take_step
from gpuplane.backends.kubernetes.sweeping import (
    UNUSED_SINCE,
    find_orphans,
    find_unread,
    find_withdrawn,
    is_kept,
    is_overdue,
    plan_claims,
)
from gpuplane.backends.kubernetes.tailing import LogTails
from gpuplane.backends.kubernetes.views import ClusterView
from gpuplane.core.ids import AttemptId
from gpuplane.kit.clock import Clock
from gpuplane.kit.failpoints import failpoint
from gpuplane.kit.tasks import end_tasks
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict, Forbidden, Invalid, KubeError, NotThere
from gpuplane.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    JOB_SET,
    PERSISTENT_VOLUME_CLAIM,
    POD,
)
from gpuplane.kube.kueue.keeping import ARCHIVED

log = logging.getLogger("gpuplane.kubernetes")

KINDS = {"Job": JOB, "JobSet": JOB_SET, "Deployment": DEPLOYMENT, "ConfigMap": CONFIG_MAP,
         STAND_IN: JOB}  # fmt: skip
"""Of workloads by the word in their record; a Helm release hangs on a ConfigMap or a stand-in."""

LOOK_S = 5.0
"""How often what time alone changes is looked at: well within the 30 s for zombies."""
SWEEP_MS = 600_000
"""How often what is left over is looked for: nothing waits for it."""


class Settler:
    """Brings each attempt of one cluster to where its record and its pods agree."""

    def __init__(
        self,
        client: KubeClient,
        view: ClusterView,
        records: RecordStore,
        tails: LogTails,
        clock: Clock,
        settings: KubernetesSettings,
        cluster_id: str,
        is_silent: Callable[[], bool],
        forget: Callable[[AttemptRef], Awaitable[None]],
        uninstall: Callable[[Record], Awaitable[None]],
        withdraw: Callable[[Record], Awaitable[None]],
    ) -> None:
        """Make the settler; nothing is done before `run`, and none of it while `is_silent`.

        What a cluster that fell silent does not show may be there all the same. `forget` is the
        verb of the backend, `uninstall` takes a Helm release away, `withdraw` all but what stands
        in line for it.
        """
        self._uninstall = uninstall
        self._withdraw = withdraw
        self._is_silent = is_silent
        self._forget = forget
        self._client = client
        self._view = view
        self._records = records
        self._tails = tails
        self._clock = clock
        self._settings = settings
        self._cluster_id = cluster_id
        self._wake = asyncio.Event()
        self._limit = asyncio.Semaphore(settings.requests_at_once)
        self._busy: dict[AttemptId, asyncio.Task[None]] = {}
        self._swept_at: int | None = None
        self._missing_since: dict[AttemptId, int] = {}
        self._failures = Failures()

    def wake(self) -> None:
        """Have a look taken soon."""
        self._wake.set()

    async def run(self) -> None:
        """Look at what changed, for ever; at all of it every `LOOK_S`, however much changes.

        Nobody begins it again, and all tenants of the cluster need it: what one object raises that
        nobody foresaw is told once and ends nothing else.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + LOOK_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            is_due = loop.time() >= due
            due = loop.time() + LOOK_S if is_due else due
            self._wake.clear()
            with self._failures.kept("a look of the settler"):
                await self._look(to_all=is_due)

    async def stop(self) -> None:
        """End what is under way."""
        await end_tasks(list(self._busy.values()))

    async def _look(self, *, to_all: bool) -> None:
        if to_all:
            self._look_at_all()
        if self._is_silent():
            return
        await self._sweep_now_and_then()
        for attempt_id in sorted(self._view.take_unsettled()):
            self._start(attempt_id)

    def _look_at_all(self) -> None:
        if not self._is_silent():
            self._view.note_vanished(self._clock.now_ms())
            self._note_missing(self._clock.now_ms())
        for record in self._view.records():
            self._start(record.id)

    def _note_missing(self, now: int) -> None:
        """Note since when releases have ranks without a pod."""
        view = self._view
        missing = []
        for record in view.records():
            with self._failures.kept("whether pods are missing, of attempt", record.id):
                if list_missing(record, view.main(record.id), view.pods(record.id)):
                    missing.append(record.id)
        self._missing_since = {each: self._missing_since.get(each, now) for each in missing}

    def _is_missing_long(self, attempt_id: AttemptId) -> bool:
        since = self._missing_since.get(attempt_id)
        return since is not None and self._clock.now_ms() - since >= VANISHED_MS

    async def _end_unmade(self, attempt_id: AttemptId) -> None:
        """Take away what is left of a release that somebody took what makes its pods from.

        What it hangs on goes with it, and that is how its end is told: also by another process,
        and only once nothing of it is in the way of the next attempt.
        """
        asked = self._view.record(attempt_id)
        if asked is None or not self._is_missing_long(attempt_id):
            return
        makers = await list_makers(self._client, asked)
        sight = self._view.sight(attempt_id)  # as it is after the makers were read
        if sight is not None:
            missing = list_missing(sight.record, sight.main, self._view.pods(attempt_id))
            if missing and is_unmade(missing, sight, makers):
                log.warning("nothing makes the pods of release %s any more", asked.name)
                await self._uninstall(sight.record)
        self._missing_since.pop(attempt_id, None)

    async def _sweep_now_and_then(self) -> None:
        now = self._clock.now_ms()
        if self._swept_at is not None and now - self._swept_at < SWEEP_MS:
            return
        self._swept_at = now
        with self._failures.kept("a sweep"):
            try:
                await self.sweep()
            except KubeError as error:
                log.info("what is left over is swept later: %s", error)

    @contextlib.contextmanager
    def _swept(self, name: str) -> Iterator[None]:
        """Sweep one object: what the cluster refuses of it alone keeps no other from its turn."""
        try:
            with self._failures.kept("the sweep of", name, (KubeError,)):
                yield
        except (Forbidden, Invalid) as error:
            log.info("%s is swept another time: %s", name, error)

    async def sweep(self) -> None:
        """Delete workloads that no record knows, and records and claims not needed for long."""
        now = self._clock.now_ms()
        records = {record.id: record for record in self._view.records()}
        for main in find_orphans(self._view.mains(), records, now, self._settings.orphan_s):
            with self._swept(main.metadata.name):
                log.warning("workload %s has no record and is deleted", main.metadata.name)
                await delete_main(self._client, main)
        for main in find_unread(self._view.mains(), records, now, self._settings.orphan_s):
            with self._swept(main.metadata.name):
                await self._let_go(main)
        for record in find_withdrawn(records.values(), now, self._settings.forgotten_s):
            with self._swept(record.attempt_id), contextlib.suppress(BackendError):
                await self._forget(record.ref)  # one that stays is swept another time
        claims = await self._client.list(
            PERSISTENT_VOLUME_CLAIM, labels={names.CLUSTER: self._cluster_id}
        )
        plan = plan_claims(claims, records.values(), now, self._settings.claim_days)
        for keys, text in ((plan.mark, str(now)), (plan.unmark, None)):
            for namespace, name, uid in keys:
                patch = {"metadata": {"uid": uid, "annotations": {UNUSED_SINCE: text}}}
                with self._swept(name), contextlib.suppress(NotThere, Conflict):
                    await self._client.patch(PERSISTENT_VOLUME_CLAIM, name, patch, namespace)
        for namespace, name, uid in plan.delete:
            with self._swept(name):
                log.warning("claim %s was not needed for long and is deleted", name)
                await self._client.delete(PERSISTENT_VOLUME_CLAIM, name, namespace, uid=uid)

    def _start(self, attempt_id: AttemptId) -> None:
        if attempt_id in self._busy or self._is_silent() or not self._has_work(attempt_id):
            return
        task = asyncio.create_task(self._settle(attempt_id), name=f"settle:{attempt_id}")
        self._busy[attempt_id] = task

        def finished(_: asyncio.Task[None]) -> None:
            self._busy.pop(attempt_id, None)
            # What changed meanwhile was left alone; a look costs nothing where there is no work.
            if self._has_work(attempt_id):
                asyncio.get_running_loop().call_later(0.05, self._start, attempt_id)

        task.add_done_callback(finished)

    def _has_work(self, attempt_id: AttemptId) -> bool:
        has_work = False
        with self._failures.kept("what is to be done for attempt", attempt_id):
            has_work = self._find_work(attempt_id)
        return has_work

    def _find_work(self, attempt_id: AttemptId) -> bool:
        sight = self._view.sight(attempt_id)
        if sight is None:
            return False
        now = self._clock.now_ms()
        record = sight.record
        if record.fate == STARTED and not record.is_over:
            if compute_ends(sight, now) or self._unranked(attempt_id) or list_unlabelled(sight):
                return True
            if self._places(attempt_id) or self._is_to_uninstall(attempt_id):
                return True
            if self._heirs(attempt_id):
                return True
            if self._is_missing_long(attempt_id):
                return True
            if self._strays(attempt_id) or self._step(attempt_id) is not None:
                return True
            return any(
                pod.metadata.deletion_timestamp and not self._tails.is_following(attempt_id, rank)
                for rank, pod in pods_by_rank(sight).items()
                if pod.metadata.uid not in sight.gone
                and pod.main is not None
                and pod.main.state.running is not None
            )
        if self._find_stray(attempt_id) or self._is_read(attempt_id):
            return True
        return is_overdue(record, self._settings, now, has_workload=sight.main is not None)

    def _find_stray(self, attempt_id: AttemptId) -> list[Pod]:
        """Return pods that came after an eviction of what was dispatched here.

        Its Job is its manager's Kueue's to delete, and makes pods again until then.
        """
        record = self._view.record(attempt_id)
        if record is None or not (record.is_dispatched and record.evict_reason):
            return []
        pods = self._view.pods(attempt_id)
        return [pod for pod in pods if not pod.is_over and not pod.metadata.deletion_timestamp]

    def _is_read(self, attempt_id: AttemptId) -> bool:
        """Return whether all was read of what was dispatched here, and its Job waits for that."""
        record, main = self._view.record(attempt_id), self._view.main(attempt_id)
        return record is not None and record.is_over and main is not None and is_kept(main)

    def _places(self, attempt_id: AttemptId) -> list[tuple[Pod, dict[str, Any]]]:
        """Return the patches of waiting pods that have a place now; none once it was evicted."""
        record, main = self._view.record(attempt_id), self._view.main(attempt_id)
        if main is None or record is None or record.fate != STARTED or record.evict_reason:
            return []
        if record.has_stand_in:
            return []  # its nodes are those of its quota
        return plan_places(main, self._view.pods(attempt_id), list_open_ranks(record))

    def _step(self, attempt_id: AttemptId) -> Step | None:
        """Return what is to be done for a release under Kueue, None of all others."""
        view = self._view
        return plan_step(view.record(attempt_id), view.main(attempt_id), view.pods(attempt_id))

    def _strays(self, attempt_id: AttemptId) -> list[Pod]:
        """Return pods on places that are not theirs; none before its workload was let go."""
        record = self._view.record(attempt_id)
        if record is None or record.fate != STARTED or record.evict_reason:
            return []
        return find_strays(record, self._view.pods(attempt_id))

    def _is_to_uninstall(self, attempt_id: AttemptId) -> bool:
        record, main = self._view.record(attempt_id), self._view.main(attempt_id)
        if record is None or main is None or not record.evict_reason:
            return False
        gone = bool(main.metadata.deletion_timestamp)
        return record.is_release and record.fate == STARTED and not gone

    async def _settle(self, attempt_id: AttemptId) -> None:
        pause_s = LOOK_S
        with self._failures.kept("the settling of attempt", attempt_id):
            pause_s = await self._settle_once(attempt_id)
        if pause_s:
            await self._clock.sleep(pause_s)

    async def _settle_once(self, attempt_id: AttemptId) -> float:
        """Do what is to be done now; return for how long nothing more is tried, in seconds."""
        try:
            async with self._limit:
                await self._place(attempt_id)
                await self._rank(attempt_id)
                await self._pass_ranks(attempt_id)
                await self._end_strays(attempt_id)
                record, step = self._view.record(attempt_id), self._step(attempt_id)
                if record is not None and step is not None:
                    await take_step(self._client, record, step, self._withdraw)
                if record is not None and self._is_to_uninstall(attempt_id):
                    await self._uninstall(record)
                await self._end_unmade(attempt_id)
                for pod in self._find_stray(attempt_id):
                    name, space = pod.metadata.name, pod.metadata.namespace
                    await self._client.delete(POD, name, space, uid=pod.metadata.uid)
                await self._save_logs(attempt_id)
                await self._record_ends(attempt_id)
                if self._is_read(attempt_id):
                    main = self._view.main(attempt_id)
                    assert main is not None
                    await self._let_go(main)
                await self._clean(attempt_id)
        except KubeError as error:
            log.info("attempt %s is settled later: %s", attempt_id, error)
            return 1.0
        return 0.0

    async def _place(self, attempt_id: AttemptId) -> None:
        for pod, patch in self._places(attempt_id):
            try:
                await self._client.patch(POD, pod.metadata.name, patch, pod.metadata.namespace)
            except (NotThere, Conflict) as error:
                log.debug("pod %s is placed at the next look: %s", pod.metadata.name, error)
            except Invalid as error:
                log.warning("pod %s cannot be placed: %s", pod.metadata.name, error)

    def _unranked(self, attempt_id: AttemptId) -> list[Pod]:
        """Return the pods that Kueue admitted, that are bound and that may have a rank now."""
        sight = self._view.sight(attempt_id)
        if sight is None or not takes_ranks(sight.record, self._settings.max_untold_ends):
            return []
        return list_unranked(sight)

    async def _rank(self, attempt_id: AttemptId) -> None:
        """Give bound pods their ranks, in the record first; the label is for people alone."""
        pods, now = self._unranked(attempt_id), self._clock.now_ms()
        if pods:
            uids, most = [pod.metadata.uid for pod in pods], self._settings.max_untold_ends
            await self._records.change(
                attempt_id, lambda found: decide_ranks(found, uids, now, most)
            )
            failpoint("kubernetes.rank.recorded")
        for pod, rank in self._unlabelled(attempt_id):
            patch = {"metadata": {"uid": pod.metadata.uid, "labels": {names.RANK: str(rank)}}}
            with contextlib.suppress(NotThere, Conflict, Invalid):
                await self._client.patch(POD, pod.metadata.name, patch, pod.metadata.namespace)

    def _unlabelled(self, attempt_id: AttemptId) -> list[tuple[Pod, int]]:
        sight = self._view.sight(attempt_id)
        return [] if sight is None else list_unlabelled(sight)

    def _heirs(self, attempt_id: AttemptId) -> list[tuple[Pod, int]]:
        sight = self._view.sight(attempt_id)
        if sight is None or not sight.record.is_release:
            return []
        return plan_heirs(sight, is_long=self._is_missing_long(attempt_id))

    async def _pass_ranks(self, attempt_id: AttemptId) -> None:
        """Give ranks of a release whose pods went to pods that took their place without one."""
        for pod, rank in self._heirs(attempt_id):
            metadata = pod.metadata
            patch = {"metadata": {"uid": metadata.uid, "labels": {names.RANK: str(rank)}}}
            with contextlib.suppress(NotThere, Conflict, Invalid):
                await self._client.patch(POD, metadata.name, patch, metadata.namespace)

    async def _end_strays(self, attempt_id: AttemptId) -> None:
        for pod in self._strays(attempt_id):
            log.warning("pod %s runs on a place that is not its own", pod.metadata.name)
            await self._client.delete(
                POD, pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid
            )

    async def _save_logs(self, attempt_id: AttemptId) -> None:
        """Follow what is being ended, and read off what has ended, before it goes."""
        sight = self._view.sight(attempt_id)
        if sight is None or sight.record.fate != STARTED:
            return
        for rank, pod in pods_by_rank(sight).items():
            if pod.metadata.uid in sight.gone or str(rank) in sight.record.outcomes:
                await self._tails.wait_ended(attempt_id, rank, self._settings.log_timeout_s)
            elif pod.is_over:
                await self._tails.wait_ended(attempt_id, rank, self._settings.log_timeout_s)
                try:
                    await self._tails.save(pod, attempt_id, rank, self._settings.log_timeout_s)
                except (OSError, KubeError) as error:  # a time-out is an OSError
                    log.warning("the log of %s was not kept: %s", pod.metadata.name, error)
            elif pod.metadata.deletion_timestamp:
                self._tails.follow(pod, attempt_id, rank)

    async def _record_ends(self, attempt_id: AttemptId) -> None:
        sight = self._view.sight(attempt_id)
        outcomes = compute_ends(sight, self._clock.now_ms()) if sight is not None else {}
        if outcomes:
            named = name_winners(outcomes, self._view.find_owner)
            await self._records.change(attempt_id, lambda found: decide_settle(found, named))

    async def _let_go(self, main: Main) -> None:
        """Say on a Job that was dispatched here that its manager's Kueue may delete it."""
        patch = {"metadata": {"uid": main.metadata.uid, "annotations": {ARCHIVED: "true"}}}
        with contextlib.suppress(NotThere, Conflict):
            await self._client.patch(JOB, main.metadata.name, patch, main.metadata.namespace)

    async def _clean(self, attempt_id: AttemptId) -> None:
        record, main = self._view.record(attempt_id), self._view.main(attempt_id)
        now, there = self._clock.now_ms(), main is not None
        if record is None or not is_overdue(record, self._settings, now, has_workload=there):
            return
        if main is not None:
            await delete_main(self._client, main)
        elif record.fate == FORGOTTEN:
            await self._records.sweep(record)


async def delete_main(client: KubeClient, main: Main, propagation: str = "Background") -> None:
    """Delete the workload of an attempt with all that it owns; this very one and no other."""
    await client.delete(
        KINDS[main.kind],
        main.metadata.name,
        main.metadata.namespace,
        propagation=propagation,
        uid=main.metadata.uid,
    )
