"""Durable runs: a DAG of steps in the database that survives any crash and shows each step."""
