"""The node that this machine is, and the number that grows when it changes."""

import hashlib
import threading
from pathlib import Path

from gpuplane.backends.interface import NodeObservation
from gpuplane.backends.local import machine
from gpuplane.backends.local.folders import read_json
from gpuplane.backends.local.gpus import LocalGpus
from gpuplane.backends.local.supervisor import records

_FILE = "inventory.json"


class LocalInventory:
    """Looks at this machine; remembers its generation over restarts."""

    def __init__(self, root: Path, node_name: str, gpus: LocalGpus) -> None:
        self._root = root
        self._node_name = node_name
        self._gpus = gpus
        self._lock = threading.Lock()
        known = read_json(root / _FILE) or {}
        self._generation = int(known.get("generation") or 0)
        self._digest = str(known.get("digest") or "")

    def look(self) -> tuple[int, NodeObservation]:
        """Return the generation and this machine as a node."""
        view = self._gpus.look()
        node = machine.observe_machine(self._node_name, view.gpus, view.topology, view.message)
        digest = _digest(node)
        with self._lock:
            if digest != self._digest:
                self._generation += 1
                self._digest = digest
                record = {"generation": self._generation, "digest": digest}
                records.write_record(str(self._root / _FILE), record)
            return self._generation, node


def _digest(node: NodeObservation) -> str:
    """Return a digest of what placement depends on, and nothing that moves all the time."""
    gpus = [
        (g.gpu_id, g.index, g.model, g.memory_mib, g.healthy, g.mig_enabled, g.mig_instances)
        for g in node.gpus
    ]
    facts = (node.name, node.cpu_milli, node.memory_mib, node.ephemeral_mib, node.topology, gpus)
    return hashlib.sha256(repr(facts).encode()).hexdigest()
