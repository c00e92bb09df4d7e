"""What every forecast keeps."""

from __future__ import annotations

from hypothesis import given

from gpuplane.core.forecast.forecasting import forecast
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import Policy
from tests.builders import NOW, World
from tests.examples import examples
from tests.property.test_scheduling import policies, worlds


@examples(40)
@given(worlds(), policies)
def test_a_forecast_is_ordered_repeatable_and_starts_now_what_starts_now(
    world: World, policy: Policy
) -> None:
    snapshot = world.snapshot()
    found = forecast(snapshot, policy, NOW, 3)
    assert forecast(snapshot, policy, NOW, 3) == found
    for estimate in found.estimates.values():
        assert NOW <= estimate.low <= estimate.start < estimate.end
        if estimate.high is not None and estimate.end_high is not None:
            assert estimate.start <= estimate.high < estimate.end_high
    decision = decide(snapshot, policy, NOW, 3)
    for placed in decision.placed:
        assert found.estimates[placed.job_id].start == NOW
    for verdict in decision.waiting:
        if verdict.job_id in found.estimates:
            assert found.estimates[verdict.job_id].start > NOW
