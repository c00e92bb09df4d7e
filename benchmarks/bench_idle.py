"""What a control plane costs that has nothing to do: CPU and memory after it has settled."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from benchmarks.figures import Limit, print_figure, print_machine
from benchmarks.servers import running_server

IMPORTS = "import fastapi, numpy, sqlalchemy.orm, uvicorn, uvloop, httpx2, cryptography.x509"


def imports_rss_mb() -> float:
    """Return the memory of a process that imports the libraries and does nothing else."""
    code = f"{IMPORTS}\nprint(open('/proc/self/statm').read().split()[1])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout) * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settle", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of one sample")
    parser.add_argument("--samples", type=int, default=3)
    arguments = parser.parse_args()
    print_machine()
    shares, memory = [], []
    with running_server() as server:
        time.sleep(arguments.settle)
        for _ in range(arguments.samples):
            began, cpu = time.monotonic(), server.cpu_s()
            time.sleep(arguments.seconds)
            shares.append(100 * (server.cpu_s() - cpu) / (time.monotonic() - began))
            memory.append(server.rss_mb())
    print_figure("idle CPU", shares, "% of a core", Limit("at most", 1.0))
    print_figure(
        "idle memory", memory, "MB", Limit("at most", 150.0),
        ("the libraries alone", imports_rss_mb()),
    )  # fmt: skip


if __name__ == "__main__":
    main()
