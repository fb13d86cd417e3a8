"""What a load at a fixed rate makes of a server's answers."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from bench.pacing import Schedule, paced, staggered
from bench.wire import Driver

HOST = "127.0.0.1"
SOON_S = 25.0


def frame(number: int) -> bytes:
    return struct.pack(">ii", 4, number)


def taken(sock: socket.socket) -> bytes:
    """One frame with its length; nothing once the client is gone."""
    return sock.recv(8, socket.MSG_WAITALL)


@contextlib.contextmanager
def serving(serve: Callable[[socket.socket], None], *, connections: int) -> Iterator[Driver]:
    """A server that treats each connection so, in a thread of its own."""
    with socket.create_server((HOST, 0)) as listening, contextlib.ExitStack() as closing:

        def accept() -> None:
            for _ in range(connections):
                sock = closing.enter_context(listening.accept()[0])
                threads.append(threading.Thread(target=serve, args=(sock,)))
                threads[-1].start()

        threads: list[threading.Thread] = []
        accepting = threading.Thread(target=accept)
        accepting.start()
        driver = Driver(HOST, listening.getsockname()[1], connections=connections)
        try:
            yield driver
        finally:
            driver.close()
            accepting.join(SOON_S)
            for thread in threads:
                thread.join(SOON_S)


def echo(sock: socket.socket) -> None:
    while piece := taken(sock):
        sock.sendall(piece)


def close_after_one(sock: socket.socket) -> None:
    sock.sendall(taken(sock))
    sock.shutdown(socket.SHUT_RDWR)


def answer_three_at_once(sock: socket.socket) -> None:
    while piece := taken(sock):
        sock.sendall(piece + taken(sock) + taken(sock))


def test_every_request_is_answered_on_its_own_connection_in_order() -> None:
    with serving(echo, connections=3) as driver:
        answered = paced(driver, staggered([[frame(10 * lane + number) for number in range(5)] for lane in range(3)], per_s=3_000.0))

    assert [[int.from_bytes(answer, "big") for answer in lane.answers] for lane in answered] == [
        [10 * lane + number for number in range(5)] for lane in range(3)
    ]
    assert all(len(lane.seconds) == 5 and min(lane.seconds) >= 0 for lane in answered)


def test_who_waited_longer_for_the_same_answer_is_charged_more() -> None:
    with serving(answer_three_at_once, connections=1) as driver:
        (answered,) = paced(driver, [Schedule([frame(number) for number in range(3)], per_s=100.0)])

    first, second, third = answered.seconds
    assert first > second > third
    assert first - third == pytest.approx(2 / 100.0)


def test_connections_take_turns() -> None:
    assert [schedule.after_s for schedule in staggered([[frame(0)]] * 4, per_s=8.0)] == [0.0, 0.125, 0.25, 0.375]
    assert {schedule.per_s for schedule in staggered([[frame(0)]] * 4, per_s=8.0)} == {2.0}


def test_a_connection_that_is_closed_under_way_is_an_error() -> None:
    with serving(close_after_one, connections=1) as driver, pytest.raises(ConnectionError):
        paced(driver, [Schedule([frame(0), frame(1)], per_s=1_000.0)])
