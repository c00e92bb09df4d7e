"""Translates what a container asks for into the fields of a JOB step: cores, memory, GPUs."""

from collections.abc import Mapping
from typing import Any

from gpuplane.core.imports.reading import find_quantity
from gpuplane.core.imports.results import Table

GIB = 2.0**30
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu")


def job_resources(found: Mapping[str, Any], place: str, table: Table) -> dict[str, Any]:
    """Return a job's fields for Kubernetes' `resources` of a container.

    Requests count where there are any, for they are what is reserved; limits otherwise.
    """
    fields: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    for part in ("limits", "requests"):
        each = found.get(part)
        if isinstance(each, dict):
            asked.update(each)
    for name, value in asked.items():
        amount = find_quantity(value)
        where = f"{place}.{name}"
        if amount is None:
            table.refused(where, "resources", "This is no quantity that is known here.")
        elif name == "cpu":
            fields["cpu_cores"] = max(round(amount, 3), 0.01)
            table.mapped(where, "resources", "cpu_cores")
        elif name == "memory":
            fields["memory_gb"] = max(round(amount / GIB, 3), 0.01)
            table.mapped(where, "resources", "memory_gb")
        elif name == "ephemeral-storage":
            gib = max(int(amount / GIB), 1)
            fields["resources"] = {"ephemeral_storage_gb": gib}
            table.mapped(where, "resources", "resources.ephemeral_storage_gb")
        elif name in GPU_RESOURCES:
            fields["gpu_count"] = int(amount)
            table.mapped(where, "resources", "gpu_count")
        elif "/" in name and "mig-" in name:
            fields["gpu_count"] = int(amount)
            fields["resources"] = {"mig_profile": name.partition("mig-")[2]}
            table.mapped(where, "resources", "gpu_count and resources.mig_profile")
        else:
            table.refused(where, "resources", f"A job cannot ask for {name}.")
    return fields
