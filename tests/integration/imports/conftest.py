"""A working control plane for each test that runs what was imported."""

from tests.integration.pipelines.conftest import sealing_keys, world

__all__ = ["sealing_keys", "world"]
