"""The simulated backend in the contract suite: a small fleet on the machine's own clock."""

from __future__ import annotations

import re
from pathlib import Path

from gpuplane.backends.simulated import SimulatedBackend, parse_fleet
from gpuplane.kit.clock import SystemClock

FLEET = """
apiVersion: gpuplane.io/v1
kind: Fleet
metadata: {name: contract}
spec:
  nodeGroups:
    - {name: plain, count: 1, cpu: 64, memory: 256Gi, ephemeralStorage: 1Ti}
    - name: sliced
      count: 1
      gpus: {model: A100-80GB, count: 1}
      mig: [{gpus: [0], layout: [1g.10gb@0, 1g.10gb@1, 3g.40gb@4]}]
      cpu: 64
      memory: 256Gi
      ephemeralStorage: 1Ti
"""
LABEL = re.compile(rb"^\S+Z \[simulated\] ", re.MULTILINE)


class SimulatedFactory:
    """Attempts that are arithmetic, in a state file of their own."""

    kind = "simulated"
    node_name = "plain-01"
    survives_restart = True

    def __init__(self, folder: Path) -> None:
        self.state_path = folder / "contract.db"
        self._backend: SimulatedBackend | None = None

    async def open(self) -> SimulatedBackend:
        await self.close()
        fleet = parse_fleet(FLEET, "contract.yaml")
        self._backend = SimulatedBackend(fleet, SystemClock(), seed=1, state_path=self.state_path)
        return self._backend

    async def pass_time(self, seconds: float) -> None:
        return None

    def plain(self, data: bytes) -> bytes:
        return LABEL.sub(b"", data)

    async def close(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None
