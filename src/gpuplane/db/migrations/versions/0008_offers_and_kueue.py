"""Jobs offered to clusters that admit by themselves, and what of queues such clusters show."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.create_table(
        "jobs_offers",
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("cluster_id", sa.Uuid(), nullable=False),
        sa.Column("local_queue", sa.String(length=200), nullable=False),
        sa.Column("cluster_queue", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("offered_at", sa.BigInteger(), nullable=False),
        sa.Column("ensured_at", sa.BigInteger(), nullable=True),
        sa.Column("admitted_at", sa.BigInteger(), nullable=True),
        sa.Column("evict_sent_at", sa.BigInteger(), nullable=True),
        sa.Column("usage", json, nullable=False),
        sa.Column("explanation", json, nullable=True),
        sa.Column("reason", sa.String(length=100), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.CheckConstraint("state IN ('offered','withdrawing')", name="offer_state_known"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs_jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("attempt_id"),
        sa.UniqueConstraint("job_id"),
    )
    op.create_index("ix_jobs_offers_cluster", "jobs_offers", ["cluster_id", "state"])
    op.create_table(
        "queues_seen",
        sa.Column("cluster_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=63), nullable=False),
        sa.Column("namespace", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=253), nullable=False),
        sa.Column("ours", sa.Boolean(), nullable=False),
        sa.Column("spec", json, nullable=False),
        sa.Column("state", json, nullable=False),
        sa.Column("notes", json, nullable=False),
        sa.Column("applied", json, nullable=True),
        sa.Column("conflict", json, nullable=True),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", "kind", "namespace", "name"),
    )


def downgrade() -> None:
    """Take the schema back to the revision before."""
    op.drop_table("queues_seen")
    op.drop_table("jobs_offers")
