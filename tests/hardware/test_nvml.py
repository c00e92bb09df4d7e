"""The GPUs of this machine, through the real library and a real job."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuplane.backends.interface import NodeObservation, Phase, ReplicaPlan, Stream
from gpuplane.backends.local.backend import LocalBackend
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.core.hardware import find_model
from gpuplane.core.ids import GpuId, ReplicaId
from gpuplane.core.mig.profiles import find_table
from gpuplane.core.topology.matrix import parse_topo_matrix
from gpuplane.kit.clock import SystemClock
from gpuplane.kit.ids import new_id
from gpuplane.nvml.devices import NvmlSession, NvmlView
from tests.contract.builders import a_plan
from tests.waiting import wait_until_async

pytestmark = pytest.mark.hardware

# What CUDA itself sees, without any framework: the number of devices, or the error.
COUNT = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int(0)
error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
print(count.value if not error else f"error {error}")
"""


@pytest.fixture(scope="module")
def view() -> NvmlView:
    view = NvmlSession().look()
    if not view.devices:
        pytest.skip(view.problem or "this machine has no NVIDIA GPU")
    return view


def test_every_gpu_tells_its_name_memory_and_health(view: NvmlView) -> None:
    assert view.driver
    for device in view.devices:
        assert re.fullmatch(r"GPU-[0-9a-f-]{36}", device.uuid)
        assert device.memory_mib > 1000
        assert device.healthy, device.message


def test_the_model_is_one_that_this_product_knows(view: NvmlView) -> None:
    for device in view.devices:
        known = find_model(device.model)
        assert known is not None, device.model
        assert abs(known.memory_mib - device.memory_mib) < known.memory_mib * 0.05


def test_the_link_matrix_can_be_read(view: NvmlView) -> None:
    if len(view.devices) < 2:
        assert view.topology is None
    else:
        assert view.topology is not None
        assert parse_topo_matrix(view.topology).gpu_count == len(view.devices)


async def seen_by_cuda(tmp_path: Path, gpu_count: int) -> tuple[str, NodeObservation]:
    """Return what CUDA sees in a job with so many GPUs, and the node."""
    settings = LocalSettings(lock_folder=tmp_path / "locks", cgroup_base="")
    backend = LocalBackend(tmp_path / "home", SystemClock(), settings)
    node = (await backend.observe()).nodes[0]
    gpus = tuple(GpuId(gpu.gpu_id) for gpu in node.gpus[:gpu_count])
    replica = ReplicaPlan(ReplicaId(new_id()), 0, node.name, gpus)
    plan = replace(a_plan(command=(sys.executable, "-c", COUNT)), replicas=(replica,))
    await backend.ensure_workload(plan, {})

    async def is_over() -> bool:
        return all(r.phase is Phase.EXITED for r in (await backend.observe()).replicas)

    await wait_until_async(is_over, "the job is over", deadline_s=60.0)
    text = (await backend.read_logs(plan.ref, 0, Stream.STDOUT, 0, 1000)).data.decode()
    backend.close()
    return text.strip(), node


async def test_a_job_sees_exactly_the_gpu_it_was_given(view: NvmlView, tmp_path: Path) -> None:
    text, node = await seen_by_cuda(tmp_path, 1)
    assert text == "1"
    assert [gpu.gpu_id for gpu in node.gpus] == [device.uuid for device in view.devices]


async def test_a_job_without_gpus_sees_none(view: NvmlView, tmp_path: Path) -> None:
    text, _ = await seen_by_cuda(tmp_path, 0)
    assert text == "error 100"  # CUDA_ERROR_NO_DEVICE


def test_a_gpu_with_mig_can_be_cut_as_our_table_says(view: NvmlView) -> None:
    session = NvmlSession()
    compared = 0
    for device in view.devices:
        read = session.read_mig_table(device.index)
        ours = find_table(device.model)
        if read is None or ours is None:
            continue
        compared += 1
        for profile in ours.profiles:
            assert read.find_profile(profile.name) == profile
    session.close()
    if not compared:
        pytest.skip("no GPU here has MIG and a table of ours")
