"""Kueue beside a cluster: its own chart, rendered by Helm, with the manager as a process of ours.

What the chart would run in the cluster (Deployment, Services, the visibility API) is left out; its
webhooks and conversions are pointed at the process. Nothing else of the chart is changed.
"""

from __future__ import annotations

import base64
import http.client
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rig.api import Api, Object
from rig.binaries import Binaries
from rig.certificates import Authority
from rig.processes import POLL_S, Part, RigFailed, is_listening

NAMESPACE = "kueue-system"
READY_S = 120.0
LEFT_OUT = frozenset({"Deployment", "APIService", "Service", "PodDisruptionBudget"})
# The chart's defaults, and the kinds of pods without a controller of their own: Kueue's examples
# of pod groups and of served models need them.
FRAMEWORKS = ["batch/job", "jobset.x-k8s.io/jobset", "pod", "deployment", "statefulset"]


@dataclass(frozen=True)
class KueueFiles:
    """What one Kueue is made of."""

    folder: Path
    kubeconfig: Path
    log: Path
    authority: Authority
    binaries: Binaries
    webhook_port: int
    health_port: int


def prepare_kueue(files: KueueFiles) -> list[Object]:
    """Write configuration and certificates, and return the chart's objects for a process.

    Raises:
        RigFailed: If Helm refuses the chart.
    """
    files.folder.mkdir(exist_ok=True)
    for name in ("webhook-certificates", "metrics-certificates"):
        pair = files.authority.server("kueue")
        made = files.folder / name
        made.mkdir(exist_ok=True)
        pair.certificate.replace(made / "tls.crt")
        pair.key.replace(made / "tls.key")
    configuration = _configuration(files)
    (files.folder / "configuration.yaml").write_text(configuration)
    values = files.folder / "values.yaml"
    values.write_text(
        yaml.safe_dump({"managerConfig": {"controllerManagerConfigYaml": configuration}})
    )
    done = subprocess.run(
        [
            *(files.binaries["helm"], "template", "kueue"),
            str(files.binaries.folders["charts/kueue"]),
            *("--namespace", NAMESPACE, "--include-crds", "--values", str(values)),
        ],
        cwd=files.folder,
        env={"HOME": str(files.folder), "PATH": "/usr/bin:/bin"},  # nobody's plug-ins
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise RigFailed(f"helm template kueue: {done.stderr.decode(errors='replace')[-2000:]}")
    return list(_for_a_process(done.stdout, files))


def apply_kueue(files: KueueFiles, objects: list[Object], api: Api) -> Part:
    """Put the chart's objects into the cluster and start the manager.

    Raises:
        RigFailed: If it does not answer.
    """
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    late = [obj for obj in objects if obj["kind"].endswith("WebhookConfiguration")]
    for obj in objects:
        if obj not in late:
            api.apply(obj)
    _wait_served([obj for obj in objects if obj["kind"] == "CustomResourceDefinition"], api)
    part = _manager(files)
    part.start()
    part.wait_ready()
    # Only once somebody answers: a webhook without a server refuses every Job and pod.
    for obj in late:
        api.apply(obj)
    return part


def _wait_served(definitions: list[Object], api: Api) -> None:
    """Wait until the API server serves every kind: the manager ends where one is missing."""
    missing = {
        (obj["spec"]["group"], version["name"], obj["spec"]["names"]["plural"])
        for obj in definitions
        for version in obj["spec"]["versions"]
        if version["served"]
    }
    deadline = time.monotonic() + READY_S
    while missing and time.monotonic() < deadline:
        for group, version in {(group, version) for group, version, _ in missing}:
            served = api.find(f"/apis/{group}/{version}") or {"resources": []}
            missing -= {(group, version, one["name"]) for one in served["resources"]}
        time.sleep(POLL_S)
    if missing:
        raise RigFailed(f"the API server does not serve {sorted(missing)}")


def _configuration(files: KueueFiles) -> str:
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{files.health_port}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {
            "host": "127.0.0.1",
            "port": files.webhook_port,
            "certDir": str(files.folder / "webhook-certificates"),
        },
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 300, "burst": 600},
        "integrations": {"frameworks": FRAMEWORKS},
        # Seconds where the defaults are minutes: nobody waits that long for a lost worker here.
        "multiKueue": {"gcInterval": "10s", "workerLostTimeout": "30s"},
    }
    return yaml.safe_dump(configuration, sort_keys=False)


def _manager(files: KueueFiles) -> Part:
    command = [
        files.binaries["kueue"],
        f"--config={files.folder / 'configuration.yaml'}",
        f"--kubeconfig={files.kubeconfig}",
        # Its API server asks for a certificate of the chart; nothing of ours reads it.
        "--feature-gates=VisibilityOnDemand=false",
        "--zap-log-level=info",
    ]

    def answers() -> bool:
        if not is_listening(files.webhook_port):
            return False
        connection = http.client.HTTPConnection("127.0.0.1", files.health_port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    return Part("kueue", command, files.log, files.folder, answers, ready_s=READY_S)


def _for_a_process(rendered: bytes, files: KueueFiles) -> Iterator[Object]:
    bundle = base64.b64encode(files.authority.certificate_pem).decode()
    for obj in yaml.load_all(rendered, yaml.CSafeLoader):
        if not obj or obj["kind"] in LEFT_OUT:
            continue
        for client in _client_configurations(obj):
            service = client.pop("service")
            client["url"] = f"https://127.0.0.1:{files.webhook_port}{service['path']}"
            client["caBundle"] = bundle
        yield obj


def _client_configurations(obj: Object) -> Iterator[dict[str, Any]]:
    if obj["kind"].endswith("WebhookConfiguration"):
        for webhook in obj["webhooks"]:
            yield webhook["clientConfig"]
    elif obj["kind"] == "CustomResourceDefinition":
        conversion = obj["spec"].get("conversion") or {}
        if conversion.get("strategy") == "Webhook":
            yield conversion["webhook"]["clientConfig"]
