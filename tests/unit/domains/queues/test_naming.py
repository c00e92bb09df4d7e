"""Which flavors name a GPU model, and which are free names."""

from __future__ import annotations

import pytest

from gpuplane.core.quota.specs import FlavorResource
from gpuplane.domains.queues.rules import find_unknown_model

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("flavor", "resource", "found"),
    [
        ("h1000", GPU, "h1000"),
        ("h1000", "nvidia.com/mig-1g.10gb", "h1000"),
        ("nvidia-h100-80gb", GPU, None),
        ("any", GPU, None),
        ("home-made", GPU, None),
        ("on-demand", "cpu", None),
    ],
)
def test_a_flavor_of_gpus_names_a_model_of_the_table_or_the_cluster_or_any(
    flavor: str, resource: str, found: str | None
) -> None:
    quotas = [FlavorResource("nvidia-t4", GPU), FlavorResource(flavor, resource)]
    assert find_unknown_model(quotas, {"home-made"}) == found
