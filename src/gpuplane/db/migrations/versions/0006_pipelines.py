"""Pipelines, their versions, triggers and firings, and what functions printed."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    op.create_table(
        "pipelines_pipelines",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("version_number", sa.Integer(), nullable=False),
        sa.Column("step_count", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.CheckConstraint("status IN ('active','archived')", name="pipelines_status_known"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("project_id", "name"),
    )
    op.create_table(
        "pipelines_versions",
        sa.Column("pipeline_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("step_count", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("may_critical", sa.Boolean(), nullable=False),
        sa.Column("rolled_back_from", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline_id", "number"),
    )
    op.create_table(
        "pipelines_logs",
        sa.Column("step_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("step_id", "attempt"),
    )
    op.create_index("ix_pipelines_logs_created_at", "pipelines_logs", ["created_at"])
    op.create_table(
        "pipelines_triggers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("pipeline_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("upstream", sa.String(length=63), nullable=True),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_pipelines_triggers_due", "pipelines_triggers", ["due_at"])
    op.create_index("ix_pipelines_triggers_pipeline", "pipelines_triggers", ["pipeline_id"])
    op.create_index(
        "ix_pipelines_triggers_upstream", "pipelines_triggers", ["project_id", "upstream"]
    )
    op.create_table(
        "pipelines_fires",
        sa.Column("trigger_id", sa.Uuid(), nullable=False),
        sa.Column("fire_key", sa.String(length=250), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("fired_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("trigger_id", "fire_key"),
    )
    op.create_index("ix_pipelines_fires_fired_at", "pipelines_fires", ["fired_at"])
    op.create_table(
        "pipelines_cursors",
        sa.Column("name", sa.String(length=50), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    """Take the schema back to the revision before."""
    for name in ("cursors", "fires", "triggers", "logs", "versions", "pipelines"):
        op.drop_table(f"pipelines_{name}")
