"""What a simulated fleet is: nodes, GPUs, prices, failures and delays as frozen values.

Owns the values and their arithmetic over fleet time (milliseconds since the fleet was first
started); never reads a file and never knows a clock.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist
from uuid import NAMESPACE_URL, uuid5

from gpuplane.core.ids import GpuId

MAX_NODES = 10_000
"""Nodes of one fleet; the scheduler's largest benchmark size."""
MAX_GPUS_PER_NODE = 16
"""The widest free-mask that the decision core keeps for a node."""


class FailureKind(StrEnum):
    """What can break on a schedule."""

    NODE_DOWN = "NodeDown"
    GPU_FAILED = "GpuFailed"


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that breaks at an offset, perhaps recovers, perhaps breaks again.

    Args:
        gpu_index: Which GPU of the node; None when the whole node goes down.
        at_ms: First time, in fleet milliseconds.
        for_ms: How long it stays broken; None means for ever.
        every_ms: Period of the repetition, longer than for_ms; None means once.
    """

    kind: FailureKind
    node: str
    at_ms: int
    gpu_index: int | None = None
    for_ms: int | None = None
    every_ms: int | None = None

    def is_active(self, at_ms: int) -> bool:
        """Return whether it is broken at this fleet instant."""
        if at_ms < self.at_ms:
            return False
        if self.for_ms is None:
            return True
        since = at_ms - self.at_ms
        if self.every_ms is not None:
            since %= self.every_ms
        return since < self.for_ms

    def find_next_start(self, after_ms: int) -> int | None:
        """Return the first instant later than after_ms at which it breaks, or None."""
        if after_ms < self.at_ms:
            return self.at_ms
        if self.every_ms is None:
            return None
        laps = (after_ms - self.at_ms) // self.every_ms + 1
        return self.at_ms + laps * self.every_ms

    def find_next_change(self, after_ms: int) -> int | None:
        """Return the first instant later than after_ms at which it breaks or recovers."""
        if self.for_ms is None or not self.is_active(after_ms):
            return self.find_next_start(after_ms)
        since = after_ms - self.at_ms
        lap = 0 if self.every_ms is None else since // self.every_ms * self.every_ms
        return self.at_ms + lap + self.for_ms


class DelayShape(StrEnum):
    """How a delay is distributed."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    LOGNORMAL = "lognormal"


@dataclass(frozen=True, slots=True)
class Delay:
    """A distribution of a delay; the chance comes from outside as a number in (0, 1).

    Args:
        low_ms: The value (constant), the least (uniform) or the median (lognormal).
        high_ms: The most (uniform) or the 95th percentile (lognormal); unused when constant.
    """

    shape: DelayShape = DelayShape.CONSTANT
    low_ms: int = 0
    high_ms: int = 0

    def compute_ms(self, chance: float) -> int:
        """Return the delay at this quantile, in whole milliseconds."""
        if self.shape is DelayShape.UNIFORM:
            return round(self.low_ms + chance * (self.high_ms - self.low_ms))
        if self.shape is DelayShape.LOGNORMAL and self.low_ms > 0:
            spread = math.log(self.high_ms / self.low_ms) / _Z95
            return round(self.low_ms * math.exp(spread * NormalDist().inv_cdf(chance)))
        return self.low_ms


_Z95 = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the fleet; `mig` lists (profile, first memory slice) of its instances."""

    gpu_id: GpuId
    index: int
    model: str
    memory_mib: int
    numa: int | None = None
    mig: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the fleet."""

    name: str
    cpu_milli: int
    memory_mib: int
    ephemeral_mib: int
    gpus: tuple[Gpu, ...] = ()
    topology: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()
    rack: str = ""
    block: str = ""
    rdma_fabric: str = ""


@dataclass(frozen=True, slots=True)
class Prices:
    """What the fleet's capacity costs, in micro-units of the currency per hour.

    Args:
        gpu_hour_micro: Canonical model name to the price of one whole GPU for an hour.
        memory_gib_hour_micro: Price of one GiB of main memory for an hour.
    """

    currency: str = "USD"
    gpu_hour_micro: dict[str, int] = field(default_factory=dict)
    cpu_core_hour_micro: int = 0
    memory_gib_hour_micro: int = 0


@dataclass(frozen=True, slots=True)
class Fleet:
    """A simulated cluster.

    Args:
        start_delay: From the start order to the first instruction of a workload.
        stop_delay: From SIGTERM to the exit of a workload; beyond the grace it is killed.
        speed: Fleet seconds per second of the clock; honoured only by who asks for it.
    """

    name: str
    nodes: tuple[Node, ...]
    prices: Prices = field(default_factory=Prices)
    failures: tuple[Failure, ...] = ()
    start_delay: Delay = field(default_factory=Delay)
    stop_delay: Delay = field(default_factory=Delay)
    speed: float = 1.0
    description: str = ""

    @property
    def gpu_count(self) -> int:
        """Return the number of GPUs of all nodes."""
        return sum(len(node.gpus) for node in self.nodes)


def make_gpu_id(fleet_name: str, node_name: str, index: int) -> GpuId:
    """Return the UUID that this GPU has in every run: a name-based one (RFC 9562, version 5)."""
    return GpuId(f"GPU-{uuid5(NAMESPACE_URL, f'gpuplane:fleet/{fleet_name}/{node_name}/{index}')}")


def compute_chance(seed: int, *names: str) -> float:
    """Return a number in (0, 1) that depends on the seed and the names alone."""
    digest = hashlib.blake2b("\x00".join((str(seed), *names)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest) + 0.5) / 2**64


def find_next_change(failures: Iterable[Failure], after_ms: int) -> int | None:
    """Return the first instant later than after_ms at which any of them breaks or recovers."""
    return min(
        (at for failure in failures if (at := failure.find_next_change(after_ms)) is not None),
        default=None,
    )
