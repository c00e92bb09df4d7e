"""Runs revisions on the connection that `db.schema` hands over."""

from typing import Any, Literal

from alembic import context
from sqlalchemy import JSON

from gpuplane.db.types import JsonOf


def render_item(kind: str, value: Any, _context: Any) -> str | Literal[False]:
    """Write our own column types as what the database stores."""
    if kind == "type" and isinstance(value, JsonOf):
        return "sa.Text()"
    if kind == "type" and isinstance(value, JSON):
        return 'sa.JSON().with_variant(postgresql.JSONB(), "postgresql")'
    return False


connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=context.config.attributes.get("metadata"),
    render_as_batch=connection.dialect.name == "sqlite",
    render_item=render_item,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
