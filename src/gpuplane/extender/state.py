"""What the extender knows of its cluster: columns that follow the nodes and pods as they change.

Owns the fleet, who holds what on it, and the plans of gangs. A change looks again at one node; only
other nodes, or other facts of one, make the columns anew. Whatever order changes came in, the same
objects give the same state.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.ids import ClusterId
from gpuplane.core.scheduling.bench import Bench, Row
from gpuplane.core.scheduling.fragments import TypicalClass, TypicalMix
from gpuplane.core.scheduling.large import LargeClass
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy
from gpuplane.core.scheduling.workload import Workload
from gpuplane.extender.gangs import HOLD_MS, GangPlan, plan_gangs
from gpuplane.extender.holdings import Books, assign
from gpuplane.extender.nodes import Claim, NodeRecord
from gpuplane.extender.pods import PodFacts

CLUSTER: Final = ClusterId(UUID(int=1))
MAX_GONE = 10_000
"""Pods remembered as gone, so that what was claimed for them is free at once: more than end within
the minute that a claim lasts."""
SEED = 0
"""Ties are broken by name, and by chance only under the policy `random`: then the same in every
replica."""
TYPICAL_SIZES = (1, 2, 4, 8)
"""GPUs of the requests that are to find room later, equally likely: what is asked for on nodes of
up to eight GPUs. A mix learnt from what runs would change with every pod, and with it all ranks."""


def typical_mix(sizes: Iterable[int] = TYPICAL_SIZES) -> TypicalMix:
    """Return the mix of whole-GPU requests against which fragments are counted."""
    chosen = sorted(set(sizes))
    classes = tuple(TypicalClass(0, 1000, size, "") for size in chosen)
    largest = tuple((LargeClass(size, 0, 0, ""), 1) for size in chosen[::-1] if size > 1)
    return TypicalMix(classes, (1,) * len(classes), largest)


class _Told(NamedTuple):
    """A node of whose pods all devices are told by annotations, and what is left."""

    record: NodeRecord
    books: Books


class ClusterState:
    """The cluster as columns, kept true by small changes.

    Attributes:
        fleet: Everything that pods hold, that is claimed or kept for gangs is taken from it.
        generation: Rises with every new set of columns.
        plans: By gang.
    """

    def __init__(
        self,
        *,
        placement: PlacementPolicy = PlacementPolicy.FRAGMENTATION,
        hold_ms: int = HOLD_MS,
    ) -> None:
        self._policy = Policy(placement=placement)
        self._hold_ms = hold_ms
        self._mix = typical_mix()
        self.nodes: dict[str, NodeRecord] = {}
        self._pods: dict[str, PodFacts] = {}
        self._on_node: dict[str, dict[str, PodFacts]] = {}
        self._gangs: dict[str, dict[str, PodFacts]] = {}
        self._takes: dict[str, Mapping[str, tuple[Take, ...]]] = {}
        self._disputed: dict[str, tuple[str, ...]] = {}
        self._told: dict[str, _Told] = {}
        self._claiming: set[str] = set()
        self._gone: dict[str, None] = {}
        self._kept: list[Take] = []
        # By node that is to be looked at the pods that came, changed or went.
        self._dirty: dict[str, dict[str, None]] = {}
        self._is_stale = True
        self._gangs_changed = False
        self._look_again_at = 0
        self.plans: dict[str, GangPlan] = {}
        self.generation = 0
        self.fleet = Fleet(CLUSTER, [])
        self.bench = self._make_bench(0)
        self.place_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def disputes(self) -> int:
        """Return how many pods are annotated with devices that they cannot have."""
        return sum(len(uids) for uids in self._disputed.values())

    # What is told.

    def put_node(self, record: NodeRecord) -> None:
        """Take in a node as it is now."""
        name = record.facts.name
        known = self.nodes.get(name)
        self.nodes[name] = record
        (self._claiming.add if record.claims else self._claiming.discard)(name)
        if known is None or known.facts != record.facts or known.is_ours != record.is_ours:
            self._is_stale = True
        elif known.claims != record.claims or known.names != record.names:
            self._dirty.setdefault(name, {})

    def put_claims(self, name: str, claims: tuple[Claim, ...]) -> None:
        """Take in what a node's claims are, read from the server itself."""
        record = self.nodes.get(name)
        if record is not None and record.claims != claims:
            self.put_node(replace(record, claims=claims))

    def drop_node(self, name: str) -> None:
        """Forget a node."""
        if self.nodes.pop(name, None) is not None:
            self._claiming.discard(name)
            self._is_stale = True

    def put_pod(self, pod: PodFacts) -> None:
        """Take in a pod as it is now."""
        known = self._pods.get(pod.uid)
        if known == pod:
            return
        if known is not None:
            self._leave(known)
        self._pods[pod.uid] = pod
        if pod.node:
            self._on_node.setdefault(pod.node, {})[pod.uid] = pod
            self._dirty.setdefault(pod.node, {})[pod.uid] = None
        if pod.gang:
            self._gangs.setdefault(pod.gang, {})[pod.uid] = pod
            self._gangs_changed = True

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that is gone or has ended."""
        known = self._pods.pop(uid, None)
        if known is None:
            return
        self._leave(known)
        if known.wants_devices:
            self._gone[uid] = None
            if len(self._gone) > MAX_GONE:
                del self._gone[next(iter(self._gone))]

    def _leave(self, pod: PodFacts) -> None:
        if pod.node:
            self._on_node[pod.node].pop(pod.uid, None)
            self._dirty.setdefault(pod.node, {})[pod.uid] = None
        if pod.gang:
            members = self._gangs[pod.gang]
            members.pop(pod.uid, None)
            if not members:
                del self._gangs[pod.gang]
            self._gangs_changed = True

    def with_pods_only(self) -> "ClusterState":
        """Return a state of the same pods that knows no node yet."""
        other = ClusterState(placement=self._policy.placement, hold_ms=self._hold_ms)
        for pod in self._pods.values():
            other.put_pod(pod)
        return other

    # What is asked.

    def find_pod(self, uid: str) -> PodFacts | None:
        """Return a pod that is known."""
        return self._pods.get(uid)

    def list_on(self, node: str) -> list[PodFacts]:
        """Return the pods bound to a node."""
        return list(self._on_node.get(node, {}).values())

    def list_takes(self, node: str, uids: Iterable[str]) -> list[Take]:
        """Return what these pods of a node hold."""
        held = self._takes.get(node, {})
        return [take for uid in dict.fromkeys(uids) for take in held.get(uid, ())]

    def find_kept(self, pod: PodFacts, place: int) -> Take | None:
        """Return the place that is kept on a node for a pod of a gang, or for one like it."""
        plan = self.plans.get(pod.gang) if pod.gang else None
        if plan is None or not plan.is_kept:
            return None
        own = plan.places.get(pod.uid)
        if own is not None and own.node == place:
            return own
        for uid, take in plan.places.items():
            other = self._pods.get(uid)
            if take.node == place and other is not None and other.workload is pod.workload:
                return take
        return None

    @contextmanager
    def without(self, pod: PodFacts) -> Iterator[None]:
        """Take a pod's own share of its node away for a moment, as far as one was guessed for it.

        A pod that is bound and not annotated yet is counted with devices that nobody chose.
        """
        mark = self.fleet.checkpoint()
        for take in self.list_takes(pod.node, [pod.uid]) if pod.node else ():
            self.fleet.release(take)
        try:
            yield
        finally:
            self.fleet.rollback(mark)

    def row(self, workload: Workload) -> Row:
        """Return which nodes a class fits now, and how good each is."""
        return self.bench.row(workload)

    # How it is kept true.

    def refresh(self, now: int) -> None:
        """Bring the columns up to what was told, and to the time.

        Args:
            now: In ms since the epoch.
        """
        is_due = bool(self._look_again_at) and now >= self._look_again_at
        if not (self._is_stale or self._dirty or self._gangs_changed or is_due):
            return
        self.bench.now = now
        if is_due:
            for name in self._claiming:
                self._dirty.setdefault(name, {})
        for take in self._kept:
            self.fleet.release(take)
        self._kept = []
        if self._is_stale:
            self._rebuild(now)
        else:
            for name in sorted(self._dirty):
                self._look_at(name, now, self._dirty[name])
        self._dirty.clear()
        self._plan(now)
        self.fleet.settle()
        self._gangs_changed = False
        self._look_again_at = self._next_look(now)

    def _rebuild(self, now: int) -> None:
        records = self.nodes.values()
        self.fleet = Fleet(CLUSTER, [record.facts for record in records])
        self.bench = self._make_bench(now)
        # Fresh names lie side by side in memory: with thousands of nodes that halves a look-up.
        names = [node.name.encode() for node in self.fleet.nodes]
        self.place_of = {name.decode(): i for i, name in enumerate(names)}
        self._takes, self._disputed, self._told = {}, {}, {}
        for name in sorted({*self._on_node, *self._claiming}):
            self._look_at(name, now, {})
        self._is_stale = False
        self.generation += 1

    def _make_bench(self, now: int) -> Bench:
        return Bench(self.fleet, self._policy, self._mix, now, SEED)

    def _look_at(self, name: str, now: int, changed: Iterable[str]) -> None:
        """Count what the pods of a node hold, instead of what was counted before.

        Args:
            name: The node.
            now: In ms.
            changed: Pods that came, changed or went since the last look, by uid.
        """
        index, record = self.place_of.get(name), self.nodes.get(name)
        is_ours = index is not None and record is not None and record.is_ours
        claims = []
        if record is not None and record.claims:
            claims = [each for each in record.claims if self._stands(each, name, now)]
        pods = self._on_node.get(name)
        if pods is not None and not pods:
            del self._on_node[name]
        told = self._told.get(name)
        if told is not None:
            if (
                is_ours
                and not claims
                and told.record is record
                and self._follow(told, pods or {}, changed)
            ):
                return
            del self._told[name]
        before = self._takes.pop(name, {})
        self._disputed.pop(name, None)
        after: Mapping[str, tuple[Take, ...]] = {}
        if is_ours:
            assert index is not None
            assert record is not None
            after = self._look_at_all(index, record, pods or {}, claims)
            self._takes[name] = after
        for uid, takes in before.items():
            if after.get(uid) != takes:
                for take in takes:
                    self.fleet.release(take)
        for uid, takes in after.items():
            if before.get(uid) != takes:
                for take in takes:
                    self.fleet.allocate(take)

    def _look_at_all(
        self, index: int, record: NodeRecord, pods: Mapping[str, PodFacts], claims: list[Claim]
    ) -> Mapping[str, tuple[Take, ...]]:
        """Return what the pods of a node hold, each looked at."""
        name = record.facts.name
        held = assign(index, record, pods.values(), claims)
        if held.disputed:
            self._disputed[name] = held.disputed
        if (
            not claims
            and not held.disputed
            and all(pod.gpu_ids or not pod.wants_devices for pod in pods.values())
        ):
            self._told[name] = _Told(record, held.books)
        return held.takes

    def _follow(self, told: _Told, pods: Mapping[str, PodFacts], changed: Iterable[str]) -> bool:
        """Count only the pods of a node that changed; return whether their annotations allow it.

        The columns are as they were where they do not.
        """
        books, fleet = told.books, self.fleet
        gone = {uid: books.give_back(uid) for uid in changed if uid in books.takes}
        fresh = [pods[uid] for uid in changed if uid in pods]
        for place, pod in enumerate(fresh):
            if not books.take_told(pod):
                for each in fresh[:place]:
                    books.give_back(each.uid)
                books.takes.update(gone)
                return False
        for uid, takes in gone.items():
            if books.takes.get(uid) != takes:
                for take in takes:
                    fleet.release(take)
        for pod in fresh:
            takes = books.takes[pod.uid]
            if gone.get(pod.uid) != takes:
                for take in takes:
                    fleet.allocate(take)
        return True

    def _stands(self, claim: Claim, node: str, now: int) -> bool:
        """Tell whether a claim still keeps something: not for a pod that is gone or elsewhere."""
        pod = self._pods.get(claim.uid)
        if claim.expires_at <= now or claim.uid in self._gone:
            return False
        return pod is None or pod.node in ("", node)

    def _plan(self, now: int) -> None:
        self.plans = {}
        if not self._gangs:
            return
        self.plans = plan_gangs(
            {key: members.values() for key, members in self._gangs.items()},
            self.fleet,
            self.bench,
            now,
            self._hold_ms,
        )
        self._kept = [
            take for plan in self.plans.values() if plan.is_kept for take in plan.places.values()
        ]

    def _next_look(self, now: int) -> int:
        """Return when time alone changes something, 0 for never."""
        times = [plan.until for plan in self.plans.values() if plan.is_kept]
        for name in self._claiming:
            times += [claim.expires_at for claim in self.nodes[name].claims]
        return min((each for each in times if each > now), default=0)
