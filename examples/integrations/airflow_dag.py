"""An Airflow DAG whose task is a run of a gpuplane pipeline; put gpuplane_runs.py beside it."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.decorators import dag, task
from gpuplane_runs import run_pipeline


@dag(schedule="@daily", start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), catchup=False)
def nightly_training() -> None:
    """Train once a day and name what came out."""

    @task(retries=2)
    def train(run_id: str = "", ds: str = "") -> dict[str, Any]:
        # Airflow fills both in; a retry of the task has the same run_id and finds its run.
        return run_pipeline("nightly", {"day": ds}, dedup_id=f"airflow-{run_id}")

    @task
    def name(outputs: dict[str, Any]) -> list[str]:
        return sorted(outputs)

    name(train())


nightly_training()
