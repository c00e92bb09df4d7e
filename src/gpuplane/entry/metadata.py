"""All tables in one place: importing this module registers every domain's tables."""

import importlib
import pkgutil

from sqlalchemy import MetaData

from gpuplane import domains
from gpuplane.db import idempotency, leases
from gpuplane.db.types import Base

__all__ = ["idempotency", "leases", "load_metadata"]


def load_metadata() -> MetaData:
    """Return the metadata with every table of the product."""
    for found in pkgutil.iter_modules(domains.__path__):
        importlib.import_module(f"{domains.__name__}.{found.name}.tables")
    return Base.metadata
