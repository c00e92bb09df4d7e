"""What is known of a node beyond what placement needs: for people, affinity and audits.

A value that backends fill and the inventory keeps; nothing is decided here.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeDetails:
    """One node's detected hardware and software.

    Attributes:
        uid: Of the object behind it; another node of the same name has another one.
        kind: `MASTER`, `WORKER`, `GPU` or `HPU`.
        unschedulable: Whether the cluster itself lets nothing new start there.
        is_counted: False for a node of the control plane where its cluster does not use those.
        hardware: What was detected, as one object.
        conditions: (type, status, reason, message), by type.
        nfd_labels: Labels of Node Feature Discovery, without their prefix.
        detection_method: By which trace the hardware is known.
        kernel: Versions of kernel, operating system, container runtime and kubelet.
        driver: Versions of the accelerators' driver and runtime.
    """

    uid: str = ""
    kind: str = "WORKER"
    internal_ip: str = ""
    unschedulable: bool = False
    is_counted: bool = True
    threads_per_core: int | None = None
    core_count: int | None = None
    hardware: dict[str, Any] = field(default_factory=dict)
    conditions: tuple[tuple[str, str, str, str], ...] = ()
    nfd_detected: bool = False
    nfd_labels: dict[str, str] = field(default_factory=dict)
    detection_method: str = "backend"
    kernel: dict[str, str] = field(default_factory=dict)
    driver: dict[str, str] = field(default_factory=dict)
