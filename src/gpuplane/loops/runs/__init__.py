"""Runs steps: claims what is due, calls handlers, stores answers."""
