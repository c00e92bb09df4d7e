"""Which attempts have replicas that their cluster's Kueue admits one by one."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    with op.batch_alter_table("jobs_attempts") as batch_op:
        batch_op.add_column(
            sa.Column("by_pod", sa.Boolean(), nullable=False, server_default=sa.false())
        )


def downgrade() -> None:
    """Take the schema back to the revision before."""
    with op.batch_alter_table("jobs_attempts") as batch_op:
        batch_op.drop_column("by_pod")
