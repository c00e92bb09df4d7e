"""Clusters: look, freeze and thaw, maintenance, who may use them, whom preemption may stop."""

from typing import Any

import click

from gpuplane.cli.client import Client, segment
from gpuplane.cli.commands.access import COMMANDS as ACCESS
from gpuplane.cli.commands.identity import find_tenant
from gpuplane.cli.commands.provisioning import COMMANDS as PROVISIONING
from gpuplane.cli.commands.registration import COMMANDS
from gpuplane.cli.commands.tenancies import COMMANDS as TENANCIES
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.lookups import pick_exactly
from gpuplane.cli.output import Column, Output, output_option, paint_status, show_one, show_rows
from gpuplane.cli.parameters import INSTANT
from gpuplane.cli.words import age, clock_text, model_text, policy_lines, short_id


@click.group(cls=NearestGroup)
def clusters() -> None:
    """Clusters: where jobs run. CLUSTER is a name or an id."""


for command in (*COMMANDS, *TENANCIES, *PROVISIONING, *ACCESS):
    clusters.add_command(command)


def _path(cluster: str, *parts: str) -> str:
    return "/".join([f"/clusters/{segment(cluster)}", *(segment(part) for part in parts)])


def _gpus(row: dict[str, Any]) -> str:
    return ", ".join(f"{each['total']} {model_text(each['gpu_type'])}" for each in row["gpus"])


@clusters.command("ls")
@output_option
def list_clusters(output: Output) -> None:
    """List clusters."""
    columns = (
        Column("NAME", lambda row: row["name"]),
        Column("KIND", lambda row: row["kind"]),
        Column("STATE", lambda row: row["state"].lower(), status=True),
        Column("SIM", lambda row: "yes" if row["simulated"] else ""),
        Column("FROZEN", lambda row: (row["frozen_reason"] or "yes") if row["frozen"] else ""),
        Column("OPEN TO", lambda row: "all" if row["is_open_to_all"] else "granted tenants"),
        Column("GPUS", _gpus),
        Column("AGE", lambda row: age(row["created_at"]), right=True, wide=True),
        Column("ID", lambda row: row["id"], wide=True),
    )
    show_rows(Client().rows("/clusters"), columns, output)


@clusters.command("show")
@click.argument("cluster")
@output_option
def show_cluster(cluster: str, output: Output) -> None:
    """Show one cluster: its state, what it promises, its capacity and preemption policy."""
    client = Client()
    found = client.get(_path(cluster))
    found["capacity"] = client.get(_path(cluster, "capacity"))
    found["preemption_policy"] = client.get(_path(cluster, "preemption-policy"))
    capacity = found["capacity"]
    cpu, memory = capacity["cpu_milli"], capacity["memory_mib"]
    fields = [
        ("name", found["name"]),
        ("id", found["id"]),
        ("kind", found["kind"] + (" (simulated)" if found["simulated"] else "")),
        ("state", paint_status(found["state"].lower())),
        ("reason", found["state_reason"]),
        ("since", found["not_available_since"]),
        ("next try", found["next_retry_time"]),
        ("server", found["server_url"]),
        ("version", " ".join(filter(None, (found["kubernetes_version"], found["distribution"])))),
        ("platform", found["platform"] if found["server_url"] else None),
        ("role", found["role"] if found["server_url"] else None),
        ("admission", found["admission"]),
        ("routes", found["expose"] if found["distribution"] == "openshift" else None),
        ("reports", found["report_image"]),
        ("ingress", found["ingress_url"]),
        ("masters", "take work" if found["enable_master_node"] else None),
        ("attributes", found["attributes"]),
        ("health", "\n".join(f"{c['kind']}: {c['verdict']} {c['message']}" for c in
                             found["health"])),
        ("frozen", found["frozen_reason"] or "yes" if found["frozen"] else None),
        ("open to", "all tenants" if found["is_open_to_all"] else "granted tenants"),
        ("GPUs", _gpus(found)),
        ("nodes", capacity["node_count"]),
        ("cores", f"{cpu['free'] / 1000:g} of {cpu['total'] / 1000:g} free"),
        ("memory", f"{memory['free'] / 1024:.1f} of {memory['total'] / 1024:.1f} GiB free"),
        ("labels", found["labels"]),
        ("notes", "\n".join(found["notes"])),
        ("preemption", "\n".join(policy_lines(found["preemption_policy"], cluster))),
    ]  # fmt: skip
    show_one(found, fields, output)


@clusters.command("freeze")
@click.argument("cluster")
@click.option("--reason", default="", help="Why, for those who wait.")
def freeze(cluster: str, reason: str) -> None:
    """Let nothing new start; what runs goes on."""
    found = Client().post(_path(cluster, "freeze"), {"reason": reason})
    click.echo(f"{found['name']} is frozen")


@clusters.command("thaw")
@click.argument("cluster")
def thaw(cluster: str) -> None:
    """Let new work start again."""
    found = Client().post(_path(cluster, "thaw"))
    click.echo(f"{found['name']} takes work again")


@clusters.command("preemption")
@click.argument("cluster")
@click.option("--enable/--disable", "enabled", default=None, help="Whether work is stopped at all.")
@click.option(
    "--min-runtime",
    "min_runtime_before_preemption_s",
    type=int,
    help="Seconds that work runs before it may be stopped.",
)
@click.option("--max-per-hour", "max_preemptions_per_hour", type=int, help="At most so many.")
@click.option("--grace", "grace_period_s", type=int, help="Seconds between SIGTERM and SIGKILL.")
@click.option(
    "--high-cost-progress",
    "high_cost_progress_ratio",
    type=float,
    help="Work beyond this share of its way is stopped last.",
)
@click.option(
    "--low-cost-checkpoint-age",
    "low_cost_checkpoint_age_s",
    type=int,
    help="Work with a checkpoint so many seconds old is stopped first.",
)
@output_option
def preemption(cluster: str, output: Output, **changes: Any) -> None:
    """Show the preemption policy, or change what is given of it."""
    client = Client()
    body = {name: value for name, value in changes.items() if value is not None}
    path = _path(cluster, "preemption-policy")
    found = client.patch(path, body) if body else client.get(path)
    show_one(found, [("preemption", "\n".join(policy_lines(found, cluster)))], output)


@clusters.command("maintenance")
@click.argument("cluster")
@click.option("--announce", "reason", metavar="REASON", help="Announce a window for this reason.")
@click.option("--from", "start", type=INSTANT, help="When it begins (or +1h).")
@click.option("--to", "end", type=INSTANT, help="When it ends.")
@click.option("--node", help="Of this node alone.")
@click.option("--withdraw", metavar="WINDOW", help="Take a window back.")
@output_option
def maintenance(
    cluster: str,
    reason: str | None,
    start: str | None,
    end: str | None,
    node: str | None,
    withdraw: str | None,
    output: Output,
) -> None:
    """List announced windows, announce one, or take one back."""
    client = Client()
    path = _path(cluster, "maintenance-windows")
    if withdraw is not None:
        found = pick_exactly(client.rows(path), withdraw, "window")
        client.delete(f"{path}/{found['id']}")
    if reason is not None:
        if start is None or end is None:
            raise click.UsageError("A window needs --from and --to.")
        body = {"reason": reason, "start": start, "end": end, "node": node}
        client.post(path, body)
    columns = (
        Column("ID", lambda row: short_id(row["id"])),
        Column("NODE", lambda row: row["node"] or "(all)"),
        Column("FROM", lambda row: clock_text(row["start"])),
        Column("TO", lambda row: clock_text(row["end"])),
        Column("BEGUN", lambda row: row["has_begun"]),
        Column("BY", lambda row: row["announced_by"]),
        Column("REASON", lambda row: row["reason"]),
    )
    show_rows(client.rows(path), columns, output, empty="No window is announced.")


@clusters.command("dedicate")
@click.argument("cluster")
@click.option("--to", "tenant", metavar="TENANT", help="The only tenant that may use it.")
@click.option("--everyone", is_flag=True, help="Open it to everyone again.")
def dedicate(cluster: str, tenant: str | None, *, everyone: bool) -> None:
    """Let one tenant alone use a cluster; jobs with restricted data run only on such."""
    if (tenant is None) is not everyone:
        raise click.UsageError("Give either --to TENANT or --everyone.")
    client = Client()
    found = None if tenant is None else find_tenant(client, tenant)
    body = {"tenant_id": None if found is None else found["id"]}
    client.put(_path(cluster, "dedication"), body)
    click.echo(f"{cluster} is open to {'everyone' if found is None else found['name'] + ' alone'}")


@clusters.command("grants")
@click.argument("cluster")
@click.option("--add", metavar="TENANT", help="Let this tenant use it.")
@click.option("--rm", "remove", metavar="TENANT", help="Take that back; what runs goes on.")
@output_option
def grants(cluster: str, add: str | None, remove: str | None, output: Output) -> None:
    """List the tenants that may use a cluster that is not open to all, or change that."""
    client = Client()
    path = _path(cluster, "grants")
    if add is not None:
        client.post(path, {"tenant_id": find_tenant(client, add)["id"]})
    if remove is not None:
        client.delete(f"{path}/{find_tenant(client, remove)['id']}")
    names = {each["id"]: each["name"] for each in client.items("/tenants")}
    rows = [{"id": each, "name": names.get(each, "")} for each in client.get(path)["tenant_ids"]]
    columns = (
        Column("TENANT", lambda row: row["name"]),
        Column("ID", lambda row: row["id"]),
    )
    show_rows(rows, columns, output, empty="It was granted to no tenant.")
