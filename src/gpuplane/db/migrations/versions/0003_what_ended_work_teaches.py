"""What ended work teaches, and which attempts taught it."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    op.create_table(
        "jobs_experience",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("rung", sa.String(length=20), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    with op.batch_alter_table("jobs_experience", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_experience_change"), ["change"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_jobs_experience_changed_at"), ["changed_at"], unique=False
        )

    with op.batch_alter_table("jobs_attempts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("learned_at", sa.BigInteger(), nullable=True))
        batch_op.create_index(
            "ix_jobs_attempts_unlearned",
            ["state", "ended_at", "id"],
            unique=False,
            sqlite_where=sa.text("learned_at IS NULL"),
            postgresql_where=sa.text("learned_at IS NULL"),
        )

    with op.batch_alter_table("jobs_replicas", schema=None) as batch_op:
        batch_op.add_column(sa.Column("gpu_memory_peak_mib", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("gpu_utilization_permille", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Take the schema back to the revision before."""
    with op.batch_alter_table("jobs_replicas", schema=None) as batch_op:
        batch_op.drop_column("gpu_utilization_permille")
        batch_op.drop_column("gpu_memory_peak_mib")

    with op.batch_alter_table("jobs_attempts", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_jobs_attempts_unlearned",
            sqlite_where=sa.text("learned_at IS NULL"),
            postgresql_where=sa.text("learned_at IS NULL"),
        )
        batch_op.drop_column("learned_at")

    with op.batch_alter_table("jobs_experience", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_jobs_experience_changed_at"))
        batch_op.drop_index(batch_op.f("ix_jobs_experience_change"))

    op.drop_table("jobs_experience")
