"""How long it takes from a submit to the first line of output that the client sees, locally."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time

from benchmarks.figures import Limit, print_figure, print_machine, quantile, timed_ms
from benchmarks.servers import Server, running_server, small_job

COMMAND = ["/bin/echo", "hello"]


def first_line_ms(server: Server, number: int) -> float:
    """Submit one job, follow its log, and return the time to the first line."""
    body = small_job(f"line-{number}", "local", spec={"command": COMMAND})
    with server.client() as client:
        client.get("/version")  # the connection is there, as a command line's is
        began = time.perf_counter()
        made = client.post("/jobs", json=body).raise_for_status().json()
        with client.stream("GET", f"/jobs/{made['id']}/logs", params={"follow": "true"}) as answer:
            for line in answer.iter_lines():
                if line.startswith("hello"):
                    return (time.perf_counter() - began) * 1000
    raise RuntimeError("the job printed nothing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    print_machine()
    spawned = [
        timed_ms(lambda: subprocess.run(COMMAND, capture_output=True, check=True))
        for _ in range(arguments.runs)
    ]
    with running_server() as server:
        first_line_ms(server, 0)
        took = [first_line_ms(server, number + 1) for number in range(arguments.runs)]
    print_figure(
        "submit to first line, local", took, "ms", Limit("at most", 200.0),
        ("a plain subprocess", statistics.median(spawned)),
    )  # fmt: skip
    print(f"submit to first line, local: p95 {quantile(took, 0.95):.4g} ms")


if __name__ == "__main__":
    main()
