"""Registered clusters: brought in, looked at, changed, adopted, deleted."""

import threading
from collections.abc import Sequence
from typing import Any

import click

from gpuplane.cli.asking import YES, confirm
from gpuplane.cli.client import Client, segment
from gpuplane.cli.commands.access import (
    FOR_ADDONS,
    FOR_MULTIKUEUE,
    make_access,
    read_kubeconfig_text,
)
from gpuplane.cli.commands.provisioning import binary_options, kubeconfig_of_made
from gpuplane.cli.errors import ApiError, CliError, Exit
from gpuplane.cli.output import Column, Output, note, output_option, show_one, show_rows
from gpuplane.cli.parameters import DURATION
from gpuplane.cli.runviews import RunFollower
from gpuplane.cli.words import age, clock_text, duration_text

WAIT = click.option("--wait/--no-wait", default=True, help="Follow its steps to the end.")
PROVISIONED = click.option(
    "--provisioned",
    is_flag=True,
    help="It was made from this home: by an account that is made there first.",
)
CONTEXT = click.option("--context", help="Of the kubeconfig; its current one unless given.")
EXPOSE = click.option(
    "--expose",
    type=click.Choice(["asked", "all", "none"]),
    help='Which services get a Route: those with the label expose="true", all, or none.',
)
ADDON = click.option(
    "--addon", "addons", multiple=True, metavar="NAME", help="Install only these; again for each."
)
NO_ADDONS = click.option("--no-addons", is_flag=True, help="Install none.")
REPORT_IMAGE = click.option(
    "--report-image", metavar="IMAGE", help="Keep the last report of every job in it."
)
DRAIN_WAIT_S = 3_600
PATIENCE_S = 90
"""How long a registration waits altogether where it is one too many for now."""


def _path(cluster: str, *parts: str) -> str:
    return "/".join([f"/clusters/{segment(cluster)}", *(segment(part) for part in parts)])


def _follow(client: Client, made: dict[str, Any], *, wait: bool, after: Sequence[str] = ()) -> None:
    """Follow the run of an answer; a run that fails ends the command with 1.

    Args:
        client: Of the control plane.
        made: The answer that names the run.
        wait: Whether to follow it at all.
        after: What else to say to whoever leaves it by Ctrl-C.
    """
    run_id = made["workflow_id"]
    if not wait:
        note(f"run {run_id} goes on; look at it with: gpuplane pipelines show {run_id}")
        return
    try:
        run = RunFollower(client, run_id).follow()
    except KeyboardInterrupt:
        for line in (f"run {run_id} goes on; look at it with: gpuplane pipelines show {run_id}",
                     *after):  # fmt: skip
            note(line)
        raise
    if run["status"] != "completed":
        raise CliError(f"The run {run['status']}. {run['message']}".strip(), code=Exit.FAILED)


def _post_patiently(client: Client, path: str, body: Any, command: str) -> Any:
    """Return the answer of a POST; one that is too many for now is sent again when it may be.

    Args:
        client: Of the control plane.
        path: Where.
        body: What.
        command: Said to whoever would have to wait longer than is waited here.
    """
    left_s = PATIENCE_S
    while True:
        try:
            return client.post(path, body)
        except ApiError as error:
            wait_s = error.retry_after_s
            if error.status != 429 or wait_s is None:
                raise
            if wait_s > left_s:
                error.fix = f"Repeat it in {wait_s} s: {command}"
                raise
            note(f"{error.message} Trying again in {wait_s} s …")
            left_s -= wait_s
            threading.Event().wait(wait_s)


@click.command("register")
@click.argument("name")
@click.option("--kubeconfig", "path", metavar="FILE", help="- for standard input.")
@PROVISIONED
@FOR_ADDONS
@FOR_MULTIKUEUE
@CONTEXT
@click.option(
    "--admission",
    type=click.Choice(["embedded", "kueue"]),
    help="Who admits work; Kueue where it is served unless given.",
)
@EXPOSE
@REPORT_IMAGE
@click.option("--role", type=click.Choice(["manager", "worker"]), help="Among several clusters.")
@click.option(
    "--platform",
    type=click.Choice(["ON_PREM", "EKS", "AKS", "GKE"]),
    help="Found out unless given.",
)
@click.option("--ingress-url", help="Where its services are reached from outside.")
@click.option("--masters", is_flag=True, help="Let nodes of the control plane take work.")
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="KEY=VALUE",
    help="What affinity and data classification go by; again for each.",
)
@ADDON
@NO_ADDONS
@binary_options
@WAIT
def register(
    name: str,
    path: str | None,
    context: str | None,
    attributes: tuple[str, ...],
    addons: tuple[str, ...],
    binary: str | None,
    timeout_s: int | None,
    *,
    provisioned: bool,
    for_addons: bool,
    for_multikueue: bool,
    masters: bool,
    no_addons: bool,
    wait: bool,
    **given: str | None,
) -> None:
    """Register a Kubernetes cluster by its kubeconfig, and show the steps as they go.

    The kubeconfig is sealed and never shown again. It must hold its credentials: programs to run
    and files to read are refused. A cluster that was made from this home needs none: with
    --provisioned an account is made there, and it is registered by that; one that is to be a worker
    of MultiKueue takes --for-multikueue beside it.
    """
    _check_way(
        path,
        context,
        provisioned=provisioned,
        for_addons=for_addons,
        for_multikueue=for_multikueue,
    )
    _check_addons(addons, no_addons=no_addons)
    client = Client()
    body: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    body["name"] = name
    if provisioned:
        if not for_addons and not no_addons and not addons:
            note("No add-ons are brought in, for which the account has no rights: --for-addons")
            no_addons = True
        body["kubeconfig"] = _of_made(
            name, binary, timeout_s, for_addons=for_addons, for_multikueue=for_multikueue
        )
    else:
        body["kubeconfig"] = read_kubeconfig_text(str(path))
    if context is not None:
        body["context"] = context
    if masters:
        body["enable_master_node"] = True
    if attributes:
        body["attributes"] = dict(_pair(each) for each in attributes)
    if addons or no_addons:
        body["addons"] = list(addons)
    made = _post_patiently(client, "/clusters", body, f"gpuplane clusters register {name} …")
    for warning in made["warnings"]:
        note(f"warning: {warning}")
    cluster = made["cluster"]
    click.echo(f"{cluster['name']} {cluster['kubernetes_version']} at {cluster['server_url']}")
    click.echo(f"key of its metrics, shown this once: {made['metrics_key']}")
    anew = f"another key of its metrics: gpuplane clusters keys {cluster['name']} --issue"
    _follow(client, made, wait=wait, after=[anew])
    if wait:
        click.echo(f"{cluster['name']} is {client.get(_path(cluster['id']))['state'].lower()}")


def _check_way(
    path: str | None,
    context: str | None,
    *,
    provisioned: bool,
    for_addons: bool,
    for_multikueue: bool,
) -> None:
    """Refuse options that do not say one way into a cluster."""
    if (path is None) is not provisioned:
        raise click.UsageError("Give either --kubeconfig FILE or --provisioned.")
    if provisioned and context is not None:
        raise click.UsageError("--context is of a --kubeconfig.")
    if for_addons and not provisioned:
        raise click.UsageError("--for-addons is of an account that is made: --provisioned.")
    if for_multikueue and not provisioned:
        raise click.UsageError("--for-multikueue is of an account that is made: --provisioned.")


def _check_addons(addons: Sequence[str], *, no_addons: bool) -> None:
    """Refuse to be asked for some add-ons and for none."""
    if addons and no_addons:
        raise click.UsageError("Give either --addon NAME or --no-addons.")


def _of_made(
    name: str,
    binary: str | None,
    timeout_s: int | None,
    *,
    for_addons: bool,
    for_multikueue: bool,
) -> str:
    """Return the kubeconfig of the account that is made in a cluster made from this home."""
    admin = kubeconfig_of_made(name, binary, timeout_s)
    return make_access(admin, None, name, for_addons=for_addons, for_multikueue=for_multikueue)


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise click.UsageError(f"{text!r} is no KEY=VALUE.")
    return key, value


@click.command("register-again")
@click.argument("cluster")
@ADDON
@NO_ADDONS
@WAIT
def register_again(cluster: str, addons: tuple[str, ...], *, no_addons: bool, wait: bool) -> None:
    """Run a registration once more: after a failure, or to bring in add-ons.

    Without --addon and --no-addons it keeps to what was asked for last.
    """
    _check_addons(addons, no_addons=no_addons)
    client = Client()
    body = {"addons": list(addons)} if addons or no_addons else None
    _follow(client, client.post(_path(cluster, "registration"), body), wait=wait)
    click.echo(f"{cluster} is {client.get(_path(cluster))['state'].lower()}")


@click.command("set")
@click.argument("cluster")
@click.option("--admission", type=click.Choice(["embedded", "kueue"]), help="Who admits work.")
@EXPOSE
@REPORT_IMAGE
@click.option("--role", type=click.Choice(["manager", "worker"]), help="Among several clusters.")
@click.option("--ingress-url", help="Where services of the cluster are reached from outside.")
@click.option(
    "--masters/--no-masters",
    "enable_master_node",
    default=None,
    help="Whether control-plane nodes count and take work.",
)
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="KEY=VALUE",
    help="What affinity and data classes ask for; may be given several times.",
)
def change(cluster: str, attributes: tuple[str, ...], **given: Any) -> None:
    """Change what is said of a cluster; what is left out stays."""
    body = {key: value for key, value in given.items() if value is not None}
    if attributes:
        body["attributes"] = dict(_pair(each) for each in attributes)
    if not body:
        raise click.UsageError("Say what is to be changed.")
    Client().patch(_path(cluster), body)
    click.echo(f"{cluster}: {', '.join(sorted(body))} changed")


@click.command("credentials")
@click.argument("cluster")
@click.option("--kubeconfig", "path", metavar="FILE", help="Put these in the place of the old.")
@PROVISIONED
@FOR_ADDONS
@FOR_MULTIKUEUE
@CONTEXT
@binary_options
@output_option
def credentials(
    cluster: str,
    path: str | None,
    context: str | None,
    binary: str | None,
    timeout_s: int | None,
    output: Output,
    *,
    provisioned: bool,
    for_addons: bool,
    for_multikueue: bool,
) -> None:
    """Say which credentials are kept and until when they hold, or replace them."""
    replaces = path is not None or provisioned or for_addons or for_multikueue
    if replaces:
        _check_way(
            path,
            context,
            provisioned=provisioned,
            for_addons=for_addons,
            for_multikueue=for_multikueue,
        )
    client = Client()
    where = _path(cluster, "credentials")
    if not replaces:
        found = client.get(where)
    else:
        if provisioned:
            text = _of_made(
                cluster, binary, timeout_s, for_addons=for_addons, for_multikueue=for_multikueue
            )
        else:
            text = read_kubeconfig_text(str(path))
        found = client.put(where, {"kubeconfig": text} | ({"context": context} if context else {}))
    ends = found["expires_at"]
    fields = [
        ("number", found["number"]),
        ("context", found["context"]),
        ("expires", clock_text(ends) if ends else "not told by them"),
        ("stored", f"{clock_text(found['stored_at'])} by {found['stored_by']}"),
    ]
    show_one(found, fields, output)


@click.command("health")
@click.argument("cluster")
@click.option("--check", "kinds", multiple=True, metavar="KIND", help="Only this; again for each.")
@output_option
def health(cluster: str, kinds: tuple[str, ...], output: Output) -> None:
    """Show what the last checks of a cluster found."""
    columns = (
        Column("CHECK", lambda row: row["kind"]),
        Column("VERDICT", lambda row: row["verdict"], status=True),
        Column("MESSAGE", lambda row: row["message"]),
        Column("AGE", lambda row: age(row["checked_at"]), right=True),
    )
    found = Client().get(_path(cluster, "health"), check=list(kinds) or None)
    show_rows(found["checks"], columns, output, empty="It was not looked at yet.")


@click.command("addons")
@click.argument("cluster")
@output_option
def addons(cluster: str, output: Output) -> None:
    """Show what became of each add-on."""
    columns = (
        Column("ADDON", lambda row: row["name"]),
        Column("STATE", lambda row: row["state"], status=True),
        Column("VERSION", lambda row: row["chart_version"]),
        Column("RELEASE", lambda row: f"{row['namespace']}/{row['release_name']}", wide=True),
        Column("MESSAGE", lambda row: row["message"]),
    )
    show_rows(Client().rows(_path(cluster, "addons")), columns, output, empty="None was tried.")


@click.command("adopt")
@click.argument("cluster")
@click.argument("addon")
@WAIT
def adopt(cluster: str, addon: str, *, wait: bool) -> None:
    """Take over an add-on that somebody else installed."""
    client = Client()
    _follow(client, client.post(_path(cluster, "addons", addon, "adoption")), wait=wait)
    click.echo(f"{addon} on {cluster} is ours")


@click.command("keys")
@click.argument("cluster")
@click.option("--issue", is_flag=True, help="Issue one; it is shown this once.")
@click.option("--revoke", metavar="ID", help="Take one back.")
@output_option
def keys(cluster: str, revoke: str | None, output: Output, *, issue: bool) -> None:
    """List the keys by which a cluster pushes its metrics, issue one, or take one back."""
    client = Client()
    path = _path(cluster, "keys")
    if issue:
        click.echo(client.post(path)["key"])
        return
    if revoke is not None:
        client.delete(f"{path}/{segment(revoke)}")
    columns = (
        Column("ID", lambda row: row["id"]),
        Column("HINT", lambda row: row["hint"]),
        Column("ISSUED", lambda row: clock_text(row["issued_at"])),
        Column("BY", lambda row: row["issued_by"]),
        Column("HOLDS", lambda row: row["revoked_at"] is None),
    )
    show_rows(client.rows(path), columns, output, empty="It has no keys.")


def _parting(job: dict[str, Any], wait_s: int, *, force: bool) -> str:
    """Return what becomes of a job of a cluster that is deleted, as it will be done."""
    runs = job["status"] in ("scheduled", "running")
    end = "is moved" if job["may_move"] else "is cancelled: it may run nowhere else"
    if force or not runs or job["parting"] == "migrate":
        return f"{end}, at once"
    if job["parting"] == "wait":
        return f"may end within {duration_text(wait_s)}, then {end}"
    return f"is asked for a checkpoint within {duration_text(wait_s)}, then {end}"


@click.command("rm")
@click.argument("cluster")
@click.option("--force", is_flag=True, help="End its work at once; says first what is lost.")
@click.option(
    "--drain-wait",
    "wait_s",
    type=DURATION,
    default=DRAIN_WAIT_S,
    show_default="1h",
    help="How long batch work may go on, and checkpoints may take.",
)
@click.option("--keep-cordons", is_flag=True, help="Leave nodes cordoned that are cordoned here.")
@YES
@WAIT
def remove(
    cluster: str, wait_s: int, *, force: bool, keep_cordons: bool, yes: bool, wait: bool
) -> None:
    """Delete a cluster: its work is drained first; the cluster itself stays as it is.

    Services move at once, training writes a checkpoint and moves, batch work may end.
    """
    client = Client()
    found = client.get(_path(cluster))
    plan = client.get(_path(cluster, "deletion-plan"))
    for job in plan["jobs"]:
        end = _parting(job, wait_s, force=force)
        lost_s = job["lost_s"] if force else 0
        lost = f", {duration_text(lost_s)} of its work are lost" if lost_s else ""
        click.echo(f"{job['name']} ({job['job_type']}, {job['status']}): {end}{lost}", err=True)
    count = len(plan["jobs"])
    if force and count:
        of = "1 job" if count == 1 else f"{count} jobs"
        click.echo(f"{duration_text(plan['lost_s'])} of work of {of} are lost.", err=True)
    confirm(f"Delete cluster {found['name']}?", yes=yes)
    made = client.delete(
        _path(found["id"]),
        force=str(force).lower(),
        wait_s=wait_s,
        keep_cordons=str(keep_cordons).lower(),
    )
    again = f"it is not called off; how far it is: gpuplane clusters show {found['name']}"
    _follow(client, made, wait=wait, after=[again])
    click.echo(f"{found['name']} is {'deleted' if wait else 'being deleted'}")


COMMANDS = (register, register_again, change, credentials, health, addons, adopt, keys, remove)
