"""Webhooks: events sent to an address, signed and retried."""

from typing import Any

import click

from gpuplane.cli.asking import YES, confirm
from gpuplane.cli.client import Client, segment
from gpuplane.cli.commands.identity import tenant_id
from gpuplane.cli.lazy import NearestGroup
from gpuplane.cli.lookups import find_job_exactly, pick, pick_exactly
from gpuplane.cli.output import Column, Output, note, output_option, show_data, show_one, show_rows
from gpuplane.cli.words import age, clock_text, short_id

ROWS = 100


@click.group(cls=NearestGroup)
def webhooks() -> None:
    """Events sent to an address, signed and retried. WEBHOOK is an id or the end of one."""


def _find(client: Client, key: str) -> dict[str, Any]:
    return pick(client.items("/webhooks"), key, "webhook")


def _find_exactly(client: Client, key: str) -> dict[str, Any]:
    return pick_exactly(client.items("/webhooks"), key, "webhook")


@webhooks.command("ls")
@output_option
def list_webhooks(output: Output) -> None:
    """List webhooks."""
    columns = (
        Column("ID", lambda row: short_id(row["id"])),
        Column("STATE", lambda row: row["state"], status=True),
        Column("KINDS", lambda row: row["kinds"] or "all"),
        Column("URL", lambda row: row["url"]),
        Column("FAILURES", lambda row: row["failures_in_a_row"], right=True),
        Column("AGE", lambda row: age(row["created_at"]), right=True),
        Column("WHY", lambda row: row["state_reason"], wide=True),
        Column("FULL ID", lambda row: row["id"], wide=True),
    )
    show_rows(Client().items("/webhooks"), columns, output, empty="No webhooks.")


@webhooks.command("show")
@click.argument("webhook")
@output_option
def show_webhook(webhook: str, output: Output) -> None:
    """Show one webhook."""
    found = _find(Client(), webhook)
    show_one(found, [(name.replace("_", " "), value) for name, value in found.items()], output)


@webhooks.command("create")
@click.argument("url")
@click.option("--kind", multiple=True, help="Only this kind, or `job.*`; repeatable.")
@click.option("--cluster", help="For the events of a cluster.")
@click.option("--tenant", help="For the events of a tenant; yours unless given.")
@click.option("--job", help="For the events of one job.")
@output_option
def create_webhook(
    url: str,
    kind: tuple[str, ...],
    cluster: str | None,
    tenant: str | None,
    job: str | None,
    output: Output,
) -> None:
    """Create a webhook and show its signing secret this once."""
    client = Client()
    body: dict[str, Any] = {"url": url, "kinds": list(kind)}
    if cluster is not None:
        found = client.post(f"/clusters/{segment(cluster)}/webhooks", body)
    else:
        body["tenant_id"] = tenant_id(client, tenant)
        body["subject_id"] = None if job is None else find_job_exactly(client, job)["id"]
        found = client.post("/webhooks", body)
    if output.is_data:
        show_data(found, output)
        return
    note("Keep the secret: it is shown this once.")
    click.echo(f"id:        {found['webhook']['id']}")
    click.echo(f"secret:    {found['secret']}")
    click.echo(f"signature: {found['signature']}")


@webhooks.command("set")
@click.argument("webhook")
@click.option("--url", help="Where to send.")
@click.option("--kind", multiple=True, help="Which kinds from now on; repeatable.")
@click.option("--enable/--disable", default=None, help="Start again, or stop.")
def change_webhook(
    webhook: str, url: str | None, kind: tuple[str, ...], *, enable: bool | None
) -> None:
    """Change a webhook; what is not given stays."""
    client = Client()
    body: dict[str, Any] = {}
    if url is not None:
        body["url"] = url
    if kind:
        body["kinds"] = list(kind)
    if enable is not None:
        body["state"] = "active" if enable else "disabled"
    found = client.patch(f"/webhooks/{_find_exactly(client, webhook)['id']}", body)
    click.echo(f"{found['url']} {found['state']}")


@webhooks.command("rm")
@click.argument("webhook")
@YES
def delete_webhook(webhook: str, *, yes: bool) -> None:
    """Delete a webhook and its deliveries."""
    client = Client()
    found = _find_exactly(client, webhook)
    confirm(f"Delete the webhook to {found['url']}?", yes=yes)
    client.delete(f"/webhooks/{found['id']}")
    click.echo(f"{found['url']} deleted")


@webhooks.command("deliveries")
@click.argument("webhook")
@click.option("-n", "--limit", type=click.IntRange(1), default=ROWS, show_default=True,
              help="Rows at most.")  # fmt: skip
@output_option
def list_deliveries(webhook: str, limit: int, output: Output) -> None:
    """List what was sent, and what came of it."""
    client = Client()
    columns = (
        Column("AT", lambda row: clock_text(row["created_at"])),
        Column("EVENT", lambda row: row["event_kind"]),
        Column("STATE", lambda row: row["state"], status=True),
        Column("TRIES", lambda row: row["tries"], right=True),
        Column("STATUS", lambda row: row["last_status"], right=True),
        Column("NEXT", lambda row: clock_text(row["next_at"])),
        Column("ERROR", lambda row: row["last_error"]),
    )
    rows = client.items(f"/webhooks/{_find(client, webhook)['id']}/deliveries", limit=limit)
    show_rows(rows, columns, output, empty="Nothing was sent yet.")
