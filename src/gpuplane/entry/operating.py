"""The command `gpuplane operator`: settings in, one replica of the operator out."""

import asyncio
import logging
import os
import re
import signal
import socket
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
    from gpuplane.kube.connections import Connection
    from gpuplane.operator.models import Models

DEFAULT_NAMESPACE = "gpuplane-system"
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MAX_NAMESPACES = 100
"""Each is watched by connections of its own."""


@click.command(name="operator")
@kubeconfig_option("Cluster to work in; the Pod's own ServiceAccount where it is left out.")
@click.option("--namespace", help="Where the Lease lies; the Pod's own where it is left out.")
@click.option(
    "--models",
    "models_file",
    type=FILE,
    help="YAML file with the image of each model; `*` is the default.",
)
@click.option("--model", "pairs", multiple=True, metavar="NAME=IMAGE", help="One model's image.")
@click.option("--default-image", help="Image of every model that has none of its own.")
@click.option(
    "--namespaces",
    "served",
    default="",
    metavar="NAME,…",
    help="Serve these namespaces and read no others; all where it is left out.",
)
@click.option(
    "--node-label", "labels", multiple=True, metavar="KEY=VALUE", help="Place only on such nodes."
)
@click.option("--no-mig-layouts", is_flag=True, help="Leave MIGLayouts to another operator.")
@click.option("--queue", default="", help="Kueue LocalQueue of workloads that name none.")
@click.option(
    "--provisioning-class", default="", help="Class of ProvisioningRequests; empty: none."
)
@HOST
@click.option(
    "--metrics-port", type=PORT, default=8080, show_default=True, help="Port of /metrics."
)
@click.option(
    "--probe-port", type=PORT, default=8081, show_default=True, help="Port of /healthz, /readyz."
)
@click.option("--webhook-port", type=PORT, help="Port of the webhooks; needs a certificate.")
@certificate_options("Certificate of the webhooks.")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Workloads looked at at once.",
)
@click.option(
    "--lease-seconds",
    type=click.IntRange(3, 3600),
    default=15,
    show_default=True,
    help="How long the Lease holds.",
)
@click.option("--single", is_flag=True, help="No election: this is the only replica.")
@LOG_LEVEL
def operator(
    kubeconfig: Path | None,
    namespace: str | None,
    models_file: Path | None,
    pairs: tuple[str, ...],
    default_image: str | None,
    served: str,
    labels: tuple[str, ...],
    queue: str,
    provisioning_class: str,
    host: str,
    metrics_port: int,
    probe_port: int,
    webhook_port: int | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    workers: int,
    lease_seconds: int,
    log_level: str,
    *,
    no_mig_layouts: bool,
    single: bool,
) -> int:
    """Run one replica of the operator of GPUWorkload and MIGLayout; SIGTERM ends it."""
    from gpuplane.kit.logs import setup_logging
    from gpuplane.operator.running import OperatorSettings

    if webhook_port is not None and (tls_cert is None or tls_key is None):
        raise click.UsageError("webhooks are served over TLS: give --tls-cert and --tls-key")
    namespaces = _namespaces(served)
    node_labels = _pairs("--node-label", labels)
    models = _models(models_file, pairs, default_image)
    connection = _connection(kubeconfig)
    settings = OperatorSettings(
        namespace=namespace or connection.namespace or DEFAULT_NAMESPACE,
        identity=f"{socket.gethostname()}_{os.getpid()}",
        elects=not single,
        lease_s=lease_seconds,
        host=host,
        metrics_port=metrics_port,
        probe_port=probe_port,
        webhook_port=webhook_port,
        certificate=tls_cert,
        private_key=tls_key,
        default_queue=queue,
        provisioning_class=provisioning_class,
        workers=workers,
        namespaces=namespaces,
        node_labels=node_labels,
        serves_layouts=not no_mig_layouts,
    )
    setup_logging(log_level)
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    return asyncio.run(_run(connection, models, settings))


async def _run(connection: "Connection", models: "Models", settings: object) -> int:
    from gpuplane.kit.clock import SystemClock
    from gpuplane.kube.clients import KubeClient
    from gpuplane.operator.running import CannotListen, Operator, OperatorSettings

    assert isinstance(settings, OperatorSettings)
    clock = SystemClock()
    async with KubeClient(connection, user_agent="gpuplane-operator", clock=clock) as client:
        task = asyncio.create_task(Operator(client, models, settings, clock).run())
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            click.echo("gpuplane operator: stopped; what it placed goes on", err=True)
        except CannotListen as error:
            click.echo(f"gpuplane: the operator cannot start: {error}", err=True)
            return 1
    return 0


def _connection(kubeconfig: Path | None) -> "Connection":
    from gpuplane.kube.connections import BadKubeconfig, NotInCluster, in_cluster, read_kubeconfig

    try:
        if kubeconfig is None:
            return in_cluster()
        return read_kubeconfig(kubeconfig.read_text(encoding="utf-8"))
    except NotInCluster as error:
        raise click.UsageError(f"{error} Outside a cluster give --kubeconfig.") from error
    except BadKubeconfig as error:
        raise click.UsageError(f"{kubeconfig}: {error}") from error


def _models(path: Path | None, pairs: tuple[str, ...], default: str | None) -> "Models":
    from gpuplane.operator.models import DEFAULT, BadModels, Models, load_models
    from gpuplane.operator.rules.jobs import Image

    images = {name: Image(image) for name, image in _pairs("--model", pairs).items()}
    if default:
        images[DEFAULT] = Image(default)
    if path is None:
        return Models(images)
    if images:
        raise click.UsageError("give --models, or --model and --default-image")
    try:
        return load_models(path)
    except BadModels as error:
        raise click.UsageError(str(error)) from error


def _namespaces(text: str) -> tuple[str, ...]:
    """Return names that stand between commas, each once."""
    found = tuple(dict.fromkeys(text.split(","))) if text else ()
    for name in found:
        if not NAMESPACE.fullmatch(name):
            raise click.UsageError(f"--namespaces: {name!r} is no name of a namespace")
    if len(found) > MAX_NAMESPACES:
        raise click.UsageError(
            f"--namespaces: {len(found)} are more than {MAX_NAMESPACES}; leave it out to serve all"
        )
    return found


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Return NAME=VALUE options as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise click.UsageError(f"{option} {text}: write a name, = and a value")
        found[name] = value
    return found
