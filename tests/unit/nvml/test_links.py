from __future__ import annotations

import subprocess
from pathlib import Path

from gpuplane.core.topology.matrix import parse_topo_matrix
from gpuplane.nvml.devices import NvmlSession
from gpuplane.nvml.links import ask_nvidia_smi, numa_node, topology_text
from tests.unit.nvml.fake import FakeGpu, FakeNvml


def four_gpus(nvlinks: dict[int, list[str]] | None = None) -> FakeNvml:
    gpus = [
        FakeGpu(f"GPU-{i}", bus=f"00000000:{i + 1}0:00.0", nvlinks=(nvlinks or {}).get(i, []))
        for i in range(4)
    ]
    near, far = {(0, 1), (2, 3)}, 50
    levels = {(i, j): 10 if (i, j) in near else far for i in range(4) for j in range(i + 1, 4)}
    return FakeNvml(*gpus, levels=levels)


def test_paths_over_pcie_are_told_in_the_words_of_nvidia_smi() -> None:
    nvml = four_gpus()
    text = topology_text(nvml, nvml.gpus)
    assert text is not None
    matrix = parse_topo_matrix(text)
    assert matrix.link(0, 1) == matrix.link(2, 3) == "PIX"
    assert matrix.link(0, 2) == matrix.link(1, 3) == "SYS"


def test_direct_nvlinks_are_counted_for_each_pair() -> None:
    buses = [f"00000000:{i + 1}0:00.0" for i in range(4)]
    links = {0: [buses[1]] * 4 + [buses[2]] * 2, 1: [buses[0]] * 4, 2: [buses[0]] * 2}
    nvml = four_gpus(links)
    matrix = parse_topo_matrix(topology_text(nvml, nvml.gpus) or "")
    assert (matrix.link(0, 1), matrix.link(0, 2), matrix.link(2, 3)) == ("NV4", "NV2", "PIX")


def test_links_to_a_switch_reach_every_gpu_that_has_one_too() -> None:
    nvml = four_gpus({i: ["switch"] * 18 for i in range(3)})
    matrix = parse_topo_matrix(topology_text(nvml, nvml.gpus) or "")
    assert {matrix.link(i, j) for i in range(3) for j in range(3) if i != j} == {"NV18"}
    assert matrix.link(2, 3) == "PIX"


def test_the_matrix_is_part_of_a_look_and_read_once() -> None:
    nvml = four_gpus()
    session = NvmlSession(lambda: nvml)
    first = session.look().topology
    nvml.levels.clear()  # asking again would fail
    assert first is not None
    assert session.look().topology == first


def test_the_numa_node_is_the_kernels(tmp_path: Path) -> None:
    folder = tmp_path / "0000:18:00.0"
    folder.mkdir()
    (folder / "numa_node").write_text("1\n")
    nvml = FakeNvml(FakeGpu("GPU-1"))
    assert numa_node(nvml, nvml.gpus[0], tmp_path) == 1
    (folder / "numa_node").write_text("-1\n")
    assert numa_node(nvml, nvml.gpus[0], tmp_path) is None
    assert numa_node(nvml, FakeGpu("GPU-2", bus="00000000:99:00.0"), tmp_path) is None


def test_nvidia_smi_is_asked_where_nvml_does_not_tell() -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "\tGPU0\n", "")

    assert ask_nvidia_smi(run) == "\tGPU0\n"
    assert asked == [["nvidia-smi", "topo", "-m"]]


def test_a_machine_without_nvidia_smi_has_no_matrix() -> None:
    def missing(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        raise FileNotFoundError("nvidia-smi")

    def failing(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        raise subprocess.CalledProcessError(9, command)

    assert ask_nvidia_smi(missing) is None
    assert ask_nvidia_smi(failing) is None
