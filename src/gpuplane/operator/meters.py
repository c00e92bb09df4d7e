"""The operator's metrics, under the operator document's names.

Owns the registry; never decides. A second operator in one process has a registry of its own.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpuplane.operator.names import Strategy


class Meters:
    """What is counted and measured."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.scheduled = Counter(
            "warp_gpuworkload_scheduled",
            "GPUWorkloads that were given a node.",
            ["strategy"],
            registry=self.registry,
        )
        self.failed = Counter(
            "warp_gpuworkload_failed",
            "Tries that found no node or made no Job, and Jobs that failed.",
            ["reason"],
            registry=self.registry,
        )
        self.retries = Counter(
            "warp_gpuworkload_retries",
            "Tries that were put off to a later one.",
            registry=self.registry,
        )
        self.reconciled = Histogram(
            "warp_gpuworkload_reconcile_duration_seconds",
            "Duration of a look at one GPUWorkload.",
            ["result"],
            registry=self.registry,
        )
        self.unfit = Counter(
            "warp_gpuworkload_unschedulable",
            "Tries that found no node, by strategy.",
            ["strategy"],
            registry=self.registry,
        )
        self.choice = Histogram(
            "warp_gpuworkload_choice_duration_seconds",
            "Duration of the choice of a node, by strategy.",
            ["strategy"],
            buckets=(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5),
            registry=self.registry,
        )
        self.assigned = Counter(
            "warp_gpuworkload_assigned_gpus",
            "GPUs that were given to workloads, by strategy.",
            ["strategy"],
            registry=self.registry,
        )
        self.preempted = Counter(
            "warp_gpuworkload_preempted",
            "GPUWorkloads that gave way to one of higher priority, by their own priority.",
            ["priority"],
            registry=self.registry,
        )
        self.leader = Gauge(
            "warp_gpuworkload_leader", "1 while this replica leads.", registry=self.registry
        )
        self.waiting = Gauge(
            "warp_gpuworkload_worklist_length",
            "GPUWorkloads that wait for a look.",
            registry=self.registry,
        )
        for strategy in Strategy:  # a rate needs its zero
            for each in (self.scheduled, self.unfit, self.assigned):
                each.labels(strategy.value)
