"""Traces over OTLP/HTTP with W3C context; without an endpoint it only passes contexts on.

OpenTelemetry is imported when an endpoint is set and not before: it costs 40 MB and 200 ms.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
Attribute = str | int | float | bool


class Tracing:
    """Makes spans when there is somewhere to send them."""

    def __init__(self, provider: Any = None) -> None:
        """Trace with an OpenTelemetry provider, or not at all."""
        self._provider = provider
        self._tracer = provider.get_tracer("gpuplane") if provider is not None else None

    @property
    def is_on(self) -> bool:
        """Return whether spans are made."""
        return self._tracer is not None

    @contextlib.contextmanager
    def span(
        self, name: str, traceparent: str | None, **attributes: Attribute
    ) -> Iterator[str | None]:
        """Open a span and give the traceparent that names it, to be carried on.

        Args:
            name: What is done, such as `POST /api/v1/jobs` or `job start`.
            traceparent: W3C context of the caller, or None.
            attributes: What to say of it; never a secret.
        """
        if self._tracer is None:
            yield traceparent
            return
        from opentelemetry.trace import set_span_in_context

        parent = _context_of(traceparent)
        with self._tracer.start_as_current_span(
            name, context=set_span_in_context(parent) if parent is not None else None,
            attributes=attributes,
        ) as span:  # fmt: skip
            found = span.get_span_context()
            yield f"00-{found.trace_id:032x}-{found.span_id:016x}-01"

    def close(self) -> None:
        """Send what is left; gives up after a few seconds."""
        if self._provider is not None:
            self._provider.shutdown()


def open_tracing(endpoint: str, version: str) -> Tracing:
    """Return tracing towards an OTLP/HTTP endpoint; an empty endpoint means none."""
    if not endpoint:
        return Tracing()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "gpuplane", "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


def _context_of(traceparent: str | None) -> Any:
    match = _TRACEPARENT.fullmatch(traceparent or "")
    if match is None:
        return None
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    return NonRecordingSpan(
        SpanContext(int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=TraceFlags(1))
    )
