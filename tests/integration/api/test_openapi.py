"""The committed OpenAPI file is the app's own, and no request it allows breaks the app."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
import uvicorn

from gpuplane.kit.sealing import SealingKeys
from tests.waiting import wait_until
from tests.whole_app import whole_server
from tools.openapi import FILE, render_openapi

LEFT_ASIDE = ["/api/v1/events/stream", "/api/v1/sealing-keys/rotations"]
"""One does not end, the other takes seconds each time; both have tests of their own."""


def test_the_committed_file_is_what_the_app_says() -> None:
    assert FILE.read_text(encoding="utf-8") == render_openapi(), "run `make openapi`"


def test_every_operation_names_its_right_and_its_refusals() -> None:
    document = json.loads(render_openapi())
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert len({operation["operationId"] for _, _, operation in operations}) == len(operations)
    for method, path, operation in operations:
        assert operation["x-permission"], path
        assert "4XX" in operation["responses"], path
        names = [parameter["name"] for parameter in operation.get("parameters", ())]
        assert ("Idempotency-Key" in names) == (method == "post"), path


def test_no_body_refers_to_a_schema_that_is_not_there() -> None:
    text = render_openapi()
    document = json.loads(text)
    known = set(document["components"]["schemas"])
    used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= known


@schemathesis.serializer("application/gzip")
def any_bytes(_: Any, value: Any) -> bytes:
    """Send whatever was generated as the bytes of an upload."""
    return value if isinstance(value, bytes) else json.dumps(value, default=str).encode()


class Serving:
    """The whole app on a socket, in a thread of its own."""

    def __init__(self, folder: Path, keys: SealingKeys) -> None:
        self.folder, self.keys = folder, keys
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.token = ""
        self.server: uvicorn.Server | None = None
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        async with whole_server(self.folder, self.keys) as whole:
            self.token = whole.admin_token
            config = uvicorn.Config(whole.app, log_config=None, lifespan="off")
            self.server = uvicorn.Server(config)
            await self.server.serve(sockets=[self.listener])

    def __enter__(self) -> Serving:
        self.thread.start()
        wait_until(lambda: self.server is not None and self.server.started, "the server to start")
        return self

    def __exit__(self, *_: object) -> None:
        assert self.server is not None
        self.server.should_exit = True
        self.thread.join(20)
        self.listener.close()


@pytest.fixture(scope="module")
def serving(
    tmp_path_factory: pytest.TempPathFactory, sealing_keys: SealingKeys
) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("openapi"), sealing_keys) as running:
        yield running


schema = schemathesis.openapi.from_dict(json.loads(FILE.read_text(encoding="utf-8"))).exclude(
    path=LEFT_ASIDE
)


@pytest.mark.timeout(600)  # a bounded number of examples for every operation
@schema.parametrize()
@hypothesis.settings(
    max_examples=12,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
def test_no_request_of_the_documented_kind_breaks_the_app(case: Any, serving: Serving) -> None:
    headers = {"Authorization": f"Bearer {serving.token}"}
    response = case.call(base_url=serving.url, headers=headers, timeout=30)
    assert response.status_code < 500, f"{case.as_curl_command()}\n{response.text}"
