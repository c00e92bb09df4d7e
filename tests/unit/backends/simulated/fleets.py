"""Builders of what these tests need: a small fleet, a plan, a backend on a clock that stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID, uuid5

from gpuplane.backends.interface import AttemptPlan, AttemptRef, ReplicaObservation, ReplicaPlan
from gpuplane.backends.simulated import Fleet, SimulatedBackend, parse_fleet
from gpuplane.core.ids import AttemptId, JobId, ReplicaId, TenantId
from gpuplane.core.workloads import (
    Execution,
    HealthCheck,
    JobType,
    ResourceRequest,
    RestartPolicy,
    SimulatedBehaviour,
)
from tests.clocks import FakeClock

SPACE = UUID("6f2f3c52-0000-4000-8000-000000000000")

SMALL = """
apiVersion: gpuplane.io/v1
kind: Fleet
metadata: {name: small}
spec:
  racks: [{name: r1, block: b1}, {name: r2, block: b1}]
  nodeGroups:
    - name: big
      count: 2
      gpus: {model: H100-80GB, count: 8}
      topology: nvswitch-8
      cpu: 64
      memory: 512Gi
      ephemeralStorage: 1Ti
      racks: [r1, r2]
    - name: plain
      count: 1
      cpu: 8
      memory: 32Gi
      ephemeralStorage: 100Gi
  startDelay: {value: 2s}
  stopDelay: {value: 1s}
"""


def a_fleet(*failures: str, text: str = SMALL, stop_delay: str = "1s") -> Fleet:
    """Return the small fleet with failures written in YAML's flow style."""
    lines = "".join(f"\n    - {{{failure}}}" for failure in failures)
    text = text.replace("stopDelay: {value: 1s}", f"stopDelay: {{value: {stop_delay}}}")
    return parse_fleet(text + (f"  failures:{lines}\n" if failures else ""), "small.yaml")


def a_cut_fleet(*layout: str) -> Fleet:
    """Return the small fleet with the first GPU of each big node cut into MIG instances."""
    mig = f"      mig: [{{gpus: [0], layout: [{', '.join(layout)}]}}]\n"
    return a_fleet(text=SMALL.replace("      racks: [r1, r2]\n", f"      racks: [r1, r2]\n{mig}"))


def a_backend(
    fleet: Fleet, clock: FakeClock, folder: Path, *, seed: int = 1, speed: float = 1.0
) -> SimulatedBackend:
    return SimulatedBackend(fleet, clock, seed=seed, state_path=folder / "fleet.db", speed=speed)


def a_plan(
    fleet: Fleet,
    name: str = "job",
    *,
    epoch: int = 1,
    nodes: Sequence[str] = ("big-01",),
    gpus: Sequence[int] = (0,),
    gpu_milli: int = 1000,
    mig_device: str | None = None,
    job_type: JobType = JobType.BATCH,
    behaviour: SimulatedBehaviour | None = None,
    restart: RestartPolicy = RestartPolicy.NEVER,
    health: HealthCheck | None = None,
    max_duration_s: int | None = None,
    grace_s: int = 30,
    checkpoint_path: str = "",
    resume_from: str = "",
    artifacts: tuple[str, ...] = (),
    port: int | None = None,
) -> AttemptPlan:
    """Return a plan; the same name gives the same attempt."""
    by_name = {node.name: node for node in fleet.nodes}
    replicas = tuple(
        ReplicaPlan(
            replica_id=ReplicaId(uuid5(SPACE, f"{name}/{rank}")),
            rank=rank,
            node_name=node,
            gpu_ids=tuple(by_name[node].gpus[index].gpu_id for index in gpus),
            gpu_milli=gpu_milli,
            mig_device=mig_device,
        )
        for rank, node in enumerate(nodes)
    )
    return AttemptPlan(
        ref=AttemptRef(AttemptId(uuid5(SPACE, name)), epoch),
        job_id=JobId(uuid5(SPACE, f"job of {name}")),
        job_name=name,
        tenant_id=TenantId(SPACE),
        tenant_name="default",
        project_name="default",
        attempt_number=1,
        job_type=job_type,
        execution=Execution(
            simulated=behaviour,
            restart=restart,
            health=health,
            grace_s=grace_s,
            artifacts=artifacts,
            port=port,
        ),
        resources=ResourceRequest(gpu_count=len(gpus)),
        replicas=replicas,
        max_duration_s=max_duration_s,
        checkpoint_path=checkpoint_path,
        resume_from=resume_from,
    )


def lasting(seconds: float, exit_code: int = 0, **more: object) -> SimulatedBehaviour:
    return SimulatedBehaviour(duration_s=seconds, exit_code=exit_code, **more)  # type: ignore[arg-type]  # named fields of the behaviour


async def the_replica(backend: SimulatedBackend, rank: int = 0) -> ReplicaObservation:
    """Return the observation of this rank of the only attempt."""
    (found,) = [each for each in (await backend.observe()).replicas if each.rank == rank]
    return found
