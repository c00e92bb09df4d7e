"""What a plan would do, read from the plan as JSON: counts and one line for each resource.

Owns leaving out everything else: a plan holds every value, secrets among them, and of it only
addresses, types and actions go further.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FORMAT_MAJOR = "1"
"""Of `terraform show -json`; a later one may mean other things by the same names."""


class Action(StrEnum):
    """What becomes of a resource."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    DELETE = "delete"
    READ = "read"
    NOTHING = "no-op"
    FORGET = "forget"


_ACTIONS = {
    ("create",): Action.CREATE,
    ("update",): Action.UPDATE,
    ("delete", "create"): Action.REPLACE,
    ("create", "delete"): Action.REPLACE,
    ("create", "forget"): Action.REPLACE,
    ("delete",): Action.DELETE,
    ("read",): Action.READ,
    ("no-op",): Action.NOTHING,
    ("forget",): Action.FORGET,
}


class UnreadablePlan(ValueError):
    """The text is no plan of a known form."""


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one resource."""

    address: str
    action: Action


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What a plan would do.

    Attributes:
        changes: What is made, changed or deleted, in the order of addresses; the rest is left out.
        outputs_change: Whether outputs change; with no changes that is all there is to apply.
    """

    changes: tuple[Change, ...]
    outputs_change: bool = False

    @property
    def added(self) -> int:
        """Return how many resources are made, replacements among them."""
        return sum(each.action in (Action.CREATE, Action.REPLACE) for each in self.changes)

    @property
    def changed(self) -> int:
        """Return how many resources change in place."""
        return sum(each.action is Action.UPDATE for each in self.changes)

    @property
    def destroyed(self) -> int:
        """Return how many resources are deleted, replacements among them."""
        return sum(each.action in (Action.DELETE, Action.REPLACE) for each in self.changes)

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to apply."""
        return not self.changes and not self.outputs_change


def summary_of(plan: Mapping[str, Any]) -> PlanSummary:
    """Return what a plan would do.

    Args:
        plan: What `show -json` writes of a plan file.

    Raises:
        UnreadablePlan: If it is no plan, or one of a later form.
    """
    form = str(plan.get("format_version", ""))
    if form.partition(".")[0] != FORMAT_MAJOR:
        raise UnreadablePlan(f"The plan has the form {form or 'unknown'}, not {FORMAT_MAJOR}.x.")
    changes = []
    for each in plan.get("resource_changes", []):
        words = tuple(each["change"]["actions"])
        if words not in _ACTIONS:
            raise UnreadablePlan(f"{each['address']} has the unknown actions {', '.join(words)}.")
        if _ACTIONS[words] not in (Action.NOTHING, Action.READ):
            changes.append(Change(str(each["address"]), _ACTIONS[words]))
    outputs = plan.get("output_changes", {}).values()
    moves = any(each["actions"] != ["no-op"] for each in outputs)
    return PlanSummary(tuple(sorted(changes, key=lambda each: each.address)), moves)
