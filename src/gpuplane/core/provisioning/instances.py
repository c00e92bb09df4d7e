"""What clouds call the hardware of their machines, where a configuration has to say it.

Owns two tables; which GPUs an instance type has is asked of the caller of `reading`.
"""

from collections.abc import Mapping

EFA_INTERFACES: Mapping[str, int] = {
    "p4d.24xlarge": 4,
    "p4de.24xlarge": 4,
    "p5.48xlarge": 32,
    "p5e.48xlarge": 32,
    "p5en.48xlarge": 16,
    "p6-b200.48xlarge": 8,
}
"""Network cards that take an EFA each. Source: Amazon EC2 User Guide, "Maximize network bandwidth
on Amazon EC2 instances with multiple network cards"."""

_GKE_SERIES: Mapping[str, str] = {
    "a2-highgpu": "nvidia-tesla-a100",
    "a2-megagpu": "nvidia-tesla-a100",
    "a2-ultragpu": "nvidia-a100-80gb",
    "a3-edgegpu": "nvidia-h100-80gb",
    "a3-highgpu": "nvidia-h100-80gb",
    "a3-megagpu": "nvidia-h100-mega-80gb",
    "a3-ultragpu": "nvidia-h200-141gb",
    "a4-highgpu": "nvidia-b200",
    "g2-standard": "nvidia-l4",
}
_GKE_ATTACHED: Mapping[str, str] = {
    "nvidia-p100-16gb": "nvidia-tesla-p100",
    "nvidia-t4": "nvidia-tesla-t4",
    "nvidia-v100-16gb": "nvidia-tesla-v100",
}


def find_gke_accelerator(instance_type: str, model: str) -> str | None:
    """Return the accelerator's name in GKE: by the machine series, or of a GPU attached to N1.

    Source:
        GKE, "About GPUs": table of accelerator types; Compute Engine, "GPU machine types".
    """
    found = _GKE_SERIES.get(instance_type.rpartition("-")[0])
    if found is None and instance_type.startswith("n1-"):
        found = _GKE_ATTACHED.get(model)
    return found
