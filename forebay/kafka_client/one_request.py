"""A request that the client library cannot send, on a connection of its own: the length, a header without tags, kio's body."""

import io
import socket
import struct
from typing import Any, Final, TypeVar

from kio.serial import entity_reader, entity_writer

from forebay.kafka_client.connection import CLIENT_ID, BootstrapServer
from forebay.kafka_client.failures import EXIT_TIMED_OUT, EXIT_UNREACHABLE, ClientFailed
from runtime.clock import Clock

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
_CORRELATION_ID: Final = 1

T = TypeVar("T")


def send_request(address: BootstrapServer, request: Any, answer: type[T], *, within_s: float, clock: Clock) -> T:
    """For versions that are not flexible. Raise `ClientFailed` if no answer comes."""
    name = CLIENT_ID.encode()
    header = struct.pack(">hhih", request.__api_key__, request.__version__, _CORRELATION_ID, len(name)) + name
    body = io.BytesIO()
    entity_writer(type(request))(body, request)
    frame = header + body.getvalue()
    give_up_s = clock.monotonic_s() + within_s
    try:
        with socket.create_connection((address.host, address.port), timeout=within_s) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", _received(connection, 4, give_up_s, clock))
            if not 4 <= size <= ANSWER_BYTES_MAX:
                raise ClientFailed(f"{address} does not answer as a Kafka broker.")
            held = _received(connection, size, give_up_s, clock)
    except TimeoutError as error:
        raise ClientFailed(
            f"{address} did not answer within {within_s:g} s. Wait longer with --timeout.", exit_code=EXIT_TIMED_OUT
        ) from error
    except OSError as error:
        raise ClientFailed(f"Cannot reach {address} ({(error.strerror or str(error)).lower()}).", exit_code=EXIT_UNREACHABLE) from error
    found, _ = entity_reader(answer)(held, 4)  # type: ignore[type-var]
    return found


def _received(connection: socket.socket, size: int, give_up_s: float, clock: Clock) -> bytes:
    held = b""
    while len(held) < size:
        left_s = give_up_s - clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        part = connection.recv(size - len(held))
        if not part:
            raise ConnectionResetError(None, "it closed the connection: it may be too old for this request")
        held += part
    return held
