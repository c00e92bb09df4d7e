"""Fleets for benchmarks, as the files that a control plane is given."""

from __future__ import annotations

from pathlib import Path

TEMPLATE = """\
apiVersion: gpuplane.io/v1
kind: Fleet
metadata: {{name: {name}}}
spec:
  racks: [{racks}]
  nodeGroups:
    - name: node
      nodeName: node-{{index:05}}
      count: {node_count}
      gpus: {{model: {model}, count: {gpu_count}}}
      topology: {topology}
      cpu: 192
      memory: 2048Gi
      ephemeralStorage: 64Ti
      racks: [{rack_names}]
  prices: {{currency: USD, gpuHour: {{{model}: "2.99"}}, cpuCoreHour: "0.01"}}
  startDelay: {{value: {start_delay}}}
  stopDelay: {{value: 100ms}}
"""
NODES_PER_RACK = 4


def uniform_fleet(
    node_count: int,
    *,
    name: str = "bench",
    model: str = "H100-80GB",
    gpu_count: int = 8,
    topology: str = "nvswitch-8",
    start_delay: str = "0s",
) -> str:
    """Return the text of a fleet of equal nodes, four to a rack and sixteen racks to a block."""
    names = [f"rack-{i:04}" for i in range(-(-node_count // NODES_PER_RACK))]
    racks = [f"{{name: {rack}, block: block-{i // 16:03}}}" for i, rack in enumerate(names)]
    return TEMPLATE.format(
        name=name,
        racks=", ".join(racks),
        rack_names=", ".join(names),
        node_count=node_count,
        model=model,
        gpu_count=gpu_count,
        topology=topology,
        start_delay=start_delay,
    )


def write_uniform_fleet(path: Path, node_count: int, **options: str) -> Path:
    """Write such a fleet to a file and return its path."""
    path.write_text(uniform_fleet(node_count, **options), encoding="utf-8")  # type: ignore[arg-type]  # named texts
    return path
