"""What a request becomes in the names of device plugins."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.backends.interface import BackendError
from gpuplane.backends.kubernetes.manifests.devices import compute_claim, total_of
from gpuplane.core.workloads import ResourceRequest


def asked(**fields: Any) -> ResourceRequest:
    """Return a request for one GPU, changed so."""
    return ResourceRequest(**{"gpu_count": 1, **fields})


@pytest.mark.parametrize(
    ("request_", "resources"),
    [
        (ResourceRequest(), {}),
        (asked(gpu_count=8), {"nvidia.com/gpu": 8}),
        (asked(gpu_model="nvidia-h100-80gb", gpu_count=2), {"nvidia.com/gpu": 2}),
        (asked(mig_profile="1g.10gb"), {"nvidia.com/mig-1g.10gb": 1}),
        (asked(mig_profile="1g.10gb+me"), {"nvidia.com/mig-1g.10gb.me": 1}),
        (asked(gpu_model="intel-gaudi2", gpu_count=4), {"habana.ai/gaudi": 4}),
        (asked(gpu_model="amd-mi300x"), {"amd.com/gpu": 1}),
        (asked(gpu_model="intel-flex-170"), {"gpu.intel.com/i915": 1}),
        (
            asked(gpu_milli=250),
            {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 25, "nvidia.com/gpumem-percentage": 25},
        ),
        (
            asked(gpu_milli=333, gpu_memory_mib=8000),
            {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 34, "nvidia.com/gpumem": 8000},
        ),
    ],
)
def test_each_kind_of_request_has_its_resources(
    request_: ResourceRequest, resources: dict[str, int]
) -> None:
    assert compute_claim(request_, ()).resources == resources


def test_only_a_share_needs_the_sharing_scheduler() -> None:
    assert compute_claim(asked(gpu_milli=500), ()).shares
    assert not compute_claim(asked(), ()).shares


def test_a_node_with_the_newer_intel_driver_counts_under_its_name() -> None:
    claim = compute_claim(asked(gpu_model="intel-max-1550"), (), has_xe=True)
    assert claim.resources == {"gpu.intel.com/xe": 1}


def test_chosen_gpus_are_told_to_the_device_layer() -> None:
    claim = compute_claim(asked(gpu_count=2), ("GPU-b", "GPU-a"))
    assert claim.annotations == {"gpuplane.io/gpu-ids": "GPU-b,GPU-a"}


def test_hami_is_told_uuids_and_never_names_of_our_own() -> None:
    known = compute_claim(asked(gpu_milli=500), ("GPU-a",)).annotations
    unknown = compute_claim(asked(gpu_milli=500), ("node-1/0",)).annotations
    assert known["nvidia.com/use-gpuuuid"] == "GPU-a"
    assert "nvidia.com/use-gpuuuid" not in unknown


@pytest.mark.parametrize(
    "request_",
    [
        asked(gpu_model="amd-mi300x", gpu_milli=500),
        asked(gpu_model="intel-gaudi2", mig_profile="1g.10gb"),
        asked(gpu_model="amd-mi300x|nvidia-h100-80gb"),
    ],
)
def test_what_no_device_plugin_gives_is_refused(request_: ResourceRequest) -> None:
    with pytest.raises(BackendError) as refused:
        compute_claim(request_, ())
    assert refused.value.word == "StartFailed"


def test_a_quota_counts_every_resource_of_every_replica() -> None:
    claims = [compute_claim(asked(gpu_milli=500), ()), compute_claim(asked(gpu_count=2), ())]
    assert total_of(claims) == {
        "nvidia.com/gpu": 3,
        "nvidia.com/gpucores": 50,
        "nvidia.com/gpumem-percentage": 50,
    }
