"""A control plane as its users start it: a process of its own on a new home."""

from __future__ import annotations

import asyncio
import contextlib
import json
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


class Connection:
    """One kept connection that posts JSON and reads the answer, at a 20th of a millisecond each.

    A general client takes one to two milliseconds of CPU a request: on a machine of two cores it
    would be the client that is measured.
    """

    def __init__(self, server: Server) -> None:
        """Say whom to ask; nothing is opened yet."""
        self._host, _, port = server.url.removeprefix("http://").rpartition(":")
        self._port = int(port)
        self._token = server.token
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def post(self, path: str, body: object) -> bytes:
        """Return the body of the answer to a POST.

        Raises:
            RuntimeError: If the answer is no success; holds what was answered.
        """
        assert self._reader is not None, "open() comes first"
        assert self._writer is not None, "open() comes first"
        content = json.dumps(body).encode()
        head = (
            f"POST /api/v1{path} HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        told = await self._reader.readexactly(length)
        if answer[9:10] != b"2":
            raise RuntimeError(told.decode())
        return told

    def close(self) -> None:
        """Let go."""
        if self._writer is not None:
            self._writer.close()


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
