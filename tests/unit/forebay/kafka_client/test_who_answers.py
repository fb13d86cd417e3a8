import socket
import struct
import threading

import pytest

from forebay.kafka_client.connection import AdvertisedNode, BootstrapServer, ClusterSeen, ask_for_cluster, parse_cluster


def answer(*, correlation_id: int = 4_711) -> bytes:
    broker = struct.pack(">ih3sih", 7, 3, b"b-1", 9092, -1)
    return struct.pack(">iii", correlation_id, 0, 1) + broker + struct.pack(">h4si", 4, b"ours", 7)


def test_the_cluster_and_its_brokers_are_read() -> None:
    assert parse_cluster(answer()) == ClusterSeen("ours", (AdvertisedNode(7, "b-1", 9092),))


@pytest.mark.parametrize("length", range(len(answer()) - 4))
def test_an_answer_that_ends_early_is_none(length: int) -> None:
    with pytest.raises(ValueError, match="too short"):
        parse_cluster(answer()[:length])


def test_an_answer_to_another_request_is_none() -> None:
    with pytest.raises(ValueError, match="correlation_id=1"):
        parse_cluster(answer(correlation_id=1))


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", struct.pack(">i", -1), struct.pack(">ii", 4, 4_711)])
def test_what_is_no_kafka_broker_is_told_from_one(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1_000)
                client.sendall(said)

        talking = threading.Thread(target=talk)
        talking.start()
        with pytest.raises((OSError, ValueError)):
            ask_for_cluster(BootstrapServer("127.0.0.1", server.getsockname()[1]), within_s=5)
        talking.join(10)
