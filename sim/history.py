"""What happened, as the clients saw it: invoke, then ok, fail (certainly nothing happened) or unknown. And a digest of every turn taken."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    OPEN = "open"
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Attempt:
    """One sending of a batch to one broker."""

    broker: str
    invoked_s: float
    outcome: Outcome = Outcome.OPEN
    ended_s: float = float("inf")
    offset: int = -1
    cause: str = ""


@dataclass(slots=True)
class Sent:
    """A batch of a producer. `number` counts its batches from 0; `value` is in the batch and nowhere else."""

    producer: str
    is_idempotent: bool
    partition: int
    number: int
    record_count: int
    value: bytes
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def acked(self) -> Attempt | None:
        return next((attempt for attempt in self.attempts if attempt.outcome is Outcome.OK), None)


class Seen(NamedTuple):
    """A batch as some reader saw it."""

    reader: str
    broker: str
    partition: int
    offset: int
    record_count: int
    value: bytes
    at_s: float


class End(NamedTuple):
    """An answer to "where does the partition end?"."""

    asker: str
    broker: str
    partition: int
    invoked_s: float
    ended_s: float
    offset: int


class History:
    """`violations` are those found while running: answers that no client should ever get, parts that died."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, show: Callable[[str], None] | None = None) -> None:
        self._loop = loop
        self._show = show
        self._digest = hashlib.blake2b(digest_size=16)
        self.turns = 0
        self.sent: list[Sent] = []
        self.seen: list[Seen] = []
        self.ends: list[End] = []
        self.violations: list[str] = []

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

    def invoke(self, sent: Sent, broker: str) -> Attempt:
        attempt = Attempt(broker, self.now_s)
        sent.attempts.append(attempt)
        self.trace(sent.producer, f"invoke {sent.value.decode()}", f"attempt={len(sent.attempts)} {broker}")
        return attempt

    def end(self, sent: Sent, attempt: Attempt, outcome: Outcome, *, offset: int = -1, cause: str = "") -> None:
        attempt.outcome, attempt.ended_s, attempt.offset, attempt.cause = outcome, self.now_s, offset, cause
        self.trace(sent.producer, f"{outcome.value} {sent.value.decode()}", f"offset={offset} {attempt.broker} {cause}")

    def saw(self, seen: Seen) -> None:
        self.seen.append(seen)
        self.trace(seen.reader, f"read {seen.value.decode()}", f"offset={seen.offset} {seen.broker}")

    def heard_end(self, end: End) -> None:
        self.ends.append(end)
        self.trace(end.asker, f"end of {end.partition}", f"offset={end.offset} {end.broker}")

    def digest(self) -> str:
        return self._digest.hexdigest()
