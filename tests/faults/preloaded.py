"""What the nursery imports once: everything that a start of the control plane imports."""

import uvicorn.lifespan.off
import uvicorn.protocols.http.httptools_impl
import uvicorn.protocols.websockets.auto
import uvloop

import gpuplane.entry.control
import gpuplane.entry.server
from gpuplane.api.routers import load_routers
from gpuplane.entry.metadata import load_metadata

load_metadata()
load_routers()

__all__ = ["gpuplane", "uvicorn", "uvloop"]
