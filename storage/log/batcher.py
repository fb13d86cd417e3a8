"""When the open flush is due, pure: on bytes, partitions, quiet or time; time is a leading-edge limit (docs/design/commit.md#the-parts)."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from storage.limits import FLUSH_PARTITIONS_MAX, MIB
from storage.log.batch import Batch

L = TypeVar("L")
"""What identifies a partition to the caller; only hashed here."""

GATHER_S: Final = 0.005
"""How long a flush that comes after a pause waits for company."""


QUIET_S: Final = 0.02
"""When nothing has arrived for this long, producers have all under way that they may have: no more comes until a flush."""
QUIET_PER_INTERVAL: Final = 4
ECHO_S: Final = 0.005
"""As QUIET_S, of an echo: no flush is under way whose answer could make anyone send more."""
ECHO_BEGINS_S: Final = 0.01
"""Producers that waited for an answer send again within this: their way to the broker and back, and the time to make a request. They may
begin ECHO_S before the flush has ended: its shards answer one after the other.
"""
ECHO_SHARE: Final = 3 / 4
"""When this part of the bytes that were answered has come again, few producers are missing."""
ECHO_QUIETS_MIN: Final = 2
"""Times what is worth a PUT. A smaller echo is paced: producers that are held by a rate, too, would make ever smaller ones."""
ECHO_GROWS_MAX: Final = 1.5
"""A larger one, in ratio to what was answered, is what was made meanwhile: once it is gone, little would come for the next flush."""
ECHO_PACED_PARTS: Final = 2
"""A paced echo may be half of what is worth a PUT otherwise: its producers wait as those of the large one before it did."""


class Trigger(StrEnum):
    BYTES = "bytes"
    QUIET = "quiet"
    PARTITIONS = "partitions"
    TIME = "time"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """`interval_s` bounds the PUTs of a broker from above at 1 / interval_s, unless bytes force more, or producers that wait."""

    interval_s: float = 0.25
    bytes_max: int = 8 * MIB
    partitions_max: int = FLUSH_PARTITIONS_MAX
    gather_s: float = GATHER_S

    def __post_init__(self) -> None:
        assert self.interval_s >= 0, f"negative interval: {self.interval_s}"
        assert self.bytes_max > 0, f"empty flushes: {self.bytes_max}"


@dataclass(slots=True)
class LastFlush:
    """What the pace of the next flush depends on: the one sealed last, and when the last of those under way ended."""

    began_s: float = float("-inf")
    size_bytes: int = 0
    batch_count: int = 0
    under_way: int = 0
    ended_s: float = float("-inf")

    def begin(self, flush: "OpenFlush[L]") -> None:
        self.size_bytes, self.batch_count = flush.size_bytes, flush.batch_count
        self.under_way += 1

    def end(self, now_s: float) -> None:
        self.under_way -= 1
        self.ended_s = now_s


@dataclass(slots=True)
class OpenFlush(Generic[L]):
    """The flush that gathers now. Plain state: no awaits, no clock of its own."""

    batches: dict[L, list[Batch]] = field(default_factory=dict)
    size_bytes: int = 0
    batch_count: int = 0
    opened_s: float = 0.0
    added_s: float = 0.0

    def add(self, log: L, batch: Batch, *, now_s: float) -> list[Batch]:
        """Returns what is gathered for `log` now, this batch included."""
        if not self.batches:
            self.opened_s = now_s
        self.added_s = now_s
        gathered = self.batches.get(log)
        if gathered is None:
            gathered = self.batches[log] = [batch]
        else:
            gathered.append(batch)
        self.size_bytes += batch.size_bytes
        self.batch_count += 1
        return gathered

    def is_full(self, settings: FlushSettings) -> Trigger | None:
        if self.size_bytes >= settings.bytes_max:
            return Trigger.BYTES
        if len(self.batches) >= settings.partitions_max:
            return Trigger.PARTITIONS
        return None

    def is_echo(self, last: LastFlush) -> bool:
        """Whether producers that all waited for the last flush have sent again, most of them at least. A load that does not wait for
        answers sends while a flush is under way, so it makes none.
        """
        return (
            last.under_way == 0
            and -ECHO_S <= self.opened_s - last.ended_s <= ECHO_BEGINS_S
            and (self.size_bytes >= ECHO_SHARE * last.size_bytes or self.batch_count >= last.batch_count)
        )

    def quiet_s(self, settings: FlushSettings, last: LastFlush, *, quiet_bytes_min: int) -> float | None:
        """When it is due if nothing else arrives; None: not before time makes it due.

        `quiet_bytes_min`: what is worth a PUT then. Bursts make QUIET_PER_INTERVAL flushes at most. A large echo waits for no interval, and
        if it is whole hardly for more to come.
        """
        is_echo = self.size_bytes >= quiet_bytes_min // ECHO_PACED_PARTS and self.is_echo(last)
        if is_echo and ECHO_QUIETS_MIN * quiet_bytes_min <= self.size_bytes <= ECHO_GROWS_MAX * last.size_bytes:
            is_whole = self.size_bytes >= last.size_bytes or self.batch_count >= last.batch_count
            return self.added_s + (ECHO_S if is_whole else QUIET_S)
        if is_echo or self.size_bytes >= quiet_bytes_min:
            return max(self.added_s + QUIET_S, last.began_s + settings.interval_s / QUIET_PER_INTERVAL)
        return None

    def due_s(self, settings: FlushSettings, last: LastFlush) -> float:
        """When time alone makes it due: at once (after the gather time) if the last flush began an interval ago, else when that is over."""
        return max(self.opened_s + settings.gather_s, last.began_s + settings.interval_s)
