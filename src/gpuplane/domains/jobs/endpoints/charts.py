"""What a chart asks beyond its job is refused at the submit: it is rendered there, and checked.

Owns the asking, which waits for a process and perhaps for the network, outside any transaction.
What cannot be known in time is left to the start, which checks again whatever was said here.
"""

import asyncio
import logging
from typing import cast

from gpuplane.backends.capabilities import ChecksCharts
from gpuplane.backends.interface import BackendError, Unfit
from gpuplane.core.workloads import DeploymentType
from gpuplane.db.calls import Call
from gpuplane.domains.jobs import service
from gpuplane.domains.jobs.endpoints.parts import FindsBackends, WorkspaceFolder
from gpuplane.domains.jobs.errors import BadJob
from gpuplane.domains.jobs.service import Submission, SubmitLimits

log = logging.getLogger("gpuplane.jobs")


async def refuse_unfit_chart(call: Call, submission: Submission) -> None:
    """Refuse a chart that could never start as it is asked for.

    Args:
        call: The call.
        submission: What is asked, and may be submitted by all that the database knows.

    Raises:
        BadJob: Naming the field.
    """
    limits = call.port("submit_limits", SubmitLimits)
    if submission.spec.deployment_type is not DeploymentType.HELM or not limits.chart_check_s:
        return
    execution = submission.spec.execution
    has_workspace = execution.workspace_digest is not None
    service.check_chart(execution.chart, limits, has_workspace=has_workspace)
    folder = str(call.port("workspaces", WorkspaceFolder).path)
    trial = await call.read(lambda s: service.load_trial(s, submission, folder, call.now))
    if trial is None:
        return
    cluster_id, plan = trial
    backend: object = cast("FindsBackends", call.ports["backends"]).find(cluster_id)
    if not isinstance(backend, ChecksCharts):
        return
    try:
        async with asyncio.timeout(limits.chart_check_s):
            await backend.check_chart(plan)
    except Unfit as unfit:
        text = unfit.reason[:1].upper() + unfit.reason[1:]
        raise BadJob(f"{text}.", field=unfit.field, fix=unfit.fix) from unfit
    except (BackendError, TimeoutError) as error:
        log.info("the chart of %s is checked at its start: %s", plan.job_name, error)
