"""A service is handed over only where Kueue would admit its pods; nothing is made to learn it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.backends.interface import NOT_ADMITTING, Unavailable
from gpuplane.backends.kubernetes.manifests.workloads import QUEUE, Workload
from gpuplane.backends.kubernetes.starting import require_admission
from gpuplane.kube.clients import KubeClient
from tests.integration.kube.scripted import Reply, Request, ScriptedServer

MAIN: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "tenant-t", "labels": {"own": "label"}},
    "spec": {"replicas": 0, "template": {"metadata": {"labels": {"a": "b"}}}},
}


def answering(server: ScriptedServer, status: int = 201, **labels: str) -> list[Request]:
    """Have the server answer with what it was sent and these labels of the pods."""
    asked: list[Request] = []

    def handle(request: Request) -> Reply:
        asked.append(request)
        body = request.json
        body["spec"]["template"]["metadata"]["labels"].update(labels)
        return Reply(status, body if status == 201 else {"reason": "AlreadyExists"})

    server.handler = handle
    return asked


async def test_a_kueue_that_labels_pods_of_deployments_is_asked_and_nothing_is_made(
    client: KubeClient, server: ScriptedServer
) -> None:
    asked = answering(server, **{QUEUE: "main"})
    await require_admission(client, Workload("tenant-t", MAIN, {}), "main")
    assert [each.param("dryRun") for each in asked] == ["All"]
    assert asked[0].json["metadata"]["labels"] == {"own": "label", QUEUE: "main"}
    assert QUEUE not in MAIN["metadata"]["labels"]


async def test_a_kueue_that_looks_at_no_deployments_is_told_by_what_it_lacks(
    client: KubeClient, server: ScriptedServer
) -> None:
    answering(server)
    with pytest.raises(Unavailable, match=r"integrations\.frameworks") as refused:
        await require_admission(client, Workload("tenant-t", MAIN, {}), "main")
    assert refused.value.word == NOT_ADMITTING


async def test_a_deployment_that_is_there_was_asked_about_before(
    client: KubeClient, server: ScriptedServer
) -> None:
    asked = answering(server, 409)
    await require_admission(client, Workload("tenant-t", MAIN, {}), "main")
    assert len(asked) == 1
