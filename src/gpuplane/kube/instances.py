"""Which accelerators a machine of a cloud has, by its instance type.

Owns the last way to know what a node has: where nothing on the node tells. Never says how many of
them can be used: only a device plugin does.

Source: the clouds' public pages of accelerated instance types (Amazon EC2 P, G and DL families,
Azure NC, ND and NV series, Google Compute Engine A2, A3, A4 and G2 machine series).
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The accelerators of an instance type: canonical model name and how many."""

    model: str
    count: int


_EC2 = {
    "p3.2xlarge": ("nvidia-v100-16gb", 1),
    "p3.8xlarge": ("nvidia-v100-16gb", 4),
    "p3.16xlarge": ("nvidia-v100-16gb", 8),
    "p3dn.24xlarge": ("nvidia-v100-32gb", 8),
    "p4d.24xlarge": ("nvidia-a100-40gb", 8),
    "p4de.24xlarge": ("nvidia-a100-80gb", 8),
    "p5.4xlarge": ("nvidia-h100-80gb", 1),
    "p5.48xlarge": ("nvidia-h100-80gb", 8),
    "p5e.48xlarge": ("nvidia-h200-141gb", 8),
    "p5en.48xlarge": ("nvidia-h200-141gb", 8),
    "p6-b200.48xlarge": ("nvidia-b200", 8),
}
# Families of one model whose count goes by the size; every other size has one.
_EC2_FAMILIES = {
    "g4dn": ("nvidia-t4", {"12xlarge": 4, "metal": 8}),
    "g5": ("nvidia-a10g", {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8}),
    "g6": ("nvidia-l4", {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8}),
    "g6e": ("nvidia-l40s", {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8}),
}
_AZURE = {
    "standard_nc6s_v3": ("nvidia-v100-16gb-pcie", 1),
    "standard_nc12s_v3": ("nvidia-v100-16gb-pcie", 2),
    "standard_nc24s_v3": ("nvidia-v100-16gb-pcie", 4),
    "standard_nc24rs_v3": ("nvidia-v100-16gb-pcie", 4),
    "standard_nd40rs_v2": ("nvidia-v100-32gb", 8),
    "standard_nc4as_t4_v3": ("nvidia-t4", 1),
    "standard_nc8as_t4_v3": ("nvidia-t4", 1),
    "standard_nc16as_t4_v3": ("nvidia-t4", 1),
    "standard_nc64as_t4_v3": ("nvidia-t4", 4),
    "standard_nc24ads_a100_v4": ("nvidia-a100-80gb-pcie", 1),
    "standard_nc48ads_a100_v4": ("nvidia-a100-80gb-pcie", 2),
    "standard_nc96ads_a100_v4": ("nvidia-a100-80gb-pcie", 4),
    "standard_nd96asr_v4": ("nvidia-a100-40gb", 8),
    "standard_nd96amsr_a100_v4": ("nvidia-a100-80gb", 8),
    "standard_nc40ads_h100_v5": ("nvidia-h100-94gb-nvl", 1),
    "standard_nc80adis_h100_v5": ("nvidia-h100-94gb-nvl", 2),
    "standard_nd96isr_h100_v5": ("nvidia-h100-80gb", 8),
    "standard_nd96isr_h200_v5": ("nvidia-h200-141gb", 8),
    "standard_nv36ads_a10_v5": ("nvidia-a10", 1),
    "standard_nv72ads_a10_v5": ("nvidia-a10", 2),
}
_GOOGLE = {
    "a2-highgpu": "nvidia-a100-40gb",
    "a2-megagpu": "nvidia-a100-40gb",
    "a2-ultragpu": "nvidia-a100-80gb",
    "a3-highgpu": "nvidia-h100-80gb",
    "a3-megagpu": "nvidia-h100-80gb",
    "a3-ultragpu": "nvidia-h200-141gb",
    "a4-highgpu": "nvidia-b200",
}
_GOOGLE_TYPE = re.compile(r"(a\d-[a-z]+)-(\d{1,2})g")
_GOOGLE_L4 = {24: 2, 48: 4, 96: 8}


def find_accelerators(instance_type: str) -> Accelerators | None:
    """Return the accelerators of an instance type, or None where it has none or is not known."""
    name = instance_type.strip().lower()
    found = _EC2.get(name) or _AZURE.get(name)
    if found is not None:
        return Accelerators(*found)
    family, _, size = name.partition(".")
    if family in _EC2_FAMILIES and size:
        model, counts = _EC2_FAMILIES[family]
        return Accelerators(model, counts.get(size, 1))
    google = _GOOGLE_TYPE.fullmatch(name)
    if google is not None and google.group(1) in _GOOGLE:
        return Accelerators(_GOOGLE[google.group(1)], int(google.group(2)))
    if name.startswith("g2-standard-") and name.rpartition("-")[2].isdigit():
        return Accelerators("nvidia-l4", _GOOGLE_L4.get(int(name.rpartition("-")[2]), 1))
    return None
