"""Tests against a real API server; see rigged.py."""

from tests.kubernetes.rigged import (
    add_nodes,
    namespace,
    rig,
    rig_binaries,
    second_rig,
)

__all__ = ["add_nodes", "namespace", "rig", "rig_binaries", "second_rig"]
