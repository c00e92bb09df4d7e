"""How a GPU can be cut is read from the device, whatever our own tables say."""

from __future__ import annotations

from gpuplane.core.mig.layouts import layout_of, list_full_layouts
from gpuplane.core.mig.profiles import MigProfile, PlacementSource
from gpuplane.nvml.devices import NvmlSession
from tests.unit.nvml.fake import FakeGpu, FakeNvml, LibraryNotFound

ODD = {
    0: ("MIG 1g.5gb", 1, [(3, 1), (0, 1), (1, 1)], 3),
    1: ("MIG 2g.10gb", 2, [(0, 2), (2, 2)], 2),
    2: ("MIG 3g.20gb", 3, [(0, 4)], 1),
    3: ("no name that we know", 1, [(0, 1)], 1),
}


def session_of(*gpus: FakeGpu) -> NvmlSession:
    nvml = FakeNvml(*gpus)
    return NvmlSession(lambda: nvml)


def test_the_table_is_the_device_s_own() -> None:
    table = session_of(FakeGpu("GPU-1", cuts=ODD)).read_mig_table(0)
    assert table is not None
    assert (table.model, table.placements) == ("nvidia-h100-80gb", PlacementSource.DEVICE)
    assert (table.memory_slices, table.compute_slices) == (4, 3)
    assert table.profiles == (
        MigProfile("1g.5gb", 1, 1, 5, 3, (0, 1, 3)),
        MigProfile("2g.10gb", 2, 2, 10, 2, (0, 2)),
        MigProfile("3g.20gb", 3, 4, 20, 1, (0,)),
    )
    assert layout_of(table, [("2g.10gb", 2)]).free_placements("1g.5gb") == (0, 1)
    # Two of 2g fit the memory and not the compute slices of this GPU.
    assert [layout.counts() for layout in list_full_layouts(table)] == [
        {"1g.5gb": 3},
        {"1g.5gb": 1, "2g.10gb": 1},
        {"2g.10gb": 1, "1g.5gb": 1},
        {"3g.20gb": 1},
        {"1g.5gb": 1, "2g.10gb": 1},
    ]


def test_a_gpu_without_mig_has_no_table() -> None:
    assert session_of(FakeGpu("GPU-1")).read_mig_table(0) is None


def test_a_gpu_or_a_library_that_is_not_there_has_no_table() -> None:
    assert NvmlSession(lambda: None).read_mig_table(0) is None
    nvml = FakeNvml()
    nvml.init_error = LibraryNotFound()
    assert NvmlSession(lambda: nvml).read_mig_table(0) is None
    assert session_of(FakeGpu("GPU-1", cuts=ODD, lost=True)).read_mig_table(0) is None


def test_a_profile_without_a_place_is_left_out() -> None:
    cuts = {**ODD, 2: ("MIG 4g.20gb", 4, [], 1)}  # NVML's answer for what cannot exist here
    table = session_of(FakeGpu("GPU-1", cuts=cuts)).read_mig_table(0)
    assert table is not None
    assert table.find_profile("4g.20gb") is None


def test_a_gpu_in_mig_mode_is_seen_with_its_table_and_another_without() -> None:
    nvml = FakeNvml(FakeGpu("GPU-1", cuts=ODD, mig=[("1g.5gb", 0)]), FakeGpu("GPU-2", cuts=ODD))
    first, second = NvmlSession(lambda: nvml).look().devices
    assert first.mig_table is not None
    assert first.mig_table.find_profile("2g.10gb") is not None
    assert second.mig_table is None
