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
        made_again: Whether somebody had deleted it since the look before; told once, never kept.
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
    made_again: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what tells it from the others of its cluster."""
        return str(self.kind), self.namespace, self.name


class Standing(StrEnum):
    """Where a declaration and the object on its cluster stand to each other."""

    DECLARED = "declared"
    """Declared, where admission is embedded: no cluster has to be told."""
    ACTIVE = "active"
    """The cluster has it as it is declared and works by it."""
    PENDING = "pending"
    """The cluster is not yet as it is declared, or its Kueue has not looked at it yet."""
    CONFLICT = "conflict"
    """It was not written: the cluster has something else, and keeps it."""
    INACTIVE = "inactive"
    """The cluster has it and admits nothing through it; its state says why."""
    FOREIGN = "foreign"
    """Somebody else made it on the cluster; read-only until it is adopted."""
    WITHDRAWN = "withdrawn"
    """It was made here, is declared no more, and is still on the cluster."""


def find_standing(
    seen: Seen | None, *, is_declared: bool, is_same: bool, admits_itself: bool
) -> Standing:
    """Return where a queue or a cohort stands.

    Args:
        seen: The object on the cluster, None where it has none.
        is_declared: Whether it is declared here.
        is_same: Whether the object says what is declared.
        admits_itself: Whether the cluster admits by its own Kueue.
    """
    if not admits_itself:
        return Standing.DECLARED
    if seen is not None and not is_declared:
        return Standing.WITHDRAWN if seen.ours else Standing.FOREIGN
    if seen is not None and seen.conflict is not None:
        return Standing.CONFLICT
    if seen is None or not seen.spec or not is_same:
        return Standing.PENDING
    if seen.state.get("active", True):
        return Standing.ACTIVE
    # Kueue says why a queue is inactive; one of which it says nothing it has not looked at yet.
    return Standing.INACTIVE if seen.state.get("reason") else Standing.PENDING
