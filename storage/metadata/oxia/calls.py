"""Requests to the leader of a shard that may be sent again: everything but writes.

`read_failure` says what an error of gRPC means for the request that met it: was it sent, was it carried out, is it worth another try.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

import grpc

from runtime.clock import Clock
from storage.errors import Unavailable
from storage.metadata.oxia.assignments import Assignments
from storage.metadata.oxia.nodes import Nodes, OxiaNode

_NOT_LEADER: Final = (
    "node is not leader for shard",
    "oxia: node is not leader for shard",
    # A node that is about to lead, or has just ceased to: looked at before the request is given a place in the log.
    "Received message in the wrong state",
)
_NOT_LEADER_WHOLE: Final = frozenset(
    {
        # 0.17 and later: no leader of the shard here, or one that is fenced; no word of the coordinator yet; no term yet.
        "oxia: node is not leader",
        "oxia: server not initialized yet",
        "oxia: invalid status",
    }
)
_NOT_SENT: Final = ("failed to connect to all addresses", "DNS resolution failed", "errors resolving", "empty address list")
_BROKEN_OFF: Final = ("resource is already closed", "operation was cancelled", "operation was aborted", "not initialized yet")
_REFUSED_CODES: Final = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_CONNECTING: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by an authority of ca_file: correct ca_file in metadata.url"),
    ("Hostname Verification Check failed", "its certificate is for another name: give that by server_name in metadata.url"),
    ("WRONG_VERSION_NUMBER", "what listens there does not speak TLS: remove tls=true from metadata.url"),
    ("Ssl handshake failed", "it ended the TLS handshake: see whether it asks for a certificate (cert_file and key_file in metadata.url)"),
    ("Connection refused", "connection refused: start Oxia there or correct metadata.url"),
    ("Domain name not found", "the name does not resolve: correct metadata.url"),
    ("DNS resolution failed", "the name does not resolve: correct metadata.url"),
    ("http1.x", "what listens there speaks HTTP/1, not Oxia: correct metadata.url"),
    (
        "before receiving SETTINGS",
        "something listens there but does not answer as Oxia does: see whether it hangs or wants TLS (tls=true), or correct metadata.url",
    ),
    (
        "Socket closed",
        "it closes new connections: see whether it wants TLS (tls=true) or a certificate (cert_file and key_file in metadata.url)",
    ),
    ("No route to host", "no route to the host: correct the network or metadata.url"),
)
DEADLINE_S: Final = 5.0
"""For one request; for one that is repeated, from its first attempt to the start of its last."""
PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 0.5

T = TypeVar("T")


class CallFate(Enum):
    NOT_LEADER = "not_leader"  # refused before anything was done; another node may lead
    NOT_SENT = "not_sent"  # no connection: it never left this process
    REFUSED = "refused"  # certainly not carried out, and another try would not be either
    BROKEN_OFF = "broken_off"  # the connection or the server's part in the shard ended meanwhile
    NO_ANSWER = "no_answer"  # the deadline passed
    STUCK = "stuck"  # the shard's log is broken: no write succeeds until the server starts again
    SESSION_GONE = "session_gone"
    NAMESPACE_MISSING = "namespace_missing"
    FAILED = "failed"  # anything else


class Failure(NamedTuple):
    fate: CallFate
    reason: str
    """One line in lower case that names the address."""


def read_failure(error: grpc.aio.AioRpcError, address: str) -> Failure:
    """What the error means for the request that met it. Pure.

    Oxia's own codes (100 and above) are not known to gRPC for Python, which shows them all as UNKNOWN: its messages tell them apart.
    A message that comes wrapped ("failed to append to wal: …") says that the request was under way; only bare ones prove that it was not.
    From 0.17 on servers use gRPC's own codes and other words. Neither the code nor the reason in a status's details tells a bare message
    from a wrapped one there, so the whole message is compared.
    """
    code, details = error.code(), error.details() or ""
    fate = _fate_of(code, details)
    match fate:
        case CallFate.NOT_SENT:
            what = next((says for sign, says in _CONNECTING if sign in details), _one_line(details))
        case CallFate.NO_ANSWER:
            what = "no answer in time"
        case CallFate.NAMESPACE_MISSING:
            what = "there is no such namespace: create it there or correct metadata.url"
        case CallFate.STUCK:
            what = f"the shard takes no writes until Oxia is started again: {_one_line(details)}"
        case CallFate.REFUSED if code is grpc.StatusCode.UNIMPLEMENTED:
            what = "what listens there does not speak Oxia's protocol: correct metadata.url"
        case CallFate.REFUSED if code is grpc.StatusCode.UNAUTHENTICATED:
            what = f"it does not let us in ({_one_line(details)}): name a file with a valid token by token_file in metadata.url"
        case CallFate.REFUSED if "unexpected authority" in details:
            what = (
                f"it refuses the address it is called by ({_one_line(details)}): "
                "set featureFlags.authorityValidation to false in the configuration of Oxia's coordinator"
            )
        case _:
            what = f"{code.name}: {_one_line(details)}"
    return Failure(fate, f"oxia at {address}: {what}")


_REPEATABLE: Final = (CallFate.NOT_LEADER, CallFate.NOT_SENT, CallFate.BROKEN_OFF)


class CallFailed(Unavailable):
    """A request that was not worth another try, or for which there is no time left."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.fate = failure.fate


class CallBackoff:
    """The pauses between the attempts at one request: they double, with chance in them, until the time is over."""

    def __init__(self, clock: Clock, chance: random.Random, *, seconds: float) -> None:
        self._clock = clock
        self._chance = chance
        self._over_s = clock.monotonic_s() + seconds
        self._pause_s = PAUSE_S_MIN

    @property
    def left_s(self) -> float:
        return self._over_s - self._clock.monotonic_s()

    def next_pause_s(self) -> float | None:
        """None when there is no time for another attempt."""
        pause_s = self._pause_s * self._chance.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return pause_s if pause_s < self.left_s else None


class ShardCalls:
    """What reads, sessions and notifications have in common."""

    def __init__(self, assignments: Assignments, nodes: Nodes, *, clock: Clock, chance: random.Random) -> None:
        self.assignments = assignments
        self.nodes = nodes
        self.clock = clock
        self.chance = chance
        self.is_closed = False
        self._turns: dict[int, asyncio.Lock] = {}

    def turn(self, shard: int) -> asyncio.Lock:
        """Held by whoever has a request under way that Oxia puts into the log of `shard`: writing.py says why there is one at a time."""
        turn = self._turns.get(shard)
        if turn is None:
            turn = self._turns[shard] = asyncio.Lock()
        return turn

    def backoff(self, seconds: float = DEADLINE_S) -> CallBackoff:
        return CallBackoff(self.clock, self.chance, seconds=seconds)

    def ensure_open(self) -> None:
        if self.is_closed:
            raise Unavailable("the metadata store is closed")

    async def repeat(self, shard: int, attempt: Callable[[OxiaNode, float], Awaitable[T]], *, within_s: float = DEADLINE_S) -> T:
        """`attempt(node, timeout_s)` against whoever leads `shard`, again while it is worth it. Raise `CallFailed` or `Unavailable`."""
        backoff = self.backoff(within_s)
        while True:
            self.ensure_open()
            leader = self.assignments.leader_of(shard)
            if leader is None:
                failure = Failure(CallFate.NOT_SENT, f"oxia names no leader of shard {shard}")
            else:
                try:
                    return await attempt(self.nodes.at(leader), max(backoff.left_s, PAUSE_S_MIN))
                except grpc.aio.AioRpcError as error:
                    failure = self.note(shard, error, leader)
                except (asyncio.CancelledError, grpc.aio.UsageError):
                    self.raise_if_closed_meanwhile()
                    raise
            await self.pause_after(failure, backoff)

    def note(self, shard: int, error: grpc.aio.AioRpcError, leader: str) -> Failure:
        """What the error means; a leader that is none is remembered as such."""
        failure = read_failure(error, leader)
        if failure.fate is CallFate.NOT_LEADER:
            self.assignments.refuse(shard, leader)
        return failure

    async def pause_after(self, failure: Failure, backoff: CallBackoff) -> None:
        """Return when it is time for another attempt. Raise `CallFailed` if there shall be none."""
        pause_s = backoff.next_pause_s() if failure.fate in _REPEATABLE else None
        if pause_s is None:
            raise CallFailed(failure)
        await self.assignments.wait_changed(pause_s)

    def raise_if_closed_meanwhile(self) -> None:
        """gRPC ends the requests of a closed channel as cancelled: not to be taken for the cancellation of the caller."""
        task = asyncio.current_task()
        if self.is_closed and (task is None or task.cancelling() == 0):
            raise Unavailable("the metadata store was closed meanwhile")

    async def next_message(self, call: "grpc.aio.UnaryStreamCall[Any, T]", address: str, *, within_s: float = DEADLINE_S) -> T | None:
        """None at the end of the stream. Raise `AioRpcError`, or `CallFailed` when nothing comes in time or what comes cannot be read."""
        try:
            async with asyncio.timeout(within_s):
                message = await call.read()
        except TimeoutError:
            raise CallFailed(Failure(CallFate.NO_ANSWER, f"oxia at {address}: no answer in time")) from None
        if message is None:
            # gRPC gives None for a message that it could not decode: taken for the end, it would cut an answer short.
            raise unreadable(address)
        return None if message is grpc.aio.EOF else message  # type: ignore[return-value]


def unreadable(address: str) -> CallFailed:
    return CallFailed(Failure(CallFate.FAILED, f"oxia at {address}: gave an answer that cannot be read"))


def _fate_of(code: grpc.StatusCode, details: str) -> CallFate:
    if "can not immediately follow" in details:
        return CallFate.STUCK
    if details.startswith(_NOT_LEADER) or details in _NOT_LEADER_WHOLE:
        return CallFate.NOT_LEADER
    if "session not found" in details:
        return CallFate.SESSION_GONE
    if "namespace not found" in details:
        return CallFate.NAMESPACE_MISSING
    if code in _REFUSED_CODES:
        return CallFate.REFUSED
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CallFate.NO_ANSWER
    if code is grpc.StatusCode.UNAVAILABLE:
        return CallFate.NOT_SENT if details.startswith(_NOT_SENT) else CallFate.BROKEN_OFF
    if any(sign in details for sign in _BROKEN_OFF):
        return CallFate.BROKEN_OFF
    return CallFate.FAILED


def _one_line(details: str) -> str:
    return " ".join(details.split())[:300]
