"""Engines, units of work, leases and migrations; knows no domain."""

from gpuplane.db.database import Database
from gpuplane.db.sessions import ReadSession, WriteSession

__all__ = ["Database", "ReadSession", "WriteSession"]
