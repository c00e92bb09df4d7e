"""A world to operate."""

from tests.integration.jobs.conftest import any_world, sealing_keys, world

__all__ = ["any_world", "sealing_keys", "world"]
