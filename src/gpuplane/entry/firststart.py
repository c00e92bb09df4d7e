"""What a first start makes: tenant and project, the cluster of this machine, the demo fleet."""

from gpuplane.core.ids import ClusterId
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.billing import service as billing
from gpuplane.domains.billing.service import NewPrice
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.identity import service as identity
from gpuplane.entry.backends import fleet_of
from gpuplane.kit.ids import new_id

LOCAL = "local"
DEMO = "demo"


def ensure_first_start(
    session: WriteSession, now: int, token_hash: str, hint: str
) -> tuple[Cluster, ...]:
    """Make what is not there yet and return every cluster; running it again changes nothing."""
    admin = identity.ensure_defaults(session, now, token_hash, hint)
    local = clusters.ensure_cluster(
        session, ClusterId(new_id()), name=LOCAL, kind="local", simulated=False, config={}, now=now
    )
    clusters.grant(session, local.id, admin.tenant_id, "system", now)
    demo = clusters.ensure_cluster(
        session,
        ClusterId(new_id()),
        name=DEMO,
        kind="simulated",
        simulated=True,
        config={"fleet": "demo"},
        now=now,
    )
    _ensure_prices(session, demo, now)
    return clusters.list_clusters(session)


def _ensure_prices(session: WriteSession, cluster: Cluster, now: int) -> None:
    prices = fleet_of(cluster).prices
    wanted = [
        NewPrice(model, micro, prices.currency, cluster.id)
        for model, micro in prices.gpu_hour_micro.items()
    ]
    wanted.append(NewPrice("cpu", prices.cpu_core_hour_micro, prices.currency, cluster.id))
    wanted.append(NewPrice("memory", prices.memory_gib_hour_micro, prices.currency, cluster.id))
    billing.ensure_prices(session, wanted, "system", now)
