"""What happened, as the clients saw it: invoke, then ok, fail (certainly nothing happened) or unknown. And a digest of every turn taken."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple


class OperationOutcome(Enum):
    OPEN = "open"
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class BatchIdentity(NamedTuple):
    """What a batch carries of its producer. No batch of a producer without sequences has one of its own."""

    producer_id: int
    epoch: int
    first_seq: int


PLAIN: Final = BatchIdentity(-1, -1, -1)


@dataclass(slots=True)
class Attempt:
    """One sending of a batch to one broker. `arrived_s` and `settled_s`: when the broker took it, and when it knew its answer.

    `was_taken`: what that answer was, whether or not the client ever heard it; None if there was none, or none that says.
    """

    broker: str
    invoked_s: float
    identity: BatchIdentity = PLAIN
    connection: int = -1
    outcome: OperationOutcome = OperationOutcome.OPEN
    arrived_s: float = float("inf")
    settled_s: float = float("inf")
    was_taken: bool | None = None
    ended_s: float = float("inf")
    offset: int = -1
    cause: str = ""


@dataclass(slots=True)
class Sent:
    """A batch of a producer. `number` counts its batches from 0; `value` is in the batch and nowhere else; `place`: topic and partition."""

    producer: str
    is_idempotent: bool
    place: str
    number: int
    record_count: int
    value: bytes
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def acked(self) -> Attempt | None:
        return next((attempt for attempt in self.attempts if attempt.outcome is OperationOutcome.OK), None)

    @property
    def possible(self) -> list[Attempt]:
        """The attempts that did not fail for certain."""
        return [attempt for attempt in self.attempts if attempt.outcome is not OperationOutcome.FAIL]


class SeenBatch(NamedTuple):
    """A batch as some reader saw it. `topic_id` says in which incarnation of the topic; `invoked_s`, when the reader asked.

    `may_be_old`: the broker may have asked a leader of the store that was deposed.
    """

    reader: str
    broker: str
    place: str
    topic_id: str
    offset: int
    record_count: int
    value: bytes
    at_s: float
    invoked_s: float = float("-inf")
    may_be_old: bool = False


class End(NamedTuple):
    """An answer to "where does the partition end?". `may_be_old`: the broker may have asked a leader of the store that was deposed."""

    asker: str
    broker: str
    place: str
    invoked_s: float
    ended_s: float
    offset: int
    may_be_old: bool = False


class LogStart(NamedTuple):
    """Where a partition began for a client at `ended_s`: by the acknowledgement of a deletion, or by the answer to a question."""

    asker: str
    broker: str
    place: str
    invoked_s: float
    ended_s: float
    offset: int
    may_be_old: bool = False


class History:
    """`violations` are those found while running: answers that no client should ever get, parts that died."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, show: Callable[[str], None] | None = None) -> None:
        self._loop = loop
        self._show = show
        self._digest = hashlib.blake2b(digest_size=16)
        self.turns = 0
        self._connections = 0
        self.sent: list[Sent] = []
        self.seen: list[SeenBatch] = []
        self.ends: list[End] = []
        self.starts: list[LogStart] = []
        self.violations: list[str] = []
        self.deleted_s: dict[str, float] = {}
        """When the deletion of an incarnation of a topic was confirmed."""
        self.trimmed: dict[str, float] = {}
        """By place, the highest offset that somebody asked to delete up to."""

    @property
    def now_s(self) -> float:
        return self._loop.time()

    def trace(self, who: str, what: str, how: object) -> None:
        line = f"{self._loop.time():.6f} {who} {what} {how}"
        self.turns += 1
        self._digest.update(line.encode())
        if self._show is not None:
            self._show(line)

    def violation(self, text: str) -> None:
        self.trace("VIOLATION", text, "")
        self.violations.append(text)

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections

    def invoke(self, sent: Sent, broker: str, identity: BatchIdentity, connection: int) -> Attempt:
        attempt = Attempt(broker, self.now_s, identity, connection)
        sent.attempts.append(attempt)
        self.trace(sent.producer, f"invoke {_name(sent)}", f"attempt={len(sent.attempts)} {broker} {identity.epoch} {identity.first_seq}")
        return attempt

    def end(self, sent: Sent, attempt: Attempt, outcome: OperationOutcome, *, offset: int = -1, cause: str = "") -> None:
        attempt.outcome, attempt.ended_s, attempt.offset, attempt.cause = outcome, self.now_s, offset, cause
        self.trace(sent.producer, f"{outcome.value} {_name(sent)}", f"offset={offset} {attempt.broker} {cause}")

    def saw(self, seen: SeenBatch) -> None:
        self.seen.append(seen)
        self.trace(seen.reader, f"read {seen.value!r}", f"{seen.place} offset={seen.offset} {seen.broker}")

    def heard_end(self, end: End) -> None:
        self.ends.append(end)
        self.trace(end.asker, f"end of {end.place}", f"offset={end.offset} {end.broker}")

    def heard_start(self, start: LogStart) -> None:
        self.starts.append(start)
        self.trace(start.asker, f"start of {start.place}", f"offset={start.offset} {start.broker}")

    def digest(self) -> str:
        return self._digest.hexdigest()


def _name(sent: Sent) -> str:
    return sent.value.decode().rstrip(".")
