"""What `gpuplane usage` says beside its tables: the rest of devices, and whose project it is."""

from __future__ import annotations

from typing import Any

from gpuplane.cli.commands.usage import project_names, rest_sentences

HOUR_S = 3600


def used(gpu_h: float, *, simulated: bool = False) -> dict[str, Any]:
    return {
        "gpu_busy_s": gpu_h * HOUR_S,
        "gpu_idle_s": 0,
        "gpu_reserved_s": 0,
        "simulated": simulated,
    }


def cluster(*, simulated: bool = False, **hours: float) -> dict[str, Any]:
    states = {name: each * HOUR_S * 1000 for name, each in hours.items()}
    return {"states_ms": states, "simulated": simulated}


def test_the_rest_of_cut_gpus_is_told_so_that_use_and_devices_add_up() -> None:
    rows = [used(2.5), used(1, simulated=True)]
    held = [cluster(busy=2, reserved=2, free=9), cluster(simulated=True, busy=1)]
    (said,) = rest_sentences(rows, held)
    assert said.startswith("4.00 device-hours of devices were held: 2.50 GPU-hours as above, and ")
    assert " and 1.50 are the rest of GPUs" in said


def test_nothing_is_told_where_whole_gpus_were_held() -> None:
    assert rest_sentences([used(3)], [cluster(busy=2, allocated_idle=1, free=5)]) == []


def test_a_project_is_named_with_its_tenant_where_several_have_one_of_its_name() -> None:
    tenants = [{"id": "t1", "name": "lab"}, {"id": "t2", "name": "shop"}]
    projects = [
        {"id": "p1", "name": "default", "tenant_id": "t1"},
        {"id": "p2", "name": "default", "tenant_id": "t2"},
        {"id": "p3", "name": "vision", "tenant_id": "t2"},
    ]
    assert project_names(projects, tenants) == {
        "p1": "lab/default",
        "p2": "shop/default",
        "p3": "vision",
    }
