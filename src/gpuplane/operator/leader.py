"""What the leading replica runs: informers, the world they fill, and those who look at it.

Owns their start and end. A new leader reads everything before it decides anything, so that what
an earlier one promised is known.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from gpuplane.kit.clock import Clock
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict, KubeError
from gpuplane.kube.informers import Change, Informer
from gpuplane.kube.kinds import (
    GPU_WORKLOAD,
    JOB,
    NODE,
    POD,
    PROVISIONING_REQUEST,
    WORKLOAD_PRIORITY_CLASS,
)
from gpuplane.operator.events import Announcer
from gpuplane.operator.meters import Meters
from gpuplane.operator.migs import MIG_LAYOUT, LayoutReconciler
from gpuplane.operator.models import Models
from gpuplane.operator.names import CONTROLLER, CONTROLLER_LABEL
from gpuplane.operator.provisioning import Asked, Provisioner, read_request
from gpuplane.operator.rules.layouts import Group, read_group
from gpuplane.operator.rules.seen import (
    Node,
    Pod,
    read_job,
    read_node,
    read_pod_of_interest,
    read_workload,
)
from gpuplane.operator.worklist import Worklist
from gpuplane.operator.workloads import Queues, Reconciler
from gpuplane.operator.world import Key, World

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
SYNC_S = 120.0
GRANTED_S = 10.0
"""Rights that are made together with the operator are there by then."""
LOOK_S = 0.5
LATER_S = 0.2
"""A look whose write was stale is taken again when the informer has caught up."""
ERROR_FIRST_S, ERROR_LAST_S = 0.5, 60.0


class _Where(TypedDict):
    """What informers of one namespace have in common."""

    namespace: str | None
    clock: Clock


class Leader:
    """The work of the leader."""

    def __init__(
        self,
        client: KubeClient,
        models: Models,
        meters: Meters,
        clock: Clock,
        *,
        may_act: Callable[[], bool],
        default_queue: str = "",
        provisioning_class: str = "",
        workers: int = 8,
        namespaces: Sequence[str] = (),
        node_labels: Mapping[str, str] | None = None,
        serves_layouts: bool = True,
    ) -> None:
        """Prepare the work; `start` begins it.

        Args:
            may_act: Whether this replica leads still, asked before each look.
            workers: Looks at once; each waits for the API server most of its time.
            namespaces: Whose GPUWorkloads are served, and nothing is read of others; all where
                empty.
            node_labels: Nodes that work is placed on carry these.
            serves_layouts: Whether MIGLayouts are served.
        """
        self._client, self._models, self._meters, self._clock = client, models, meters, clock
        self._may_act = may_act
        self._default_queue = default_queue
        self._provisioning_class = provisioning_class
        self._provisioner = Provisioner(client, provisioning_class)
        self._workers = workers
        self._namespaces = tuple(namespaces)
        self._node_labels = node_labels or None
        self._serves_layouts = serves_layouts
        self._work: Worklist[Key] = Worklist(clock)
        self._layout_work: Worklist[str] = Worklist(clock)
        self.world = World(self._work.add, self._work.add_first)
        self._announcer = Announcer(client, clock)
        self._layouts = LayoutReconciler(client, self.world)
        self._failures: dict[Hashable, int] = {}
        self._informers = self._make_informers()
        self._tasks: list[asyncio.Task[None]] = []
        meters.waiting.set_function(lambda: len(self._work))

    @property
    def has_failed(self) -> bool:
        """Return whether a part ended that never ends by itself."""
        return any(task.done() for task in self._tasks)

    @property
    def list_count(self) -> int:
        """Return how many whole lists were read: one of each kind, and one more after a gap."""
        return sum(informer.state.lists for informer in self._informers)

    async def start(self) -> bool:
        """Read everything and begin; False where the cluster did not show everything in time.

        A namespace that may not be read, or is gone, holds none of the others up.
        """
        for informer in self._informers:
            informer.start()
        began = self._clock.monotonic()
        for informer in self._informers:
            if not await self._is_read(informer, began):
                log.warning("%s cannot be read: %s", informer.kind, informer.state.last_error)
                return False
        try:
            # By a kind of its own that only Kueue serves; the group alone may be left over.
            served = await self._client.resolve(WORKLOAD_PRIORITY_CLASS)
        except KubeError as error:
            log.warning("the cluster does not say whether it has Kueue: %s", error)
            return False
        reconciler = Reconciler(
            self._client,
            self.world,
            self._models,
            Queues(served is not None, self._default_queue),
            self._meters,
            self._announcer,
            self._provisioner,
            self._clock,
            random.SystemRandom(),
        )
        reconciler.take_over()

        async def look_at_layout(name: str) -> None:
            await self._layouts.look(name)

        jobs: list[Coroutine[Any, Any, None]] = [self._announcer.run()]
        jobs += [self._run(self._work, reconciler.look) for _ in range(self._workers)]
        jobs.append(self._run(self._layout_work, look_at_layout))
        self._tasks = [asyncio.create_task(job) for job in jobs]
        return True

    async def _is_read(self, informer: Informer[Any], began: float) -> bool:
        """Return whether a kind is read, or belongs to a namespace that is out of our reach."""
        while not await informer.wait_synced(LOOK_S):
            waited_s = self._clock.monotonic() - began
            is_one_of_many = informer.namespace is not None and informer.state.is_forbidden
            if is_one_of_many and waited_s >= GRANTED_S:
                log.warning(
                    "%s of namespace %s are served once they may be read",
                    informer.kind,
                    informer.namespace,
                )
                return True
            if waited_s >= SYNC_S:
                return False
        return True

    async def stop(self) -> None:
        """End everything at its next wait."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for informer in self._informers:
            await informer.stop()
        self._meters.waiting.set_function(lambda: 0)

    async def _run(
        self, work: Worklist[K], look: Callable[[K], Coroutine[Any, Any, float | None]]
    ) -> None:
        while True:
            key = await work.take()
            if not self._may_act():
                return
            started = self._clock.monotonic()
            result = "success"
            try:
                again_s = await look(key)
                self._failures.pop(key, None)
                if again_s is not None:
                    work.add_later(key, again_s)
            except Conflict:
                result = "stale"
                work.add_later(key, LATER_S)
            except KubeError as error:
                result = "error"
                log.warning("%s is tried again: %s", key, error)
                self._put_off(work, key)
            except Exception:
                result = "error"
                log.exception("a look at %s failed", key)
                self._put_off(work, key)
            finally:
                work.done(key)
                taken_s = self._clock.monotonic() - started
                self._meters.reconciled.labels(result).observe(taken_s)

    def _put_off(self, work: Worklist[K], key: K) -> None:
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        work.add_later(key, min(ERROR_FIRST_S * 2 ** min(failures - 1, 10), ERROR_LAST_S))

    # What informers tell

    def _make_informers(self) -> list[Informer[Any]]:
        client, clock = self._client, self._clock
        nodes = Informer(client, NODE, labels=self._node_labels, convert=read_node, clock=clock)
        nodes.on_change(self._node_changed)
        found: list[Informer[Any]] = [nodes]
        if self._serves_layouts:
            layouts = Informer(client, MIG_LAYOUT, convert=read_group, clock=clock)
            layouts.on_change(self._layout_changed)
            found.append(layouts)
        for namespace in self._namespaces or (None,):
            found += self._informers_of(namespace)
        return found

    def _informers_of(self, namespace: str | None) -> list[Informer[Any]]:
        """Return the informers of what lies in a namespace, or in all of them."""
        client, world = self._client, self.world
        where: _Where = {"namespace": namespace, "clock": self._clock}
        ours = {CONTROLLER_LABEL: CONTROLLER}
        jobs = Informer(client, JOB, labels=ours, convert=read_job, **where)
        jobs.on_change(_tell(world.set_job, world.remove_job))
        pods = Informer(client, POD, convert=read_pod_of_interest, **where)
        pods.on_change(self._pod_changed)
        workloads = Informer(client, GPU_WORKLOAD, convert=read_workload, **where)
        workloads.on_change(_tell(world.set_workload, world.remove_workload))
        found: list[Informer[Any]] = [jobs, pods, workloads]
        if self._provisioning_class:
            requests = Informer(client, PROVISIONING_REQUEST, convert=read_request, **where)
            requests.on_change(self._request_changed)
            found.append(requests)
        return found

    def _request_changed(self, change: Change[Asked]) -> None:
        if change.new is not None:
            self._provisioner.set_request(change.new)
            self.world.wake_owner(change.new.owner_uid)
        elif change.old is not None:
            self._provisioner.remove_request(change.old)

    def _node_changed(self, change: Change[Node]) -> None:
        if change.new is not None:
            self.world.set_node(change.new)
        elif change.old is not None:
            self.world.remove_node(change.old)
        old, new = change.old, change.new
        if old and new and (old.labels, old.annotations) == (new.labels, new.annotations):
            return
        for name in self._layouts.names():
            self._layout_work.add(name)

    def _pod_changed(self, change: Change[Pod | None]) -> None:
        if change.new is not None:
            self.world.set_pod(change.new)
        elif change.old is not None:
            self.world.remove_pod(change.old)

    def _layout_changed(self, change: Change[Group]) -> None:
        if change.new is not None:
            self._layouts.set_group(change.new)
        else:
            self._layouts.remove_group(change.name)
        for name in self._layouts.names():
            self._layout_work.add(name)


def _tell(put: Callable[[T], None], drop: Callable[[T], None]) -> Callable[[Change[T]], None]:
    def told(change: Change[T]) -> None:
        if change.new is not None:
            put(change.new)
        elif change.old is not None:
            drop(change.old)

    return told
