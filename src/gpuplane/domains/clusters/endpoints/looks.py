"""The look at a cluster before anything of it is stored: each refusal is one with field and fix."""

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpuplane.domains.clusters.errors import ClusterRefused, KubeconfigRefused
from gpuplane.kit.errors import FieldError
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import BadKubeconfig, Connection, read_kubeconfig
from gpuplane.kube.errors import (
    Forbidden,
    KubeError,
    TooManyRequests,
    Unauthorized,
    Unreadable,
)
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.kube.preflight import OLDEST, ClusterLook, look_at
from gpuplane.kube.sessions import ClientLimits

LOOK_S = 20.0
"""A third of what the design document gives the whole call."""
REQUEST_S = 15.0
"""Less, so that one that is refused again and again is told as refused."""


@dataclass(frozen=True, slots=True)
class Look:
    """A cluster that may be registered."""

    connection: Connection
    version: str
    distribution: str
    platform: str
    admission: str
    warnings: tuple[str, ...]
    uid: str = ""
    ingress_url: str = ""

    @property
    def host(self) -> str:
        """Return the name of its API server."""
        return urlsplit(self.connection.server).hostname or ""


async def read_connection(text: str, context: str | None) -> Connection:
    """Return the connection that a kubeconfig describes; others are answered meanwhile.

    Raises:
        KubeconfigRefused: If it is not taken; names the field in it.
    """
    try:
        return await asyncio.to_thread(read_kubeconfig, text, context)
    except BadKubeconfig as error:
        place = error.field
        raise KubeconfigRefused(
            error.reason,
            field=place if place == "kubeconfig" else f"kubeconfig.{place}",
            fix=error.fix,
        ) from None


async def look_by(
    connection: Connection,
    admission: str | None,
    *,
    is_worker: bool = False,
    brings_addons: bool = False,
) -> Look:
    """Return what a cluster is, if it can be registered.

    Raises:
        ClusterRefused: If it does not answer, is too old, or rights are missing; names each.
    """
    try:
        limits = ClientLimits(request_s=REQUEST_S)
        async with asyncio.timeout(LOOK_S), KubeClient(connection, limits=limits) as client:
            found = await look_at(
                client, connection.server, is_worker=is_worker, brings_addons=brings_addons
            )
    except TimeoutError:
        raise _unreachable(connection, f"It did not answer within {LOOK_S:g} s.") from None
    except KubeError as error:
        raise _refusal(connection, error) from None
    _check(found, admission)
    return Look(
        connection=connection,
        version=found.version,
        distribution=found.distribution,
        platform=found.platform,
        admission=admission or ("kueue" if found.speaks_kueue else "embedded"),
        warnings=(
            *found.age_warnings,
            *(f"Missing, and not needed to run work: {right.sentence}" for right in found.missing),
        ),
        uid=found.uid,
        ingress_url=f"https://{found.domain}" if found.domain else "",
    )


def _check(found: ClusterLook, admission: str | None) -> None:
    if found.is_too_old:
        oldest = ".".join(map(str, OLDEST))
        raise ClusterRefused(
            f"It runs Kubernetes {found.version}; {oldest} is the oldest that is supported.",
            code="cluster_too_old",
            field="kubeconfig",
            fix=f"Upgrade it to {oldest} or newer.",
            extra={"version": found.version, "oldest": oldest},
        )
    if found.blockers:
        errors = tuple(
            FieldError(right.resource, f"{', '.join(right.verbs)}: {right.reason}.", "Grant it.")
            for right in found.blockers
        )
        raise ClusterRefused(
            "Rights are missing: " + "; ".join(right.sentence for right in found.blockers) + ".",
            code="cluster_rights_missing",
            field="kubeconfig",
            fix="Bind the ServiceAccount or user to a ClusterRole with these rights.",
            errors=errors,
        )
    if admission == "kueue" and not found.kueue:
        raise ClusterRefused(
            "Kueue is not served there.",
            code="kueue_absent",
            field="admission",
            fix="Leave admission out, and change it once Kueue is installed.",
        )
    if admission == "kueue" and not found.speaks_kueue:
        raise ClusterRefused(
            f"Its Kueue serves {', '.join(found.kueue_versions)} and none of "
            f"{' and '.join(ApiVersion)}.",
            code="kueue_too_old",
            field="admission",
            fix="Upgrade Kueue, or leave admission out and change it then.",
        )


def _refusal(connection: Connection, error: KubeError) -> ClusterRefused:
    """Return why a cluster that was asked is not taken, in words for whoever registers it."""
    if isinstance(error, Unauthorized):
        return ClusterRefused(
            "The API server does not know these credentials, or no longer.",
            code="cluster_credentials_refused",
            field="kubeconfig.users",
            fix="Make a new token or certificate, and send a kubeconfig with it.",
        )
    if isinstance(error, Forbidden):
        return ClusterRefused(
            f"The credentials may not ask for what a registration looks at: {error.message}",
            code="cluster_rights_missing",
            field="kubeconfig.users",
            fix="Bind them to a ClusterRole that may read nodes and review its own rights.",
        )
    if isinstance(error, Unreadable):
        return ClusterRefused(
            f"What answers at {connection.server} is no Kubernetes API server.",
            code="cluster_unreadable",
            field="kubeconfig.clusters",
            fix="Check `server` in the kubeconfig.",
        )
    if isinstance(error, TooManyRequests):
        return ClusterRefused(
            f"The API server {connection.server} refuses requests as too many for now: "
            f"{error.message}",
            code="cluster_too_busy",
            field="kubeconfig.clusters",
            fix="Repeat it in a minute; if it goes on, see who else asks that much there.",
        )
    said = error.message.removeprefix(f"{connection.server} cannot be reached: ")
    return _unreachable(connection, said)


def _unreachable(connection: Connection, why: str) -> ClusterRefused:
    return ClusterRefused(
        f"The API server {connection.server} cannot be reached from here: {why}",
        code="cluster_unreachable",
        field="kubeconfig.clusters",
        fix="Check the address, the way there (VPN, firewall) and the authority's certificate.",
    )
