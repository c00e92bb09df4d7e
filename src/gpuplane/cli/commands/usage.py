"""`gpuplane usage`: what was used and what it costs, and where the devices' time went."""

from collections import Counter
from typing import Any

import click

from gpuplane.cli.client import Client
from gpuplane.cli.lookups import find_job
from gpuplane.cli.output import (
    Column,
    Output,
    note,
    output_option,
    paint,
    show_data,
    show_rows,
)
from gpuplane.cli.parameters import INSTANT
from gpuplane.cli.words import (
    NO_PRICE,
    clock_text,
    costs_text,
    money_text,
    price_text,
    short_id,
)
from gpuplane.core.pricing.book import DEFAULT_CURRENCY

HOUR_S = 3_600
NAMED_JOBS = 200
"""Jobs whose names are asked for, one by one; the others are shown by their ids."""
STATES = ("busy", "allocated_idle", "reserved", "free", "down")
HELD = ("busy", "allocated_idle", "reserved")
LEAST_REST_S = 36
"""A hundredth of an hour: less is not seen in hours of two digits."""
GROUPS = (
    "job", "project", "tenant", "cluster", "node", "device", "model", "cost_centre", "queue",
    "priority", "job_type", "source", "day",
)  # fmt: skip


@click.command()
@click.option(
    "--by",
    "groups",
    multiple=True,
    default=("project",),
    show_default=True,
    help=f"Group by {', '.join(GROUPS)} or label:KEY; repeatable.",
)
@click.option("--from", "start", type=INSTANT, help="Start (or -7d); 30 days ago unless given.")
@click.option("--to", "end", type=INSTANT, help="End; now unless given.")
@click.option("--cluster", help="Only on this cluster.")
@click.option("--job", help="Only of this job.")
@click.option("--label", help="Only with KEY=VALUE.")
@click.option("--simulated/--real", default=None, help="Only simulated or only real use.")
@click.option("--lines", is_flag=True, help="Every price that was applied.")
@output_option
def usage(
    groups: tuple[str, ...],
    start: str | None,
    end: str | None,
    cluster: str | None,
    job: str | None,
    label: str | None,
    output: Output,
    *,
    simulated: bool | None,
    lines: bool,
) -> None:
    """Show what was used, what it costs, and that every device's time adds up."""
    client = Client()
    job_id = None if job is None else find_job(client, job)["id"]
    used = client.get(
        "/usage", group_by=groups, from_=start, to=end, cluster=cluster, job_id=job_id,
        label=label, simulated=simulated,
    )  # fmt: skip
    devices = client.get("/usage/devices", from_=start, to=end, cluster=cluster)
    if output.is_data:
        show_data({"usage": used, "devices": devices}, output)
        return
    note(f"{clock_text(used['from_at'])} to {clock_text(used['to_at'])}")
    _name_keys(client, used, groups)
    _show_rows(used, groups, output)
    if lines:
        _show_lines(used)
    _show_devices(devices)
    if job is None and label is None and simulated is None:
        for sentence in rest_sentences(used["rows"], devices["clusters"]):
            click.echo(sentence)


def project_names(projects: list[dict[str, Any]], tenants: list[dict[str, Any]]) -> dict[str, str]:
    """Return the names of projects by id, with the tenant where several have one of the name."""
    owners = {each["id"]: each["name"] for each in tenants}
    count = Counter(each["name"] for each in projects)
    return {
        each["id"]: each["name"]
        if count[each["name"]] == 1
        else f"{owners.get(each['tenant_id'], each['tenant_id'])}/{each['name']}"
        for each in projects
    }


def rest_sentences(rows: list[dict[str, Any]], clusters: list[dict[str, Any]]) -> list[str]:
    """Return how the GPU-hours used and the device-hours held come together, where they differ.

    A device of which a part is held counts whole where its time is told, and as that part in use.
    """
    found = []
    for simulated in (False, True):
        used = sum(
            row["gpu_busy_s"] + row["gpu_idle_s"] + row["gpu_reserved_s"]
            for row in rows
            if row["simulated"] is simulated
        )
        held = sum(
            _state_s(row, state)
            for row in clusters
            if row["simulated"] is simulated
            for state in HELD
        )
        if held - used >= LEAST_REST_S:
            kind = "simulated devices" if simulated else "devices"
            found.append(
                f"{_hours(held)} device-hours of {kind} were held: {_hours(used)} GPU-hours as "
                f"above, and {_hours(held - used)} are the rest of GPUs of which MIG instances or "
                "shares were held, or what others held."
            )
    return found


def _name_keys(client: Client, used: dict[str, Any], groups: tuple[str, ...]) -> None:
    """Write names where the answer has ids, as far as the caller may see them."""
    rows: list[dict[str, Any]] = used["rows"]
    names: dict[str, str] = dict(used["cluster_names"])
    if "tenant" in groups:
        names |= {each["id"]: each["name"] for each in client.items("/tenants")}
    if "project" in groups:
        names |= project_names(list(client.items("/projects")), list(client.items("/tenants")))
    if "job" in groups:
        ids = [row["keys"]["job"] for row in rows if row["keys"].get("job")]
        for identity in ids[:NAMED_JOBS]:
            job = client.find(f"/jobs/{identity}")
            if job is not None:
                names[identity] = f"{job['name']} ({short_id(identity)})"
    for row in rows:
        row["keys"] = {key: names.get(value or "", value) for key, value in row["keys"].items()}


def _show_rows(used: dict[str, Any], groups: tuple[str, ...], output: Output) -> None:
    currency = min({*used["cost"], *used["simulated_cost"]}, default=DEFAULT_CURRENCY)
    columns = [
        Column(group.upper(), lambda row, group=group: row["keys"].get(group) or "-")  # type: ignore[misc]  # group is bound now
        for group in groups
    ]
    columns += [
        Column("GPU-H BUSY", lambda row: _hours(row["gpu_busy_s"]), right=True),
        Column("IDLE", lambda row: _hours(row["gpu_idle_s"]), right=True),
        Column("RESERVED", lambda row: _hours(row["gpu_reserved_s"]), right=True),
        Column("BILLED", lambda row: _hours(row["gpu_billable_s"]), right=True, wide=True),
        Column("CORE-H", lambda row: _hours(row["cpu_core_s"]), right=True),
        Column("GIB-H", lambda row: _hours(row["memory_gib_s"]), right=True),
        Column("COST", lambda row: costs_text(row["cost"], currency, row["unpriced"]), right=True),
        Column("", lambda row: "simulated" if row["simulated"] else ""),
        Column("UNPRICED", lambda row: row["unpriced"], wide=True),
    ]
    show_rows(used["rows"], columns, output, empty="Nothing was used.")
    if not used["rows"]:
        return
    for title, costs, simulated in (
        ("total", used["cost"], False),
        ("total simulated", used["simulated_cost"], True),
    ):
        rows = [row for row in used["rows"] if row["simulated"] is simulated]
        if rows:
            gpu = sum(row["gpu_busy_s"] + row["gpu_idle_s"] + row["gpu_reserved_s"] for row in rows)
            cores = sum(row["cpu_core_s"] for row in rows)
            unpriced = [item for row in rows for item in row["unpriced"]]
            click.echo(
                f"{paint(title, 'bold')}: {_hours(gpu)} GPU-hours, {_hours(cores)} core-hours, "
                f"{costs_text(costs, currency, unpriced)}"
            )


def _show_lines(used: dict[str, Any]) -> None:
    lines = [
        {**line, "of": ", ".join(str(each) for each in row["keys"].values() if each)}
        for row in used["rows"]
        for line in row["lines"]
    ]
    columns = (
        Column("OF", lambda line: line["of"]),
        Column("ITEM", lambda line: line["item"]),
        Column("HOURS", lambda line: f"{line['hours']:.4f}", right=True),
        Column(
            "PRICE",
            lambda line: price_text(line["price"], line["currency"]) or NO_PRICE,
            right=True,
        ),
        Column(
            "COST",
            lambda line: (
                money_text(line["cost"], line["currency"]) if line["price"] is not None else ""
            ),
            right=True,
        ),
    )
    click.echo()
    show_rows(lines, columns, Output.TABLE, empty="No price was applied.")


def _show_devices(devices: dict[str, Any]) -> None:
    if not devices["clusters"]:
        return
    click.echo(f"\n{paint('where the time of the devices went, in device-hours', 'bold')}")
    columns = [
        Column("CLUSTER", lambda row: row["cluster"]),
        Column("DEVICES", lambda row: row["device_count"], right=True),
        *(
            Column(state.upper().replace("_", "-"), lambda row, state=state: _state(row, state),  # type: ignore[misc]  # state is bound now
                   right=True)
            for state in STATES
        ),
        Column("SUM", lambda row: _hours(sum(row["states_ms"].values()) / 1000), right=True),
        Column("WALL CLOCK", lambda row: _hours(row["wall_clock_ms"] / 1000), right=True),
        Column("ADDS UP", lambda row: row["adds_up"]),
        Column("", lambda row: "simulated" if row["simulated"] else ""),
    ]  # fmt: skip
    show_rows(devices["clusters"], columns, Output.TABLE)


def _state(row: dict[str, Any], state: str) -> str:
    return _hours(_state_s(row, state))


def _state_s(row: dict[str, Any], state: str) -> float:
    states = row["states_ms"]
    return float(states.get(state, states.get(state.replace("_", "-"), 0))) / 1000


def _hours(seconds: float) -> str:
    hours = seconds / HOUR_S
    return f"{hours:.2f}" if hours >= 1 or not hours else f"{hours:.4f}"
