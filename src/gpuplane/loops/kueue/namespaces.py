"""Keeps the namespaces of tenants that have a LocalQueue, and never takes over somebody else's.

What goes wrong with one namespace is told of that one alone: the others are written all the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuplane.domains.queues.service import Conflict
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import FieldConflict, KubeError
from gpuplane.kube.kinds import NAMESPACE
from gpuplane.kube.tenancy import MANAGED, TENANT_ID_LABEL, Tenancy, namespace_object


@dataclass(frozen=True, slots=True)
class Spaces:
    """What became of the namespaces of a turn.

    Args:
        conflicts: Why a namespace is not as it should be, by its name.
        closed: Those in which nothing may be written: somebody else's, or not there.
    """

    conflicts: Mapping[str, Conflict] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()


def find_strangeness(found: Mapping[str, Any], tenancy: Tenancy) -> str | None:
    """Return why a namespace that is there is not this tenant's, None where it is ours."""
    labels = found["metadata"].get("labels") or {}
    owner = labels.get(TENANT_ID_LABEL)
    if owner not in (None, tenancy.tenant_id):
        return (
            f"Namespace {tenancy.namespace} belongs to tenant {owner}: one of this name that was "
            "deleted, or another control plane's. If it was deleted: "
            f"kubectl delete namespace {tenancy.namespace}"
        )
    needed = {**MANAGED, TENANT_ID_LABEL: tenancy.tenant_id}
    if labels.items() >= needed.items():
        return None
    return (
        f"Somebody else made namespace {tenancy.namespace}; it is not taken over. Delete it, or "
        f"label it {', '.join(f'{key}={value}' for key, value in needed.items())}."
    )


async def write_namespaces(client: KubeClient, tenants: Iterable[Tenancy]) -> Spaces:
    """Make the namespaces that are missing, and mend those that differ."""
    wanted = sorted(tenants, key=lambda each: each.namespace)
    if not wanted:
        return Spaces()
    live = {each["metadata"]["name"]: each for each in await client.list(NAMESPACE)}
    conflicts: dict[str, Conflict] = {}
    closed: set[str] = set()
    for tenancy in wanted:
        name, made = tenancy.namespace, namespace_object(tenancy)
        found = live.get(name)
        if found is not None:
            said = find_strangeness(found, tenancy)
            if said is not None:
                conflicts[name] = Conflict("NamespaceTaken", said)
                closed.add(name)
                continue
            labels = found["metadata"].get("labels") or {}
            if labels.items() >= made["metadata"]["labels"].items():
                continue
        try:
            await client.apply(made)
        except KubeError as error:
            conflicts[name] = _conflict_of(name, error)
            if found is None:
                closed.add(name)
    return Spaces(conflicts, frozenset(closed))


def _conflict_of(name: str, error: KubeError) -> Conflict:
    if not isinstance(error, FieldConflict):
        return Conflict(error.reason or "Refused", error.message)
    owners = tuple((each.field, each.manager) for each in error.owners)
    who = ", ".join(error.managers) or "somebody else"
    fields = ", ".join(sorted({each.field for each in error.owners}))
    said = f"{who} set {fields} of namespace {name}; it was left as it is."
    return Conflict("FieldConflict", said, owners)
