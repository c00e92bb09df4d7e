"""Every query on the tables of queues."""

from gpuplane.core.ids import ClusterId
from gpuplane.db.sessions import ReadSession
from gpuplane.db.types import table_of
from gpuplane.domains.queues.rules import QueueSpecs, default_specs
from gpuplane.domains.queues.tables import ClusterQueueRow
from sqlalchemy import func, select

_cluster_queues = table_of(ClusterQueueRow)


def load_specs(session: ReadSession, cluster_id: ClusterId) -> QueueSpecs:
    """Return everything declared about the queues of a cluster."""
    count = session.scalar(
        select(func.count()).where(_cluster_queues.c.cluster_id == cluster_id)
    )
    if not count:
        return default_specs()
    return default_specs()
