"""A real kube-scheduler of the test's own, and extenders that it asks."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from gpuplane.extender.scheduler_config import SchedulerConfig, render_config
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until

Object = dict[str, Any]


@dataclass
class Scheduling:
    """A namespace, nodes, and who schedules there.

    Attributes:
        name: The `schedulerName` of its pods; also the label that its nodes carry.
        urls: Of the extenders that were started.
    """

    rig: RunningCluster
    namespace: str
    name: str
    folder: Path
    urls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api = self.rig.api()

    @contextmanager
    def extender(self, *options: str) -> Iterator[str]:
        """Start a replica, wait until it is ready, and give its address."""
        log = self.folder / f"extender-{len(self.urls)}.log"
        command = [sys.executable, "-m", "gpuplane", "extender", "--port", "0"]
        command += ["--kubeconfig", str(self.rig.kubeconfig), "--scheduler-name", self.name]
        with log.open("w") as file:
            process = subprocess.Popen([*command, *options], stderr=file)
        try:
            wait_until(lambda: "answers at" in log.read_text(), "the extender listens")
            url = log.read_text().partition("answers at ")[2].partition('"')[0]
            self.urls.append(url)
            wait_until(lambda: is_ready(url), "the extender has read the cluster")
            yield url
        finally:
            process.terminate()
            process.wait(10)

    @contextmanager
    def scheduler(self, url: str, **more: Any) -> Iterator[None]:
        """Start a kube-scheduler that asks an extender."""
        config = SchedulerConfig(
            url,
            scheduler_name=self.name,
            kubeconfig=str(self.rig.kubeconfig),
            leader_elect=False,
            **more,
        )
        path = self.folder / "scheduler.yaml"
        path.write_text(render_config(config))
        with (self.folder / "scheduler.log").open("w") as file:
            process = subprocess.Popen(
                [self.rig.binaries["kube-scheduler"], "--config", path, "--secure-port=0"],
                stdout=file,
                stderr=file,
            )
        try:
            yield
        finally:
            process.terminate()
            process.wait(10)

    def make_pod(self, name: str, gpus: int, **more: Any) -> None:
        """Create a pod that asks for GPUs and stays."""
        metadata = {"name": name, "namespace": self.namespace, **more}
        metadata["annotations"] = {"rig.gpuplane.io/hold": "true"} | more.get("annotations", {})
        resources = {
            "requests": {"cpu": "1", "memory": "1Gi"},
            "limits": {"nvidia.com/gpu": str(gpus)},
        }
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": {
                    "schedulerName": self.name,
                    "restartPolicy": "Never",
                    "nodeSelector": {self.name: "yes"},
                    "containers": [{"name": "main", "image": "busybox", "resources": resources}],
                },
            }
        )

    def make_gang(self, gang: str, size: int, ranks: range, gpus: int) -> None:
        """Create pods of a gang."""
        for rank in ranks:
            self.make_pod(
                f"{gang}-{rank}",
                gpus,
                labels={"gpuplane.io/gang": gang, "gpuplane.io/rank": str(rank)},
                annotations={"gpuplane.io/gang-size": str(size)},
            )

    def pods(self) -> dict[str, Object]:
        """Return the pods of the namespace by name."""
        found = self.api.find(f"/api/v1/namespaces/{self.namespace}/pods") or {}
        return {pod["metadata"]["name"]: pod for pod in found.get("items", [])}

    def nodes_of(self) -> dict[str, str]:
        """Return where each pod is bound, empty where it is not."""
        return {name: pod["spec"].get("nodeName", "") for name, pod in self.pods().items()}

    def gpus_of(self, name: str) -> list[str]:
        """Return the GPUs that a pod is annotated with."""
        annotations = self.pods()[name]["metadata"].get("annotations", {})
        text: str = annotations.get("gpuplane.io/gpu-ids", "")
        return [part for part in text.split(",") if part]

    def message_of(self, name: str) -> str:
        """Return what kube-scheduler says about a pod that waits."""
        conditions = self.pods()[name]["status"].get("conditions") or []
        return " ".join(str(each.get("message", "")) for each in conditions)


def is_ready(url: str) -> bool:
    """Tell whether an extender has read its cluster."""
    context = None
    if url.startswith("https:"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    with (
        suppress(URLError, OSError),
        urlopen(f"{url}/readyz", timeout=5, context=context) as answer,
    ):
        return bool(answer.status == 200)
    return False
