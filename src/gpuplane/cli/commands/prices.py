"""The price book: what a GPU-hour, a core-hour and a GiB-hour cost from when on."""

import click

from gpuplane.cli.client import Client
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.output import Column, Output, output_option, show_rows
from gpuplane.cli.parameters import INSTANT, NumberCommand
from gpuplane.cli.words import clock_text, model_text, price_text


@click.group(cls=NearestGroup)
def prices() -> None:
    """The price book; what was used before a change keeps its price."""


@prices.command("ls")
@click.option("--cluster", help="Those that hold on this cluster.")
@click.option("--item", help="Only of a GPU model, cpu or memory.")
@output_option
def list_prices(cluster: str | None, item: str | None, output: Output) -> None:
    """List prices with their history."""
    found = Client().get("/prices", cluster=cluster, item=item)
    names: dict[str, str] = found.get("cluster_names", {})
    columns = (
        Column("ITEM", lambda row: model_text(row["item"]) if row["unit"] == "GPU-hour"
               else row["item"]),
        Column("PRICE", lambda row: price_text(row["price"], row["currency"]), right=True),
        Column("PER", lambda row: row["unit"]),
        Column("CLUSTER", lambda row: names.get(row["cluster_id"] or "", row["cluster_id"])
               or "any"),
        Column("FROM", lambda row: clock_text(row["valid_from"])),
        Column("BY", lambda row: row["created_by"], wide=True),
        Column("ID", lambda row: row["id"], wide=True),
    )  # fmt: skip
    show_rows(found["items"], columns, output, empty="No price is known.")


@prices.command("set", cls=NumberCommand)
@click.argument("item")
@click.argument("price")
@click.option("--currency", default="USD", show_default=True, help="Code of ISO 4217.")
@click.option("--cluster", help="On this cluster alone; else wherever no other price holds.")
@click.option("--from", "valid_from", type=INSTANT, help="From then on; now unless given.")
def set_price(
    item: str, price: str, currency: str, cluster: str | None, valid_from: str | None
) -> None:
    """Set the price of an hour of a GPU model, of `cpu` (a core) or of `memory` (a GiB)."""
    body = {
        "item": item,
        "price": price,
        "currency": currency,
        "cluster": cluster,
        "valid_from": valid_from,
    }
    found = Client().post("/prices", body)
    amount = price_text(found["price"], found["currency"])
    click.echo(
        f"{found['item']} costs {amount} per {found['unit']} "
        f"from {clock_text(found['valid_from'])} on"
    )
