"""A world to declare queues in."""

from tests.integration.jobs.conftest import any_world, sealing_keys, world

__all__ = ["any_world", "sealing_keys", "world"]
