"""The knobs of a cycle and what it looks at: policy and snapshot.

Owns named policies, limits and their reasons; never a value read from a setting directly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.fleet.facts import MigChange
from gpuplane.core.ids import ClusterId, GpuId, JobId
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.scheduling.reservations import Reservation
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.workloads import Priority


class PlacementPolicy(StrEnum):
    """How nodes are ranked."""

    FRAGMENTATION = "fragmentation"
    """Leave the least GPU capacity that the typical workload cannot use (the default)."""
    BALANCED = "balanced"
    """The specification's weighted sum: topology 40, resource 35, balance 25."""
    LEAST_LOADED = "leastLoaded"
    MOST_LOADED = "mostLoaded"
    RANDOM = "random"
    """A stable hash of (seed, node name): spread without a clock or chance."""
    COST_OPTIMIZED = "costOptimized"


class Backfill(StrEnum):
    """What may pass a blocked head of a BestEffortFIFO queue."""

    CANNOT_DELAY_HEAD = "cannotDelayHead"
    GREEDY = "greedy"


@dataclass(frozen=True, slots=True)
class Boosts:
    """Bounded additions to a priority value, each explained where it acts.

    The values of the classes are 1000, 100, 10, 1, 0. A boost lifts a workload at most to the
    value of the next class above its own, never to CRITICAL.

    Args:
        wait_target_s: Queue-wait target per class (scenario 14; LOW and SPOT, which have none
            there, four times the class above them); the starvation boost grows from half of the
            target to its whole at `starved_ratio` times the target: who has waited so long stands
            beside the next class, and is older than all of it that came later.
        deadline_steps: (share of the time budget used, share of the way to the next class).
    """

    wait_target_s: Mapping[Priority, int] = field(
        default_factory=lambda: {
            Priority.CRITICAL: 300,
            Priority.HIGH: 1800,
            Priority.NORMAL: 7200,
            Priority.LOW: 28_800,
            Priority.SPOT: 115_200,
        }
    )
    starved_ratio: float = 1.0
    deadline_steps: tuple[tuple[float, float], ...] = ((0.5, 0.3), (0.75, 0.6), (0.9, 1.0))


@dataclass(frozen=True, slots=True)
class PreemptionLimits:
    """When stopping others is allowed at all.

    Args:
        min_run_s: A victim has run at least this long: less would throw away its whole start-up.
        per_cluster_hour: Most victims per cluster within an hour: churn costs more than it gains.
        grace_s: Time a victim gets to write a checkpoint.
        by_loss: Victims for quota are those that lose least among equal classes; False takes those
            that Kueue takes, admitted last.
        max_candidates: Most victims looked at for one workload: bounds the search.
        max_searches: Most workloads per cycle for which victims are searched: bounds the cycle.
    """

    enabled: bool = True
    min_run_s: int = 300
    per_cluster_hour: int = 10
    grace_s: int = 30
    by_loss: bool = True
    max_candidates: int = 10_000
    max_searches: int = 20


@dataclass(frozen=True, slots=True)
class Policy:
    """How a cycle orders, ranks and preempts.

    Args:
        data_weight: Weight, of 100, of the data sets that a node has at hand, where a workload
            names some; the policy's own score keeps the rest.
        hint_points: Most points of 100 that a prediction adds to or takes from a node's score: it
            decides between nodes of about the same score, and a wrong one costs little. 0 for none.
        default_duration_s: Taken for work of which nothing is known, where an end is needed.
        max_reserved_heads: Blocked heads that keep their place per cycle: bounds the forecasts.
        typical_share: Share of all replicas that the typical workload mix covers (Weng et al.).
        max_typical: Most classes in the mix: bounds the cost of the gradient.
        cuts_gpus: Whether GPUs are cut anew for who finds no MIG instance. A forecast does not:
            it tells when an instance is free as GPUs are cut now.
    """

    placement: PlacementPolicy = PlacementPolicy.FRAGMENTATION
    topology_weight: int = 40
    resource_weight: int = 35
    balance_weight: int = 25
    data_weight: int = 30
    boosts: Boosts = field(default_factory=Boosts)
    backfill: Backfill = Backfill.CANNOT_DELAY_HEAD
    preemption: PreemptionLimits = field(default_factory=PreemptionLimits)
    hint_points: int = 10
    default_duration_s: int = 3600
    max_reserved_heads: int = 4
    typical_share: float = 0.95
    max_typical: int = 64
    cuts_gpus: bool = True


@dataclass(frozen=True, slots=True)
class Flavor:
    """Which nodes a quota flavor stands for: those of a GPU model, with these labels.

    A flavor that is not declared stands for the nodes of the GPU model of the same name, or for
    every node when no model has that name.
    """

    name: str
    gpu_model: str | None = None
    node_labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a decision is made from.

    `decide` counts into `fleets` and `quotas` while it runs and undoes all of it before it
    returns, so a snapshot is the same before and after.

    Args:
        generation: Rises with every change that could change a decision.
        fleets: One per cluster; usage of `running` is already taken from them.
        quotas: Usage of `running` is already counted.
        frozen: Nothing new starts; `frozen_note` says who froze it and why.
        preempted_last_hour: Victims of the last hour, by cluster.
        preemptions_leave_at: When each of them counts no more, in ms, earliest first; it is told
            to people, and decides nothing.
        reservations: Those that have not begun; GPUs of those that have are marked in `fleets`.
        recutting: GPUs that are being cut anew, by the job they are cut for; the facts of the
            fleet show them without what is being destroyed.
        uncut: GPUs that are not to be cut now, because cutting them failed a moment ago.
    """

    generation: int
    pending: tuple[Workload, ...]
    running: tuple[RunningWorkload, ...]
    fleets: tuple[Fleet, ...]
    quotas: QuotaTree
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    frozen: bool = False
    frozen_note: str = ""
    preempted_last_hour: Mapping[ClusterId, int] = field(default_factory=dict)
    preemptions_leave_at: Mapping[ClusterId, tuple[int, ...]] = field(default_factory=dict)
    recutting: Mapping[JobId, tuple[MigChange, ...]] = field(default_factory=dict)
    uncut: frozenset[GpuId] = frozenset()
    reservations: tuple[Reservation, ...] = ()
