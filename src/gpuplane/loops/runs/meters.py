"""The metrics of runs and steps, counted by the worker that stored their ends."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400, 604800)


class RunMeters:
    """The metrics themselves, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register every metric."""
        self.steps = Counter(
            "run_steps", "Answers of handlers", ("handler", "answer"),
            registry=registry,
        )  # fmt: skip
        self.step_time = Histogram(
            "run_step_call_seconds", "Time a handler took for one call", ("handler",),
            registry=registry, buckets=BUCKETS,
        )  # fmt: skip
        self.open_runs = Gauge(
            "runs_open", "Runs that are not over", ("kind", "status"), registry=registry
        )
        self.running = Gauge("run_steps_running", "Handlers at work here", registry=registry)
        self.stale = Counter(
            "run_answers_stale", "Answers that came after their lease was lost", registry=registry
        )
        self.taken_over = Counter(
            "run_steps_taken_over", "Steps of dead workers that were begun again",
            registry=registry,
        )  # fmt: skip
