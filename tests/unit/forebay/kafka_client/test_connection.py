import socket

import pytest
from confluent_kafka import KafkaError, KafkaException

from forebay.kafka_client.connection import BootstrapServer, ClusterConnection, connect, parse_bootstrap
from forebay.kafka_client.failures import EXIT_TIMED_OUT, EXIT_UNREACHABLE, EXIT_USAGE, ClientFailed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:19092", ["localhost:19092"]),
        ("localhost", ["localhost:9092"]),
        ("a:1, b:2", ["a:1", "b:2"]),
        ("[::1]:9093", ["[::1]:9093"]),
        ("[::1]", ["[::1]:9092"]),
    ],
)
def test_bootstrap_addresses_are_read_as_kafka_writes_them(text: str, expected: list[str]) -> None:
    assert [str(address) for address in parse_bootstrap(text)] == expected


@pytest.mark.parametrize(
    "text", ["", ",", ":9092", "a:", "a:0", "a:65536", "a:b", "http://a:1", "PLAINTEXT://a:1", "a:-1", "a:１", f"a:{'9' * 5_000}"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ClientFailed, match="is not HOST:PORT") as failed:
        parse_bootstrap(text)

    assert failed.value.exit_code == EXIT_USAGE


def test_one_address_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        connection = connect(f"no-such-host.invalid:9092,127.0.0.1:{port}", timeout_s=5)

    assert connection.bootstrap == (BootstrapServer("no-such-host.invalid", 9092), BootstrapServer("127.0.0.1", port))


def test_each_address_that_does_not_answer_is_named_with_its_cause() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    with pytest.raises(ClientFailed) as failed:
        connect(f"no-such-host.invalid:9092,127.0.0.1:{port}", timeout_s=5)

    assert failed.value.exit_code == EXIT_UNREACHABLE
    assert str(failed.value) == (
        f"Cannot reach no-such-host.invalid:9092 (name does not resolve), 127.0.0.1:{port} (connection refused). "
        "Set -b HOST:PORT or FOREBAY_BOOTSTRAP."
    )


def test_a_port_that_accepts_but_does_not_speak_kafka_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = connect(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=0.5)

        with pytest.raises(ClientFailed, match=r"accepts connections, but did not answer as a Kafka broker within 0.5 s") as failed:
            connection.metadata(connection.admin())

    assert failed.value.exit_code == EXIT_TIMED_OUT


def test_a_broker_that_goes_after_the_first_connection_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = connect(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=0.5)

    with pytest.raises(ClientFailed, match=r"^Cannot reach 127.0.0.1:\d+ \(connection refused\)\. Set -b") as failed:
        connection.metadata(connection.admin())

    assert failed.value.exit_code == EXIT_UNREACHABLE


class SlowAdmin:
    """A cluster whose answer takes longer than any slice of the time there is."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []

    def list_topics(self, *, timeout: float) -> str:
        self.asked_s.append(timeout)
        if len(self.asked_s) == 1:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return "answered"


def test_topics_are_asked_for_with_all_the_time_there_is_and_again_where_the_library_gave_up_early() -> None:
    admin = SlowAdmin()
    connection = ClusterConnection(bootstrap=(BootstrapServer("nowhere", 1),), timeout_s=44.0)

    assert connection.metadata(admin) == "answered"  # type: ignore[comparison-overlap, arg-type]
    assert [round(seconds, -1) for seconds in admin.asked_s] == [40.0, 40.0]


@pytest.mark.parametrize(("timeout_s", "socket_ms"), [(1.0, 60_000), (120.0, 120_000), (3_600.0, 300_000)])
def test_the_library_waits_for_one_answer_as_long_as_it_may(timeout_s: float, socket_ms: int) -> None:
    assert ClusterConnection(bootstrap=(BootstrapServer("nowhere", 1),), timeout_s=timeout_s)._config()["socket.timeout.ms"] == socket_ms
