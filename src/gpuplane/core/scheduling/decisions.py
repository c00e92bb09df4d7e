"""What a cycle decides: one verdict per workload, frozen, explained, the same bytes every time.

Owns the verdicts and their JSON form; never how they are reached or applied.
"""

import json
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.facts import MigChange, MigPlacement, MigSlot
from gpuplane.core.ids import ClusterId, GpuId, JobId, NodeId
from gpuplane.core.reasons import Reason, Word


@dataclass(frozen=True, slots=True)
class ReplicaPlacement:
    """Where one replica goes.

    Args:
        gpu_milli: Share of each GPU in `gpu_ids`; 1000 is a whole GPU.
        mig: The MIG instance instead of whole GPUs; its GPU is in `gpu_ids` too.
    """

    rank: int
    node_id: NodeId
    node_name: str
    node_version: int
    gpu_ids: tuple[GpuId, ...] = ()
    gpu_milli: int = WHOLE_GPU_MILLI
    mig: MigPlacement | None = None


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """An amount of one resource that a placed workload counts against its queue."""

    flavor: str
    resource: str
    amount: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Start it there, now.

    Args:
        usage: What it counts against its queue, by flavor and resource.
        score: 0–100, the mean over its replicas.
        explanation: Sentences for people: the order, the quota, the node and the GPUs.
    """

    job_id: JobId
    version: int
    cluster_id: ClusterId
    replicas: tuple[ReplicaPlacement, ...]
    usage: tuple[QuotaUse, ...]
    score: int
    explanation: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WordCount:
    """How many nodes a filter kept away, of those that passed the filters before it."""

    word: Word
    nodes: int


class Waiting(NamedTuple):
    """Leave it in the queue, and say why.

    Args:
        reason: The dominant reason.
        counts: Nodes refused per filter, in the order of the filters; empty when no node was
            looked at (quota, freeze, window).
        position: Its place in the order of consideration, from 0.
    """

    job_id: JobId
    version: int
    reason: Reason
    counts: tuple[WordCount, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """What stopping one victim costs and why it may be stopped.

    Args:
        lost_gpu_s: GPU-seconds of work thrown away: since its last checkpoint or its start.
        rule: The row of the preemption table that allows it.
    """

    job_id: JobId
    version: int
    lost_gpu_s: int
    ran_s: int
    rule: str
    sentence: str


@dataclass(frozen=True, slots=True)
class NeedsPreemption:
    """It fits once these are stopped; its quota is to be held until then.

    Args:
        receipts: One per victim, in the order to stop them.
        placement: Where it goes once they are over.
    """

    job_id: JobId
    version: int
    receipts: tuple[Receipt, ...]
    placement: Placed
    reason: Reason
    counts: tuple[WordCount, ...]
    position: int

    @property
    def victims(self) -> tuple[JobId, ...]:
        return tuple(receipt.job_id for receipt in self.receipts)


@dataclass(frozen=True, slots=True)
class NeedsRepartition:
    """No MIG instance is free, but GPUs can be cut anew without touching what anyone holds.

    The workload waits and everything else goes on. What is to be destroyed, its part of the nodes
    and its quota were kept from everyone after it in the order.

    Args:
        changes: One per GPU to cut.
        counts: Nodes refused per filter, as for one that waits.
    """

    job_id: JobId
    version: int
    cluster_id: ClusterId
    changes: tuple[MigChange, ...]
    reason: Reason
    counts: tuple[WordCount, ...]
    position: int


Verdict = Placed | Waiting | NeedsPreemption | NeedsRepartition


@dataclass(frozen=True, slots=True)
class Decision:
    """What one cycle decided.

    Args:
        verdicts: One per pending workload, in the order of consideration.
        counts: Verdicts by kind and waiting workloads by dominant word, by name.
    """

    generation: int
    now: int
    seed: int
    policy: str
    verdicts: tuple[Verdict, ...]
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def placed(self) -> tuple[Placed, ...]:
        return tuple(each for each in self.verdicts if isinstance(each, Placed))

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        return tuple(each for each in self.verdicts if isinstance(each, Waiting))

    @property
    def preempting(self) -> tuple[NeedsPreemption, ...]:
        return tuple(each for each in self.verdicts if isinstance(each, NeedsPreemption))

    @property
    def repartitioning(self) -> tuple[NeedsRepartition, ...]:
        return tuple(each for each in self.verdicts if isinstance(each, NeedsRepartition))

    def to_json(self) -> bytes:
        """Return the decision as JSON: keys sorted, no spaces, equal bytes for equal decisions."""
        return json.dumps(
            encode_value(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        ).encode()


def encode_value(value: object) -> object:
    """Return a frozen value as JSON types; a verdict says its kind."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, MigPlacement):
        return {"gpu_id": value.gpu_id, "profile": value.profile, "start": value.start}
    if isinstance(value, MigSlot):
        return {"profile": value.profile, "start": value.start}
    if isinstance(value, Waiting):
        return {**{k: encode_value(v) for k, v in value._asdict().items()}, "kind": "Waiting"}
    if isinstance(value, (tuple, list)):
        return [encode_value(each) for each in value]
    if isinstance(value, dict):
        return {str(key): encode_value(each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        shape = {each.name: encode_value(getattr(value, each.name)) for each in fields(value)}
        if isinstance(value, Verdict):
            shape["kind"] = type(value).__name__
        return shape
    return value
