"""Traces: one trace from the caller's request into the job's environment."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpuplane.kit.tracing import Tracing, open_tracing

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(BaseHTTPRequestHandler):
    """An OTLP/HTTP receiver that keeps what it is sent."""

    received: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.received.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def endpoint() -> Iterator[str]:
    Collector.received.clear()
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def names_and_traces() -> dict[str, str]:
    found: dict[str, str] = {}
    for body in Collector.received:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                found.update({span.name: span.trace_id.hex() for span in scope.spans})
    return found


def test_a_span_continues_the_callers_trace_and_names_itself_for_those_below(
    endpoint: str,
) -> None:
    tracing = open_tracing(endpoint, "0")
    with tracing.span("POST /api/v1/jobs", CALLER, user="me") as request:
        assert request is not None
        with tracing.span("job start", request) as start:
            assert start is not None
    tracing.close()
    assert request.split("-")[1] == CALLER.split("-")[1] == start.split("-")[1]
    assert request.split("-")[2] != CALLER.split("-")[2]
    assert names_and_traces() == dict.fromkeys(
        ("POST /api/v1/jobs", "job start"), CALLER.split("-")[1]
    )


def test_without_an_endpoint_the_callers_context_is_passed_on_as_it_is() -> None:
    tracing = open_tracing("", "0")
    with tracing.span("anything", CALLER) as inside:
        assert inside == CALLER
    with tracing.span("anything", None) as inside:
        assert inside is None
    assert not Tracing().is_on


def test_a_malformed_context_begins_a_new_trace(endpoint: str) -> None:
    tracing = open_tracing(endpoint, "0")
    with tracing.span("anything", "00-zz") as inside:
        assert inside is not None
    tracing.close()
    assert inside.split("-")[1] in names_and_traces().values()
