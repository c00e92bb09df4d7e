"""Where connections come from: a kubeconfig that somebody sent, or the Pod that we run in."""

import os
from collections.abc import Mapping
from pathlib import Path

from gpuplane.kube.credentials import Connection
from gpuplane.kube.kubeconfigs import BadKubeconfig, read_kubeconfig

__all__ = ["BadKubeconfig", "Connection", "NotInCluster", "in_cluster", "read_kubeconfig"]

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NotInCluster(Exception):
    """This process does not run in a Pod, or in one without a ServiceAccount token."""


def in_cluster(
    environment: Mapping[str, str] | None = None, folder: Path = SERVICE_ACCOUNT_FOLDER
) -> Connection:
    """Return the way into the cluster that this process runs in.

    The token is read from its file at each use, because the kubelet replaces it (hourly, where
    tokens are bound).

    Raises:
        NotInCluster: If this is no Pod, naming what is missing.
    """
    environment = os.environ if environment is None else environment
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise NotInCluster("KUBERNETES_SERVICE_HOST is not set: this is no Pod.")
    try:
        authority = (folder / "ca.crt").read_text(encoding="ascii")
        token_file = folder / "token"
        token_file.read_bytes()
    except (OSError, UnicodeDecodeError) as error:
        raise NotInCluster(f"The Pod has no ServiceAccount token: {error}.") from None
    try:
        namespace = (folder / "namespace").read_text(encoding="ascii").strip()
    except OSError:
        namespace = ""
    return Connection(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca_pem=authority,
        token_file=token_file,
        namespace=namespace or "default",
        context="in-cluster",
    )
