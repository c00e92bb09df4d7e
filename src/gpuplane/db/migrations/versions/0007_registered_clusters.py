"""Clusters registered by kubeconfig: credentials, keys, add-ons, health, and what nodes are."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_CLUSTER_COLUMNS = (
    "platform",
    "role",
    "server_url",
    "host",
    "ingress_url",
    "enable_master_node",
    "kubernetes_version",
    "distribution",
    "attributes",
    "last_metrics_collection",
    "metrics_collection_status",
    "last_retry_at",
    "next_try_at",
    "failures",
    "failed_at",
    "health",
    "run_id",
    "deleted_at",
)
_NODE_COLUMNS = (
    "uid",
    "kind",
    "internal_ip",
    "unschedulable",
    "is_counted",
    "threads_per_core",
    "core_count",
    "hardware_info",
    "conditions",
    "nfd_detected",
    "nfd_labels",
    "detection_method",
    "kernel_info",
    "driver_info",
    "status_sync_at",
)


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

    def text(name: str, length: int, otherwise: str = "") -> sa.Column[str]:
        return sa.Column(name, sa.String(length), nullable=False, server_default=otherwise)

    def flag(name: str, otherwise: str) -> sa.Column[bool]:
        return sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.text(otherwise))

    def document(name: str, otherwise: str = "{}") -> sa.Column[object]:
        return sa.Column(name, json, nullable=False, server_default=otherwise)

    def instant(name: str) -> sa.Column[int]:
        return sa.Column(name, sa.BigInteger(), nullable=True)

    with op.batch_alter_table("clusters_clusters", schema=None) as batch_op:
        batch_op.add_column(text("platform", 20, "ON_PREM"))
        batch_op.add_column(text("role", 20, "worker"))
        batch_op.add_column(text("server_url", 500))
        batch_op.add_column(text("host", 253))
        batch_op.add_column(text("ingress_url", 500))
        batch_op.add_column(flag("enable_master_node", "false"))
        batch_op.add_column(text("kubernetes_version", 40))
        batch_op.add_column(text("distribution", 20))
        batch_op.add_column(document("attributes"))
        batch_op.add_column(instant("last_metrics_collection"))
        batch_op.add_column(sa.Column("metrics_collection_status", sa.String(50), nullable=True))
        batch_op.add_column(instant("last_retry_at"))
        batch_op.add_column(instant("next_try_at"))
        batch_op.add_column(sa.Column("failures", sa.Integer(), nullable=False, server_default="0"))
        batch_op.add_column(document("failed_at", "[]"))
        batch_op.add_column(document("health", "[]"))
        batch_op.add_column(sa.Column("run_id", sa.Uuid(), nullable=True))
        batch_op.add_column(instant("deleted_at"))
        batch_op.create_index(batch_op.f("ix_clusters_clusters_platform"), ["platform"])
    _make_tables()
    with op.batch_alter_table("nodes_nodes", schema=None) as batch_op:
        batch_op.add_column(text("uid", 64))
        batch_op.add_column(text("kind", 10, "WORKER"))
        batch_op.add_column(text("internal_ip", 64))
        batch_op.add_column(flag("unschedulable", "false"))
        batch_op.add_column(flag("is_counted", "true"))
        batch_op.add_column(sa.Column("threads_per_core", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("core_count", sa.Integer(), nullable=True))
        batch_op.add_column(document("hardware_info"))
        batch_op.add_column(document("conditions", "[]"))
        batch_op.add_column(flag("nfd_detected", "false"))
        batch_op.add_column(document("nfd_labels"))
        batch_op.add_column(text("detection_method", 40, "backend"))
        batch_op.add_column(document("kernel_info"))
        batch_op.add_column(document("driver_info"))
        batch_op.add_column(instant("status_sync_at"))


def _make_tables() -> None:
    op.create_table(
        "clusters_credentials",
        sa.Column("cluster_id", sa.Uuid(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("context", sa.String(253), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("stored_at", sa.BigInteger(), nullable=False),
        sa.Column("stored_by", sa.String(200), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters_clusters.id"]),
        sa.PrimaryKeyConstraint("cluster_id"),
    )
    op.create_table(
        "clusters_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("cluster_id", sa.Uuid(), nullable=False),
        sa.Column("key_hash", sa.String(64), nullable=False),
        sa.Column("hint", sa.String(20), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.Column("issued_by", sa.String(200), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters_clusters.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key_hash"),
    )
    op.create_index("ix_clusters_keys_cluster_id", "clusters_keys", ["cluster_id"])
    op.create_table(
        "clusters_addons",
        sa.Column("cluster_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("release_name", sa.String(63), nullable=False),
        sa.Column("namespace", sa.String(63), nullable=False),
        sa.Column("chart", sa.String(200), nullable=False),
        sa.Column("chart_version", sa.String(40), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state IN ('installed','adopted','present','failed','left_out','removed')",
            name="clusters_addon_state_known",
        ),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters_clusters.id"]),
        sa.PrimaryKeyConstraint("cluster_id", "name"),
    )


def downgrade() -> None:
    """Take the schema back to the revision before."""
    with op.batch_alter_table("nodes_nodes", schema=None) as batch_op:
        for name in reversed(_NODE_COLUMNS):
            batch_op.drop_column(name)
    op.drop_table("clusters_addons")
    op.drop_table("clusters_keys")
    op.drop_table("clusters_credentials")
    with op.batch_alter_table("clusters_clusters", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_clusters_clusters_platform"))
        for name in reversed(_CLUSTER_COLUMNS):
            batch_op.drop_column(name)
