"""The command `gpuplane extender`: settings in, one replica of the extender out."""

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuplane.entry.role_options import (
    FILE,
    HOST,
    LOG_LEVEL,
    PORT,
    certificate_options,
    kubeconfig_option,
)

if TYPE_CHECKING:
    from gpuplane.extender.serving import Extender, ExtenderSettings
    from gpuplane.kube.connections import Connection

READY_S = 60.0
"""How long a look waits for the cluster to be read; the next one follows."""
POLICIES = (
    "fragmentation",
    "balanced",
    "leastLoaded",
    "mostLoaded",
    "random",
    "costOptimized",
)


@click.group(name="extender", invoke_without_command=True)
@kubeconfig_option("Cluster to serve; the KUBECONFIG variable where it is left out.")
@click.option("--in-cluster", is_flag=True, help="Use the Pod's own ServiceAccount.")
@HOST
@click.option(
    "--port",
    type=PORT,
    default=8888,
    show_default=True,
    help="Port to listen on; 0: a free one.",
)
@click.option("--bind", "binds", is_flag=True, help="Answer bind: GPUs in the same write.")
@certificate_options("Certificate: HTTPS, read again when it changes.")
@click.option(
    "--client-ca",
    type=FILE,
    help="Answer only callers with a certificate of this authority.",
)
@click.option(
    "--scheduler-name",
    "scheduler_names",
    multiple=True,
    help="Write down the GPUs of this scheduler's pods only; several may be given.",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="fragmentation",
    show_default=True,
    help="How nodes are ranked.",
)
@click.option(
    "--gang-hold-seconds",
    default=60,
    show_default=True,
    type=click.IntRange(1, 3600),
    help="How long places are kept for a gang that could start.",
)
@click.option(
    "--max-body-mib",
    default=64,
    show_default=True,
    type=click.IntRange(1, 1024),
    help="Longest request.",
)
@LOG_LEVEL
@click.pass_context
def extender(
    context: click.Context,
    kubeconfig: Path | None,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    scheduler_names: tuple[str, ...],
    policy: str,
    gang_hold_seconds: int,
    max_body_mib: int,
    log_level: str,
    *,
    in_cluster: bool,
    binds: bool,
) -> int:
    """Run one replica of the kube-scheduler extender; SIGTERM ends it."""
    if context.invoked_subcommand is not None:
        return 0
    if tls_cert is None and (tls_key is not None or client_ca is not None):
        raise click.UsageError("--tls-key and --client-ca need --tls-cert")
    from gpuplane.core.scheduling.policy import PlacementPolicy
    from gpuplane.extender.serving import ExtenderSettings
    from gpuplane.kit.logs import setup_logging

    setup_logging(log_level)
    settings = ExtenderSettings(
        host=host,
        port=port,
        certificate=tls_cert,
        key=tls_key,
        client_ca=client_ca,
        binds=binds,
        scheduler_names=scheduler_names,
        placement=PlacementPolicy(policy),
        gang_hold_s=gang_hold_seconds,
        max_body_bytes=max_body_mib << 20,
    )
    connection = _connection(kubeconfig, in_cluster=in_cluster)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(connection, settings))


def _connection(kubeconfig: Path | None, *, in_cluster: bool) -> "Connection":
    from gpuplane.kube import connections

    try:
        if in_cluster:
            if kubeconfig is not None:
                raise click.UsageError("--kubeconfig and --in-cluster exclude each other")
            return connections.in_cluster()
        path = kubeconfig or Path(os.environ.get("KUBECONFIG", ""))
        if not path.is_file():
            raise click.UsageError(
                "there is no cluster to serve: give --kubeconfig, set KUBECONFIG, or --in-cluster"
            )
        return connections.read_kubeconfig(path.read_text(encoding="utf-8"))
    except (connections.BadKubeconfig, connections.NotInCluster) as error:
        raise click.UsageError(str(error)) from error


async def _serve(connection: "Connection", settings: "ExtenderSettings") -> int:
    from gpuplane.extender.serving import BadCertificate, Extender
    from gpuplane.kube.clients import KubeClient

    log = logging.getLogger("gpuplane.extender")
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with KubeClient(connection, user_agent="gpuplane-extender") as client:
        role = Extender(client, settings)
        try:
            port = await role.start()
        except (BadCertificate, OSError) as error:
            click.echo(f"gpuplane: the extender cannot start: {error}", err=True)
            return 1
        scheme = "http" if settings.certificate is None else "https"
        where = f"[{settings.host}]" if ":" in settings.host else settings.host
        log.info("the extender answers at %s://%s:%s", scheme, where, port)
        settling = asyncio.create_task(_settle(role))
        try:
            await stopped.wait()
        finally:
            settling.cancel()
            await role.stop()
    return 0


async def _settle(role: "Extender") -> None:
    """Have garbage collection pass over the cluster's nodes and pods once they were read."""
    from gpuplane.extender.serving import settle

    while not await role.wait_ready(READY_S):
        continue
    settle()


@extender.command()
@click.option("--url", default="http://127.0.0.1:8888", show_default=True, help="The extender's.")
@click.option(
    "--scheduler-name", default="gpuplane-scheduler", show_default=True, help="Of the profile."
)
@click.option("--bind", "binds", is_flag=True, help="Let the extender bind; start it with --bind.")
@click.option("--whole-nodes", is_flag=True, help="Send whole nodes instead of names.")
@click.option(
    "--weight",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Factor of its 0 to 10 points.",
)
@click.option("--ca-file", help="Authority of the extender's certificate, for HTTPS.")
@click.option("--cert-file", help="kube-scheduler's own certificate, where one is asked for.")
@click.option("--key-file", help="Its private key.")
@click.option("--scheduler-kubeconfig", help="Kubeconfig of kube-scheduler.")
@click.option("--no-leader-election", is_flag=True, help="kube-scheduler runs once.")
def config(
    url: str,
    scheduler_name: str,
    weight: int,
    ca_file: str | None,
    cert_file: str | None,
    key_file: str | None,
    scheduler_kubeconfig: str | None,
    *,
    binds: bool,
    whole_nodes: bool,
    no_leader_election: bool,
) -> int:
    """Print the configuration with which kube-scheduler asks the extender."""
    from gpuplane.extender.scheduler_config import SchedulerConfig, render_config

    try:
        text = render_config(
            SchedulerConfig(
                url=url,
                scheduler_name=scheduler_name,
                binds=binds,
                sends_nodes=whole_nodes,
                weight=weight,
                ca_file=ca_file,
                cert_file=cert_file,
                key_file=key_file,
                kubeconfig=scheduler_kubeconfig,
                leader_elect=not no_leader_election,
            )
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(text, nl=False)
    return 0
