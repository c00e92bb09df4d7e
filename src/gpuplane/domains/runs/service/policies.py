"""Limits of runs as settings make them."""

from dataclasses import dataclass, field, replace

from gpuplane.core.runs.boards import Rules
from gpuplane.domains.runs.service.handlers import Handlers

RUNS = "runs"
"""The name of the loop that runs steps."""


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """What runs may take; a setting each.

    Args:
        rules: Limits within one run.
        open_runs: Runs of one project that are not over.
        output_bytes: Output of one step, and what it keeps between calls.
        event_bytes: Payload of one event.
        kept_events: Events of one run that nobody awaited yet.
    """

    rules: Rules = field(default_factory=Rules)
    open_runs: int = 200_000
    output_bytes: int = 1 << 20
    event_bytes: int = 256 << 10
    kept_events: int = 1_000


DEFAULT_POLICY = RunPolicy()


def policy_for(policy: RunPolicy, handlers: Handlers) -> RunPolicy:
    """Return a policy that knows which of these handlers are told when a step is stopped."""
    return replace(policy, rules=replace(policy.rules, on_cancel=handlers.stoppable))
