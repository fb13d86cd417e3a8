"""Large requests that stop before their end cost nobody else anything; and who does not speak Kafka is told so."""

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode

from runtime.clock import SystemClock
from storage.limits import FRAME_BYTES_MAX, KIB, MIB
from tests.kit.memory_watch import SOON_S, produce
from tests.kit.raw_client import RawClient
from tests.kit.record_batches import record_batch
from tests.kit.serving import HOST, Served, serving

STALL_S_MAX = 15.0
"""Half a minute before half-sent requests were evicted; half a second of sending 500 MiB to a broker on the same machine is ordinary."""
ASKED = 60
SENT_WITHIN_S = 5.0
clock = SystemClock()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 4, 1)])["t"].result(SOON_S)
        yield broker


def send_almost_all(connection: socket.socket) -> None:
    """Of the largest request there may be; less if the broker has enough of it before."""
    connection.settimeout(SOON_S)
    piece = bytes(MIB)
    with contextlib.suppress(OSError):
        connection.sendall(FRAME_BYTES_MAX.to_bytes(4, "big") + b"\x00\x00\x00\x09")
        for _ in range(FRAME_BYTES_MAX // MIB - 1):
            connection.sendall(piece)


@contextlib.contextmanager
def half_sending(port: int, count: int) -> Iterator[None]:
    with contextlib.ExitStack() as closing:
        connections = [closing.enter_context(socket.create_connection((HOST, port), SOON_S)) for _ in range(count)]
        threads = [threading.Thread(target=send_almost_all, args=[connection]) for connection in connections]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join(SENT_WITHIN_S / count)  # until they have sent it, or are not read from any more
            yield
        finally:
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(SOON_S)


def latencies_s(port: int, batch_bytes: int) -> list[float]:
    taken_s = []
    with RawClient(port) as client:
        for _ in range(ASKED):
            began_s = clock.monotonic_s()
            answer = client.ask(produce(bytes(record_batch(bytes(batch_bytes), base_timestamp=clock.now_ms())), partitions=range(1)))
            taken_s.append(clock.monotonic_s() - began_s)
            assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
    return sorted(taken_s)


@pytest.mark.parametrize("count", [5, 50])
@pytest.mark.parametrize("batch_bytes", [100, 900 * KIB], ids=["small", "large"])
def test_sockets_that_sent_all_but_the_end_of_the_largest_request_do_not_stop_produce(served: Served, count: int, batch_bytes: int) -> None:
    with half_sending(served.kafka_port, count):
        under_attack_s = latencies_s(served.kafka_port, batch_bytes)
    print(f"count={count} batch_bytes={batch_bytes} p50={under_attack_s[ASKED // 2]:.3f} max={under_attack_s[-1]:.3f}")

    assert under_attack_s[-1] < STALL_S_MAX


def told_of_other_protocols(served: Served) -> list[dict[str, object]]:
    """A line is written beside what it tells of, so it is waited for."""
    give_up_s = clock.monotonic_s() + SOON_S
    while not (told := [event for event in served.events() if event["event"] == "other_protocol"]):
        assert clock.monotonic_s() < give_up_s, "no line tells of it"
        time.sleep(0.02)
    return told


def test_a_client_that_speaks_tls_gets_a_line_in_the_log_that_says_what_to_do(served: Served) -> None:
    with (
        socket.create_connection((HOST, served.kafka_port), SOON_S) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost"),
    ):
        pass

    (line,) = told_of_other_protocols(served)
    assert line["protocol"] == "TLS"
    assert line["client_host"] == HOST
    assert "security.protocol=PLAINTEXT" in str(line["fix"])


def test_a_browser_is_answered_where_http_is_served(served: Served) -> None:
    connection = http.client.HTTPConnection(HOST, served.kafka_port, timeout=SOON_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()

    assert answer.status == http.client.BAD_REQUEST
    assert "http.listen" in text
    (line,) = told_of_other_protocols(served)
    assert line["protocol"] == "HTTP"
