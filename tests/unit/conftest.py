"""No network in this folder."""

from tests.offline import closed_sockets

__all__ = ["closed_sockets"]
