"""The recording proxy: what it counts, however bytes are cut, and that it changes none."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compat.recorder import HOST, REQUEST_BYTES_MAX, Recorder, RequestHeaders, recording

TIMEOUT_S = 25.0


def request(key: int, version: int, body: bytes = b"") -> bytes:
    return struct.pack(">ihh", 4 + len(body), key, version) + body


@given(
    requests=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 20), st.binary(max_size=50)), max_size=8),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20),
)
def test_requests_are_found_however_the_stream_is_cut(requests: list[tuple[int, int, bytes]], sizes: list[int]) -> None:
    stream = b"".join(request(*one) for one in requests)
    headers, found, at, turn = RequestHeaders(), [], 0, 0

    while at < len(stream):
        size = sizes[turn % len(sizes)]
        found += headers.feed(stream[at : at + size])
        at, turn = at + size, turn + 1

    assert found == [(key, version) for key, version, _ in requests]
    assert headers.is_readable


@pytest.mark.parametrize("size", [-1, 0, 3, -(2**31), REQUEST_BYTES_MAX + 5, 2**31 - 1])
def test_a_length_that_no_request_has_ends_the_reading(size: int) -> None:
    headers = RequestHeaders()

    assert headers.feed(request(3, 1) + struct.pack(">ihh", size, 0, 0) + request(1, 1)) == [(3, 1)]
    assert not headers.is_readable
    assert headers.feed(request(1, 1)) == []


def test_the_rest_of_a_large_request_is_not_kept() -> None:
    headers = RequestHeaders()

    assert headers.feed(struct.pack(">ihh", REQUEST_BYTES_MAX, 0, 9)) == [(0, 9)]
    for _ in range(100):
        assert headers.feed(bytes(100_000)) == []
    assert len(headers._head) == 0


@given(st.binary(max_size=300))
def test_no_bytes_confuse_it(data: bytes) -> None:
    headers = RequestHeaders()

    for key, version in headers.feed(data):
        assert key >= 0
        assert version >= 0
    assert len(headers._head) < 8


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back what it got and closes when the client has ended."""
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(TIMEOUT_S)
        thread = threading.Thread(target=_echo, args=(server,))
        thread.start()
        yield server.getsockname()
        server.shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def _echo(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:  # the fixture has closed it
            return
        with connection:
            connection.settimeout(TIMEOUT_S)
            while data := connection.recv(65_536):
                connection.sendall(data)


def connected(recorder: Recorder) -> socket.socket:
    return socket.create_connection((HOST, recorder.port), timeout=TIMEOUT_S)


def read_all(connection: socket.socket) -> bytes:
    found = b""
    while data := connection.recv(65_536):
        found += data
    return found


def test_bytes_pass_unchanged_both_ways_and_pipelined_requests_are_counted(echo: tuple[str, int]) -> None:
    stream = request(18, 3) + request(0, 9, b"x" * 200_000) + request(0, 9) + request(1, 12)
    with recording() as recorder:
        recorder.target = echo
        with connected(recorder) as connection:
            sending = threading.Thread(target=_send, args=(connection, stream))
            sending.start()
            back = read_all(connection)
            sending.join(TIMEOUT_S)

        assert back == stream
        assert recorder.exercised() == {(18, 3): 1, (0, 9): 2, (1, 12): 1}
        recorder.forget()
        assert recorder.exercised() == {}


def _send(connection: socket.socket, stream: bytes) -> None:
    connection.sendall(stream)
    connection.shutdown(socket.SHUT_WR)


def test_what_is_no_kafka_passes_too_and_is_told(echo: tuple[str, int]) -> None:
    with recording() as recorder:
        recorder.target = echo
        with connected(recorder) as connection:
            _send(connection, b"\xff" * 100)
            back = read_all(connection)

        assert back == b"\xff" * 100
        assert recorder.unreadable == 1
        assert recorder.exercised() == {}


@pytest.mark.parametrize("target", [lambda port: None, lambda port: (HOST, port)], ids=["not known", "away"])
def test_without_a_broker_connections_are_closed(target: Callable[[int], tuple[str, int] | None]) -> None:
    with socket.socket() as bound:
        bound.bind((HOST, 0))  # and does not listen
        with recording() as recorder:
            recorder.target = target(bound.getsockname()[1])
            with connected(recorder) as connection:
                assert read_all(connection) == b""


def test_leaving_ends_open_connections(echo: tuple[str, int]) -> None:
    with recording() as recorder:
        recorder.target = echo
        connection = connected(recorder)
        connection.sendall(request(18, 0))
        assert connection.recv(100) == request(18, 0)

    with connection:
        assert read_all(connection) == b""
