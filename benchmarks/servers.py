"""A control plane as its users start it: a process of its own on a new home."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

START_S = 120.0


@dataclass
class Server:
    """A running control plane."""

    process: subprocess.Popen[bytes]
    home: Path
    url: str
    token: str

    @property
    def api(self) -> str:
        """Return the address of the API."""
        return self.url + "/api/v1"

    @property
    def headers(self) -> dict[str, str]:
        """Return what an administrator's requests carry."""
        return {"Authorization": f"Bearer {self.token}"}

    def client(self) -> httpx2.Client:
        """Return a client that keeps its connection."""
        return httpx2.Client(base_url=self.api, headers=self.headers, timeout=60, trust_env=False)

    def cpu_s(self) -> float:
        """Return the CPU time the process has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        """Return the memory the process holds now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.contextmanager
def running_server(home: Path | None = None) -> Iterator[Server]:
    """Start a control plane for the length of a `with` block."""
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as folder:
        own = home or Path(folder) / "home"
        kept = {name: value for name, value in os.environ.items() if name[:9] != "GPUPLANE_"}
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuplane", "up"],
            env={**kept, "GPUPLANE_HOME": str(own), "GPUPLANE_PORT": "0"},
            stdout=subprocess.DEVNULL,
        )
        try:
            address = own / "address"
            until = time.monotonic() + START_S
            while not address.exists():
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError("the control plane does not start")
                time.sleep(0.05)
            yield Server(
                process, own, address.read_text().strip(), (own / "admin-token").read_text().strip()
            )
        finally:
            process.terminate()
            process.wait(60)


def small_job(name: str, cluster: str = "demo", **more: Any) -> dict[str, Any]:
    """Return the body of a plain job."""
    spec = {"simulated": {"duration_s": 3600.0}} if cluster == "demo" else {"command": ["true"]}
    return {
        "name": name,
        "cluster": cluster,
        "cpu_cores": 0.1,
        "memory_gb": 0.1,
        "spec": spec,
    } | more
