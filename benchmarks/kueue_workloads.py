"""Kueue's Workloads as far as they are compared.

Owns the shape of a Workload and what is read from its conditions. Asks nobody.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from gpuplane.kube.shapes import Condition, ObjectMeta


class Assignment(msgspec.Struct):
    """Flavors of a pod set."""

    flavors: dict[str, str] | None = None


class Admission(msgspec.Struct, rename="camel"):
    """What a workload was given."""

    pod_set_assignments: list[Assignment] | None = None


class WorkloadStatus(msgspec.Struct, rename="camel"):
    """Where a workload stands."""

    conditions: list[Condition] | None = None
    admission: Admission | None = None


class Workload(msgspec.Struct):
    """A Workload."""

    metadata: ObjectMeta
    status: WorkloadStatus | None = None

    @property
    def job(self) -> str:
        """Return the name of its Job."""
        owners = self.metadata.owner_references or []
        return owners[0].name if owners else ""

    @property
    def created_at(self) -> int:
        """Return when it was made, in ms."""
        return to_ms(self.metadata.creation_timestamp)

    @property
    def reserved_at(self) -> int:
        """Return since when it has its quota or none, in ms, 0 before Kueue looked at it."""
        found = self.condition("QuotaReserved")
        return to_ms(found.last_transition_time or "") if found is not None else 0

    def condition(self, kind: str) -> Condition | None:
        """Return a condition."""
        found = (self.status.conditions or []) if self.status else []
        return next((each for each in found if each.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Tell whether a condition is there and true."""
        found = self.condition(kind)
        return found is not None and found.status == "True"

    @property
    def holds(self) -> bool:
        """Tell whether its quota is reserved."""
        return self.is_true("QuotaReserved")

    @property
    def is_leaving(self) -> bool:
        """Tell whether it is being evicted and has its quota still."""
        return self.holds and self.is_true("Evicted")

    @property
    def flavor(self) -> str:
        """Return the flavor of what holds quota, empty for what does not."""
        if not self.holds or self.status is None or self.status.admission is None:
            return ""
        sets = self.status.admission.pod_set_assignments or []
        return next(name for each in sets for name in (each.flavors or {}).values())


def to_ms(text: str) -> int:
    """Return an instant of the API in ms since the epoch, 0 for none."""
    return int(datetime.fromisoformat(text).timestamp() * 1000) if text else 0
