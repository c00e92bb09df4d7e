"""Controllers beside a cluster: their own charts, rendered by Helm, each a process of ours.

What a chart would run in the cluster (Deployment, Services, aggregated APIs) is left out; its
webhooks and conversions are pointed at the process. Nothing else of the chart is changed. What
each is told (`rig.kueue`, `rig.jobset`) is not known here.
"""

from __future__ import annotations

import base64
import http.client
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rig.api import Api, Object
from rig.binaries import Binaries
from rig.certificates import Authority
from rig.processes import POLL_S, Part, RigFailed, is_listening

READY_S = 120.0
LEFT_OUT = frozenset({"Deployment", "APIService", "Service", "PodDisruptionBudget"})
WEBHOOK_CERTIFICATES = "webhook-certificates"
"""The folder of the certificate that the webhooks' server shows."""


@dataclass(frozen=True)
class OperatorFiles:
    """What one controller is made of.

    Attributes:
        name: Its program, and its chart under `charts/`.
        namespace: Where its chart is installed.
    """

    name: str
    namespace: str
    folder: Path
    kubeconfig: Path
    log: Path
    authority: Authority
    binaries: Binaries
    webhook_port: int
    health_port: int


def write_certificates(files: OperatorFiles, *names: str) -> None:
    """Write a serving certificate into each of these folders of a controller's folder."""
    files.folder.mkdir(exist_ok=True)
    for name in names:
        pair = files.authority.server(files.name)
        made = files.folder / name
        made.mkdir(exist_ok=True)
        pair.certificate.replace(made / "tls.crt")
        pair.key.replace(made / "tls.key")


def render_chart(files: OperatorFiles, values: Mapping[str, Any]) -> list[Object]:
    """Return the objects of a chart for a process of ours.

    Raises:
        RigFailed: If Helm refuses the chart.
    """
    written = files.folder / "values.yaml"
    written.write_text(yaml.safe_dump(dict(values)))
    chart = files.binaries.folders[f"charts/{files.name}"]
    done = subprocess.run(
        [
            *(files.binaries["helm"], "template", files.name, str(chart)),
            *("--namespace", files.namespace, "--include-crds", "--values", str(written)),
        ],
        cwd=files.folder,
        env={"HOME": str(files.folder), "PATH": "/usr/bin:/bin"},  # nobody's plug-ins
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace")[-2000:]
        raise RigFailed(f"helm template {files.name}: {text}")
    return list(_for_a_process(done.stdout, files))


def apply_definitions(folder: Path, api: Api) -> None:
    """Put the definitions of a folder into the cluster; returns when their kinds are served."""
    found = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
    for obj in found:
        api.apply(obj)
    _wait_served(found, api)


def apply_operator(
    files: OperatorFiles, arguments: Sequence[str], objects: list[Object], api: Api
) -> Part:
    """Put a chart's objects into the cluster and start its controller.

    Raises:
        RigFailed: If it does not answer.
    """
    namespace = {"name": files.namespace}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})
    late = [obj for obj in objects if obj["kind"].endswith("WebhookConfiguration")]
    for obj in objects:
        if obj not in late:
            api.apply(obj)
    _wait_served([obj for obj in objects if obj["kind"] == "CustomResourceDefinition"], api)
    part = _part(files, arguments)
    part.start()
    part.wait_ready()
    # Only once somebody answers: a webhook without a server refuses every Job and pod.
    for obj in late:
        api.apply(obj)
    return part


def _wait_served(definitions: list[Object], api: Api) -> None:
    """Wait until the API server serves every kind: a controller ends where one is missing."""
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


def _part(files: OperatorFiles, arguments: Sequence[str]) -> Part:
    command = [files.binaries[files.name], *arguments]

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

    return Part(files.name, command, files.log, files.folder, answers, ready_s=READY_S)


def _for_a_process(rendered: bytes, files: OperatorFiles) -> Iterator[Object]:
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
