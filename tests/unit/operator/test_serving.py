"""What the operator answers over HTTP, and how its command refuses."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuplane.entry.operating import operator
from gpuplane.operator.meters import Meters
from gpuplane.operator.models import Models
from gpuplane.operator.rules.jobs import Image
from gpuplane.operator.serving import (
    BODY_BYTES,
    MUTATE,
    VALIDATE,
    VALIDATE_LAYOUT,
    App,
    metrics_app,
    probes_app,
    webhooks_app,
)
from tests.clocks import FakeClock
from tests.unit.operator.builders import workload_object

DOCUMENTED = {
    "warp_gpuworkload_scheduled_total",
    "warp_gpuworkload_failed_total",
    "warp_gpuworkload_retries_total",
    "warp_gpuworkload_reconcile_duration_seconds_bucket",
}


async def ask(app: App, path: str, body: bytes = b"", method: str = "GET") -> tuple[int, bytes]:
    parts = [body[: len(body) // 2], body[len(body) // 2 :]]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        part = parts.pop(0) if parts else b""
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "path": path}, receive, send)
    return sent[0]["status"], sent[1]["body"]


async def test_the_metrics_have_the_documents_names_and_labels() -> None:
    meters = Meters()
    meters.failed.labels("no_suitable_node").inc()
    meters.reconciled.labels("success").observe(0.1)
    status, body = await ask(metrics_app(meters.registry), "/metrics")
    names = {line.split("{")[0].split(" ")[0] for line in body.decode().splitlines()}
    assert status == 200
    assert names >= DOCUMENTED
    assert b'warp_gpuworkload_scheduled_total{strategy="costOptimized"} 0.0' in body
    assert b'warp_gpuworkload_failed_total{reason="no_suitable_node"} 1.0' in body


async def test_probes_say_how_the_replica_does() -> None:
    ready: list[int] = []
    app = probes_app(lambda: True, lambda: bool(ready))
    assert (await ask(app, "/healthz"))[0] == 200
    assert (await ask(app, "/readyz"))[0] == 503
    ready.append(1)
    assert (await ask(app, "/readyz"))[0] == 200
    assert (await ask(app, "/other"))[0] == 404
    assert (await ask(app, "/healthz", method="DELETE"))[0] == 405


@pytest.fixture
def webhooks() -> App:
    return webhooks_app(Models({"llama2": Image("x")}), FakeClock())


def review(new: Any) -> bytes:
    return json.dumps({"request": {"uid": "u1", "object": new, "oldObject": None}}).encode()


async def test_a_review_comes_back_under_its_uid_with_the_verdict(webhooks: App) -> None:
    for path, new, allowed in (
        (VALIDATE, workload_object(), True),
        (VALIDATE, workload_object(modelName="gpt"), False),
        (VALIDATE_LAYOUT, {"spec": {"instances": {"9g.1gb": 1}}}, False),
    ):
        status, body = await ask(webhooks, path, review(new), "POST")
        response = json.loads(body)["response"]
        assert (status, response["uid"], response["allowed"]) == (200, "u1", allowed)
    _, body = await ask(webhooks, MUTATE, review({"metadata": {}, "spec": {}}), "POST")
    patch = json.loads(base64.b64decode(json.loads(body)["response"]["patch"]))
    assert "/metadata/finalizers" in {each["path"] for each in patch}


@pytest.mark.parametrize(
    ("new", "told"),
    [
        ("x", "Expected `object`, got `str`"),
        ({"metadata": {}}, "missing required field `spec`"),
        ({"spec": []}, "spec: Expected `object`"),
        ({"spec": {"modelName": ["a"]}}, "spec.modelName: Expected `str`"),
        ({"spec": {"reservation": [1]}}, "spec.reservation: Expected `object"),
        ({"spec": {"shares": {"1g.10gb": "x"}}}, "spec.shares[...]: Expected `int`"),
        ({"metadata": {"finalizers": 5}, "spec": {}}, "metadata.finalizers: Expected `array"),
    ],
)
async def test_what_no_schema_allows_is_refused_by_its_field_and_given_no_defaults(
    webhooks: App, new: Any, told: str
) -> None:
    for path in (VALIDATE, VALIDATE_LAYOUT):
        status, body = await ask(webhooks, path, review(new), "POST")
        response = json.loads(body)["response"]
        assert (status, response["allowed"]) == (200, False)
        assert told in response["status"]["message"]
    # The API server asks for defaults before it looks at the schema, whose words are the user's.
    _, body = await ask(webhooks, MUTATE, review(new), "POST")
    assert json.loads(body)["response"] == {"uid": "u1", "allowed": True}


async def test_a_deletion_and_an_object_of_another_schema_hold_nothing_up(webhooks: App) -> None:
    gone = json.dumps({"request": {"uid": "u1", "object": None, "oldObject": {}}}).encode()
    changed = {"uid": "u1", "object": workload_object(), "oldObject": {"spec": []}}
    for body in (gone, json.dumps({"request": changed}).encode()):
        _, answer = await ask(webhooks, VALIDATE, body, "POST")
        assert json.loads(answer)["response"]["allowed"] is True


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"request": 1}', 400),
        (b'{"request":' + b"[" * 100_000, 400),
        (b"x" * (BODY_BYTES + 2), 413),
    ],
)
async def test_a_body_that_is_no_review_is_refused(webhooks: App, body: bytes, status: int) -> None:
    assert (await ask(webhooks, VALIDATE, body, "POST"))[0] == status


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "KUBERNETES_SERVICE_HOST"),
        (["--webhook-port", "9443"], "give --tls-cert and --tls-key"),
        (["--metrics-port", "70000"], "0<=x<=65535"),
        (["--workers", "0"], "1<=x<=64"),
        (["--namespaces", "a,,b"], "--namespaces: '' is no name of a namespace"),
        (["--namespaces", "Team"], "--namespaces: 'Team' is no name of a namespace"),
        (["--namespaces", ",".join(f"n{n}" for n in range(101))], "101 are more than 100"),
        (["--log-level", "LOUD"], "'debug', 'info', 'warning', 'error'"),
        (["--node-label", "pool", "--kubeconfig", "{config}"], "--node-label pool"),
        (["--kubeconfig", "{config}"], "kubeconfig"),
    ],
)
def test_the_command_refuses_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], told: str
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    config = tmp_path / "kubeconfig"
    config.write_text("kind: Config\n")
    words = [option.replace("{config}", str(config)) for option in options]
    done = CliRunner().invoke(operator, words)
    assert done.exit_code == 2
    assert told in done.output
