"""The rig shared by the whole run; see tests/kubernetes/rigged.py."""

from tests.kubernetes.rigged import add_nodes, namespace, rig, rig_binaries

__all__ = ["add_nodes", "namespace", "rig", "rig_binaries"]
