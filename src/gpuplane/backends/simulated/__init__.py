"""A cluster that exists only as arithmetic; what it offers is named here."""

from gpuplane.backends.simulated.backend import SimulatedBackend
from gpuplane.backends.simulated.fleet import Fleet
from gpuplane.backends.simulated.loader import load_demo_fleet, load_fleet, parse_fleet
from gpuplane.backends.simulated.reading import FleetError
from gpuplane.backends.simulated.trace import fleet_from_trace

__all__ = [
    "Fleet",
    "FleetError",
    "SimulatedBackend",
    "fleet_from_trace",
    "load_demo_fleet",
    "load_fleet",
    "parse_fleet",
]
