"""The real bindings against a library of our own: two GPUs in twenty lines of C."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuplane.core.mig.profiles import KNOWN_TABLES
from gpuplane.core.topology.matrix import parse_topo_matrix

LIBRARY = r"""
#include <string.h>
#include <stdio.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { char old[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } pci_t;
static int is_broken(void) { FILE *f = fopen(getenv("FAKE_NVML_BROKEN") ?: "/none", "r");
    if (f) fclose(f); return f != 0; }
int nvmlInitWithFlags(unsigned flags) { return is_broken() ? 18 : 0; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "fake error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { strncpy(text, "580.1", n); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(i + 1L); return 0; }
int nvmlDeviceGetUUID(void *h, char *text, unsigned n) {
    snprintf(text, n, "GPU-0000000%ld-aaaa-bbbb-cccc-dddddddddddd", (long)h); return 0; }
int nvmlDeviceGetName(void *h, char *text, unsigned n) {
    strncpy(text, "NVIDIA H200", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) {
    m->total = 143771ULL << 20; m->used = 512ULL << 20; m->free = m->total - m->used; return 0; }
int nvmlDeviceGetPciInfo_v3(void *h, pci_t *p) {
    memset(p, 0, sizeof *p); snprintf(p->bus_id, 32, "00000000:%02lX:00.0", (long)h); return 0; }
typedef struct { unsigned version, id, p2p, slices, instances, sms, copy, dec, enc, jpeg, ofa;
    unsigned long long memory; char name[96]; } profile_t;
typedef struct { unsigned start, size; } place_t;
static const struct { unsigned number, slices, size, most, starts[7]; const char *name; } cuts[] = {
    {0, 1, 1, 7, {0, 1, 2, 3, 4, 5, 6}, "MIG 1g.18gb"}, {7, 1, 1, 1, {0, 1, 2, 3, 4, 5, 6},
    "MIG 1g.18gb+me"}, {9, 1, 2, 4, {0, 2, 4, 6}, "MIG 1g.35gb"},
    {1, 2, 2, 3, {0, 2, 4}, "MIG 2g.35gb"}, {2, 3, 4, 2, {0, 4}, "MIG 3g.71gb"},
    {3, 4, 4, 1, {0}, "MIG 4g.71gb"}, {4, 7, 8, 1, {0}, "MIG 7g.141gb"}};
int nvmlDeviceGetGpuInstanceProfileInfoV(void *h, unsigned number, profile_t *p) {
    for (int i = 0; i < 7; i++) if (cuts[i].number == number) {
        p->id = 100 + i; p->slices = cuts[i].slices; p->instances = cuts[i].most;
        strcpy(p->name, cuts[i].name); return 0; }
    return 3; }
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *h, unsigned id, place_t *to, unsigned *n) {
    int i = id - 100; unsigned count = 0;
    while (count < 7 && (count == 0 || cuts[i].starts[count])) count++;
    if (to) for (unsigned k = 0; k < count; k++) {
        to[k].start = cuts[i].starts[count - 1 - k]; to[k].size = cuts[i].size; }
    *n = count; return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *level) {
    *level = 20; return 0; }
"""

CUT = """
import dataclasses, json
from gpuplane.nvml.devices import NvmlSession
print(json.dumps(dataclasses.asdict(NvmlSession().read_mig_table(1))))
"""

LOOK = """
import dataclasses, json
from gpuplane.nvml.devices import NvmlSession
print(json.dumps(dataclasses.asdict(NvmlSession().look())))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler; the unit tests use a fake in Python")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text("#include <stdlib.h>\n" + LIBRARY)
    target = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-o", str(target), str(folder / "nvml.c")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def look_with(folder: Path, program: str = LOOK, **env: str) -> dict[str, Any]:
    source = str(Path(__file__).parents[3] / "src")
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": source, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_the_gpus_of_a_real_library_are_found(library: Path) -> None:
    view = look_with(library)
    assert (view["problem"], view["driver"]) == ("", "580.1")
    assert [device["uuid"][:12] for device in view["devices"]] == ["GPU-00000001", "GPU-00000002"]
    for device in view["devices"]:
        assert (device["model"], device["memory_mib"]) == ("NVIDIA H200", 143_771)
        assert (device["memory_used_mib"], device["healthy"]) == (512, True)
        assert device["utilization_ratio"] is None  # this library does not tell it
    assert parse_topo_matrix(view["topology"]).link(0, 1) == "PXB"


def test_a_library_that_does_not_fit_its_driver_is_a_problem_that_is_told(
    library: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    view = look_with(library, FAKE_NVML_BROKEN=str(broken))
    assert view["devices"] == []
    assert view["problem"].startswith("NVML cannot be used: ")


def test_how_a_gpu_can_be_cut_is_read_from_a_real_library(library: Path) -> None:
    table = look_with(library, CUT)
    assert (table["model"], table["placements"]) == ("nvidia-h200-141gb", "device")
    ours = dataclasses.asdict(KNOWN_TABLES["nvidia-h200-141gb"])
    # This library answers as our table assumes; a real one is compared in tests/hardware.
    read = [{**each, "starts": tuple(each["starts"])} for each in table["profiles"]]
    assert read == list(ours["profiles"])
    assert (table["memory_slices"], table["compute_slices"]) == (8, 7)
