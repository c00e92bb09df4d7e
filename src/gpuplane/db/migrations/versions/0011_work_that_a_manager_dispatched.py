"""Which worker a MultiKueue manager dispatched an offer to, and by whom an attempt was dispatched."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

OFFERS = (
    ("worker_id", sa.Uuid()),
    ("taken_at", sa.BigInteger()),
    ("worker_told_at", sa.BigInteger()),
)
ATTEMPTS = (("manager_id", sa.Uuid()), ("manager_told_at", sa.BigInteger()))


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    for table, columns in (("jobs_offers", OFFERS), ("jobs_attempts", ATTEMPTS)):
        with op.batch_alter_table(table) as batch_op:
            for name, kind in columns:
                batch_op.add_column(sa.Column(name, kind, nullable=True))
    op.create_index("ix_jobs_offers_worker", "jobs_offers", ["worker_id", "state"])
    op.create_index("ix_jobs_attempts_manager", "jobs_attempts", ["manager_id", "manager_told_at"])


def downgrade() -> None:
    """Take the schema back to the revision before."""
    op.drop_index("ix_jobs_attempts_manager", table_name="jobs_attempts")
    op.drop_index("ix_jobs_offers_worker", table_name="jobs_offers")
    for table, columns in (("jobs_offers", OFFERS), ("jobs_attempts", ATTEMPTS)):
        with op.batch_alter_table(table) as batch_op:
            for name, _ in columns:
                batch_op.drop_column(name)
