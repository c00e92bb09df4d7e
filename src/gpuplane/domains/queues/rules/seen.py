"""An object of Kueue as a cluster shows it: whose it is, what it says, what stands against it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class SeenKind(StrEnum):
    """The kinds that are followed."""

    CLUSTER_QUEUE = "ClusterQueue"
    LOCAL_QUEUE = "LocalQueue"
    COHORT = "Cohort"
    FLAVOR = "ResourceFlavor"
    TOPOLOGY = "Topology"
    PRIORITY_CLASS = "WorkloadPriorityClass"
    CHECK = "AdmissionCheck"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why what was declared could not be written: a word, a sentence, and who owns which field."""

    reason: str
    message: str
    owners: tuple[tuple[str, str], ...] = ()
    """(field, manager)."""

    def encode(self) -> dict[str, Any]:
        """Return it as it is kept."""
        return {
            "reason": self.reason,
            "message": self.message,
            "owners": [{"field": name, "manager": manager} for name, manager in self.owners],
        }


def conflict_of(kept: Mapping[str, Any] | None) -> Conflict | None:
    """Return the conflict that is kept, or None."""
    if kept is None:
        return None
    owners = tuple((each["field"], each["manager"]) for each in kept.get("owners", ()))
    return Conflict(kept["reason"], kept["message"], owners)


@dataclass(frozen=True, slots=True)
class Seen:
    """One object as it was last seen.

    Args:
        ours: Whether this control plane made it; others' are read-only until they are adopted.
        spec: What it says, as declarations are kept, or as Kueue has it where we keep none.
        state: What it says of itself: activity, pending work, usage.
        notes: What our declarations have no words for, in sentences.
        applied: What we wrote last, as Kueue has it; None where we never wrote it.
    """

    kind: SeenKind
    namespace: str
    name: str
    ours: bool
    spec: Mapping[str, Any]
    state: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    applied: Mapping[str, Any] | None = None
    conflict: Conflict | None = None
    seen_at: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what tells it from the others of its cluster."""
        return str(self.kind), self.namespace, self.name
