"""Traces as OpenTelemetry's spans, sent as OTLP over HTTP. The one module that names its SDK, which the extra `otel` installs.

Each batch is a span `receive TOPIC` below the producer's, if its record names one, and holds the spans gather, put, commit and ack.
Attributes follow the semantic conventions for messaging.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from storage.errors import StorageError
from storage.log.batch import Appended
from storage.log.tracing import BatchTrace

_KINDS: Final[Mapping[str, SpanKind]] = {"put": SpanKind.CLIENT, "commit": SpanKind.CLIENT}
_NS_PER_S: Final = 1_000_000_000


class _Ended(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _Said(logging.Handler):
    """The last thing that the exporter said: it returns no reason."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


class OtlpCollector:
    """Called by one thread; `close` by any. The exporter reads its headers and certificates from OTEL_EXPORTER_OTLP_*."""

    def __init__(self, endpoint: str, *, version: str, run: str, timeout_s: float) -> None:
        """`endpoint`: its path is /v1/traces if it has none."""
        resource = Resource.create({"service.name": "forebay", "service.version": version, "service.instance.id": run})
        self._ended, self._said = _Ended(), _Said(logging.WARNING)
        provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("forebay", version)
        self._propagator = TraceContextTextMapPropagator()
        said_by = logging.getLogger("opentelemetry")
        said_by.handlers, said_by.propagate = [self._said], False
        has_path = "/" in endpoint.partition("://")[2].rstrip("/")
        self._exporter = OTLPSpanExporter(endpoint if has_path else f"{endpoint.rstrip('/')}/v1/traces", timeout=timeout_s)

    def send(self, traces: Sequence[BatchTrace]) -> str:
        for trace in traces:
            self._make(trace)
        spans, self._ended.spans = self._ended.spans, []
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return ""
        return self._said.last or "not taken"

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _make(self, trace: BatchTrace) -> None:
        """Begin and end its spans, as of the times when they were."""

        def at_ns(monotonic_s: float) -> int:
            return int((monotonic_s + trace.wall_s) * _NS_PER_S)

        shared: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.destination.name": trace.topic,
            "messaging.destination.partition.id": str(trace.partition),
            "messaging.batch.message_count": trace.records,
            "messaging.message.envelope.size": trace.size_bytes,
        }
        if isinstance(trace.outcome, Appended):
            shared["messaging.kafka.offset"] = trace.outcome.base_offset
        parent = self._propagator.extract({"traceparent": trace.parent})
        named: dict[str, str | int] = {"messaging.operation.name": "receive", "messaging.operation.type": "receive"}
        whole = self._tracer.start_span(
            f"receive {trace.topic}", parent, SpanKind.CONSUMER, shared | named, start_time=at_ns(trace.began_s)
        )
        stages = trace.stages()
        for stage in stages:
            attributes = shared | ({"aws.s3.key": trace.key} if stage.name == "put" else {})
            kind = _KINDS.get(stage.name, SpanKind.INTERNAL)
            span = self._tracer.start_span(stage.name, set_span_in_context(whole), kind, attributes, start_time=at_ns(stage.began_s))
            if isinstance(trace.outcome, StorageError) and stage is stages[-2]:
                span.set_attribute("error.type", type(trace.outcome).__name__)
                span.set_status(Status(StatusCode.ERROR, str(trace.outcome)))
            span.end(at_ns(stage.ended_s))
        if isinstance(trace.outcome, StorageError):
            whole.set_status(Status(StatusCode.ERROR, str(trace.outcome)))
        whole.end(at_ns(trace.answered_s))
