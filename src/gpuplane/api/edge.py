"""The outermost layer: request ids, the access log, request metrics, and the last resort.

A plain ASGI application. Nothing that happens inside leaves without an answer and a log line.
"""

import json
import logging
import re
import time

from prometheus_client import CollectorRegistry, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuplane.kit.errors import InvalidInput, ProductError
from gpuplane.kit.ids import new_id
from gpuplane.kit.logs import begin_log_context, end_log_context
from gpuplane.kit.problems import MEDIA_TYPE, problem_of

access_log = logging.getLogger("gpuplane.access")
log = logging.getLogger("gpuplane.api")

BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_QUIET = frozenset({"/health", "/ready", "/metrics"})
"""Asked every few seconds by machines; logged at debug level."""


def request_times(registry: CollectorRegistry) -> Histogram:
    """Return the histogram of request times of one process."""
    return Histogram(
        "gpuplane_http_request_seconds",
        "Time from the first byte of a request to the last of its answer",
        ("method", "route", "status"),
        buckets=BUCKETS_S,
        registry=registry,
    )


class Edge:
    """Wraps the whole app."""

    def __init__(self, app: ASGIApp, times: Histogram) -> None:
        """Wrap an app; its request times go to the histogram that `request_times` made."""
        self._app = app
        self._seconds = times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens inside."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        started = time.perf_counter()
        context = begin_log_context({"request_id": request_id})
        try:
            _check_path(scope)
            await self._app(scope, receive, sending)
        except ProductError as error:
            await _send_problem(error, request_id, sending)
        except Exception:
            log.exception("a request failed")
            if not status:
                await _send_problem(_internal(), request_id, sending)
        finally:
            self._note(scope, status or 499, time.perf_counter() - started)
            end_log_context(context)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._seconds.labels(scope["method"], route, str(status)).observe(seconds)
        level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
        if not access_log.isEnabledFor(level):
            return
        extra = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "duration_ms": round(seconds * 1000, 2),
            "user": scope["state"].get("user", ""),
        }
        job_id = scope.get("path_params", {}).get("job_id")
        if job_id is not None:
            extra["job_id"] = str(job_id)
        access_log.log(level, "%s %s %d", scope["method"], scope["path"], status, extra=extra)


async def _send_problem(error: ProductError, request_id: str, send: Send) -> None:
    body = json.dumps(problem_of(error, request_id)).encode()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _internal() -> ProductError:
    return ProductError(
        "Something went wrong on our side; it is logged under this request id.",
        fix="Try again; if it happens again, tell the operator the request id.",
    )


def _check_path(scope: Scope) -> None:
    if b"%00" in scope.get("raw_path", b"") or b"%00" in scope["query_string"]:
        raise InvalidInput("The address contains the NUL character.", fix="Remove %00.")


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(text):
                return str(text)
    return str(new_id())
