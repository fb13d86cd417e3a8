"""One Metadata request without topics, on a connection of its own: which cluster is behind an address, whatever that advertises.

The client library asks this of the advertised addresses, and so has no answer where these are what is wrong.
"""

import socket
import struct
from typing import Final, NamedTuple

from forebay.kafka_client.connection import CLIENT_ID, BootstrapServer

_METADATA: Final = 3
_VERSION: Final = 4
"""Known to every Kafka since 0.11."""
_CORRELATION_ID: Final = 4_711
_ANSWER_BYTES_MAX: Final = 2**20


class AdvertisedNode(NamedTuple):
    broker_id: int
    host: str
    port: int


class ClusterSeen(NamedTuple):
    cluster_id: str
    nodes: tuple[AdvertisedNode, ...]


def ask(address: BootstrapServer, *, within_s: float) -> ClusterSeen:
    """Raise OSError if there is no answer, ValueError if it is not one of Kafka's."""
    client = CLIENT_ID.encode()
    # No topics, and none to be made.
    body = struct.pack(">hhih", _METADATA, _VERSION, _CORRELATION_ID, len(client)) + client + struct.pack(">i?", 0, False)
    with socket.create_connection((address.host, address.port), timeout=within_s) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _received(connection, 4))
        if not 0 < size <= _ANSWER_BYTES_MAX:
            raise ValueError(f"no answer of Kafka: length={size}")
        return parse(_received(connection, size))


def parse(answer: bytes) -> ClusterSeen:
    """Raise ValueError for what is no such answer."""
    try:
        correlation_id, _, count = struct.unpack_from(">iii", answer)
        if correlation_id != _CORRELATION_ID:
            raise ValueError(f"an answer to another request: correlation_id={correlation_id}")
        position, nodes = 12, []
        for _ in range(count):
            (broker_id,) = struct.unpack_from(">i", answer, position)
            host, position = _text(answer, position + 4)
            (port,) = struct.unpack_from(">i", answer, position)
            _, position = _text(answer, position + 4)
            nodes.append(AdvertisedNode(broker_id, host or "", port))
        cluster_id, _ = _text(answer, position)
    except struct.error as error:
        raise ValueError(f"an answer that is too short: bytes={len(answer)}") from error
    return ClusterSeen(cluster_id or "", tuple(nodes))


def _text(answer: bytes, position: int) -> tuple[str | None, int]:
    (length,) = struct.unpack_from(">h", answer, position)
    start = position + 2
    if length < 0:
        return None, start
    if start + length > len(answer):
        raise ValueError(f"an answer that is too short: bytes={len(answer)}")
    return answer[start : start + length].decode(), start + length


def _received(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise ConnectionResetError("closed before it answered")
        found += piece
    return found
