"""The rig shared by the whole run; see tests/kubernetes/rigged.py."""

from tests.kubernetes.rigged import namespace, rig, rig_binaries

__all__ = ["namespace", "rig", "rig_binaries"]
