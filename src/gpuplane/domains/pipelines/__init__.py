"""Pipelines: documents of steps, kept in immutable versions and run by the durable engine."""
