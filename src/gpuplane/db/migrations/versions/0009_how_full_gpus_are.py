"""How much of each GPU its cluster says is given away; who took work once is marked so."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COLUMNS = ("used_percent", "used_at")


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    with op.batch_alter_table("nodes_gpus") as batch_op:
        batch_op.add_column(sa.Column("used_percent", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("used_at", sa.BigInteger(), nullable=True))
    _mark_those_that_took_work()


def _mark_those_that_took_work() -> None:
    """Mark registered clusters of before the mark: work may run there, which is served on.

    One that is out of reach, or is drained, took work too; one whose registration failed has no
    instant since when it is out of reach.
    """
    json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    clusters = sa.table(
        "clusters_clusters",
        sa.column("id", sa.Uuid()),
        sa.column("kind", sa.String()),
        sa.column("state", sa.String()),
        sa.column("not_available_since", sa.BigInteger()),
        sa.column("config", json),
    )
    took_work = sa.or_(
        clusters.c.state.in_(("AVAILABLE", "NOT_AVAILABLE", "DRAINING")),
        sa.and_(clusters.c.state == "ERROR", clusters.c.not_available_since.is_not(None)),
    )
    connection = op.get_bind()
    found = connection.execute(
        sa.select(clusters.c.id, clusters.c.config).where(
            clusters.c.kind == "kubernetes", took_work
        )
    ).all()
    for cluster_id, config in found:
        marked = {**(config or {}), "was_available": True}
        connection.execute(
            sa.update(clusters).where(clusters.c.id == cluster_id).values(config=marked)
        )


def downgrade() -> None:
    """Take the schema back to the revision before."""
    with op.batch_alter_table("nodes_gpus") as batch_op:
        for name in COLUMNS:
            batch_op.drop_column(name)
