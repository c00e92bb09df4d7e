"""HTTP of what a cluster's deletion does to its work, told before it is asked for."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path

from gpuplane.db.calls import CallDep
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs import service
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Body

router = APIRouter()

ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]


class LeavingOut(Body):
    """One job on a cluster, and what its deletion does to it."""

    job_id: UUID
    name: str
    job_type: str
    status: str
    parting: str
    """`migrate`, `checkpoint_then_move` or `wait`."""
    lost_s: int
    """Seconds of its work that are lost if it is ended now: since its last checkpoint."""
    may_move: bool
    """False where it may run on this cluster alone: it is cancelled."""


class DeletionPlanOut(Body):
    """What a cluster's deletion does."""

    cluster_id: UUID
    jobs: list[LeavingOut]
    lost_s: int
    """With `force`: seconds of work of all of them."""
    cancelled: int
    """Jobs that no other cluster may take."""


@router.get("/clusters/{cluster}/deletion-plan")
@requires(Permission.CLUSTER_MANAGE)
async def plan_deletion(call: CallDep, cluster: ClusterKey) -> DeletionPlanOut:
    """Say what deleting a cluster does to each job there, and what `force` loses."""
    known = await call.read(lambda s: clusters.get_cluster(s, cluster))
    found = await call.read(lambda s: service.list_leaving(s, known.id, call.now))
    return DeletionPlanOut(
        cluster_id=known.id,
        jobs=[
            LeavingOut(
                job_id=each.job_id,
                name=each.name,
                job_type=each.job_type,
                status=each.status,
                parting=str(each.parting),
                lost_s=each.lost_s,
                may_move=each.may_move,
            )
            for each in found
        ],
        lost_s=sum(each.lost_s for each in found),
        cancelled=sum(not each.may_move for each in found),
    )
