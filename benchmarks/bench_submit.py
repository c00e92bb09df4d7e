"""How fast the API takes jobs, each durable before it is answered: one client, then 32."""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Limit, print_figure, print_machine, quantile, timed_ms
from benchmarks.servers import Connection, Server, running_server, small_job


def durable_inserts_ms(folder: Path, count: int) -> list[float]:
    """Return how long each of so many plain inserts takes, one durable commit each."""
    database = sqlite3.connect(folder / "reference.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, body TEXT)")
    body = "x" * 2_000

    def insert() -> None:
        database.execute("INSERT INTO rows (body) VALUES (?)", (body,))

    took = [timed_ms(insert) for _ in range(count)]
    database.close()
    return took


def one_client(server: Server, count: int) -> list[float]:
    """Return how long each of so many submits takes, one after the other."""
    took = []
    with server.client() as client:
        for number in range(-20, count):
            body = small_job(f"one-{number + 20}", gpu_count=8, gpu_type="nvidia-h100-80gb")

            def submit(body: dict[str, object] = body) -> None:
                client.post("/jobs", json=body).raise_for_status()

            took.append(timed_ms(submit))
    return took[20:]  # the first ones warm caches and connections


@dataclass(frozen=True, slots=True)
class Storm:
    """What a run of many clients took.

    Args:
        rate: Jobs a second.
        server_ms: CPU time of the server a job, until the last answer.
        client_ms: CPU time of the clients a job.
    """

    rate: float
    server_ms: float
    client_ms: float


async def many_clients(server: Server, clients: int, each: int, mark: str) -> Storm:
    """Let so many clients submit together, each one job after another on a connection it has."""
    connections = [Connection(server) for _ in range(clients)]

    async def one(number: int) -> None:
        for job in range(each):
            body = small_job(f"{mark}-{number}-{job}", gpu_count=8, gpu_type="nvidia-h100-80gb")
            await connections[number].post("/jobs", body)

    for connection in connections:
        await connection.open()
    count = clients * each
    server_s, client_s, began = server.cpu_s(), time.process_time(), time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(clients)))
    took_s = time.perf_counter() - began
    storm = Storm(
        count / took_s,
        1000 * (server.cpu_s() - server_s) / count,
        1000 * (time.process_time() - client_s) / count,
    )
    for connection in connections:
        connection.close()
    return storm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submits", type=int, default=200)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--each", type=int, default=40)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print_machine()
    with running_server() as server:
        reference = durable_inserts_ms(server.home, 200)
        took = one_client(server, arguments.submits)
        storms = [
            asyncio.run(many_clients(server, arguments.clients, arguments.each, f"many{run}"))
            for run in range(arguments.runs)
        ]
    plain = statistics.median(reference)
    print_figure(
        "submit, one client", took, "ms", Limit("at most", 10.0), ("a durable insert", plain)
    )
    print(f"submit, one client: p95 {quantile(took, 0.95):.4g} ms")
    print_figure(
        f"submit, {arguments.clients} clients", [each.rate for each in storms], "jobs/s",
        Limit("at least", 500.0), ("durable inserts one by one", 1000 / plain),
    )  # fmt: skip
    print_figure("CPU of the server a submit", [each.server_ms for each in storms], "ms")
    print_figure("CPU of the clients a submit", [each.client_ms for each in storms], "ms")


if __name__ == "__main__":
    main()
