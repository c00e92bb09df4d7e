"""Since when a job counts as standing in line that was taken off its devices meanwhile."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    with op.batch_alter_table("jobs_jobs") as batch_op:
        batch_op.add_column(sa.Column("in_line_since", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Take the schema back to the revision before."""
    with op.batch_alter_table("jobs_jobs") as batch_op:
        batch_op.drop_column("in_line_since")
