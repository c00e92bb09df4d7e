"""What a JobSet controller beside a cluster is told: its configuration, certificates and flags."""

from __future__ import annotations

import yaml

from rig.api import Api, Object
from rig.operators import (
    WEBHOOK_CERTIFICATES,
    OperatorFiles,
    apply_operator,
    render_chart,
    write_certificates,
)
from rig.processes import Part

NAMESPACE = "jobset-system"


def prepare_jobset(files: OperatorFiles) -> list[Object]:
    """Write configuration and certificates, and return the chart's objects for a process.

    Raises:
        RigFailed: If Helm refuses the chart.
    """
    write_certificates(files, WEBHOOK_CERTIFICATES)
    (files.folder / "configuration.yaml").write_text(_configuration(files))
    return render_chart(files, {})


def apply_jobset(files: OperatorFiles, objects: list[Object], api: Api) -> Part:
    """Put the chart's objects into the cluster and start the controller.

    Raises:
        RigFailed: If it does not answer.
    """
    arguments = [
        f"--config={files.folder / 'configuration.yaml'}",
        f"--kubeconfig={files.kubeconfig}",
        "--zap-log-level=info",
    ]
    return apply_operator(files, arguments, objects, api)


def _configuration(files: OperatorFiles) -> str:
    configuration = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{files.health_port}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {
            "host": "127.0.0.1",
            "port": files.webhook_port,
            "certDir": str(files.folder / WEBHOOK_CERTIFICATES),
        },
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 300, "burst": 600},
    }
    return yaml.safe_dump(configuration, sort_keys=False)
