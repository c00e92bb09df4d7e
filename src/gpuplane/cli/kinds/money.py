"""Kinds Price and Reservation: a new price holds from now on, a reservation is made anew."""

from dataclasses import replace
from typing import Any

from gpuplane.cli.client import Client
from gpuplane.cli.errors import CliError
from gpuplane.cli.kinds.changes import Action, Change, differences_of
from gpuplane.cli.manifests import Document, nearest
from gpuplane.cli.ownership import Owner, owner_of
from gpuplane.cli.words import instant_of, now

PRICE_FIELDS = ("item", "price", "currency", "cluster", "valid_from")
RESERVATION_FIELDS = ("cluster", "model", "count", "start", "end", "charge_unused")
ENDED = ("ended", "cancelled")


def plan_price(client: Client, document: Document, others: object) -> Change:
    """Return what a manifest of a price would change."""
    document.check_metadata()
    wanted = _wanted(document, PRICE_FIELDS, ("item", "price"))
    current = _current_price(client, wanted)
    compared = {name: each for name, each in wanted.items() if name in ("price", "currency")}
    if current is None:
        return Change(document, Action.CREATE, (), lambda: _set_price(client, wanted))
    differ = differences_of(compared, current)
    if not differ:
        return Change(document, Action.UNCHANGED)
    return Change(document, Action.CHANGE, differ, lambda: _set_price(client, wanted))


def plan_reservation(client: Client, document: Document, others: object) -> Change:
    """Return what a manifest of a reservation would change."""
    document.check_metadata("project", "tenant")
    wanted = _wanted(document, RESERVATION_FIELDS, ("cluster", "model", "count", "start", "end"))
    named = (document.metadata.get(name) for name in ("tenant", "project"))
    tenant, project = (None if each is None else str(each) for each in named)
    owner = owner_of(client, tenant=tenant, project=project or client.target.project)
    change = _change(client, document, owner, wanted)
    return replace(change, elsewhere=owner.elsewhere)


def _change(client: Client, document: Document, owner: Owner, wanted: dict[str, Any]) -> Change:
    rows = [
        row
        for row in client.get("/capacity/reservations", cluster=wanted["cluster"])["items"]
        if row["name"] == document.name and row["state"] not in ENDED and owner.has(row)
    ]
    if not rows:
        return Change(document, Action.CREATE, (),
                      lambda: _reserve(client, document, owner, wanted))  # fmt: skip
    left_out = {"cluster"}
    if rows[0]["state"] == "active" and _is_over(wanted["start"]):
        left_out.add("start")  # it goes on: what is made anew begins now
    compared = {name: each for name, each in wanted.items() if name not in left_out}
    differ = differences_of(compared, rows[0])
    if not differ:
        return Change(document, Action.UNCHANGED)
    old = rows[0]["id"]
    return Change(document, Action.REPLACE, differ,
                  lambda: _reserve_again(client, document, owner, old, wanted))  # fmt: skip


def _wanted(document: Document, fields: tuple[str, ...], needed: tuple[str, ...]) -> dict[str, Any]:
    for name in document.spec:
        if name not in fields:
            raise document.error(f"There is no field {name!r} here.", field=f"spec.{name}",
                                 fix=nearest(name, fields))  # fmt: skip
    for name in needed:
        if name not in document.spec:
            raise document.error("This field is required.", field=f"spec.{name}")
    return dict(document.spec)


def _current_price(client: Client, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """Return the price of the item that holds now, of this cluster or of no cluster alike."""
    cluster = wanted.get("cluster")
    rows = client.get("/prices", item=str(wanted["item"]), cluster=cluster)["items"]
    at = instant_of(wanted.get("valid_from")) or now()
    held = [
        row
        for row in rows
        if (row["cluster_id"] is None) == (cluster is None)
        and (instant_of(row["valid_from"]) or at) <= at
    ]
    return max(held, key=lambda row: str(row["valid_from"]), default=None)


def _set_price(client: Client, wanted: dict[str, Any]) -> str:
    found = client.post("/prices", wanted)
    return f"{found['price']} {found['currency']} per {found['unit']}"


def _reserve(client: Client, document: Document, owner: Owner, wanted: dict[str, Any]) -> str:
    if owner.project_id is None:
        raise document.error(f"There is no project {owner.project!r} in the tenant.",
                             field="metadata.project")  # fmt: skip
    body = {**wanted, "name": document.name, "project_id": owner.project_id}
    return f"reserved, {client.post('/capacity/reservations', body)['id']}"


def _reserve_again(
    client: Client, document: Document, owner: Owner, old_id: str, wanted: dict[str, Any]
) -> str:
    if _is_over(wanted["start"]):
        wanted = {**wanted, "start": now().isoformat()}
    # The old one first: it holds the very GPUs that the new one asks for.
    client.delete(f"/capacity/reservations/{old_id}")
    try:
        return _reserve(client, document, owner, wanted)
    except CliError as error:
        raise document.error(
            f"The old reservation was given up, and the new one was refused: {error.message}",
            fix=error.fix,
        ) from error


def _is_over(start: object) -> bool:
    """Tell whether an instant of a manifest is in the past; the API judges what is no instant."""
    try:
        at = instant_of(str(start))
    except ValueError:
        return False
    return at is not None and at.tzinfo is not None and at < now()
