import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
import structlog

from process import accepting
from process.accepting import ACCEPT_FAILURES, REFUSED, Acceptor
from runtime.clock import SystemClock
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry

DEADLINE_S = 25.0
RETRY_S = 0.02
EMFILE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

clock = SystemClock()


class FailingSocket(socket.socket):
    """A listening socket whose next calls of `accept` fail so, in order."""

    failures: deque[OSError]
    attempts: list[float]

    def accept(self) -> tuple[socket.socket, object]:
        self.attempts.append(clock.monotonic_s())
        if self.failures:
            raise self.failures.popleft()
        return super().accept()


@dataclass
class Accepting:
    bound: FailingSocket
    telemetry: Telemetry = field(default_factory=Telemetry)
    made: "asyncio.Queue[asyncio.Transport]" = field(default_factory=lambda: asyncio.Queue(maxsize=10))
    has_room: bool = True

    def count(self, name: str, **labels: str) -> float | None:
        return self.telemetry.registry.get_sample_value(name, labels)

    @contextlib.contextmanager
    def connecting(self):  # type: ignore[no-untyped-def]
        with socket.create_connection(self.bound.getsockname()) as caller:
            caller.setblocking(False)
            yield caller

    async def next_made(self) -> asyncio.Transport:
        async with asyncio.timeout(DEADLINE_S):
            return await self.made.get()


class Telling(asyncio.Protocol):
    def __init__(self, made: "asyncio.Queue[asyncio.Transport]") -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._made.put_nowait(transport)


@contextlib.asynccontextmanager
async def accepting_one(*failures: OSError, make_room: Callable[[], bool] = lambda: False) -> AsyncIterator[Accepting]:
    with FailingSocket(fileno=accepting.bind("127.0.0.1", 0).detach()) as bound:
        bound.failures, bound.attempts = deque(failures), []
        rig = Accepting(bound)
        async with Nursery() as nursery:
            acceptor = Acceptor(
                "PLAINTEXT",
                bound,
                make=lambda _: Telling(rig.made),
                has_room=lambda: rig.has_room,
                make_room=lambda _: make_room(),
                fix="let fewer come",
                nursery=nursery,
                telemetry=rig.telemetry,
                retry_s=RETRY_S,
            )
            acceptor.start()
            yield rig
            acceptor.stop()
            acceptor.stop()


async def test_without_descriptors_it_waits_between_attempts_and_goes_on_when_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    with structlog.testing.capture_logs() as logged:
        async with accepting_one(*[EMFILE] * 5) as rig:
            with rig.connecting():
                (await rig.next_made()).close()

    pauses_s = [after - before for before, after in zip(rig.bound.attempts, rig.bound.attempts[1:], strict=False)]
    assert min(pauses_s[:5]) >= RETRY_S * 0.9, "the socket is readable all the time"
    assert rig.count(ACCEPT_FAILURES.name, error="EMFILE") == 5
    failed = [line for line in logged if line["event"] == "accept_failed"]
    assert [(line["count"], line["cause"], line["log_level"]) for line in failed] == [
        (1, "Too many open files", "error"),
        (4, "Too many open files", "error"),
    ], "at once, and what was left in the end"
    assert "ulimit -n" in failed[0]["fix"]


async def test_an_acceptor_that_is_stopped_while_it_waits_does_not_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with accepting_one(*[EMFILE] * 1_000) as rig:
        with rig.connecting():
            async with asyncio.timeout(DEADLINE_S):
                while len(rig.bound.attempts) < 2:  # noqa: ASYNC110 - the socket does not tell
                    await asyncio.sleep(0.001)
    attempts = len(rig.bound.attempts)
    await asyncio.sleep(3 * RETRY_S)

    assert len(rig.bound.attempts) == attempts


async def test_a_client_that_left_before_it_was_accepted_is_passed_over() -> None:
    async with accepting_one(ConnectionAbortedError(errno.ECONNABORTED, "gone")) as rig:
        with rig.connecting():
            (await rig.next_made()).close()

    assert rig.count(ACCEPT_FAILURES.name, error="EMFILE") is None


async def test_who_finds_no_room_is_closed_at_once_counted_and_told_once() -> None:
    with structlog.testing.capture_logs() as logged:
        async with accepting_one() as rig:
            rig.has_room = False
            for _ in range(3):
                with rig.connecting() as caller:
                    async with asyncio.timeout(DEADLINE_S):
                        assert await asyncio.get_running_loop().sock_recv(caller, 1) == b""
            rig.has_room = True
            with rig.connecting():
                (await rig.next_made()).close()

    assert rig.count(REFUSED.name) == 3
    refused = [line for line in logged if line["event"] == "connections_refused"]
    assert [(line["listener"], line["count"], line["fix"]) for line in refused] == [
        ("PLAINTEXT", 1, "let fewer come"),
        ("PLAINTEXT", 2, "let fewer come"),
    ]


@pytest.mark.parametrize(
    ("code", "fix"),
    [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max"), (errno.ENOBUFS, "tried again"), (errno.EPERM, "tried again")],
)
async def test_who_cannot_be_accepted_is_told_with_what_helps(monkeypatch: pytest.MonkeyPatch, code: int, fix: str) -> None:
    """A limit of this process is not that of the machine, and neither helps where memory or a firewall is the cause."""
    with structlog.testing.capture_logs() as logged:
        async with accepting_one(OSError(code, os.strerror(code))) as rig:
            with rig.connecting():
                (await rig.next_made()).close()

    (failed,) = [line for line in logged if line["event"] == "accept_failed"]
    assert fix in failed["fix"]
    assert ("ulimit" in failed["fix"]) == (code == errno.EMFILE)


async def test_where_room_can_be_made_a_newcomer_takes_the_place_of_another() -> None:
    made_room = []

    def make_room() -> bool:
        made_room.append(True)
        return True

    async with accepting_one(make_room=make_room) as rig:
        rig.has_room = False
        with rig.connecting():
            (await rig.next_made()).close()

    assert made_room == [True]
    assert rig.count(REFUSED.name) == 0, "none was"
