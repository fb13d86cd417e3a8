"""One request over a connection of its own, against a peer that the test plays."""

import socket
import struct
import threading
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from kio.schema.offset_delete.v0.response import OffsetDeleteResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from forebay.commands.raw_requests import send_request
from forebay.kafka_client.connection import BootstrapServer
from forebay.kafka_client.failures import EXIT_FAILED, EXIT_TIMED_OUT, EXIT_UNREACHABLE, ClientFailed
from runtime.clock import SystemClock

HOST = "127.0.0.1"
WITHIN_S = 20.0
SOON_S = 0.2
REQUEST = OffsetDeleteRequest(
    group_id=GroupId("g"),
    topics=(OffsetDeleteRequestTopic(name=TopicName("t"), partitions=(OffsetDeleteRequestPartition(partition_index=i32(3)),)),),
)
FRAME = struct.pack(">hhih", 47, 0, 1, 7) + b"forebay" + b"\0\1g" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\1" + b"\0\0\0\3"
ANSWER = struct.pack(">ihii", 1, 0, 0, 1) + b"\0\1t" + struct.pack(">iih", 1, 3, 86)


def asked(reply: Callable[[socket.socket], object]) -> OffsetDeleteResponse:
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(WITHIN_S)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                reply(connection)

        peer = threading.Thread(target=serve)
        peer.start()
        try:
            return send_request(
                BootstrapServer(HOST, server.getsockname()[1]), REQUEST, OffsetDeleteResponse, within_s=WITHIN_S, clock=SystemClock()
            )
        finally:
            peer.join(WITHIN_S)


def received(connection: socket.socket) -> bytes:
    return connection.recv(4 + len(FRAME), socket.MSG_WAITALL)


def test_a_request_is_framed_and_its_answer_read_however_it_comes() -> None:
    frames = []

    def reply(connection: socket.socket) -> None:
        frames.append(received(connection))
        for byte in struct.pack(">i", len(ANSWER)) + ANSWER:
            connection.sendall(bytes([byte]))

    answer = asked(reply)

    assert frames == [struct.pack(">i", len(FRAME)) + FRAME]
    assert answer.error_code == ErrorCode.none
    assert [(one.partition_index, one.error_code) for one in answer.topics[0].partitions] == [(3, ErrorCode.group_subscribed_to_topic)]


def test_a_peer_that_closes_is_named_and_may_be_too_old() -> None:
    with pytest.raises(ClientFailed, match=r"^Cannot reach 127\.0\.0\.1:\d+ \(it closed the connection: it may be too old") as failed:
        asked(received)

    assert failed.value.exit_code == EXIT_UNREACHABLE


def test_a_peer_that_does_not_answer_is_not_waited_for_any_longer() -> None:
    with socket.create_server((HOST, 0)) as server:
        address = BootstrapServer(HOST, server.getsockname()[1])
        with pytest.raises(ClientFailed, match=r"did not answer within 0\.2 s") as failed:
            send_request(address, REQUEST, OffsetDeleteResponse, within_s=SOON_S, clock=SystemClock())

    assert failed.value.exit_code == EXIT_TIMED_OUT


def test_a_peer_that_is_no_broker_is_not_believed() -> None:
    def reply(connection: socket.socket) -> None:
        received(connection)
        connection.sendall(b"HTTP/1.1 400 Bad Request")

    with pytest.raises(ClientFailed, match="does not answer as a Kafka broker") as failed:
        asked(reply)

    assert failed.value.exit_code == EXIT_FAILED


def test_an_address_that_nobody_listens_at_is_unreachable() -> None:
    with socket.create_server((HOST, 0)) as server:
        address = BootstrapServer(HOST, server.getsockname()[1])

    with pytest.raises(ClientFailed, match="connection refused") as failed:
        send_request(address, REQUEST, OffsetDeleteResponse, within_s=WITHIN_S, clock=SystemClock())

    assert failed.value.exit_code == EXIT_UNREACHABLE
