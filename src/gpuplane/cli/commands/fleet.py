"""`gpuplane fleet`: GPUs by model over clusters, what is free now and when more will be."""

from collections.abc import Sequence
from typing import Any

import click

from gpuplane.cli.client import Client, segment
from gpuplane.cli.output import Column, Output, note, output_option, paint, show_data, show_rows
from gpuplane.cli.words import model_text, when
from gpuplane.core.reasons import TAKEN_BY_OTHERS

BAR = 20
NAMED = 5
"""So many nodes are named in a line."""


@click.command()
@click.argument("cluster", required=False)
@output_option
def fleet(cluster: str | None, output: Output) -> None:
    """Show GPUs by model: total, in use, reserved, down, free, and when more will be free."""
    client = Client()
    names = [cluster] if cluster else [each["name"] for each in client.rows("/clusters")]
    found = [client.get(f"/clusters/{segment(name)}/resources") for name in names]
    if output.is_data:
        show_data({"items": found}, output)
        return
    rows = [
        {**model, "cluster": each["cluster"], "simulated": each["simulated"]}
        for each in found
        for model in each["gpus"]
    ]
    show_rows(rows, COLUMNS, output, empty="No cluster has a GPU.")
    click.echo()
    for each in found:
        _note_nodes(each)
        if any(model["down"] for model in each["gpus"]):
            rows = client.rows(f"/clusters/{segment(each['cluster'])}/nodes")
            if said := others_sentence(rows):
                note(f"  {said}")


def _bar(row: dict[str, Any]) -> str:
    total = max(1, int(row["total"]))
    busy: int = round(BAR * row["busy"] / total)
    held: int = round(BAR * (row["busy"] + row["reserved"]) / total)
    free: int = round(BAR * (total - row["down"]) / total)
    return "█" * busy + "▒" * (held - busy) + "·" * (free - held) + "x" * (BAR - free)


def _next(row: dict[str, Any]) -> str:
    for each in row["forecast"]:
        if each["free"] > row["free"]:
            return f"{each['free']} {when(each['at'])}"
    return ""


COLUMNS = (
    Column("CLUSTER", lambda row: row["cluster"]),
    Column("MODEL", lambda row: model_text(row["gpu_type"])),
    Column("TOTAL", lambda row: row["total"], right=True),
    Column("BUSY", lambda row: row["busy"], right=True),
    Column("RESERVED", lambda row: row["reserved"], right=True),
    Column("DOWN", lambda row: row["down"], right=True),
    Column("FREE", lambda row: row["free"], right=True),
    Column("", _bar),
    Column("NEXT FREE", _next),
    Column("NO END KNOWN", lambda row: row["without_end"], right=True, wide=True),
    Column("SIM", lambda row: "yes" if row["simulated"] else "", wide=True),
)


def _note_nodes(found: dict[str, Any]) -> None:
    simulated = " (simulated)" if found["simulated"] else ""
    cores = f"{found['cpu_cores_free']:g} of {found['cpu_cores_total']:g} cores"
    memory = f"{found['memory_gb_free']:.0f} of {found['memory_gb_total']:.0f} GiB"
    note(
        f"{paint(found['cluster'], 'bold', err=True)}{simulated}: {found['ready_nodes']} of "
        f"{found['nodes']} nodes ready, {cores} and {memory} free"
    )


def others_sentence(nodes: Sequence[dict[str, Any]]) -> str:
    """Return which of the GPUs that are down are other people's for now, empty where none is."""
    counts = {
        row["name"]: sum(gpu["message"].startswith(TAKEN_BY_OTHERS) for gpu in row["gpus"])
        for row in nodes
    }
    names = [name for name, count in counts.items() if count]
    if not names:
        return ""
    total = sum(counts.values())
    verb = "is" if total == 1 else "are"
    named = ", ".join(names[:NAMED]) + (" …" if len(names) > NAMED else "")
    return (
        f"{total} of those down {verb} taken by pods that are no jobs of gpuplane, on {named}: "
        f"gpuplane nodes show {names[0]}"
    )
