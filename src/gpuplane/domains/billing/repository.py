"""Every query on the price book; rows in, values out."""

from collections.abc import Sequence

from sqlalchemy import insert, or_, select

from gpuplane.core.ids import ClusterId
from gpuplane.core.pricing.book import Price
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.billing.tables import prices


def insert_prices(session: WriteSession, rows: Sequence[Price]) -> None:
    """Append prices to the book."""
    session.execute(
        insert(prices),
        [{name: getattr(row, name) for name in Price.__slots__} for row in rows],
    )


def list_prices(
    session: ReadSession, cluster_id: ClusterId | None = None, item: str | None = None
) -> tuple[Price, ...]:
    """Return prices by item and start; those of one cluster and the general ones, or all."""
    query = select(prices)
    if cluster_id is not None:
        query = query.where(or_(prices.c.cluster_id == cluster_id, prices.c.cluster_id.is_(None)))
    if item is not None:
        query = query.where(prices.c.item == item)
    query = query.order_by(prices.c.item, prices.c.valid_from, prices.c.created_at, prices.c.id)
    return tuple(Price(**row) for row in session.rows(query))
