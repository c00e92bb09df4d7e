"""Tenants set up on clusters of Kubernetes and taken off them, and clusters that dispatch."""

from typing import Any

import click

from gpuplane.cli.asking import YES, confirm
from gpuplane.cli.client import Client, segment
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.output import note
from gpuplane.cli.runviews import RunFollower

WAIT = click.option("--wait/--no-wait", default=True, help="Follow its steps to the end.")


def _follow(client: Client, made: dict[str, Any], done: str, *, wait: bool) -> None:
    """Follow the run of an answer and say what is done then; one that fails ends it with 1."""
    run_id = made["runId"]
    if not wait:
        note(f"run {run_id} goes on; look at it with: gpuplane pipelines show {run_id}")
        return
    run = RunFollower(client, run_id).follow()
    if run["status"] != "completed":
        raise CliError(f"The run {run['status']}. {run['message']}".strip(), code=Exit.FAILED)
    click.echo(done)


def _opening(text: str) -> dict[str, Any]:
    """Return the LocalQueue that `main=team` or `main=team:batch,training` stands for."""
    name, equals, rest = text.partition("=")
    queue, _, types = rest.partition(":")
    if not (name and equals and queue):
        said = f"{text!r} is not written as NAME=CLUSTERQUEUE[:TYPE,TYPE]."
        raise click.BadParameter(said, param_hint="--queue")
    found: dict[str, Any] = {"name": name, "clusterQueue": queue}
    if types:
        found["jobTypes"] = types.split(",")
    return found


def _most(text: str) -> dict[str, str]:
    """Return the cap that `nvidia.com/gpu=8` stands for."""
    name, equals, most = text.partition("=")
    if not (name and equals and most):
        raise click.BadParameter(f"{text!r} is not written as RESOURCE=MOST.", param_hint="--limit")
    return {"name": name, "most": most}


@click.command("onboard")
@click.argument("cluster")
@click.argument("tenant")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME=CLUSTERQUEUE[:TYPE,TYPE]",
    help="A local queue it gets, and where that leads; repeatable.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="RESOURCE=MOST",
    help="What its namespace may hold at most, such as nvidia.com/gpu=8; repeatable.",
)
@WAIT
def onboard(
    cluster: str, tenant: str, queues: tuple[str, ...], limits: tuple[str, ...], *, wait: bool
) -> None:
    """Set a tenant up on a cluster of Kubernetes: namespace, walls, account, limits, queues.

    Doing it again brings what is there up to date.
    """
    client = Client()
    body = {
        "tenant": tenant,
        "queues": [_opening(each) for each in queues],
        "limits": [_most(each) for each in limits],
    }
    made = client.post(f"/clusters/{segment(cluster)}/tenants", body)
    _follow(client, made, f"{tenant} is set up on {cluster}", wait=wait)


@click.command("offboard")
@click.argument("cluster")
@click.argument("tenant")
@YES
@WAIT
def offboard(cluster: str, tenant: str, *, yes: bool, wait: bool) -> None:
    """Take a tenant off a cluster: close its queues, delete its namespace and all in it.

    Refused while jobs of the tenant hold devices or wait there.
    """
    client = Client()
    confirm(f"Delete all that {tenant} has on {cluster}?", yes=yes)
    made = client.delete(f"/clusters/{segment(cluster)}/tenants/{segment(tenant)}")
    _follow(client, made, f"{tenant} is off {cluster}", wait=wait)


@click.command("multikueue")
@click.argument("cluster")
@click.option(
    "--worker", "workers", multiple=True, required=True, help="Best first; once for each."
)
@click.option(
    "--queue", "queues", multiple=True, help="A ClusterQueue whose work is dispatched; repeatable."
)
@WAIT
def multikueue(
    cluster: str, workers: tuple[str, ...], queues: tuple[str, ...], *, wait: bool
) -> None:
    """Let queues of a cluster dispatch to other clusters, and connect it with them."""
    client = Client()
    body = {"workers": list(workers), "queues": list(queues)}
    made = client.put(f"/clusters/{segment(cluster)}/multikueue", body)
    _follow(client, made, f"{cluster} dispatches to {', '.join(workers)}", wait=wait)


COMMANDS = (onboard, offboard, multikueue)
