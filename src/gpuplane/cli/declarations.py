"""What is declared of quotas: merged with what stands, shown as a difference, followed to its end.

Owns how a change of a cluster queue is put together and what is told until its cluster has it.
"""

import copy
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import click

from gpuplane.cli.asking import confirm
from gpuplane.cli.client import Client
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.output import note, paint

SETTLE_S = 10.0
"""How long a cluster is given to take a declaration before the command leaves it to itself."""
LOOK_S = 0.5
GPU = "nvidia.com/gpu"
KEPT = (
    "cohort",
    "resourceGroups",
    "queueingStrategy",
    "fairSharing",
    "preemption",
    "flavorFungibility",
    "coversEverything",
    "highestPriority",
)
"""The fields of a cluster queue that a change replaces as a whole."""


def merge_quota(
    row: Mapping[str, Any],
    flavors: Sequence[Mapping[str, Any]],
    changes: Mapping[str, Any],
    dropped: Collection[str] = (),
) -> dict[str, Any]:
    """Return a cluster queue as it stands with what was named in its place.

    Args:
        row: The queue as the API shows it.
        flavors: Flavors with quotas of devices; amounts that are not named stay.
        changes: Other fields with their new values; of `preemption` what is named.
        dropped: Flavors that are taken out with all their quotas.
    """
    body = {name: copy.deepcopy(row[name]) for name in KEPT}
    flavors = [each for each in flavors if each["name"] not in dropped]
    if "preemption" in changes:
        changes = {**changes, "preemption": {**body["preemption"], **changes["preemption"]}}
    if flavors:
        body["coversEverything"] = False
    merge_groups(body["resourceGroups"], flavors)
    drop_flavors(body["resourceGroups"], dropped)
    return {**body, **changes, "resourceVersion": row["resourceVersion"]}


def merge_groups(groups: list[dict[str, Any]], flavors: Sequence[Mapping[str, Any]]) -> None:
    """Add quotas of devices to the groups of a queue, in place; amounts not named stay.

    A flavor and a resource are each in one group, and a group has each of its resources in each of
    its flavors: what is not named there is none.
    """
    for flavor in flavors:
        for quota in flavor["resources"]:
            group = _group_for(groups, flavor["name"], quota["name"])
            if quota["name"] not in group["coveredResources"]:
                group["coveredResources"].append(quota["name"])
            known = [each for each in group["flavors"] if each["name"] == flavor["name"]]
            if not known:
                known = [{"name": flavor["name"], "resources": []}]
                group["flavors"] += known
            for each in group["flavors"]:
                told = {one["name"]: one for one in each["resources"]}
                nothing = {"nominalQuota": 0}
                each["resources"] = [
                    told.get(name, {"name": name, **nothing}) for name in group["coveredResources"]
                ]
            before = next(one for one in known[0]["resources"] if one["name"] == quota["name"])
            before.update(quota)


def find_useless(
    row: Mapping[str, Any], flavors: Sequence[Mapping[str, Any]], here: Collection[str]
) -> frozenset[str]:
    """Return the flavors that are named with nothing, that nothing is left of, and nobody has.

    Kueue admits nothing at all through a queue with a flavor that its cluster has no node of, so
    a quota of 0 of one is no use. Where a limit of borrowing or lending is named it is meant.

    Args:
        row: The queue as the API shows it.
        flavors: Flavors with the quotas that are named.
        here: The GPU models of the cluster.
    """
    meant = {
        (flavor["name"], quota["name"]): quota
        for flavor in flavors
        for quota in flavor["resources"]
    }
    told = {
        (flavor["name"], quota["name"]): quota
        for group in row["resourceGroups"]
        for flavor in group["flavors"]
        for quota in flavor["resources"]
    }
    some = {
        name
        for (name, resource), quota in {**told, **meant}.items()
        if str(quota.get("nominalQuota")) != "0"
        or ((name, resource) in meant and len(quota) > len(("name", "nominalQuota")))
    }
    return frozenset(name for name, _ in meant) - some - frozenset(here)


def drop_flavors(groups: list[dict[str, Any]], names: Collection[str]) -> None:
    """Take flavors out of the groups of a queue with all their quotas, in place."""
    for each in groups:
        each["flavors"] = [one for one in each["flavors"] if one["name"] not in names]
    groups[:] = [each for each in groups if each["flavors"]]


def _group_for(groups: list[dict[str, Any]], flavor: str, resource: str) -> dict[str, Any]:
    """Return the group in which a quota is or belongs, made where there is none."""
    for each in groups:
        if resource in each["coveredResources"]:
            return each
    for each in groups:
        if any(one["name"] == flavor for one in each["flavors"]):
            return each
    made: dict[str, Any] = {"coveredResources": [resource], "flavors": []}
    groups.append(made)
    return made


def list_differences(row: Mapping[str, Any], body: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (field, old, new) of what a body changes of a cluster queue, each amount by itself."""
    old, new = _flat(row), _flat(body)
    return [
        (name, old.get(name, "(none)"), new.get(name, "(none)"))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def confirm_differences(differences: Sequence[tuple[str, str, str]], *, yes: bool) -> None:
    """Show what would change and ask.

    Raises:
        CliError: If nobody can be asked, or the answer is no.
    """
    for name, old, new in differences:
        click.echo(f"    {name}: {paint(old, 'red')} → {paint(new, 'green')}", err=True)
    confirm("Change it?", yes=yes)


def settle(client: Client, path: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return a declaration as it stands once its cluster has it, or has refused it.

    Args:
        client: Of the control plane.
        path: Of the list in which it is.
        found: The answer to the declaration.

    Raises:
        CliError: If the cluster has something else and keeps it.
    """
    for warning in found.get("warnings", ()):
        note(f"warning: {warning}")
    until = time.monotonic() + SETTLE_S
    while found["standing"] == "pending" and time.monotonic() < until:
        time.sleep(LOOK_S)
        found = _find(client, path, found) or found
    name = found["name"]
    if found["standing"] == "conflict":
        raise CliError(
            f"{name} is declared here as asked and waits: the cluster keeps what it has: "
            f"{found['conflict']['message']}",
            fix=f"Adopt what the cluster has, or withdraw the declaration of {name}.",
            code=Exit.REFUSED,
        )
    if found["standing"] == "pending":
        note(f"{name} is declared; its cluster has not taken it yet: STATE of `ls` tells when")
    elif found["standing"] == "inactive":
        note(f"{name} admits nothing yet: {found['cluster']['message']}")
    return found


def settle_withdrawal(client: Client, path: str, before: Mapping[str, Any]) -> str:
    """Return what became of what was withdrawn, once its cluster has let go of it, for people."""
    name = "/".join(filter(None, (before.get("tenant"), before["name"])))
    if before["standing"] == "declared":
        return f"{name} deleted"
    until = time.monotonic() + SETTLE_S
    while True:
        found = _find(client, path, before)
        if found is None:
            return f"{name} deleted"
        if found["standing"] == "foreign":
            return f"{name} is declared here no more; what somebody else made stays on the cluster"
        if found["conflict"] is not None:
            said = found["conflict"]["message"]
            return f"{name} is declared here no more; the cluster keeps it: {said}"
        if time.monotonic() >= until:
            return f"{name} is declared here no more; its cluster has not let go of it yet"
        time.sleep(LOOK_S)


def _find(client: Client, path: str, before: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a row as it is now, by its name and, of a local queue, its tenant; None for gone."""
    same = ("name", "tenant")
    for each in client.rows(path):
        if all(each.get(field) == before.get(field) for field in same):
            return each
    return None


def _flat(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a cluster queue by dotted name, its quotas by flavor and resource."""
    told = {
        f"{flavor['name']} {quota['name']} {field}": str(quota[field])
        for group in row["resourceGroups"]
        for flavor in group["flavors"]
        for quota in flavor["resources"]
        for field in ("nominalQuota", "borrowingLimit", "lendingLimit")
        if quota.get(field) is not None
    }
    for name in KEPT:
        value = row[name]
        if name == "resourceGroups":
            continue
        parts = value if isinstance(value, Mapping) else {"": value}
        told |= {f"{name}.{part}".rstrip("."): _text(each) for part, each in parts.items()}
    return told


def _text(value: object) -> str:
    return "(none)" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
