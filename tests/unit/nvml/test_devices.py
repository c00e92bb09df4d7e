from __future__ import annotations

from typing import Any

import pytest

from gpuplane.nvml.devices import NvmlSession, NvmlView, load_bindings
from tests.unit.nvml.fake import FakeGpu, FakeNvml, LibraryNotFound, NVMLError


def look(nvml: FakeNvml) -> NvmlView:
    return NvmlSession(lambda: nvml).look()


def test_a_gpu_is_known_by_its_uuid_and_what_it_has() -> None:
    view = look(FakeNvml(FakeGpu("GPU-1", used_mib=1024, gpu_percent=50)))
    [device] = view.devices
    assert (device.uuid, device.index, device.model) == ("GPU-1", 0, "NVIDIA H100 80GB HBM3")
    assert (device.memory_mib, device.memory_used_mib) == (81_559, 1024)
    assert device.utilization_ratio == 0.5
    assert device.healthy
    assert (view.driver, view.problem, view.topology) == ("580.95.05", "", None)


def test_a_machine_without_the_library_has_no_gpus_and_no_problem() -> None:
    nvml = FakeNvml()
    nvml.init_error = LibraryNotFound()
    session = NvmlSession(lambda: nvml)
    assert session.look() == NvmlView()
    nvml.init_error = None
    assert session.look() == NvmlView()  # a driver that comes later needs a restart
    assert NvmlSession(lambda: None).look() == NvmlView()


def test_bindings_that_cannot_be_imported_are_a_problem_that_is_told() -> None:
    def load() -> Any:
        raise ImportError("no module named pynvml")

    assert "cannot be imported" in NvmlSession(load).look().problem


def test_a_broken_driver_is_a_problem_that_is_told_and_tried_again() -> None:
    nvml = FakeNvml(FakeGpu("GPU-1"))
    nvml.init_error = NVMLError("Driver/library version mismatch")
    session = NvmlSession(lambda: nvml)
    assert session.look().problem == "NVML cannot be used: Driver/library version mismatch"
    nvml.init_error = None
    assert [device.uuid for device in session.look().devices] == ["GPU-1"]


def test_a_session_that_stops_answering_is_opened_anew() -> None:
    nvml = FakeNvml(FakeGpu("GPU-1"))
    session = NvmlSession(lambda: nvml)
    session.look()
    nvml.count_error = NVMLError("Uninitialized")
    view = session.look()
    assert (view.devices, view.problem) == ((), "NVML does not answer: Uninitialized")
    assert nvml.closed == 1
    nvml.count_error = None
    assert len(session.look().devices) == 1
    assert nvml.opened == 2


def test_a_lost_gpu_stays_under_its_name_and_is_unhealthy() -> None:
    nvml = FakeNvml(FakeGpu("GPU-1"), FakeGpu("GPU-2", bus="00000000:19:00.0"))
    session = NvmlSession(lambda: nvml)
    session.look()
    nvml.gpus[1].lost = True
    first, second = session.look().devices
    assert first.healthy
    assert (second.uuid, second.healthy) == ("GPU-2", False)
    assert "GPU is lost" in second.message


def test_a_gpu_that_was_lost_from_the_start_is_told_without_a_name() -> None:
    [device] = look(FakeNvml(FakeGpu("GPU-1", lost=True))).devices
    assert (device.uuid, device.index, device.healthy) == ("", 0, False)


def test_mig_instances_are_told_with_profile_and_first_slice() -> None:
    gpu = FakeGpu("GPU-1", mig=[("1g.10gb", 4), ("3g.40gb", 0)], gpu_percent=None)
    [device] = look(FakeNvml(gpu)).devices
    assert device.mig_enabled
    assert device.mig_instances == (("1g.10gb", 4), ("3g.40gb", 0))
    assert device.mig_uuids == ("MIG-1-0", "MIG-1-1")
    assert device.utilization_ratio is None


def test_mig_that_is_on_and_empty_has_no_instances() -> None:
    [device] = look(FakeNvml(FakeGpu("GPU-1", mig=[]))).devices
    assert device.mig_enabled
    assert device.mig_instances == ()


def test_a_critical_xid_makes_a_gpu_unhealthy_for_good() -> None:
    nvml = FakeNvml(FakeGpu("GPU-1"), FakeGpu("GPU-2", bus="00000000:19:00.0"))
    session = NvmlSession(lambda: nvml)
    session.look()
    nvml.events.append((nvml.gpus[1], 79))
    for _ in range(2):
        first, second = session.look().devices
        assert first.healthy
        assert (second.healthy, second.message) == (False, "XID 79")


@pytest.mark.parametrize("xid", [13, 31, 43, 45])
def test_an_xid_of_a_faulty_program_leaves_the_gpu_healthy(xid: int) -> None:
    nvml = FakeNvml(FakeGpu("GPU-1"))
    session = NvmlSession(lambda: nvml)
    session.look()
    nvml.events.append((nvml.gpus[0], xid))
    assert session.look().devices[0].healthy


def test_a_row_that_could_not_be_remapped_makes_a_gpu_unhealthy() -> None:
    [device] = look(FakeNvml(FakeGpu("GPU-1", remapped=(0, 1, 0, 1)))).devices
    assert not device.healthy
    assert "remapped" in device.message


def test_a_pending_remap_and_memory_errors_are_told_only() -> None:
    [device] = look(FakeNvml(FakeGpu("GPU-1", remapped=(0, 1, 1, 0), ecc_errors=3))).devices
    assert device.healthy
    assert "next reset" in device.message
    assert "3 uncorrected memory errors" in device.message


def test_what_a_gpu_does_not_support_is_left_out() -> None:
    gpu = FakeGpu("GPU-1", memory_mib=None, gpu_percent=None, remapped=None, ecc_errors=None)
    [device] = look(FakeNvml(gpu)).devices
    assert (device.memory_mib, device.memory_used_mib, device.healthy) == (0, None, True)
    assert device.message == ""


def test_without_a_library_to_bind_to_the_bindings_are_not_even_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ctypes

    def missing(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert load_bindings() is None
