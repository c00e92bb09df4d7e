"""The operator where it cannot start: it names the port, or the certificate."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kit.clock import SystemClock
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.operator.models import Models
from gpuplane.operator.running import CannotListen, Operator, OperatorSettings

CONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


async def _start(**changes: Any) -> str:
    """Return why an operator cannot start that has these settings."""
    settings = OperatorSettings(
        **{"namespace": "n", "identity": "i", "metrics_port": 0, "probe_port": 0, **changes}
    )
    async with KubeClient(read_kubeconfig(CONFIG)) as client:
        with pytest.raises(CannotListen) as told:
            await Operator(client, Models({}), settings, SystemClock()).run()
    return str(told.value)


async def test_a_port_that_somebody_has_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = await _start(metrics_port=port)
    assert told == f"metrics on 127.0.0.1 port {port}: Address already in use"


async def test_a_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    wrong = tmp_path / "tls.pem"
    wrong.write_text("nothing")
    told = await _start(webhook_port=0, certificate=wrong, private_key=wrong)
    assert told.startswith("webhooks on 127.0.0.1 port 0: ")
    assert "PEM" in told
