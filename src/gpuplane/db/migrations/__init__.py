"""Alembic's scripts; run by `db.schema`, never by hand."""
