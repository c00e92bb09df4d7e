"""Every domain's router: a domain joins the API by having `endpoints.py` with a `router`."""

import importlib
import pkgutil

from fastapi import APIRouter

from gpuplane import domains


def load_routers() -> list[APIRouter]:
    """Return the routers of all domains: jobs, asked most, first; the others by name."""
    routers = []
    names = [found.name for found in pkgutil.iter_modules(domains.__path__)]
    for domain in sorted(names, key=lambda name: (name != "jobs", name)):
        name = f"{domains.__name__}.{domain}.endpoints"
        if importlib.util.find_spec(name) is not None:
            routers.append(importlib.import_module(name).router)
    return routers
