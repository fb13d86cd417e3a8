"""Traces of produced batches as a collector gets them."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from runtime.clock import SystemClock
from tests.kit.serving import HOST, IN_OBJECTS, Served, events, serving

WITHIN_S = 60.0
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KAFKA = {
    "messaging.system": "kafka",
    "messaging.destination.name": "orders",
    "messaging.destination.partition.id": "0",
    "messaging.batch.message_count": 2,
}


class Collector:
    """The spans that were sent, and where they were sent to. It answers nobody while `answers` is not set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.spans: list[Any] = []
        self.paths: set[str] = set()
        self.has_some = threading.Event()

    @contextlib.contextmanager
    def listening(self) -> Iterator[str]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                collector.paths.add(self.path)
                collector.spans += [span for of in asked.resource_spans for scope in of.scope_spans for span in scope.spans]
                collector.has_some.set()
                collector.answers.wait(WITHIN_S)
                with contextlib.suppress(OSError):  # its client has gone
                    self.send_response(200)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer((HOST, 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://{HOST}:{server.server_port}"
            finally:
                self.answers.set()
                server.shutdown()
                thread.join(WITHIN_S)


def produce(served: Served, count: int, *, headers: Any = None) -> list[int | None]:
    """Offsets of records that go in one batch."""
    offsets: list[int | None] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer = Producer({"bootstrap.servers": served.bootstrap, "linger.ms": 200})
    for number in range(count):
        producer.produce("orders", b"v", headers=headers if number == 0 else None, on_delivery=delivered)
    assert producer.flush(WITHIN_S) == 0
    return offsets


def attributes_of(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_a_produced_batch_is_one_trace_of_five_spans_below_the_producer_s(tmp_path: Path) -> None:
    collector = Collector()
    with collector.listening() as url:
        settings = {**IN_OBJECTS, "tracing.endpoint": url, "tracing.sample_ratio": "1"}
        with serving(tmp_path, settings=settings) as served:
            [first, _] = produce(served, 2, headers=[("other", b"x"), ("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01".encode())])
            assert collector.has_some.wait(WITHIN_S)
            sent = served.metrics()['forebay_tracing_spans_total{outcome="sent"}']
    spans = {span.name: span for span in collector.spans}
    whole, put = spans["receive orders"], spans["put"]
    inside = [spans[name] for name in ("gather", "put", "commit", "ack")]

    assert collector.paths == {"/v1/traces"}
    assert len(collector.spans) == 5
    assert sent in (0, 5)  # the page is up to a second old
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    assert whole.parent_span_id.hex() == SPAN_ID
    assert {span.parent_span_id for span in inside} == {whole.span_id}
    ends = [whole.start_time_unix_nano, *(time_ns for span in inside for time_ns in (span.start_time_unix_nano, span.end_time_unix_nano))]
    assert [*ends, whole.end_time_unix_nano] == sorted([*ends, whole.end_time_unix_nano])
    for span in collector.spans:
        found = attributes_of(span)
        assert found | KAFKA == found
        assert found["messaging.kafka.offset"] == first == 0
        assert found["messaging.message.envelope.size"] > 60
    [stored] = (tmp_path / "objects").rglob(attributes_of(put)["aws.s3.key"].rpartition("/")[2] + "*")
    assert stored.stat().st_size > 0


def test_a_collector_that_does_not_answer_is_said_once_and_no_ack_waits_for_it(tmp_path: Path) -> None:
    collector, clock = Collector(), SystemClock()
    collector.answers.clear()
    with collector.listening() as url, serving(tmp_path, settings={"tracing.endpoint": url, "tracing.sample_ratio": "1"}) as served:
        offsets = produce(served, 2)
        assert collector.has_some.wait(WITHIN_S)
        for _ in range(3):
            offsets += produce(served, 2)
        end_s = clock.monotonic_s() + WITHIN_S
        while not served.metrics()['forebay_tracing_spans_total{outcome="failed"}']:
            assert clock.monotonic_s() < end_s
            time.sleep(0.2)
    said = [event for event in events(served.log_path) if event.get("event") == "traces_not_sent"]

    assert offsets == list(range(8))
    assert [event["endpoint"] for event in said] == [url]


def test_a_broker_without_traces_imports_nothing_of_opentelemetry() -> None:
    program = "import sys, broker.assembly; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WITHIN_S, check=True)

    assert done.stdout == "[]\n"
