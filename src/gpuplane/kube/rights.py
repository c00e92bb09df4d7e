"""What a role asks of the API server: its calls as one table, from which RBAC rules follow.

Owns the shape and the comparison with rules. Each role declares its own table beside its code;
the charts' rules are compared with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuplane.kube.kinds import Kind


@dataclass(frozen=True, slots=True)
class Right:
    """The verbs that a role uses on one kind, or on a part of it.

    Attributes:
        subresource: Such as `status`; empty for the objects themselves.
        is_own: Whether it is used in the role's own namespace only.
        names: Objects that it is used on, where they are known beforehand; empty for all.
        option: The setting without which it is not used; empty for always.
    """

    kind: Kind
    verbs: tuple[str, ...]
    subresource: str = ""
    is_own: bool = False
    names: tuple[str, ...] = ()
    option: str = ""

    @property
    def is_narrowed(self) -> bool:
        """Return whether a role that serves given namespaces needs it in those alone."""
        return self.kind.namespaced and not self.is_own

    @property
    def resource(self) -> str:
        """Return the resource as RBAC writes it."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


Granted = frozenset[tuple[str, str, str, str]]
"""(API group, resource, verb, object name or empty) of each single right."""


def list_needed(rights: Iterable[Right]) -> Granted:
    """Return the single rights of a table."""
    return frozenset(
        (right.kind.group, right.resource, verb, name)
        for right in rights
        for verb in right.verbs
        for name in right.names or ("",)
    )


def list_granted(rules: Sequence[Mapping[str, Any]]) -> Granted:
    """Return the single rights of RBAC rules; wildcards stay what they are."""
    return frozenset(
        (group, resource, verb, name)
        for rule in rules
        for group in rule.get("apiGroups", ())
        for resource in rule.get("resources", ())
        for verb in rule.get("verbs", ())
        for name in rule.get("resourceNames") or ("",)
    )
