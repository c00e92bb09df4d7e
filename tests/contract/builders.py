"""Plans that mean the same on every backend: a command for real ones, a behaviour for others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuplane.backends.interface import AttemptPlan, AttemptRef, ReplicaPlan
from gpuplane.core.ids import AttemptId, JobId, ReplicaId, TenantId
from gpuplane.core.workloads import Execution, JobType, ResourceRequest, SimulatedBehaviour
from gpuplane.kit.ids import new_id


def a_ref(epoch: int = 1) -> AttemptRef:
    """Return the name of an attempt that nobody has heard of."""
    return AttemptRef(AttemptId(new_id()), epoch)


def a_plan(
    *,
    ref: AttemptRef | None = None,
    node_name: str = "machine",
    duration_s: float = 0.0,
    exit_code: int = 0,
    log: Sequence[str] = (),
    replica_count: int = 1,
    max_duration_s: int | None = None,
    job_type: JobType = JobType.BATCH,
    resources: ResourceRequest | None = None,
    **execution: Any,
) -> AttemptPlan:
    """Return a plan that prints the lines, works so long and ends with the exit code.

    Args:
        execution: Fields of `Execution`; `command` replaces the one made from the behaviour.
    """
    lines = [f"echo '{line}'" for line in log]
    wait = [f"sleep {duration_s}"] if duration_s else []
    script = "\n".join([*lines, *wait, f"exit {exit_code}"])
    execution.setdefault("command", ("/bin/sh", "-c", script))
    execution.setdefault(
        "simulated",
        SimulatedBehaviour(duration_s=duration_s, exit_code=exit_code, log=tuple(log)),
    )
    return AttemptPlan(
        ref=ref or a_ref(),
        job_id=JobId(new_id()),
        job_name="a-job",
        tenant_id=TenantId(new_id()),
        tenant_name="default",
        project_name="default",
        attempt_number=1,
        job_type=job_type,
        execution=Execution(**execution),
        resources=resources or ResourceRequest(),
        replicas=tuple(
            ReplicaPlan(ReplicaId(new_id()), rank, node_name) for rank in range(replica_count)
        ),
        max_duration_s=max_duration_s,
    )
