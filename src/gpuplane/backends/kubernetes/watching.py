"""The informers of one cluster, feeding its view.

Owns what is listened to: objects with our label, and every node. Knows when the cluster was last
heard of, so that silence is not taken for calm.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.routes import address_of
from gpuplane.backends.kubernetes.others import BOUND, OtherPod, Others, Take, read_take
from gpuplane.backends.kubernetes.records import read_record
from gpuplane.backends.kubernetes.shapes import Condition, Main, Pod, RecordMap
from gpuplane.backends.kubernetes.sights import NodeState
from gpuplane.backends.kubernetes.views import ClusterView, attempt_of
from gpuplane.core.ids import AttemptId
from gpuplane.kit.clock import Clock
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.informers import Change, ChangeKind, Informer
from gpuplane.kube.kinds import CONFIG_MAP, DEPLOYMENT, JOB, JOB_SET, NODE, POD, ROUTE, Kind
from gpuplane.kube.nodefacts import NodeFacts, read_node
from gpuplane.kube.shapes import NodeShape, as_dict

FIRST_SYNC_S = 30.0
"""How long the first lists may take; 5,000 nodes and 50,000 pods take under ten."""

_PRESSURE = frozenset({"MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"})


@dataclass(frozen=True, slots=True)
class _RouteSight:
    """What a Route says: whose it is, where it leads, or why its router refuses it."""

    attempt_id: AttemptId | None
    url: str
    trouble: str

    @classmethod
    def of(cls, obj: dict[str, Any]) -> Self:
        return cls(attempt_of(obj["metadata"].get("labels") or {}), *address_of(obj))


class ClusterWatch:
    """Everything that is listened to on one cluster."""

    def __init__(
        self,
        client: KubeClient,
        view: ClusterView,
        cluster_id: str,
        namespace: str,
        clock: Clock,
        changed: Callable[[], None],
        former_ids: Sequence[str] = (),
        *,
        sees_others: bool = False,
        returned: Callable[[], None] = lambda: None,
    ) -> None:
        """Listen to nothing yet.

        Args:
            client: Of the cluster.
            view: What is filled.
            cluster_id: Objects that carry it are ours.
            namespace: Where records lie.
            clock: For the pauses of informers.
            changed: Called at each change.
            former_ids: Others that the cluster had.
            sees_others: Whether pods of other people are counted too.
            returned: Called when the cluster is heard of again.
        """
        self._view = view
        self._changed = changed
        self._returned = returned
        self._client = client
        self._labels = f"{names.CLUSTER} in ({','.join([cluster_id, *former_ids])})"
        self._clock = clock
        self._node_facts: dict[str, NodeFacts] = {}
        self.inventory = 1
        """Grows when nodes or their devices change."""
        self.nodes: Informer[NodeFacts] = Informer(
            client, NODE, decode=NodeShape, convert=self._read_node, clock=clock
        )
        self.nodes.on_change(self._on_node)
        self.records: Informer[RecordMap] = Informer(
            client, CONFIG_MAP, namespace=namespace, labels=self._labels, decode=RecordMap,
            clock=clock,
        )  # fmt: skip
        self.records.on_change(self._on_record)
        self.pods: Informer[Pod] = Informer(
            client, POD, labels=self._labels, decode=Pod, clock=clock
        )
        self.pods.on_change(self._on_pod)
        self._mains = [self._main_informer(kind) for kind in (JOB, DEPLOYMENT)]
        self._mains.append(self._main_informer(CONFIG_MAP, f"{self._labels},{names.RELEASE}"))
        self._states: dict[str, NodeState] = {}
        self.others = Others()
        self._routes: Informer[_RouteSight] | None = None
        self._other_pods: Informer[Take] | None = None
        if sees_others:
            ours = ",".join([cluster_id, *former_ids])
            self._other_pods = Informer(
                client,
                POD,
                labels=f"{names.CLUSTER} notin ({ours})",
                fields=BOUND,
                decode=OtherPod,
                convert=read_take,
                clock=clock,
            )
            self._other_pods.on_change(self._on_other)

    @property
    def informers(self) -> list[Informer[Any]]:
        """Return all of them."""
        more = [each for each in (self._other_pods, self._routes) if each is not None]
        return [self.nodes, self.records, self.pods, *self._mains, *more]

    async def start(self, *, jobsets: bool, routes: bool = False) -> bool:
        """Begin to listen, or go on; return whether everything was read once."""
        if routes and self._routes is None:
            self._routes = Informer(
                self._client, ROUTE, labels=self._labels, convert=_RouteSight.of, clock=self._clock
            )
            self._routes.on_change(self._on_route)
        if jobsets and all(each.kind != JOB_SET for each in self._mains):
            self._mains.append(self._main_informer(JOB_SET))
        for each in self.informers:
            each.on_return(self._returned)
            each.start()
        synced = await asyncio.gather(*(each.wait_synced(FIRST_SYNC_S) for each in self.informers))
        return all(synced)

    async def stop(self) -> None:
        """Stop listening."""
        await asyncio.gather(*(each.stop() for each in self.informers))

    @property
    def synced(self) -> bool:
        """Return whether everything was read once."""
        return all(each.synced for each in self.informers)

    @property
    def trouble(self) -> str:
        """Return why the cluster is not heard of, empty when it is."""
        found = (each.state.last_error for each in self.informers if each.state.failures)
        return next(filter(None, found), "")

    def is_silent(self, limit_s: float) -> bool:
        """Return whether something that is listened to fails and was not heard of for so long."""
        return any(
            each.state.failures and (each.silent_s() or 0.0) > limit_s
            for each in self.informers
            # One that is taken from a cluster hushes nothing else.
            if each.kind not in (JOB_SET, ROUTE)
        )

    def node_facts(self) -> list[NodeFacts]:
        """Return every node, by name."""
        return sorted(self.nodes.items(), key=lambda node: node.name)

    def _main_informer(self, kind: Kind, labels: str = "") -> Informer[Main]:
        def named(main: Main) -> Main:
            main.kind = kind.kind  # the items of a list do not say it
            return main

        informer: Informer[Main] = Informer(
            self._client,
            kind,
            labels=labels or self._labels,
            decode=Main,
            convert=named,
            clock=self._clock,
        )
        informer.on_change(self._on_main)
        return informer

    def _read_node(self, shape: NodeShape) -> NodeFacts:
        obj = as_dict(shape)
        facts = read_node(obj)
        conditions = tuple(
            Condition(type=kind, status=status, reason=reason, message=message)
            for kind, status, reason, message in facts.conditions
            if kind not in _PRESSURE and kind != "Ready"
        )
        annotations = {
            key: value
            for key, value in (shape.metadata.annotations or {}).items()
            if key.startswith(names.PREFIX)
        }
        self._states[facts.name] = NodeState(facts.ready, conditions, annotations)
        return facts

    def _on_node(self, change: Change[NodeFacts]) -> None:
        if change.kind is ChangeKind.RESYNCED:
            return
        if change.new is None:
            self._states.pop(change.name, None)
        self._view.take_node(change.name, self._states.get(change.name))
        if change.old != change.new:
            self.inventory += 1
            self._changed()

    def _on_other(self, change: Change[Take]) -> None:
        if change.kind is ChangeKind.RESYNCED:
            return
        if self.others.change(f"{change.namespace}/{change.name}", change.old, change.new):
            self.inventory += 1
            self._changed()

    def _on_record(self, change: Change[RecordMap]) -> None:
        if change.new is not None:
            record = read_record(change.new.data)
            if record is not None:
                self._view.take_record(record, int(change.new.metadata.resource_version))
        elif change.old is not None:
            attempt_id = attempt_of(change.old.metadata.labels)
            if attempt_id is not None:
                version = int(change.old.metadata.resource_version)
                self._view.drop_record(attempt_id, version)
        self._changed()

    def _on_pod(self, change: Change[Pod]) -> None:
        if change.new is not None:
            self._view.take_pod(change.new)
        elif change.old is not None:
            self._view.drop_pod(change.old)
        self._changed()

    def _on_main(self, change: Change[Main]) -> None:
        if change.new is not None:
            self._view.take_main(change.new)
        elif change.old is not None:
            self._view.drop_main(change.old)
        self._changed()

    def _on_route(self, change: Change[_RouteSight]) -> None:
        seen = change.new or change.old
        if seen is not None and seen.attempt_id is not None:
            told = (seen.url, seen.trouble) if change.new is not None else ("", "")
            self._view.take_route(seen.attempt_id, change.namespace, *told)
        self._changed()
