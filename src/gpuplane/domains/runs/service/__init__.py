"""Use cases of durable runs: started, carried on by workers, told events, stopped, begun again.

Handlers do the work outside every transaction; see `Handlers`. Nothing here calls one.
"""

from gpuplane.domains.runs.errors import EventRefused, PlanRefused, RunInTheWay, RunNotFound
from gpuplane.domains.runs.repository.boards import decode
from gpuplane.domains.runs.repository.places import Kept as KeptOutput
from gpuplane.domains.runs.rules import (
    Claimed,
    RunFilter,
    RunHead,
    RunView,
    StepFilter,
    StepView,
    run_key,
)
from gpuplane.domains.runs.service.advancing import Advance, Turn, advance, next_look
from gpuplane.domains.runs.service.checking import check
from gpuplane.domains.runs.service.controlling import (
    cancel_run,
    fork_run,
    pause_run,
    rerun_from_failure,
    resume_run,
    retry_step,
)
from gpuplane.domains.runs.service.delivering import deliver, deliver_to_run
from gpuplane.domains.runs.service.handlers import Handler, Handlers, Registered, Stop
from gpuplane.domains.runs.service.policies import DEFAULT_POLICY, RUNS, RunPolicy, policy_for
from gpuplane.domains.runs.service.reading import (
    SORT_RUNS,
    SORT_STEPS,
    count_open_runs,
    count_open_runs_of,
    find_output,
    find_run,
    find_run_by_dedup,
    get_run,
    get_step,
    list_runs,
    list_steps,
    load_children,
    load_graph,
    load_heads,
    load_outputs,
)
from gpuplane.domains.runs.service.retaining import list_to_prune, prune_leftovers, prune_runs
from gpuplane.domains.runs.service.starting import start_run, start_runs
from gpuplane.domains.runs.service.working import (
    Beat,
    beat,
    give_back,
    has_unknown,
    has_upkeep,
    list_owned,
    park_unknown,
    register_worker,
    retire_worker,
)

Run = RunView
"""One run as other domains and people see it."""

__all__ = [
    "DEFAULT_POLICY",
    "RUNS",
    "SORT_RUNS",
    "SORT_STEPS",
    "Advance",
    "Beat",
    "Claimed",
    "EventRefused",
    "Handler",
    "Handlers",
    "KeptOutput",
    "PlanRefused",
    "Registered",
    "Run",
    "RunFilter",
    "RunHead",
    "RunInTheWay",
    "RunNotFound",
    "RunPolicy",
    "RunView",
    "StepFilter",
    "StepView",
    "Stop",
    "Turn",
    "advance",
    "beat",
    "cancel_run",
    "check",
    "count_open_runs",
    "count_open_runs_of",
    "decode",
    "deliver",
    "deliver_to_run",
    "find_output",
    "find_run",
    "find_run_by_dedup",
    "fork_run",
    "get_run",
    "get_step",
    "give_back",
    "has_unknown",
    "has_upkeep",
    "list_owned",
    "list_runs",
    "list_steps",
    "list_to_prune",
    "load_children",
    "load_graph",
    "load_heads",
    "load_outputs",
    "next_look",
    "park_unknown",
    "pause_run",
    "policy_for",
    "prune_leftovers",
    "prune_runs",
    "register_worker",
    "rerun_from_failure",
    "resume_run",
    "retire_worker",
    "retry_step",
    "run_key",
    "start_run",
    "start_runs",
]
