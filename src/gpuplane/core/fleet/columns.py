"""The columns of one cluster: nodes along one axis, GPUs along the first.

Owns what is free and its exact bookkeeping (allocate, release, checkpoint, rollback), the state of
each node (`states.py`), and a log of changes, so that whoever caches by node knows what to look at
again: remember `clock`, later ask `list_changed`. A fleet's facts never change, so what follows
from them alone can be kept with it (`keep`) and outlives a cycle. Knows no workloads.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.facts import Allocation, GpuFacts, MigSlot, NodeFacts, Taint
from gpuplane.core.fleet.states import NodeState, States
from gpuplane.core.ids import ClusterId, GpuId, NodeId, ReservationId
from gpuplane.core.topology.matrix import LinkMatrix

MAX_GPUS = 16
"""GPUs of one node that fit the free mask; the largest NVSwitch machine has 16."""

NEVER = np.iinfo(np.int64).max
"""An instant later than all others: no maintenance is announced."""

MAX_LOG = 4_096
"""Changes listed one by one; older ones are only known by node."""
MAX_KEPT = 1_024
"""Things kept with a fleet; when there are more the oldest go, and are made again when asked."""
MAX_STATES_A_NODE = 8
"""States remembered per node before `settle` forgets those in which no node is."""

_SMALL = 1 << 30
"""Totals below this leave room in 32 bits for nodes that shrank under their work."""

_T = TypeVar("_T", bound=Hashable)
_K = TypeVar("_K")

Bools = NDArray[np.bool_]
Ints = NDArray[np.signedinteger[Any]]
"""Whole numbers in as few bits as their column may have: narrow columns are read twice as fast."""
Masks = NDArray[np.uint16]

BITS_OF_MASK: tuple[tuple[int, ...], ...] = tuple(
    tuple(bit for bit in range(MAX_GPUS) if mask >> bit & 1) for mask in range(256)
)
"""The GPU indices in a mask of eight; wider masks are split in two (`bits_of`)."""

POPCOUNT: NDArray[np.uint8] = np.array(
    [bin(mask).count("1") for mask in range(1 << MAX_GPUS)], dtype=np.uint8
)
"""Number of GPUs in a mask, shape (65536,)."""


def bits_of(mask: int) -> tuple[int, ...]:
    """Return the GPU indices in a mask, lowest first."""
    if mask < 256:
        return BITS_OF_MASK[mask]
    return BITS_OF_MASK[mask & 255] + tuple(bit + 8 for bit in BITS_OF_MASK[mask >> 8])


class Take(NamedTuple):
    """What one replica takes from a node, in column terms.

    Args:
        gpu_mask: GPUs by index; 0 with `mig`.
        gpu_milli: Share of each of them.
        mig: (GPU index, profile, first memory slice), or None.
    """

    node: int
    gpu_mask: int
    gpu_milli: int
    cpu_milli: int
    memory_mib: int
    ephemeral_mib: int
    mig: tuple[int, str, int] | None = None


class FreeColumn(Generic[_K]):
    """A column of what is free: it follows the states of nodes, and is written when it is read.

    Most placements are found, and many are undone, without anybody reading a column in between.
    """

    def __set_name__(self, owner: type["Fleet"], name: str) -> None:
        self._slot = f"_{name}"

    def __get__(self, fleet: "Fleet", owner: type["Fleet"]) -> _K:
        if fleet.unwritten:
            fleet.write_columns()
        column: _K = fleet.__dict__[self._slot]
        return column

    def __set__(self, fleet: "Fleet", column: _K) -> None:
        fleet.__dict__[self._slot] = column


class Fleet:
    """One cluster's nodes as columns; index i is the i-th node by name.

    Attributes:
        gpu_free_milli: Free share of each usable GPU, 0 elsewhere, shape (gpu, node), uint16.
        gpu_free_mask: Usable GPUs that are wholly free, shape (node,), uint16.
        gpu_free_count: How many those are. `gpu_free_most`: the largest free share of one GPU.
        gpu_idle_milli: The sum of the free shares, shape (node,).
        usable_mask: GPUs given out whole or in shares: healthy and not in MIG mode.
        present_mask: GPUs that exist. `healthy_mask`: those that work. `mig_mask`: in MIG mode.
        gpu_model: Index into `models` of each GPU, -1 for none, shape (gpu, node), int16.
        gpu_memory_mib: Memory of each GPU, shape (gpu, node), int32.
        mig_free: By profile, a bit per first slice of each free instance, shape (gpu, node).
        reserved: Index into `reservations` of each GPU, -1 for none, shape (gpu, node), int16.
        topology_index: Index into `topologies`, -1 for unknown, shape (node,).
        state_of: Number of each node's state in `states`, by node.
        pattern: Number of each node's pattern of free shares in `states`, shape (node,).
        clock: How many changes there were, rollbacks included.
        epoch: Rises when states are numbered anew.
        unwritten: Nodes whose state changed since their columns were written.
    """

    cpu_free = FreeColumn[Ints]()
    memory_free = FreeColumn[Ints]()
    ephemeral_free = FreeColumn[Ints]()
    gpu_free_milli = FreeColumn[Masks]()
    gpu_free_mask = FreeColumn[Masks]()
    gpu_free_count = FreeColumn[NDArray[np.int8]]()
    gpu_free_most = FreeColumn[NDArray[np.int16]]()
    gpu_idle_milli = FreeColumn[Ints]()
    mig_free = FreeColumn[dict[str, Masks]]()
    pattern = FreeColumn[Ints]()

    def __init__(self, cluster_id: ClusterId, nodes: Sequence[NodeFacts]) -> None:
        """Make the columns of an empty cluster; `from_nodes` adds what is taken."""
        nodes = sorted(nodes, key=lambda node: (node.name, str(node.node_id)))
        count = len(nodes)
        self.cluster_id = cluster_id
        self.nodes: tuple[NodeFacts, ...] = tuple(nodes)
        self.index: dict[NodeId, int] = {node.node_id: i for i, node in enumerate(nodes)}
        if len(self.index) != count:
            raise ValueError("a node is given twice")
        self.unwritten: list[int] = []
        self.gpu_count_max = max([1, *(_slots(node) for node in nodes)])
        if self.gpu_count_max > MAX_GPUS:
            raise ValueError(f"a node has more than {MAX_GPUS} GPUs")
        self._make_node_columns(nodes)
        self._make_gpu_columns(nodes)
        self._ledger: list[tuple[int, int]] = []
        self._log: list[int] = []
        self._log_start = 0
        self._changed_at: Ints = np.zeros(count, dtype=np.int64)
        self._kept: dict[Hashable, Any] = {}
        self._pinned: dict[Hashable, Any] = {}
        self.epoch = 0
        self._make_states()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be made again."""
        return {**self.__dict__, "_kept": {}, "_pinned": {}}

    @classmethod
    def from_nodes(
        cls,
        cluster_id: ClusterId,
        nodes: Sequence[NodeFacts],
        allocations: Iterable[Allocation] = (),
    ) -> "Fleet":
        """Build the columns and take what is allocated from them.

        Raises:
            ValueError: If an allocation names an unknown node or GPU, or a GPU is sold twice.
        """
        fleet = cls(cluster_id, nodes)
        for allocation in allocations:
            fleet.allocate(fleet.take_of(allocation))
        fleet.settle()
        return fleet

    def _make_node_columns(self, nodes: Sequence[NodeFacts]) -> None:
        self.ready: Bools = np.array([node.ready for node in nodes], dtype=np.bool_)
        self.cordoned: Bools = np.array([node.cordoned for node in nodes], dtype=np.bool_)
        self.maintenance_at: Ints = _ints(
            NEVER if node.maintenance_at is None else node.maintenance_at for node in nodes
        )
        self.cpu_total: Ints = _ints(node.cpu_milli for node in nodes)
        self.memory_total: Ints = _ints(node.memory_mib for node in nodes)
        self.ephemeral_total: Ints = _ints(node.ephemeral_mib for node in nodes)
        self.cpu_free = _narrow(self.cpu_total)
        self.memory_free = _narrow(self.memory_total)
        self.ephemeral_free = _narrow(self.ephemeral_total)
        self.price: Ints = _ints(node.price_micro_per_gpu_hour for node in nodes)
        self.racks, self.rack = _intern([node.rack for node in nodes])
        self.blocks, self.block = _intern([node.block for node in nodes])
        self.cliques, self.clique = _intern([node.clique for node in nodes])
        self.fabrics, self.fabric = _intern([node.rdma_fabric for node in nodes])
        self.taint_sets: tuple[tuple[Taint, ...], ...]
        taints = [tuple(sorted(set(node.taints))) for node in nodes]
        self.taint_sets, self.taint_set = _intern(taints)
        self.topologies: tuple[LinkMatrix, ...]
        matrices = [_known_topology(node) for node in nodes]
        self.topologies = tuple(dict.fromkeys(each for each in matrices if each is not None))
        places = {matrix: i for i, matrix in enumerate(self.topologies)}
        self.topology_index: Ints = _ints(
            -1 if matrix is None else places[matrix] for matrix in matrices
        )

    def _make_gpu_columns(self, nodes: Sequence[NodeFacts]) -> None:
        shape = (self.gpu_count_max, len(nodes))
        self.gpu_free_milli = np.zeros(shape, dtype=np.uint16)
        self.gpu_model: NDArray[np.int16] = np.full(shape, -1, dtype=np.int16)
        self.gpu_architecture: NDArray[np.int16] = np.full(shape, -1, dtype=np.int16)
        self.gpu_memory_mib: NDArray[np.int32] = np.zeros(shape, dtype=np.int32)
        self.reserved: NDArray[np.int16] = np.full(shape, -1, dtype=np.int16)
        self.present_mask: Masks = np.zeros(len(nodes), dtype=np.uint16)
        self.healthy_mask: Masks = np.zeros(len(nodes), dtype=np.uint16)
        self.mig_mask: Masks = np.zeros(len(nodes), dtype=np.uint16)
        self.mig_free = {}
        self.gpu_ids: list[dict[int, GpuId]] = []
        self._gpus: dict[GpuId, tuple[int, GpuFacts]] = {}
        models: dict[str, int] = {}
        architectures: dict[str, int] = {}
        reservations: dict[ReservationId, int] = {}
        for i, node in enumerate(nodes):
            self.gpu_ids.append({gpu.index: gpu.gpu_id for gpu in node.gpus})
            if len(self.gpu_ids[i]) != len(node.gpus):
                raise ValueError(f"node {node.name}: a GPU index is given twice")
            for gpu in node.gpus:
                g = gpu.index
                if gpu.gpu_id in self._gpus:
                    raise ValueError(f"node {node.name}: {gpu.gpu_id} is on another node too")
                self._gpus[gpu.gpu_id] = (i, gpu)
                bit = 1 << g
                self.present_mask[i] |= bit
                self.gpu_model[g, i] = models.setdefault(gpu.model, len(models))
                self.gpu_architecture[g, i] = architectures.setdefault(
                    gpu.architecture, len(architectures)
                )
                self.gpu_memory_mib[g, i] = gpu.memory_mib
                if gpu.reserved_for is not None:
                    self.reserved[g, i] = reservations.setdefault(
                        gpu.reserved_for, len(reservations)
                    )
                if gpu.healthy:
                    self.healthy_mask[i] |= bit
                if gpu.mig_enabled:
                    self.mig_mask[i] |= bit
                    self._add_mig(i, gpu, shape)
        self.models = tuple(models)
        self.architectures = tuple(architectures)
        self.reservations = tuple(reservations)
        self.usable_mask: Masks = self.healthy_mask & ~self.mig_mask
        self.gpu_free_mask = self.usable_mask.copy()
        for g in range(self.gpu_count_max):
            usable = (self.usable_mask >> np.uint16(g)) & np.uint16(1)
            self.gpu_free_milli[g] = usable * np.uint16(WHOLE_GPU_MILLI)

    def _add_mig(self, node: int, gpu: GpuFacts, shape: tuple[int, int]) -> None:
        for slot in gpu.mig_instances if gpu.healthy else ():
            column = self.mig_free.setdefault(slot.profile, np.zeros(shape, dtype=np.uint16))
            column[gpu.index, node] |= 1 << slot.start

    def _make_states(self) -> None:
        """Number the state of every node as it is."""
        shares = self.gpu_free_milli.T.tolist()
        self.states = States()
        numbers = (self.cpu_free.tolist(), self.memory_free.tolist(), self.ephemeral_free.tolist())
        self.state_of: list[int] = [
            self.states.find(
                NodeState(
                    self._kind_of(i), cpu, memory, ephemeral, tuple(shares[i]), self._migs_of(i)
                )
            )
            for i, (cpu, memory, ephemeral) in enumerate(zip(*numbers, strict=True))
        ]
        self.pattern = _ints(self.states.pattern[state] for state in self.state_of)
        gpus = [self.states.gpus[state] for state in self.state_of]
        self.gpu_free_count = np.array([each.whole for each in gpus], np.int8)
        self.gpu_free_most = np.array([each.most for each in gpus], np.int16)
        self.gpu_idle_milli = np.array([each.idle for each in gpus], np.int32)

    def _kind_of(self, node: int) -> int:
        facts = self.nodes[node]
        gpus = tuple(
            (
                gpu.index,
                gpu.model,
                gpu.architecture,
                gpu.memory_mib,
                gpu.healthy,
                gpu.mig_enabled,
                gpu.mig_instances,
                gpu.mig_table,
                gpu.reserved_for,
            )
            for gpu in facts.gpus
        )
        key = (
            facts.cpu_milli,
            facts.memory_mib,
            facts.ephemeral_mib,
            facts.price_micro_per_gpu_hour,
            int(self.topology_index[node]),
            gpus,
        )
        models = self.gpu_model[:, node]
        return self.states.add_kind(
            key,
            int(self.usable_mask[node]),
            int(self.healthy_mask[node]),
            frozenset(models[models >= 0].tolist()),
        )

    def _migs_of(self, node: int) -> tuple[tuple[str, int, int], ...]:
        return tuple(
            (profile, gpu, int(bits))
            for profile, column in sorted(self.mig_free.items())
            for gpu, bits in enumerate(column[:, node].tolist())
            if self.mig_mask[node] >> gpu & 1
        )

    def __len__(self) -> int:
        return len(self.nodes)

    # What nodes are like.

    def label_mask(self, key: str, value: str) -> Bools:
        """Return which nodes carry a label with this value, shape (node,)."""
        return self.keep(
            ("label", key, value),
            lambda: np.array([node.labels.get(key) == value for node in self.nodes], np.bool_),
        )

    def keep(self, key: Hashable, make: Callable[[], _K]) -> _K:
        """Return what was kept under this key, made now if it never was or was dropped.

        Only for what follows from facts, or brings itself up to date by `list_changed`.
        """
        found: _K | None = self._kept.get(key)
        if found is None:
            found = make()
            while len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = found
        return found

    def find_pinned(self, key: Hashable) -> Any:
        """Return what was pinned under this key, or None."""
        return self._pinned.get(key)

    def pin(self, key: Hashable, value: object) -> None:
        """Keep a value for as long as the fleet, instead of what was pinned under this key."""
        self._pinned[key] = value

    def gpu_ids_of(self, node: int, mask: int) -> tuple[GpuId, ...]:
        """Return the ids of a node's GPUs in a mask, by index."""
        ids = self.gpu_ids[node]
        return tuple(ids[bit] for bit in bits_of(mask))

    def gpu_bits(self, matches: Bools) -> Masks:
        """Return a (gpu, node) table of truth as one mask a node."""
        mask = np.zeros(len(self.nodes), dtype=np.uint16)
        for g in range(self.gpu_count_max):
            mask |= matches[g].astype(np.uint16) << np.uint16(g)
        return mask

    def has_free_instance(self, take: Take) -> bool:
        """Tell whether the MIG instance that a take names is free."""
        if take.mig is None:
            return False
        gpu, profile, start = take.mig
        column = self.mig_free.get(profile)
        return column is not None and bool(column[gpu, take.node] >> start & 1)

    def take_of(self, allocation: Allocation) -> Take:
        """Return an allocation in column terms.

        A GPU or MIG instance that the facts no longer show is left out: there is nothing to hold.

        Raises:
            ValueError: If the node is not in this fleet, or a GPU is on another node.
        """
        node = self.index.get(allocation.node_id)
        if node is None:
            raise ValueError(f"there is no node {allocation.node_id} in this fleet")
        mask = 0
        mig = None
        if allocation.mig is not None:
            gpu = self._find_gpu(allocation.mig.gpu_id, node)
            slot = MigSlot(allocation.mig.profile, allocation.mig.start)
            if gpu is not None and slot in gpu.mig_instances:
                mig = (gpu.index, slot.profile, slot.start)
        else:
            for gpu_id in allocation.gpu_ids:
                gpu = self._find_gpu(gpu_id, node)
                mask |= 0 if gpu is None else 1 << gpu.index
        return Take(
            node,
            mask,
            allocation.gpu_milli,
            allocation.cpu_milli,
            allocation.memory_mib,
            allocation.ephemeral_mib,
            mig,
        )

    def _find_gpu(self, gpu_id: GpuId, node: int) -> GpuFacts | None:
        found = self._gpus.get(gpu_id)
        if found is None:
            return None
        if found[0] != node:
            raise ValueError(f"{gpu_id} is not on {self.nodes[node].name}")
        return found[1]

    # What changes.

    def allocate(self, take: Take) -> None:
        """Take resources from a node.

        CPU, memory and ephemeral storage may go below zero (a node may shrink under its work);
        a GPU may not.

        Raises:
            ValueError: If a usable GPU has not that much free, or the MIG instance is not free.
        """
        node = take.node
        state = self.state_of[node]
        self.advance(node, self.states.after(state, take[1:], self.nodes[node].name))

    def release(self, take: Take) -> None:
        """Give back what was allocated.

        Raises:
            ValueError: If a GPU would have more than a whole free, or the instance is free.
        """
        node = take.node
        state = self.state_of[node]
        self.advance(node, self.states.before(state, take[1:], self.nodes[node].name))

    def advance(self, node: int, state: int) -> None:
        """Bring a node into a state that is known to follow from the one it is in."""
        self._ledger.append((node, self.state_of[node]))
        self._move(node, state)

    def settle(self) -> None:
        """Make what was changed the new base: nothing before this can be rolled back."""
        self._ledger.clear()
        if len(self.states) > MAX_STATES_A_NODE * len(self) + MAX_LOG:
            self._make_states()
            self.epoch += 1

    def checkpoint(self) -> int:
        """Return a mark of the ledger for `rollback`."""
        return len(self._ledger)

    def rollback(self, mark: int) -> None:
        """Undo every change since the mark, newest first."""
        while len(self._ledger) > mark:
            self._move(*self._ledger.pop())

    @property
    def clock(self) -> int:
        return self._log_start + len(self._log)

    def list_changed(self, since: int) -> Sequence[int]:
        """Return the nodes that changed since the clock stood there; some may be there twice."""
        if since >= self._log_start:
            return self._log[since - self._log_start :]
        older: list[int] = np.flatnonzero(self._changed_at > since).tolist()
        return older + self._log

    def _fold_log(self) -> None:
        """Note per node that it changed by now at the latest, and begin a new log."""
        self._changed_at[self._log] = self.clock
        self._log_start = self.clock
        self._log.clear()

    def _move(self, node: int, state: int) -> None:
        self.state_of[node] = state
        self.unwritten.append(node)
        self._log.append(node)
        if len(self._log) >= MAX_LOG:
            self.write_columns()
            self._fold_log()

    def write_columns(self) -> None:
        """Bring the columns of what is free up to the states of the nodes."""
        nodes = dict.fromkeys(self.unwritten)
        self.unwritten = []
        columns = self.__dict__
        states, state_of = self.states, self.state_of
        for node in nodes:
            state = state_of[node]
            value, gpus = states.values[state], states.gpus[state]
            columns["_cpu_free"][node] = value.cpu
            columns["_memory_free"][node] = value.memory
            columns["_ephemeral_free"][node] = value.ephemeral
            columns["_gpu_free_mask"][node] = gpus.mask
            columns["_gpu_free_count"][node] = gpus.whole
            columns["_gpu_free_most"][node] = gpus.most
            columns["_gpu_idle_milli"][node] = gpus.idle
            columns["_pattern"][node] = states.pattern[state]
            columns["_gpu_free_milli"][:, node] = value.gpus
            for profile, gpu, bits in value.migs:
                column = columns["_mig_free"].get(profile)
                if column is not None:
                    column[gpu, node] = bits


def _slots(node: NodeFacts) -> int:
    return max((gpu.index + 1 for gpu in node.gpus), default=0)


def _known_topology(node: NodeFacts) -> LinkMatrix | None:
    """Return the node's matrix, or None when it says nothing of some of the node's GPUs."""
    matrix = node.topology
    return matrix if matrix is not None and matrix.gpu_count >= _slots(node) else None


def _ints(values: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64)


def _narrow(totals: Ints) -> Ints:
    """Return a copy for what is free of these totals."""
    is_small = int(np.abs(totals).max(initial=0)) < _SMALL
    return totals.astype(np.int32 if is_small else np.int64)


def _intern(values: Sequence[_T]) -> tuple[tuple[_T, ...], Ints]:
    """Return the distinct values in order of appearance, and the index of each."""
    places: dict[_T, int] = {}
    index = _ints(places.setdefault(value, len(places)) for value in values)
    return tuple(places), index


def labels_of(nodes: Iterable[NodeFacts]) -> Mapping[str, frozenset[str]]:
    """Return every label key of the nodes with the values it takes."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        for key, value in node.labels.items():
            found.setdefault(key, set()).add(value)
    return {key: frozenset(values) for key, values in found.items()}
