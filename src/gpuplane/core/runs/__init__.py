"""Durable runs, decided: what runs consist of, what steps answer, what follows from it."""
