"""What is told when a GPU stops or begins to be had."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from gpuplane.core.ids import ClusterId, GpuId, NodeId
from gpuplane.core.reasons import TAKEN_BY_OTHERS
from gpuplane.domains.nodes.rules import Gpu, compare_gpu

WELL = Gpu(
    GpuId("G0"), NodeId(UUID(int=1)), ClusterId(UUID(int=2)), 0, "a100", "A100", 40_960,
    True, True, "", None, False, (),
)  # fmt: skip
TAKEN = replace(WELL, healthy=False, message=f"{TAKEN_BY_OTHERS} x/p")
BROKEN = replace(WELL, healthy=False, message="XID 79")


@pytest.mark.parametrize(
    ("stored", "seen", "kind"),
    [
        (WELL, TAKEN, "gpu.taken"),
        (TAKEN, WELL, "gpu.given_back"),
        (WELL, BROKEN, "gpu.failed"),
        (BROKEN, WELL, "gpu.recovered"),
        (TAKEN, TAKEN, None),
        (TAKEN, BROKEN, "gpu.failed"),
        (BROKEN, TAKEN, None),
    ],
)
def test_a_gpu_that_others_take_is_told_apart_from_one_that_failed(
    stored: Gpu, seen: Gpu, kind: str | None
) -> None:
    told = compare_gpu(stored, seen, "n1")
    assert (told[0] if told else None) == kind
