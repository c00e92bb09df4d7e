"""How many replicas a service is to have, and what each of them counts against its queue."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

ATTEMPT = ("replicas_wanted", "wanted_at", "next_rank", "scale_number", "scale_told")
ATTEMPT_TEXTS = (("growth_reason", sa.String(length=50)), ("growth_message", sa.Text()))


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    with op.batch_alter_table("jobs_attempts") as batch_op:
        batch_op.add_column(sa.Column("replicas_wanted", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("wanted_at", sa.BigInteger(), nullable=True))
        for name in ATTEMPT[2:]:
            batch_op.add_column(
                sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
            )
        for name, kind in ATTEMPT_TEXTS:
            batch_op.add_column(sa.Column(name, kind, nullable=False, server_default=""))
    with op.batch_alter_table("jobs_replicas") as batch_op:
        batch_op.add_column(sa.Column("quota_usage", json, nullable=True))
        batch_op.add_column(sa.Column("leaving_at", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_jobs_attempts_scaled",
        "jobs_attempts",
        ["cluster_id"],
        sqlite_where=sa.text("scale_number <> scale_told"),
        postgresql_where=sa.text("scale_number <> scale_told"),
    )


def downgrade() -> None:
    """Take the schema back to the revision before."""
    op.drop_index("ix_jobs_attempts_scaled", table_name="jobs_attempts")
    with op.batch_alter_table("jobs_replicas") as batch_op:
        batch_op.drop_column("leaving_at")
        batch_op.drop_column("quota_usage")
    with op.batch_alter_table("jobs_attempts") as batch_op:
        for name, _ in reversed(ATTEMPT_TEXTS):
            batch_op.drop_column(name)
        for name in reversed(ATTEMPT):
            batch_op.drop_column(name)
