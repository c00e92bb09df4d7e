"""What a Kueue beside a cluster is told: its configuration, certificates and flags."""

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

NAMESPACE = "kueue-system"
# The chart's defaults, and the kinds of pods without a controller of their own: Kueue's examples
# of pod groups and of served models need them.
FRAMEWORKS = ["batch/job", "jobset.x-k8s.io/jobset", "pod", "deployment", "statefulset"]


def prepare_kueue(files: OperatorFiles) -> list[Object]:
    """Write configuration and certificates, and return the chart's objects for a process.

    Raises:
        RigFailed: If Helm refuses the chart.
    """
    write_certificates(files, WEBHOOK_CERTIFICATES, "metrics-certificates")
    configuration = _configuration(files)
    (files.folder / "configuration.yaml").write_text(configuration)
    values = {"managerConfig": {"controllerManagerConfigYaml": configuration}}
    return render_chart(files, values)


def apply_kueue(files: OperatorFiles, objects: list[Object], api: Api) -> Part:
    """Put the chart's objects into the cluster and start the manager.

    Raises:
        RigFailed: If it does not answer.
    """
    arguments = [
        f"--config={files.folder / 'configuration.yaml'}",
        f"--kubeconfig={files.kubeconfig}",
        # Its API server asks for a certificate of the chart; nothing of ours reads it.
        "--feature-gates=VisibilityOnDemand=false",
        "--zap-log-level=info",
    ]
    return apply_operator(files, arguments, objects, api)


def _configuration(files: OperatorFiles) -> str:
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
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
        "integrations": {"frameworks": FRAMEWORKS},
        # Seconds where the defaults are minutes: nobody waits that long for a lost worker here.
        "multiKueue": {"gcInterval": "10s", "workerLostTimeout": "30s"},
    }
    return yaml.safe_dump(configuration, sort_keys=False)
