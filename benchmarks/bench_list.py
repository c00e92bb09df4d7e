"""How fast a page of 50 is listed out of 100,000 jobs, under every filter."""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.figures import Limit, print_figure, print_machine, quantile, timed_ms
from benchmarks.servers import running_server, small_job

PATTERNS = 200
STATUSES = ["completed"] * 90 + ["failed"] * 6 + ["cancelled"] * 4


def pattern(number: int) -> dict[str, Any]:
    """Return a job that differs from others in everything a list filters by."""
    return small_job(
        f"train-{number}",
        job_type=("batch", "training")[number % 2],
        priority=("low", "normal", "high", "critical")[number % 4],
        gpu_type=("nvidia-h100-80gb", "nvidia-l4")[number % 2],
        gpu_count=1 + number % 4,
        labels={"team": f"team-{number % 10}", "stage": ("dev", "prod")[number % 2]},
        cost_centre=f"cc-{number % 20}",
        data_classification=("public", "internal")[number % 2],
        **({"source_type": "pipeline", "source_id": f"source-{number % 30}"} if number % 2 else {}),
    )


def multiply(path: Path, wanted: int) -> None:
    """Copy the jobs of a database, with ids, names, ends and ages of their own, up to a number."""
    chance = random.Random(1)
    database = sqlite3.connect(path)
    names = [row[1] for row in database.execute("PRAGMA table_info(jobs_jobs)")]
    rows = database.execute("SELECT * FROM jobs_jobs").fetchall()
    labels = database.execute("SELECT key, value, job_id FROM jobs_labels").fetchall()
    by_job: dict[str, list[tuple[str, str]]] = {}
    for key, value, job_id in labels:
        by_job.setdefault(job_id, []).append((key, value))
    where = {name: index for index, name in enumerate(names)}
    now = int(time.time() * 1000)
    made, made_labels = [], []
    for number in range(wanted - len(rows)):
        source = rows[number % len(rows)]
        row = list(source)
        row[where["id"]] = uuid.uuid4().hex
        row[where["name"]] = f"train-{number}"
        row[where["status"]] = chance.choice(STATUSES)
        row[where["created_at"]] = now - chance.randrange(30 * 86_400_000)
        row[where["actual_end"]] = row[where["created_at"]] + 60_000
        made.append(row)
        for key, value in by_job.get(source[where["id"]], []):
            made_labels.append((key, value, row[where["created_at"]], row[where["id"]]))
    holes = ",".join("?" * len(names))
    database.executemany(f"INSERT INTO jobs_jobs VALUES ({holes})", made)
    database.executemany(
        "INSERT INTO jobs_labels (key, value, created_at, job_id) VALUES (?,?,?,?)", made_labels
    )
    database.commit()
    database.execute("ANALYZE")
    database.close()


def filters_of(client: httpx2.Client) -> dict[str, dict[str, Any]]:
    """Return every filter of the list, by what it is called here."""
    one = client.get("/jobs", params={"limit": 1}).json()["items"][0]
    day = time.strftime("%Y-%m-%dT00:00:00Z", time.gmtime(time.time() - 3 * 86_400))
    plain: dict[str, Any] = {
        "nothing": {},
        "status common": {"status": "completed"},
        "status rare": {"status": "cancelled"},
        "status absent": {"status": "running"},
        "two statuses": {"status": ["failed", "cancelled"]},
        "job_type": {"job_type": "training"},
        "priority": {"priority": "critical"},
        "cluster": {"cluster": "demo"},
        "tenant": {"tenant_id": one["tenant_id"]},
        "project": {"project_id": one["project_id"]},
        "user": {"user_id": one["user_id"]},
        "source_type": {"source_type": "pipeline"},
        "source_id": {"source_type": "pipeline", "source_id": "source-1"},
        "name": {"name": "train-77"},
        "label": {"label": "team=team-3"},
        "two labels": {"label": ["team=team-3", "stage=prod"]},
        "label, status": {"label": "team=team-3", "status": "cancelled"},
        "gpu_type": {"gpu_type": "nvidia-l4"},
        "cost_centre": {"cost_centre": "cc-7"},
        "data_classification": {"data_classification": "internal"},
        "created_since": {"created_since": day},
        "created_until": {"created_until": day},
        "tenant, status": {"tenant_id": one["tenant_id"], "status": "failed"},
        "cluster, status, priority": {
            "cluster": "demo", "status": "cancelled", "priority": "low",
        },
        "oldest first": {"sort": "created_at"},
        "by name": {"sort": "name"},
    }  # fmt: skip
    return plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=40)
    arguments = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as folder:
        home = Path(folder) / "home"
        with running_server(home) as server, server.client() as client:
            for number in range(PATTERNS):
                answer = client.post("/jobs", json=pattern(number))
                if answer.is_error:
                    raise RuntimeError(answer.text)
                made = answer.json()
                client.delete(f"/jobs/{made['id']}")
            while client.get("/jobs", params={"status": ["running", "scheduled"]}).json()["items"]:
                time.sleep(0.1)
        multiply(home / "gpuplane.db", arguments.jobs)
        with running_server(home) as server, server.client() as client:
            plain = [timed_ms(lambda: client.get("/version")) for _ in range(arguments.runs)]
            worst: tuple[float, str] = (0.0, "")
            for name, wanted in filters_of(client).items():
                params = {"limit": 50, **wanted}

                def page(params: dict[str, Any] = params) -> None:
                    client.get("/jobs", params=params).raise_for_status()

                page()
                took = [timed_ms(page) for _ in range(arguments.runs)]
                late = quantile(took, 0.95)
                worst = max(worst, (late, name))
                print_figure(
                    f"list 50 by {name}", took, "ms", Limit("at most", 20.0),
                    ("an empty request", statistics.median(plain)), judged=late,
                )  # fmt: skip
    print(f"list 50 of {arguments.jobs}: worst p95 {worst[0]:.4g} ms, by {worst[1]}")


if __name__ == "__main__":
    main()
