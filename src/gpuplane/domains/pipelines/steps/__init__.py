"""Handlers of the nine step types, by the names under which runs call them."""

from gpuplane.domains.pipelines.documents.compiling import handler_of
from gpuplane.domains.pipelines.documents.models import StepType
from gpuplane.domains.pipelines.steps.calling import ApiCalls
from gpuplane.domains.pipelines.steps.deploying import Jobs
from gpuplane.domains.pipelines.steps.flow import BRANCH, branch, loop, parallel, wait
from gpuplane.domains.pipelines.steps.functions import Functions
from gpuplane.domains.pipelines.steps.names import cache_input, guarded
from gpuplane.domains.pipelines.steps.notifying import Notifications
from gpuplane.domains.pipelines.steps.tools import JobAsk, ReadJob, StepTools
from gpuplane.domains.pipelines.steps.transforming import choose, transform
from gpuplane.domains.runs import service as runs

__all__ = ["JobAsk", "ReadJob", "StepTools", "register"]

FUNCTIONS_AT_ONCE = 16
"""Calls of FUNCTION under way in one process of the server: each is an interpreter of its own."""


def register(handlers: runs.Handlers, tools: StepTools) -> None:
    """Add every handler of pipelines to those that runs know."""
    jobs = Jobs(tools)
    known: dict[StepType, runs.Handler] = {
        StepType.JOB: jobs,
        StepType.API_CALL: ApiCalls(tools),
        StepType.FUNCTION: Functions(tools),
        StepType.NOTIFICATION: Notifications(tools),
        StepType.TRANSFORM: transform,
        StepType.CONDITION: choose,
        StepType.PARALLEL: parallel,
        StepType.WAIT: wait,
        StepType.LOOP: loop,
    }
    for step_type, handler in known.items():
        handlers.add(
            handler_of(step_type),
            guarded(handler),
            on_cancel=jobs.stop if step_type is StepType.JOB else None,
            cache_input=cache_input,
            at_once=FUNCTIONS_AT_ONCE if step_type is StepType.FUNCTION else None,
        )
    handlers.add(BRANCH, guarded(branch), reads_outputs=False)
