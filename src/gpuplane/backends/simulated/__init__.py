"""A cluster that exists only as arithmetic; what it offers is named here."""

from gpuplane.backends.simulated.backend import SimulatedBackend
from gpuplane.backends.simulated.fleet import Fleet
from gpuplane.backends.simulated.loader import load_demo_fleet, load_fleet, parse_fleet
from gpuplane.backends.simulated.reading import FleetError

__all__ = [
    "Fleet",
    "FleetError",
    "SimulatedBackend",
    "load_demo_fleet",
    "load_fleet",
    "parse_fleet",
]
