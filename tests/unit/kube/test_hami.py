"""How much of each device is given away, as HAMi's scheduler tells it before and since 2.9."""

from __future__ import annotations

import pytest

from gpuplane.kube.hami import read_used_percent

OLD = """\
# HELP GPUDeviceCoreAllocated Device core allocated for a certain GPU
# TYPE GPUDeviceCoreAllocated gauge
GPUDeviceCoreAllocated{deviceidx="0",deviceuuid="GPU-a",nodeid="n1",zone="vGPU"} 30
GPUDeviceCoreAllocated{deviceidx="1",deviceuuid="GPU-b",nodeid="n1",zone="vGPU"} 100
GPUDeviceCoreLimit{deviceidx="0",deviceuuid="GPU-a",nodeid="n1",zone="vGPU"} 100
GPUDeviceCoreLimit{deviceidx="1",deviceuuid="GPU-b",nodeid="n1",zone="vGPU"} 100
GPUDeviceMemoryAllocated{deviceuuid="GPU-a",devicecores="30",nodeid="n1"} 2.147483648e+10
GPUDeviceMemoryLimit{deviceuuid="GPU-a",nodeid="n1"} 4.294967296e+10
GPUDeviceMemoryLimit{deviceuuid="GPU-c",nodeid="n1"} 4.294967296e+10
"""
NEW = """\
hami_gpu_core_allocated_ratio{device_index="0",device_type="A100",device_uuid="GPU-a",node="n1"} 0.3
hami_gpu_core_limit_ratio{device_index="0",device_type="A100",device_uuid="GPU-a",node="n1"} 1
hami_gpu_memory_allocated_bytes{device_index="0",device_uuid="GPU-a",node="n1"} 1
hami_gpu_memory_limit_bytes{device_index="0",device_uuid="GPU-a",node="n1"} 1000
"""


def test_a_device_is_as_full_as_the_fuller_of_its_cores_and_its_memory() -> None:
    assert read_used_percent(OLD) == {"GPU-a": 50, "GPU-b": 100}


def test_the_names_since_2_9_are_read_in_whatever_unit_they_are() -> None:
    assert read_used_percent(NEW) == {"GPU-a": 30}
    in_percent = NEW.replace("} 0.3\n", "} 30\n").replace("} 1\n", "} 100\n", 1)
    assert read_used_percent(in_percent) == {"GPU-a": 30}


def test_a_little_is_not_nothing_and_too_much_is_all() -> None:
    lines = 'GPUDeviceCoreLimit{{deviceuuid="G"}} 1000\nGPUDeviceCoreAllocated{{deviceuuid="G"}} {}'
    assert read_used_percent(lines.format(1)) == {"G": 1}
    assert read_used_percent(lines.format(0)) == {"G": 0}
    assert read_used_percent(lines.format(9000)) == {"G": 100}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>404</html>",
        'GPUDeviceCoreAllocated{nodeid="n1"} 30',
        'GPUDeviceCoreAllocated{deviceuuid="GPU-a"} 30',
        'GPUDeviceCoreAllocated{deviceuuid="GPU-a"} 1e\nGPUDeviceCoreLimit{deviceuuid="GPU-a"} 1',
        'GPUDeviceCoreAllocated{deviceuuid="G"} 1e999\nGPUDeviceCoreLimit{deviceuuid="G"} 1e3',
        'GPUDeviceCoreAllocated{deviceuuid="GPU-a"} 1\nGPUDeviceCoreLimit{deviceuuid="GPU-a"} 0',
    ],
)
def test_what_cannot_be_read_says_nothing_of_a_device(text: str) -> None:
    assert read_used_percent(text) == {}
