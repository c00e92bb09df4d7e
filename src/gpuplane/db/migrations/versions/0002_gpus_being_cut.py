"""GPUs that are being cut anew into MIG instances."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.create_table(
        "placements_repartitions",
        sa.Column("gpu_id", sa.String(length=100), nullable=False),
        sa.Column("cluster_id", sa.Uuid(), nullable=False),
        sa.Column("node_id", sa.Uuid(), nullable=False),
        sa.Column("node_name", sa.String(length=253), nullable=False),
        sa.Column("gpu_index", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("destroy", json, nullable=False),
        sa.Column("create", json, nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("deadline_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state IN ('asked','sent','failed')", name="placements_repartition_state_known"
        ),
        sa.PrimaryKeyConstraint("gpu_id"),
    )
    with op.batch_alter_table("placements_repartitions", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_placements_repartitions_cluster_id"), ["cluster_id"], unique=False
        )


def downgrade() -> None:
    """Take the schema back to the revision before."""
    with op.batch_alter_table("placements_repartitions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_placements_repartitions_cluster_id"))

    op.drop_table("placements_repartitions")
