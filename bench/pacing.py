"""A load at a fixed rate, whatever the broker makes of it: how long each request took from the moment it was due.

A request that is due is sent, also while earlier ones of its connection are unanswered: a broker that stalls is charged for all
that came meanwhile, and for what this client is late itself.
"""

import heapq
import selectors
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from bench.wire import ANSWERED_WITHIN_S, RECEIVE_BYTES
from runtime.clock import SystemClock

_clock = SystemClock()

LOOK_EVERY_S_MAX: Final = 0.05


class Connected(Protocol):
    """`bench.wire.Driver` is one."""

    @property
    def sockets(self) -> Sequence[socket.socket]: ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """The requests of one connection. The first is due `after_s` after the start."""

    frames: Sequence[bytes]
    per_s: float
    after_s: float = 0.0


@dataclass(slots=True)
class _Lane:
    schedule: Schedule
    sent: int = 0
    due_s: deque[float] = field(default_factory=deque)
    received: bytearray = field(default_factory=bytearray)
    seconds: list[float] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Paced:
    """The result of one connection: the answers, without their length, and how long each took."""

    answers: list[bytes]
    seconds: list[float]


def staggered(work: Sequence[Sequence[bytes]], *, per_s: float) -> list[Schedule]:
    """Connections that take turns, `per_s` requests a second together."""
    each_per_s = per_s / len(work)
    return [Schedule(frames, each_per_s, number / per_s) for number, frames in enumerate(work)]


def paced(driver: Connected, schedules: Sequence[Schedule]) -> list[Paced]:
    """Send what is due on each connection of `driver`; return when all is answered. Raise TimeoutError when the broker falls silent."""
    lanes = [_Lane(schedule) for schedule in schedules]
    began_s = last_heard_s = _clock.monotonic_s()
    upcoming = [(began_s + lane.schedule.after_s, number) for number, lane in enumerate(lanes) if lane.schedule.frames]
    heapq.heapify(upcoming)
    left = sum(len(lane.schedule.frames) for lane in lanes)
    with selectors.DefaultSelector() as selector:
        for sock, lane in zip(driver.sockets, lanes, strict=False):
            selector.register(sock, selectors.EVENT_READ, lane)
        while left:
            now_s = _clock.monotonic_s()
            while upcoming and upcoming[0][0] <= now_s:
                due_s, number = heapq.heappop(upcoming)
                lane = lanes[number]
                driver.sockets[number].sendall(lane.schedule.frames[lane.sent])
                lane.due_s.append(due_s)
                lane.sent += 1
                if lane.sent < len(lane.schedule.frames):
                    heapq.heappush(upcoming, (due_s + 1 / lane.schedule.per_s, number))
            wait_s = min(LOOK_EVERY_S_MAX, max(0.0, upcoming[0][0] - _clock.monotonic_s())) if upcoming else LOOK_EVERY_S_MAX
            for key, _ in selector.select(wait_s):
                heard = _receive(key.fileobj.recv(RECEIVE_BYTES), key.data)  # type: ignore[union-attr]
                last_heard_s = _clock.monotonic_s()
                left -= heard
            if _clock.monotonic_s() - last_heard_s > ANSWERED_WITHIN_S:
                raise TimeoutError(f"no answer within {ANSWERED_WITHIN_S} s")
    return [Paced(lane.answers, lane.seconds) for lane in lanes]


def _receive(piece: bytes, lane: _Lane) -> int:
    """Take what came; the number of answers that are complete by it."""
    if not piece:
        raise ConnectionError("the broker closed the connection")
    now_s = _clock.monotonic_s()
    received = lane.received
    received += piece
    at = count = 0
    while len(received) - at >= 4:
        end = at + 4 + int.from_bytes(received[at : at + 4], "big")
        if end > len(received):
            break
        lane.answers.append(bytes(received[at + 4 : end]))
        lane.seconds.append(now_s - lane.due_s.popleft())
        count += 1
        at = end
    del received[:at]
    return count
