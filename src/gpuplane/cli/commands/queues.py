"""Quotas (cluster queues), queues (a tenant's doors to them) and cohorts (who may borrow)."""

from typing import Any
from urllib.parse import urlencode

import click

from gpuplane.cli.accounts import ACCOUNT, account_lines
from gpuplane.cli.asking import YES, confirm
from gpuplane.cli.client import Client, segment
from gpuplane.cli.declarations import (
    confirm_differences,
    find_useless,
    list_differences,
    merge_groups,
    merge_quota,
    settle,
    settle_withdrawal,
)
from gpuplane.cli.flavors import flavor_in, read_flavors
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.lookups import pick, pick_exactly
from gpuplane.cli.output import (
    Column,
    Output,
    declared_option,
    output_option,
    show_data,
    show_one,
    show_rows,
)
from gpuplane.cli.words import short_id

CLUSTER = click.option("--cluster", required=True, help="On which cluster.")
HIGHEST = click.option(
    "--highest-priority",
    type=click.Choice(["critical", "high", "normal", "low", "spot"]),
    help="The highest class that may go through it; without it the role alone decides.",
)
WITHIN_POLICIES = ("Never", "LowerPriority", "LowerOrNewerEqualPriority")
WITHIN = click.option(
    "--within-cluster-queue",
    type=click.Choice(WITHIN_POLICIES, case_sensitive=False),
    help="Which work of its own its waiting work may preempt.",
)
RECLAIM = click.option(
    "--reclaim-within-cohort",
    type=click.Choice(("Never", "LowerPriority", "Any"), case_sensitive=False),
    help="Whose work, of those that borrow what it owns, its waiting work may preempt.",
)
FILE_HELP = "`gpuplane apply` declares and changes them from manifests."


def _path(cluster: str, list_name: str, name: str | None = None) -> str:
    base = f"/clusters/{segment(cluster)}/{list_name}"
    return base if name is None else f"{base}/{segment(name)}"


def _groups(row: dict[str, Any]) -> str:
    """Return what is owned; without what is none of, where there is anything.

    Every flavor of a group names each of its resources, most of them none in a mixed fleet.
    """
    parts = {
        f"{flavor['name']}:{each['name'].rpartition('/')[2]}": str(each["nominalQuota"])
        for group in row["resourceGroups"]
        for flavor in group["flavors"]
        for each in flavor["resources"]
    }
    some = {name: amount for name, amount in parts.items() if amount != "0"}
    return " ".join(f"{name}={amount}" for name, amount in (some or parts).items())


def _stands(row: dict[str, Any]) -> str:
    """Return where a declaration stands on its cluster, empty where nothing is to be said."""
    standing: str = row["standing"]
    if standing == "inactive" and row["cluster"]["reason"]:
        return f"inactive: {row['cluster']['reason']}"
    return "" if standing == "declared" else standing


def _on_cluster(row: dict[str, Any]) -> str:
    """Return what is owned by what the cluster has, empty where that is what is declared."""
    return "" if row["onCluster"] is None else _groups(row["onCluster"])


def _apart(row: dict[str, Any]) -> list[tuple[str, object]]:
    """Return what a cluster queue is on its cluster and why, where that is not as declared."""
    why = "" if row["conflict"] is None else row["conflict"]["message"]
    told = (("on cluster", _on_cluster(row)), ("conflict", why))
    return [(name, said) for name, said in told if said]


@click.group(cls=NearestGroup, help=f"Quotas: the cluster queues of a cluster. {FILE_HELP}")
def quotas() -> None:
    """Hold the commands."""


@quotas.command("ls")
@CLUSTER
@output_option
def list_quotas(cluster: str, output: Output) -> None:
    """List cluster queues with what they own."""
    columns = (
        Column("NAME", lambda row: row["name"]),
        Column("COHORT", lambda row: row["cohort"]),
        Column("OWNS", lambda row: "everything" if row["coversEverything"] else _groups(row)),
        Column("STATE", _stands, status=True),
        Column("ON CLUSTER", _on_cluster, wide=True),
        Column("HIGHEST", lambda row: row["highestPriority"] or "by role", wide=True),
        Column("STRATEGY", lambda row: row["queueingStrategy"], wide=True),
        Column("WEIGHT", lambda row: row["fairSharing"].get("weight"), wide=True, right=True),
        Column("PREEMPTS", lambda row: row["preemption"].get("withinClusterQueue"), wide=True),
        Column("RECLAIMS", lambda row: row["preemption"].get("reclaimWithinCohort"), wide=True),
    )
    show_rows(Client().rows(_path(cluster, "quotas")), columns, output)


@quotas.command("show")
@CLUSTER
@click.argument("name")
@declared_option
def show_quota(cluster: str, name: str, output: Output) -> None:
    """Show one cluster queue as it is declared."""
    found = pick(Client().rows(_path(cluster, "quotas")), name, "quota")
    fields: list[tuple[str, object]] = [
        ("name", found["name"]),
        ("cohort", found["cohort"]),
        ("owns", "everything" if found["coversEverything"] else _groups(found)),
        *_apart(found),
        ("highest", found["highestPriority"] or "by role"),
    ]
    if output is Output.WIDE:
        fields += [
            ("strategy", found["queueingStrategy"]),
            ("weight", found["fairSharing"].get("weight")),
            ("preempts", found["preemption"].get("withinClusterQueue")),
            ("reclaims", found["preemption"].get("reclaimWithinCohort")),
        ]
    show_one(found, fields, output)


@quotas.command("usage")
@CLUSTER
@click.option(
    "--by",
    type=click.Choice(["queue", "tenant"]),
    default="queue",
    show_default=True,
    help="The account of each cluster queue, or what tenants hold through each.",
)
@click.option("--tenant", help="What this tenant holds; --by tenant of one alone.")
@output_option
def show_usage(cluster: str, by: str, tenant: str | None, output: Output) -> None:
    """Show what is owned, used, borrowed, lent and left, by queue, flavor and resource.

    BORROWED is used beyond what is owned. LENT is owned, unused here and in the hands of others of
    the cohort. Where Kueue admits, what it counts is told: others' work is in it.
    """
    client = Client()
    if tenant is not None or by == "tenant":
        _show_holders(client, cluster, tenant, output)
        return
    found = client.get(_path(cluster, "queue-usage"))
    if output.is_data:
        show_data(found, output)
        return
    show_rows(account_lines(found["clusterQueues"]), ACCOUNT, output, empty="It has no queues.")


def _show_holders(client: Client, cluster: str, tenant: str | None, output: Output) -> None:
    """Show what jobs hold now, by queue and tenant."""
    found = client.get(_path(cluster, "usage", tenant))
    if output.is_data:
        show_data(found, output)
        return
    names = {each["id"]: each["name"] for each in client.items("/tenants")}
    columns = (
        Column("QUEUE", lambda row: row["queue"]),
        Column("TENANT", lambda row: names.get(row["tenant_id"], short_id(row["tenant_id"]))),
        Column("JOBS", lambda row: row["job_count"], right=True),
        Column("GPUS", lambda row: f"{row['gpu_milli'] / 1000:g}", right=True),
        Column("CORES", lambda row: f"{row['cpu_milli'] / 1000:g}", right=True),
        Column("GIB", lambda row: f"{row['memory_mib'] / 1024:g}", right=True),
    )
    show_rows(found["queues"], columns, output, empty="Nothing is held.")


@quotas.command("set")
@CLUSTER
@click.argument("name")
@click.option("--cohort", help="May borrow within this cohort; '' takes it out.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="MODEL=COUNT[:BORROW[:LEND]]",
    help="What it owns of a GPU model, may borrow and lends; repeatable. MODEL=0 of a model that "
    "the cluster has none of takes it out of the queue.",
)
@click.option(
    "--mig",
    "instances",
    multiple=True,
    metavar="MODEL/PROFILE=COUNT[:BORROW[:LEND]]",
    help="The same of a model's MIG instances, such as a100-40gb/1g.5gb=8; repeatable.",
)
@click.option(
    "--no-gpu",
    "dropped",
    multiple=True,
    metavar="MODEL",
    help="Take a GPU model out of the queue with all that it owns of it; repeatable.",
)
@click.option("--weight", type=float, help="Under fair sharing.")
@WITHIN
@RECLAIM
@HIGHEST
@click.option("--yes", "-y", is_flag=True, help="Do not ask before one that is there is changed.")
@output_option
def set_quota(
    cluster: str,
    name: str,
    cohort: str | None,
    gpus: tuple[str, ...],
    instances: tuple[str, ...],
    dropped: tuple[str, ...],
    weight: float | None,
    within_cluster_queue: str | None,
    reclaim_within_cohort: str | None,
    highest_priority: str | None,
    output: Output,
    *,
    yes: bool,
) -> None:
    """Declare a cluster queue of GPUs, or change what is named of one; manifests say more.

    What is not named stays: shows the difference and asks. Ends with 4 where the cluster has
    something else and keeps it.
    """
    client, path = Client(), _path(cluster, "quotas")
    models = [each["gpu_type"] for each in client.get(f"/clusters/{segment(cluster)}")["gpus"]]
    flavors = read_flavors(gpus, instances, models)
    changes: dict[str, Any] = {} if cohort is None else {"cohort": cohort or None}
    if highest_priority is not None:
        changes["highestPriority"] = highest_priority
    if weight is not None:
        changes["fairSharing"] = {"weight": weight}
    preemption = {
        "withinClusterQueue": within_cluster_queue,
        "reclaimWithinCohort": reclaim_within_cohort,
    }
    named = {field: policy for field, policy in preemption.items() if policy is not None}
    if named:
        changes["preemption"] = named
    rows = {row["name"]: row for row in client.rows(path)}
    row = rows.get(name)
    if row is not None and row["isDeclared"] and not row["isDefault"]:
        gone = {flavor_in(row, text) for text in dropped} | find_useless(row, flavors, models)
        body = merge_quota(row, flavors, changes, gone)
        differences = list_differences(row, body)
        if differences:
            confirm_differences(differences, yes=yes)
            row = client.put(_path(cluster, "quotas", name), body)
        found = settle(client, path, row)
    else:
        if dropped:
            raise click.UsageError(f"--no-gpu is of a queue that is declared, and {name} is not.")
        if not flavors:
            raise click.UsageError("A new queue needs --gpu or --mig.")
        groups: list[dict[str, Any]] = []
        merge_groups(groups, flavors)
        made = client.post(path, {"name": name, "resourceGroups": groups, **changes})
        found = settle(client, path, made)
    show_one(found, [("name", found["name"]), ("cohort", found["cohort"]),
                     ("owns", _groups(found))], output)  # fmt: skip


@quotas.command("rm")
@CLUSTER
@click.argument("name")
@YES
def delete_quota(cluster: str, name: str, *, yes: bool) -> None:
    """Withdraw a cluster queue that nothing leads to and nothing runs through."""
    client, path = Client(), _path(cluster, "quotas")
    before = pick_exactly(client.rows(path), name, "quota")
    owns = "everything" if before["coversEverything"] else _groups(before) or "nothing"
    click.echo(f"{before['name']} on {cluster} owns {owns}.", err=True)
    confirm(f"Withdraw {before['name']}?", yes=yes)
    client.delete(_path(cluster, "quotas", before["name"]))
    click.echo(settle_withdrawal(client, path, before))


@quotas.command("adopt")
@CLUSTER
@click.argument("name")
def adopt_quota(cluster: str, name: str) -> None:
    """Take over a cluster queue as the cluster has it: from then on it is declared here."""
    found = Client().post(_path(cluster, "quotas", name) + "/adopt")
    click.echo(f"{name} is declared here: {_groups(found)}".rstrip(": "))


# -- local queues -----------------------------------------------------------------------------


@click.group(cls=NearestGroup, help=f"Queues: a tenant's doors to cluster queues. {FILE_HELP}")
def queues() -> None:
    """Hold the commands."""


@queues.command("ls")
@CLUSTER
@output_option
def list_queues(cluster: str, output: Output) -> None:
    """List the local queues of a cluster."""
    columns = (
        Column("NAME", lambda row: row["name"]),
        Column("TENANT", lambda row: row["tenant"]),
        Column("LEADS TO", lambda row: row["clusterQueue"]),
        Column("STATE", _stands, status=True),
        Column("TYPES", lambda row: row["jobTypes"] or "all"),
        Column("HIGHEST", lambda row: row["highestPriority"] or "by role"),
        Column("LIMITS", lambda row: [f"{each['flavor']}:{each['resource'].rpartition('/')[2]}"
                                      f"={each['limit']}" for each in row["limits"]]),
    )  # fmt: skip
    rows = Client().rows(_path(cluster, "queues"))
    show_rows(rows, columns, output, empty="No local queue is declared.")


@queues.command("set")
@CLUSTER
@click.argument("name")
@click.option("--tenant", required=True, help="Whose door it is.")
@click.option("--leads-to", required=True, metavar="CLUSTERQUEUE", help="Where it leads.")
@click.option("--type", "types", multiple=True, help="Only service, batch or training; repeatable.")
@HIGHEST
def set_queue(
    cluster: str,
    name: str,
    tenant: str,
    leads_to: str,
    types: tuple[str, ...],
    highest_priority: str | None,
) -> None:
    """Open a tenant's door to a cluster queue, or change what is named of one; the rest stays.

    Where Kueue admits, a door that is there leads where it leads: delete it before you open one
    of its name elsewhere.
    """
    client = Client()
    body: dict[str, Any] = {"tenant": tenant, "clusterQueue": leads_to}
    row = _find_door(client, _path(cluster, "queues"), name, tenant)
    if row is not None:
        kept = ("jobTypes", "limits", "highestPriority")
        body |= {field: row[field] for field in kept}
    if types:
        body["jobTypes"] = list(types)
    if highest_priority is not None:
        body["highestPriority"] = highest_priority
    if row is not None:
        client.put(_path(cluster, "queues", name), body)
    else:
        client.post(_path(cluster, "queues"), {"name": name, **body})
    click.echo(f"{tenant}/{name} leads to {leads_to}")


def _find_door(client: Client, path: str, name: str, tenant: str) -> dict[str, Any] | None:
    """Return a tenant's local queue that is declared, or None; the tenant by name or id."""
    for row in client.rows(path):
        if row["name"] == name and row["isDeclared"] and tenant in (row["tenant"], row["tenantId"]):
            return row
    return None


@queues.command("adopt")
@CLUSTER
@click.argument("name")
@click.option("--tenant", required=True, help="In whose namespace it is.")
def adopt_queue(cluster: str, name: str, tenant: str) -> None:
    """Take over a local queue as the cluster has it: from then on it is declared here."""
    path = f"{_path(cluster, 'queues', name)}/adopt?{urlencode({'tenant': tenant})}"
    found = Client().post(path)
    click.echo(f"{tenant}/{name} is declared here: it leads to {found['clusterQueue']}")


@queues.command("rm")
@CLUSTER
@click.argument("name")
@click.option("--tenant", required=True, help="Whose door it is.")
@YES
def delete_queue(cluster: str, name: str, tenant: str, *, yes: bool) -> None:
    """Close a tenant's door; refused while jobs hold devices or wait through it."""
    client, path = Client(), _path(cluster, "queues")
    before = _find_door(client, path, name, tenant)
    confirm(f"Close {tenant}/{name} on {cluster}?", yes=yes)
    client.delete(_path(cluster, "queues", name), tenant=tenant)
    click.echo(f"{tenant}/{name} deleted" if before is None
               else settle_withdrawal(client, path, before))  # fmt: skip


# -- cohorts ----------------------------------------------------------------------------------


@click.group(cls=NearestGroup, help=f"Cohorts: cluster queues that may borrow. {FILE_HELP}")
def cohorts() -> None:
    """Hold the commands."""


@cohorts.command("ls")
@CLUSTER
@output_option
def list_cohorts(cluster: str, output: Output) -> None:
    """List cohorts with their members."""
    columns = (
        Column("NAME", lambda row: row["name"]),
        Column("PARENT", lambda row: row["parent"]),
        Column("MEMBERS", lambda row: row["members"]),
        Column("OWNS", _groups),
        Column("STATE", lambda row: "" if row["standing"] == "declared" else row["standing"]),
        Column("WEIGHT", lambda row: row["fairSharing"].get("weight"), wide=True, right=True),
    )
    rows = Client().rows(_path(cluster, "cohorts"))
    show_rows(rows, columns, output, empty="No cohort is declared or named.")


@cohorts.command("set")
@CLUSTER
@click.argument("name")
@click.option("--parent", help="The cohort above it; '' takes it out.")
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar="CLUSTERQUEUE",
    help="Exactly these are in it; repeatable.",
)
@click.option("--weight", type=float, help="Under fair sharing.")
def set_cohort(
    cluster: str, name: str, parent: str | None, members: tuple[str, ...], weight: float | None
) -> None:
    """Declare a cohort, or change what is named of one; the rest stays."""
    client = Client()
    path = _path(cluster, "cohorts")
    rows = client.rows(path)
    known = next((row for row in rows if row["name"] == name and row["isDeclared"]), None)
    kept = ("parent", "resourceGroups", "fairSharing")
    body: dict[str, Any] = {} if known is None else {field: known[field] for field in kept}
    if parent is not None:
        body["parent"] = parent or None
    if members:
        body["members"] = list(members)
    if weight is not None:
        body["fairSharing"] = {"weight": weight}
    if known is not None:
        found = client.put(_path(cluster, "cohorts", name), body)
    else:
        found = client.post(path, {"name": name, **body})
    settle(client, path, found)
    click.echo(f"{name} declared")


@cohorts.command("adopt")
@CLUSTER
@click.argument("name")
def adopt_cohort(cluster: str, name: str) -> None:
    """Take over a cohort as the cluster has it: from then on it is declared here."""
    Client().post(_path(cluster, "cohorts", name) + "/adopt")
    click.echo(f"{name} is declared here")


@cohorts.command("rm")
@CLUSTER
@click.argument("name")
@YES
def delete_cohort(cluster: str, name: str, *, yes: bool) -> None:
    """Withdraw a cohort without members."""
    confirm(f"Withdraw {name} on {cluster}?", yes=yes)
    Client().delete(_path(cluster, "cohorts", name))
    click.echo(f"{name} deleted")
