"""How a GPU can be cut into MIG instances, as the device itself reports."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema here from the revision before."""
    json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    with op.batch_alter_table("nodes_gpus", schema=None) as batch_op:
        batch_op.add_column(sa.Column("mig_table", json, nullable=True))


def downgrade() -> None:
    """Take the schema back to the revision before."""
    with op.batch_alter_table("nodes_gpus", schema=None) as batch_op:
        batch_op.drop_column("mig_table")
