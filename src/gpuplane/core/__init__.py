"""Decisions only: no I/O, no clock, no chance, no framework (numpy allowed)."""
