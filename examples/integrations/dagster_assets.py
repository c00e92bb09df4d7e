"""A Dagster asset that a run of a gpuplane pipeline makes; put gpuplane_runs.py beside it."""

from __future__ import annotations

from dagster import AssetExecutionContext, Definitions, MaterializeResult, RetryPolicy, asset
from gpuplane_runs import run_pipeline


@asset(retry_policy=RetryPolicy(max_retries=2))
def nightly_model(context: AssetExecutionContext) -> MaterializeResult:
    """The model that the pipeline `nightly` trains."""
    outputs = run_pipeline("nightly", {}, dedup_id=f"dagster-{context.run_id}")
    return MaterializeResult(metadata=outputs)


defs = Definitions(assets=[nightly_model])
