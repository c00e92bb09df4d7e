from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuplane.backends.interface import BackendError, ReplicaPlan
from gpuplane.backends.local.gpulock import GpuLock
from gpuplane.backends.local.gpus import LOOK_S, LocalGpus
from gpuplane.backends.local.inventory import LocalInventory
from gpuplane.core.ids import GpuId, ReplicaId
from gpuplane.kit.ids import new_id
from gpuplane.nvml.devices import NvmlSession
from tests.unit.nvml.fake import FakeGpu, FakeNvml, NVMLError


class FakeClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def a_lock(tmp_path: Path, name: str) -> GpuLock:
    (tmp_path / name).mkdir(exist_ok=True)
    return GpuLock(tmp_path / name, tmp_path / "locks")


def the_gpus(tmp_path: Path, clock: FakeClock, nvml: FakeNvml, home: str = "one") -> LocalGpus:
    return LocalGpus(NvmlSession(lambda: nvml), a_lock(tmp_path, home), clock)


def a_replica(*gpu_ids: str, mig: str | None = None) -> ReplicaPlan:
    ids = tuple(GpuId(gpu_id) for gpu_id in gpu_ids)
    return ReplicaPlan(ReplicaId(new_id()), 0, "machine", ids, mig_device=mig)


def test_a_second_home_is_told_who_has_the_gpus(tmp_path: Path) -> None:
    first, second = a_lock(tmp_path, "one"), a_lock(tmp_path, "two")
    assert first.acquire() == ""
    assert str(tmp_path / "one") in second.acquire()
    assert second.handle is None
    assert first.acquire() == ""


def test_the_next_home_gets_the_gpus_when_the_first_lets_go(tmp_path: Path) -> None:
    first, second = a_lock(tmp_path, "one"), a_lock(tmp_path, "two")
    first.acquire()
    second.acquire()
    first.close()
    assert second.acquire() == ""
    assert str(tmp_path / "two") in first.acquire()


def test_a_job_with_gpus_keeps_them_for_its_home_when_the_control_plane_is_gone(
    tmp_path: Path,
) -> None:
    first, second = a_lock(tmp_path, "one"), a_lock(tmp_path, "two")
    first.acquire()
    assert first.handle is not None
    supervisor = os.dup(first.handle)  # what a child gets
    first.close()
    assert second.acquire() != ""
    again = a_lock(tmp_path, "one")
    assert again.acquire() == ""
    os.close(supervisor)
    assert second.acquire() != ""
    again.close()
    assert second.acquire() == ""


def test_an_owner_record_cut_short_gives_the_gpus_to_whoever_asks(tmp_path: Path) -> None:
    lock = a_lock(tmp_path, "one")
    lock.acquire()
    lock.close()
    (tmp_path / "locks" / "owner").write_text('{"key": "ab')
    assert a_lock(tmp_path, "two").acquire() == ""
    assert json.loads((tmp_path / "locks" / "owner").read_text())["home"] == str(tmp_path / "two")


def test_a_lock_folder_that_cannot_be_used_withholds_the_gpus(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "one").mkdir()
    lock = GpuLock(tmp_path / "one", tmp_path / "file" / "locks")
    assert "cannot be used" in lock.acquire()


def test_a_gpu_has_its_canonical_model(tmp_path: Path, clock: FakeClock) -> None:
    nvml = FakeNvml(FakeGpu("GPU-1"), FakeGpu("GPU-2", name="NVIDIA Mystery 9000", bus="x"))
    first, second = the_gpus(tmp_path, clock, nvml).look().gpus
    assert (first.gpu_id, first.model) == ("GPU-1", "nvidia-h100-80gb")
    assert second.model == "NVIDIA Mystery 9000"


def test_the_gpus_of_a_second_home_are_withheld_and_say_by_whom(
    tmp_path: Path, clock: FakeClock
) -> None:
    nvml = FakeNvml(FakeGpu("GPU-1"))
    first = the_gpus(tmp_path, clock, nvml, "one")
    second = the_gpus(tmp_path, clock, nvml, "two")
    assert first.look().gpus[0].healthy
    [withheld] = second.look().gpus
    assert not withheld.healthy
    assert str(tmp_path / "one") in withheld.message
    assert "withheld" in second.look().message
    with pytest.raises(BackendError, match="withheld"):
        second.lock_for([a_replica("GPU-1")])
    first.close()
    clock.now_s += LOOK_S
    assert second.look().gpus[0].healthy
    assert second.lock_for([a_replica("GPU-1")]) is not None


def test_a_job_without_gpus_needs_no_lock(tmp_path: Path, clock: FakeClock) -> None:
    a_lock(tmp_path, "two").acquire()
    gpus = the_gpus(tmp_path, clock, FakeNvml(FakeGpu("GPU-1")), "one")
    assert gpus.lock_for([a_replica()]) is None


def test_a_broken_driver_is_a_message_of_the_node(tmp_path: Path, clock: FakeClock) -> None:
    nvml = FakeNvml()
    nvml.init_error = NVMLError("Driver/library version mismatch")
    view = the_gpus(tmp_path, clock, nvml).look()
    assert view.gpus == ()
    assert "version mismatch" in view.message


def test_a_gpu_that_never_told_its_name_is_a_message_of_the_node(
    tmp_path: Path, clock: FakeClock
) -> None:
    view = the_gpus(tmp_path, clock, FakeNvml(FakeGpu("GPU-1", lost=True))).look()
    assert view.gpus == ()
    assert view.message.startswith("GPU 0 does not answer")


def test_a_look_is_repeated_only_after_a_while(tmp_path: Path, clock: FakeClock) -> None:
    nvml = FakeNvml(FakeGpu("GPU-1"))
    gpus = the_gpus(tmp_path, clock, nvml)
    gpus.look()
    nvml.gpus[0].used_mib = 4096
    assert gpus.look().gpus[0].memory_used_mib == 0
    clock.now_s += LOOK_S
    assert gpus.look().gpus[0].memory_used_mib == 4096


def test_a_mig_instance_is_visible_by_its_own_uuid(tmp_path: Path, clock: FakeClock) -> None:
    gpu = FakeGpu("GPU-1", mig=[("1g.10gb", 4), ("3g.40gb", 0)])
    gpus = the_gpus(tmp_path, clock, FakeNvml(gpu))
    assert gpus.visible_devices(a_replica("GPU-1", mig="GPU-1/3g.40gb@0")) == "MIG-1-1"
    assert gpus.visible_devices(a_replica("GPU-1", mig="MIG-abc")) == "MIG-abc"
    assert gpus.visible_devices(a_replica("GPU-1", "GPU-2")) == "GPU-1,GPU-2"
    assert gpus.visible_devices(a_replica()) == ""
    with pytest.raises(BackendError, match="no MIG instance"):
        gpus.visible_devices(a_replica("GPU-1", mig="GPU-1/7g.80gb@0"))


def test_the_generation_grows_with_the_inventory_and_outlives_a_restart(
    tmp_path: Path, clock: FakeClock
) -> None:
    nvml = FakeNvml(FakeGpu("GPU-1"))
    gpus = the_gpus(tmp_path, clock, nvml)
    inventory = LocalInventory(tmp_path, "machine", gpus)
    first, node = inventory.look()
    assert [gpu.gpu_id for gpu in node.gpus] == ["GPU-1"]
    nvml.gpus[0].used_mib = 100
    clock.now_s += LOOK_S
    assert inventory.look()[0] == first
    nvml.gpus.append(FakeGpu("GPU-2", bus="x"))
    clock.now_s += LOOK_S
    assert inventory.look()[0] == first + 1
    assert LocalInventory(tmp_path, "machine", gpus).look()[0] == first + 1
