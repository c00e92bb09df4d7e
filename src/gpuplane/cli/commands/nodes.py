"""Nodes: look, cordon, drain, uncordon."""

from typing import Any

import click

from gpuplane.cli.client import Client, segment
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.lookups import pick, pick_exactly
from gpuplane.cli.output import (
    Column,
    Output,
    output_option,
    paint,
    show_data,
    show_fields,
    show_rows,
)
from gpuplane.cli.parameters import DURATION
from gpuplane.cli.words import model_text

CLUSTER = click.option("--cluster", help="On which cluster; every cluster unless given.")
DRAIN_WAIT_S = 300
KUBERNETES = "kubernetes"
"""The kind of cluster that has Nodes of its own, which take a cordon when it answers."""


@click.group(cls=NearestGroup)
def nodes() -> None:
    """Nodes. NODE is a name or an id; of `show`, a unique part of either too."""


def _state(row: dict[str, Any]) -> str:
    if not row["present"]:
        return "gone"
    if row["not_seen_since"]:
        return "unknown"
    if not row["ready"]:
        return "down"
    if row["draining"]:
        return "draining"
    return "cordoned" if row["cordoned"] else "ready"


def _gpus(row: dict[str, Any]) -> str:
    counts: dict[str, int] = {}
    for gpu in row["gpus"]:
        model = model_text(gpu["gpu_type"])
        counts[model] = counts.get(model, 0) + 1
    return ", ".join(f"{count} {model}" for model, count in counts.items())


def _places(row: dict[str, Any]) -> str:
    """Return how many GPUs are in use, of how many; nothing of a node without any."""
    return f"{row['used_workers']}/{row['total_workers']}" if row["gpus"] else "-"


def _free(row: dict[str, Any]) -> str:
    return str(row["available_workers"]) if row["gpus"] else "-"


def _rows(client: Client, cluster: str | None) -> list[dict[str, Any]]:
    names = [cluster] if cluster else [each["name"] for each in client.rows("/clusters")]
    return [
        {**row, "cluster": name}
        for name in names
        for row in client.rows(f"/clusters/{segment(name)}/nodes")
    ]


def _one_cluster(named: str | None, option: str | None) -> str | None:
    """Return the cluster that is meant, by its place or by its option."""
    if named is not None and option is not None and named != option:
        raise click.UsageError(f"Two clusters are named, {named} and {option}; name one.")
    return named or option


@nodes.command("ls")
@click.argument("name", required=False, metavar="[CLUSTER]")
@CLUSTER
@output_option
def list_nodes(name: str | None, cluster: str | None, output: Output) -> None:
    """List nodes, of CLUSTER or of every one."""
    cluster = _one_cluster(name, cluster)
    columns = (
        Column("CLUSTER", lambda row: row["cluster"]),
        Column("NAME", lambda row: row["name"]),
        Column("STATE", _state, status=True),
        Column("GPUS", _gpus),
        Column("USED", _places, right=True),
        Column("FREE", _free, right=True),
        Column("CORES", lambda row: row["cpu_cores"], right=True),
        Column("GIB", lambda row: f"{row['memory_gb']:.0f}", right=True),
        Column("RACK", lambda row: row["rack"], spare=True),
        Column("TOPOLOGY", lambda row: (row["topology"] or "").splitlines()[:1], wide=True),
        Column("FABRIC", lambda row: row["rdma_fabric"], wide=True),
        Column("LABELS", lambda row: row["labels"], wide=True),
        Column("MESSAGE", lambda row: row["message"], spare=True),
    )
    show_rows(_rows(Client(), cluster), columns, output)


def _lines(values: dict[str, Any]) -> str:
    """Return one line for each value: a node of a fleet has half a hundred labels."""
    return "\n".join(f"{name}={_text(value)}" for name, value in sorted(values.items()))


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@nodes.command("show")
@click.argument("node")
@CLUSTER
@output_option
def show_node(node: str, cluster: str | None, output: Output) -> None:
    """Show one node and its GPUs."""
    row = pick(_rows(Client(), cluster), node, "node")
    if output.is_data:
        show_data(row, output)
        return
    show_fields(
        [
            ("name", row["name"]),
            ("cluster", row["cluster"]),
            ("state", _state(row)),
            ("message", row["message"]),
            ("cores", row["cpu_cores"]),
            ("memory", f"{row['memory_gb']:g} GiB"),
            ("in use", _places(row)),
            ("available", row["available_workers"]),
            ("rack", row["rack"]),
            ("RDMA fabric", row["rdma_fabric"]),
            ("type", row["type"]),
            ("address", row["internal_ip"]),
            ("hardware", _lines(row["hardware_info"])),
            ("detected by", row["detection_method"]),
            ("driver", row["driver_info"]),
            ("kernel", row["kernel_info"]),
            (
                "conditions",
                "\n".join(f"{c['type']}={c['status']} {c['reason']}" for c in row["conditions"]),
            ),
            ("labels", _lines(row["labels"])),
            ("taints", "\n".join(f"{t['key']}={t['value']}:{t['effect']}" for t in row["taints"])),
            ("topology", row["topology"]),
        ]
    )
    if not row["gpus"]:
        return
    click.echo(paint("\nGPUs", "bold"))
    columns = (
        Column("INDEX", lambda gpu: gpu["index"], right=True),
        Column("MODEL", lambda gpu: model_text(gpu["gpu_type"])),
        Column("GIB", lambda gpu: f"{gpu['memory_gb']:.0f}", right=True),
        Column("HEALTHY", lambda gpu: gpu["healthy"]),
        Column("USED", lambda gpu: f"{gpu['used_percent']} %", right=True),
        Column(
            "MIG", lambda gpu: gpu["mig_instances"] or ("enabled" if gpu["mig_enabled"] else "")
        ),
        Column("MESSAGE", lambda gpu: gpu["message"]),
        Column("UUID", lambda gpu: gpu["gpu_id"]),
    )
    show_rows(row["gpus"], columns, Output.TABLE)


def _do(
    client: Client, node: str, cluster: str | None, verb: str, body: Any = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Set a mark on a node; return the node as it is now, and its cluster."""
    row = pick_exactly(_rows(client, cluster), node, "node")
    path = f"/clusters/{segment(row['cluster'])}"
    made = client.post(f"{path}/nodes/{segment(row['name'])}/{verb}", body)
    return dict(made), dict(client.get(path))


def _when_carried_out(row: dict[str, Any], cluster: dict[str, Any]) -> str:
    """Return when a mark reaches the Node: at once is only what is told here."""
    if row["not_seen_since"]:
        return f"once {cluster['name']} answers, which it has not since {row['not_seen_since']}"
    return f"at the next look at {cluster['name']}"


def describe_cordon(row: dict[str, Any], cluster: dict[str, Any]) -> str:
    """Return what a cordon did, and what of it the Node itself does not have yet."""
    if row["unschedulable"] or cluster["kind"] != KUBERNETES:
        return f"{row['name']} is cordoned"
    when = _when_carried_out(row, cluster)
    return f"{row['name']} gets no new jobs of gpuplane; the Node itself is cordoned {when}"


def describe_uncordon(row: dict[str, Any], cluster: dict[str, Any]) -> str:
    """Return that a node takes work again, or when the cordon is taken off the Node itself."""
    if not row["unschedulable"]:
        return f"{row['name']} takes work again"
    when = _when_carried_out(row, cluster)
    return f"{row['name']} takes work again when our cordon is taken off the Node: {when}"


def describe_drain(row: dict[str, Any], cluster: dict[str, Any]) -> str:
    """Return how soon a drained node is empty; nothing of one that is not seen is moved."""
    if row["not_seen_since"] and cluster["kind"] == KUBERNETES:
        return f"{row['name']} is to be drained: it begins {_when_carried_out(row, cluster)}"
    return f"{row['name']} drains; its work is moved within {row['drain_wait_s']} s"


@nodes.command("cordon")
@click.argument("node")
@CLUSTER
def cordon(node: str, cluster: str | None) -> None:
    """Let nothing new start on a node; what runs goes on."""
    client = Client()
    click.echo(describe_cordon(*_do(client, node, cluster, "cordon")))


@nodes.command("uncordon")
@click.argument("node")
@CLUSTER
def uncordon(node: str, cluster: str | None) -> None:
    """Let new work start on a node again."""
    client = Client()
    click.echo(describe_uncordon(*_do(client, node, cluster, "uncordon")))


@nodes.command("drain")
@click.argument("node")
@CLUSTER
@click.option(
    "--wait",
    "wait_s",
    type=DURATION,
    default=DRAIN_WAIT_S,
    show_default="5m",
    help="How long training and batch work gets to write a checkpoint or end before it is moved.",
)
def drain(node: str, cluster: str | None, wait_s: int) -> None:
    """Cordon a node, ask its work for checkpoints, and move it elsewhere.

    Services without checkpoints move at once.
    """
    client = Client()
    click.echo(describe_drain(*_do(client, node, cluster, "drain", {"wait_s": wait_s})))
