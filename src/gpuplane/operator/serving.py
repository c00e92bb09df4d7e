"""What the operator answers over HTTP: metrics, probes, and the webhooks of the API server.

Owns the paths and the shapes of answers; judgement is in `rules.admission`. The webhooks are
served by every replica, the leader or not.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from gpuplane.kit.clock import Clock
from gpuplane.operator.models import Models
from gpuplane.operator.rules.admission import (
    answer_review,
    find_layout_problem,
    find_workload_problem,
    list_defaults,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Answer = tuple[int, str, bytes]

BODY_BYTES = 3 << 20
"""The API server takes objects of 3 MiB at most, and sends two of them."""
VALIDATE = "/validate-gpu-warp-dev-v1alpha1-gpuworkload"
MUTATE = "/mutate-gpu-warp-dev-v1alpha1-gpuworkload"
VALIDATE_LAYOUT = "/validate-gpuplane-io-v1alpha1-miglayout"


def metrics_app(registry: CollectorRegistry) -> App:
    """Return what answers `/metrics`."""

    def answer(path: str, _: bytes) -> Answer:
        if path != "/metrics":
            return _text(404, "metrics are at /metrics")
        return 200, CONTENT_TYPE_LATEST, generate_latest(registry)

    return _app({"GET"}, answer)


def probes_app(is_alive: Callable[[], bool], is_ready: Callable[[], bool]) -> App:
    """Return what answers `/healthz` and `/readyz`."""

    def answer(path: str, _: bytes) -> Answer:
        found = {"/healthz": is_alive, "/readyz": is_ready}.get(path)
        if found is None:
            return _text(404, "probes are at /healthz and /readyz")
        return _text(200, "ok") if found() else _text(503, "not yet")

    return _app({"GET"}, answer)


def webhooks_app(models: Models, clock: Clock) -> App:
    """Return what answers the API server's admission reviews."""

    def answer(path: str, body: bytes) -> Answer:
        if path not in (VALIDATE, MUTATE, VALIDATE_LAYOUT):
            return _text(404, "there is no such webhook")
        try:
            review = json.loads(body)
            request = review["request"]
            new, old = request.get("object") or {}, request.get("oldObject")
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return _text(400, "the body is no AdmissionReview")
        if not new:  # a deletion: nothing is left to be judged
            told = answer_review(review, None)
        elif path == MUTATE:
            told = answer_review(review, None, list_defaults(new))
        elif path == VALIDATE_LAYOUT:
            told = answer_review(review, find_layout_problem(new))
        else:
            problem = find_workload_problem(
                new,
                old,
                models.names(),
                any_model=models.has_default,
                now_s=clock.now_ms() // 1000,
            )
            told = answer_review(review, problem)
        return 200, "application/json", json.dumps(told).encode()

    return _app({"POST"}, answer)


def _text(status: int, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


def _app(methods: set[str], answer: Callable[[str, bytes], Answer]) -> App:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = bytearray()
        more = scope["method"] == "POST"
        while more and len(body) <= BODY_BYTES:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False) and message["type"] == "http.request"
        if scope["method"] not in methods:
            status, kind, content = _text(405, f"use {', '.join(sorted(methods))}")
        elif len(body) > BODY_BYTES:
            status, kind, content = _text(413, "the body is too large")
        else:
            status, kind, content = answer(scope["path"], bytes(body))
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return app
