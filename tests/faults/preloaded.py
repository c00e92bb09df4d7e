"""What the nursery imports once: everything that a start of the control plane imports."""

import uvicorn.lifespan.off
import uvicorn.protocols.http.httptools_impl
import uvicorn.protocols.websockets.auto
import uvloop

import gpuplane.entry.control
import gpuplane.entry.server
from gpuplane.api.app import PREFIX, build_route
from gpuplane.api.routers import load_routers
from gpuplane.entry.metadata import load_metadata

load_metadata()
for router in load_routers():
    for route in router.routes:
        build_route(router, route, PREFIX + route.path)

__all__ = ["gpuplane", "uvicorn", "uvloop"]
