"""durable runs."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    op.create_table(
        "runs_cache",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("handler", sa.String(length=100), nullable=False),
        sa.Column("step_key", sa.String(length=300), nullable=False),
        sa.Column("salt_hash", sa.String(length=64), nullable=False),
        sa.Column("input_hash", sa.String(length=64), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key"),
    )
    with op.batch_alter_table("runs_cache", schema=None) as batch_op:
        batch_op.create_index("ix_runs_cache_expires", ["expires_at"], unique=False)
        batch_op.create_index(
            "ix_runs_cache_step", ["project_id", "handler", "step_key", "at"], unique=False
        )

    op.create_table(
        "runs_events",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.String(length=300), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("runs_events", schema=None) as batch_op:
        batch_op.create_index("ix_runs_events_at", ["at"], unique=False)
        batch_op.create_index("ix_runs_events_key", ["key", "id"], unique=False)
        batch_op.create_index("ix_runs_events_run", ["run_id"], unique=False)

    op.create_table(
        "runs_places",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("key", sa.String(length=250), nullable=False),
        sa.Column("holder_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.CheckConstraint("kind IN ('run','step')", name="runs_place_kind_known"),
        sa.PrimaryKeyConstraint("project_id", "kind", "key", "holder_id"),
    )
    with op.batch_alter_table("runs_places", schema=None) as batch_op:
        batch_op.create_index("ix_runs_places_holder", ["holder_id"], unique=False)
        batch_op.create_index("ix_runs_places_run", ["run_id"], unique=False)

    op.create_table(
        "runs_runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=250), nullable=False),
        sa.Column("source_id", sa.Uuid(), nullable=True),
        sa.Column("source_version", sa.Integer(), nullable=True),
        sa.Column("trigger", sa.String(length=100), nullable=False),
        sa.Column("dedup_id", sa.String(length=250), nullable=True),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("condition", sa.String(length=20), nullable=False),
        sa.Column("on_failure", sa.String(length=20), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("context", sa.Text(), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("traceparent", sa.String(length=100), nullable=True),
        sa.Column("forked_from", sa.Uuid(), nullable=True),
        sa.Column("max_parallel", sa.Integer(), nullable=True),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=True),
        sa.Column("deadline_at", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("step_count", sa.Integer(), nullable=False),
        sa.Column("next_seq", sa.Integer(), nullable=False),
        sa.Column("left", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("active", sa.Integer(), nullable=False),
        sa.Column("output_bytes", sa.BigInteger(), nullable=False),
        sa.Column("verdict", sa.String(length=20), nullable=False),
        sa.Column("undoes", sa.Boolean(), nullable=False),
        sa.Column("error", sa.String(length=100), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("told_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "status IN ('pending','running','completed','partial','failed','cancelled')",
            name="runs_run_status_known",
        ),
        sa.CheckConstraint('"left" >= 0 AND active >= 0', name="runs_run_counts"),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("runs_runs", schema=None) as batch_op:
        batch_op.create_index("ix_runs_runs_created", ["created_at", "id"], unique=False)
        batch_op.create_index(
            "ix_runs_runs_ended",
            ["ended_at"],
            unique=False,
            sqlite_where=sa.text("ended_at IS NOT NULL"),
            postgresql_where=sa.text("ended_at IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_runs_runs_expires",
            ["expires_at"],
            unique=False,
            sqlite_where=sa.text("expires_at IS NOT NULL"),
            postgresql_where=sa.text("expires_at IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_runs_runs_open",
            ["project_id", "source_id"],
            unique=False,
            sqlite_where=sa.text("status IN ('pending','running')"),
            postgresql_where=sa.text("status IN ('pending','running')"),
        )
        batch_op.create_index(
            "ix_runs_runs_project", ["project_id", "created_at", "id"], unique=False
        )
        batch_op.create_index(
            "ix_runs_runs_source",
            ["source_id", "created_at", "id"],
            unique=False,
            sqlite_where=sa.text("source_id IS NOT NULL"),
            postgresql_where=sa.text("source_id IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_runs_runs_tenant", ["tenant_id", "created_at", "id"], unique=False
        )
        batch_op.create_index(
            "ux_runs_runs_dedup",
            ["project_id", "dedup_id"],
            unique=True,
            sqlite_where=sa.text("dedup_id IS NOT NULL"),
            postgresql_where=sa.text("dedup_id IS NOT NULL"),
        )

    op.create_table(
        "runs_steps",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=False),
        sa.Column("undo_of", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=300), nullable=False),
        sa.Column("handler", sa.String(length=100), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("needs", sa.Text(), nullable=False),
        sa.Column("followers", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("condition", sa.String(length=20), nullable=False),
        sa.Column("needs_left", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("held_at", sa.BigInteger(), nullable=True),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("limited_by", sa.String(length=10), nullable=False),
        sa.Column("run_slot", sa.Boolean(), nullable=False),
        sa.Column("kin_slot", sa.Boolean(), nullable=False),
        sa.Column("key_slot", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("wait_key", sa.String(length=300), nullable=True),
        sa.Column("wait_until", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("event", sa.Text(), nullable=True),
        sa.Column("join", sa.String(length=10), nullable=False),
        sa.Column("join_count", sa.Integer(), nullable=False),
        sa.Column("kids_left", sa.Integer(), nullable=False),
        sa.Column("kids_done", sa.Integer(), nullable=False),
        sa.Column("kids_active", sa.Integer(), nullable=False),
        sa.Column("kids_parallel", sa.Integer(), nullable=True),
        sa.Column("stopping", sa.Integer(), nullable=False),
        sa.Column("done_no", sa.Integer(), nullable=False),
        sa.Column("error", sa.String(length=100), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("cache_note", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("output", sa.Text(), nullable=True),
        sa.CheckConstraint("(owner IS NOT NULL) = (status = 'running')", name="runs_step_owned"),
        sa.CheckConstraint(
            "status IN ('waiting','pending','running','completed','failed','skipped','cancelled')",
            name="runs_step_status_known",
        ),
        sa.CheckConstraint("needs_left >= 0 AND kids_left >= 0", name="runs_step_counts"),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("runs_steps", schema=None) as batch_op:
        batch_op.create_index(
            "ix_runs_steps_awaiting",
            ["wait_key"],
            unique=False,
            sqlite_where=sa.text("wait_key IS NOT NULL"),
            postgresql_where=sa.text("wait_key IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_runs_steps_due",
            ["due_at", "id"],
            unique=False,
            sqlite_where=sa.text("due_at IS NOT NULL"),
            postgresql_where=sa.text("due_at IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_runs_steps_limited",
            ["run_id", "limited_by", "parent", "seq"],
            unique=False,
            sqlite_where=sa.text("condition = 'Limited'"),
            postgresql_where=sa.text("condition = 'Limited'"),
        )
        batch_op.create_index(
            "ix_runs_steps_owner",
            ["owner"],
            unique=False,
            sqlite_where=sa.text("owner IS NOT NULL"),
            postgresql_where=sa.text("owner IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_runs_steps_parent",
            ["run_id", "parent", "seq"],
            unique=False,
            sqlite_where=sa.text("parent > 0"),
            postgresql_where=sa.text("parent > 0"),
        )
        batch_op.create_index(
            "ix_runs_steps_parked",
            ["handler"],
            unique=False,
            sqlite_where=sa.text("condition = 'NoHandler'"),
            postgresql_where=sa.text("condition = 'NoHandler'"),
        )

    op.create_table(
        "runs_workers",
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("handlers", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner"),
    )


def downgrade() -> None:
    """Undo this revision."""
    op.drop_table("runs_workers")
    with op.batch_alter_table("runs_steps", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_runs_steps_parked",
            sqlite_where=sa.text("condition = 'NoHandler'"),
            postgresql_where=sa.text("condition = 'NoHandler'"),
        )
        batch_op.drop_index(
            "ix_runs_steps_parent",
            sqlite_where=sa.text("parent > 0"),
            postgresql_where=sa.text("parent > 0"),
        )
        batch_op.drop_index(
            "ix_runs_steps_owner",
            sqlite_where=sa.text("owner IS NOT NULL"),
            postgresql_where=sa.text("owner IS NOT NULL"),
        )
        batch_op.drop_index(
            "ix_runs_steps_limited",
            sqlite_where=sa.text("condition = 'Limited'"),
            postgresql_where=sa.text("condition = 'Limited'"),
        )
        batch_op.drop_index(
            "ix_runs_steps_due",
            sqlite_where=sa.text("due_at IS NOT NULL"),
            postgresql_where=sa.text("due_at IS NOT NULL"),
        )
        batch_op.drop_index(
            "ix_runs_steps_awaiting",
            sqlite_where=sa.text("wait_key IS NOT NULL"),
            postgresql_where=sa.text("wait_key IS NOT NULL"),
        )

    op.drop_table("runs_steps")
    with op.batch_alter_table("runs_runs", schema=None) as batch_op:
        batch_op.drop_index(
            "ux_runs_runs_dedup",
            sqlite_where=sa.text("dedup_id IS NOT NULL"),
            postgresql_where=sa.text("dedup_id IS NOT NULL"),
        )
        batch_op.drop_index("ix_runs_runs_tenant")
        batch_op.drop_index(
            "ix_runs_runs_source",
            sqlite_where=sa.text("source_id IS NOT NULL"),
            postgresql_where=sa.text("source_id IS NOT NULL"),
        )
        batch_op.drop_index("ix_runs_runs_project")
        batch_op.drop_index(
            "ix_runs_runs_open",
            sqlite_where=sa.text("status IN ('pending','running')"),
            postgresql_where=sa.text("status IN ('pending','running')"),
        )
        batch_op.drop_index(
            "ix_runs_runs_expires",
            sqlite_where=sa.text("expires_at IS NOT NULL"),
            postgresql_where=sa.text("expires_at IS NOT NULL"),
        )
        batch_op.drop_index(
            "ix_runs_runs_ended",
            sqlite_where=sa.text("ended_at IS NOT NULL"),
            postgresql_where=sa.text("ended_at IS NOT NULL"),
        )
        batch_op.drop_index("ix_runs_runs_created")

    op.drop_table("runs_runs")
    with op.batch_alter_table("runs_places", schema=None) as batch_op:
        batch_op.drop_index("ix_runs_places_run")
        batch_op.drop_index("ix_runs_places_holder")

    op.drop_table("runs_places")
    with op.batch_alter_table("runs_events", schema=None) as batch_op:
        batch_op.drop_index("ix_runs_events_run")
        batch_op.drop_index("ix_runs_events_key")
        batch_op.drop_index("ix_runs_events_at")

    op.drop_table("runs_events")
    with op.batch_alter_table("runs_cache", schema=None) as batch_op:
        batch_op.drop_index("ix_runs_cache_step")
        batch_op.drop_index("ix_runs_cache_expires")

    op.drop_table("runs_cache")
