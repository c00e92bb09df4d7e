"""A job as a value, and the pure rules of this noun."""

from gpuplane.domains.jobs.rules.endings import AfterEnd, decide_after_end, decide_after_failure
from gpuplane.domains.jobs.rules.filters import JobFilter
from gpuplane.domains.jobs.rules.gates import GateVerdict, judge_gates
from gpuplane.domains.jobs.rules.outputs import is_sensitive_output, mask_outputs
from gpuplane.domains.jobs.rules.values import Attempt, DependencyState, Job, Replica

__all__ = [
    "AfterEnd",
    "Attempt",
    "DependencyState",
    "GateVerdict",
    "Job",
    "JobFilter",
    "Replica",
    "decide_after_end",
    "decide_after_failure",
    "is_sensitive_output",
    "judge_gates",
    "mask_outputs",
]
