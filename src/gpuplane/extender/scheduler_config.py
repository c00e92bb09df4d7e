"""The configuration with which kube-scheduler asks the extender.

Owns the text and its defaults; pure.

Source: k8s.io/kube-scheduler/config/v1, type Extender.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

import yaml

from gpuplane.core.mig.profiles import KNOWN_TABLES
from gpuplane.extender import names

HTTP_TIMEOUT_S = 5
"""kube-scheduler's own default; an answer takes milliseconds, a binding some tens."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What differs from one installation to another.

    Args:
        url: Where the extender listens, as kube-scheduler reaches it.
        binds: Whether the extender binds pods itself, with their GPUs in the same write.
        sends_nodes: Send whole nodes instead of names (`nodeCacheCapable: false`).
        weight: Factor of the extender's 0 to 10 points; kube-scheduler's plug-ins add up to
            several hundred, so a small one lets them outvote the topology.
        kubeconfig: Of kube-scheduler; None for its own.
    """

    url: str
    scheduler_name: str = "gpuplane-scheduler"
    binds: bool = False
    sends_nodes: bool = False
    weight: int = 100
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    kubeconfig: str | None = None
    leader_elect: bool = True
    timeout_s: int = HTTP_TIMEOUT_S


def render_config(config: SchedulerConfig) -> str:
    """Return a KubeSchedulerConfiguration as YAML.

    Raises:
        ValueError: If the address is none, or certificates are given for one without TLS.
    """
    parts = urlsplit(config.url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{config.url!r} is no address such as http://127.0.0.1:8888")
    if parts.scheme == "http" and (config.ca_file or config.cert_file or config.key_file):
        raise ValueError(f"{config.url!r} has no TLS: certificates go with an https address")
    extender: dict[str, object] = {
        "urlPrefix": config.url.rstrip("/"),
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
    }
    if config.binds:
        extender["bindVerb"] = "bind"
    extender["weight"] = config.weight
    if parts.scheme == "https":
        files = {
            "caFile": config.ca_file,
            "certFile": config.cert_file,
            "keyFile": config.key_file,
        }
        extender["enableHTTPS"] = True
        extender["tlsConfig"] = {name: path for name, path in files.items() if path}
    extender["httpTimeout"] = f"{config.timeout_s}s"
    extender["nodeCacheCapable"] = not config.sends_nodes
    # Without the extender pods are placed as if it had never been there.
    extender["ignorable"] = True
    extender["managedResources"] = [{"name": name} for name in list_resources()]
    document: dict[str, object] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": config.leader_elect},
        "profiles": [{"schedulerName": config.scheduler_name}],
        "extenders": [extender],
    }
    if config.leader_elect:
        document["leaderElection"] = {
            "leaderElect": True,
            "resourceName": config.scheduler_name,
            "resourceNamespace": "kube-system",
        }
    if config.kubeconfig:
        document["clientConnection"] = {"kubeconfig": config.kubeconfig}
    return yaml.safe_dump(document, sort_keys=False)


def list_resources() -> tuple[str, ...]:
    """Return the resources for whose pods the extender is asked."""
    profiles = {each.name for table in KNOWN_TABLES.values() for each in table.profiles}
    migs = sorted(f"{names.MIG_PREFIX}{name.replace('+', '.')}" for name in profiles)
    return (*names.GPU_RESOURCES, *migs)
