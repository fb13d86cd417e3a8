"""When the open flush is due, pure: on bytes, partitions, quiet or time; time is a leading-edge limit (docs/design/commit.md#the-parts)."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from storage.limits import FLUSH_PARTITIONS_MAX, KIB, MIB
from storage.log.batch import Batch

L = TypeVar("L")
"""What identifies a partition to the caller; only hashed here."""

GATHER_S: Final = 0.005
"""How long a flush that comes after a pause waits for company."""


QUIET_S: Final = 0.02
"""When nothing has arrived for this long, producers have all under way that they may have: no more comes until a flush."""
QUIET_BYTES_MIN: Final = 512 * KIB
"""What is gathered then is worth a PUT."""
QUIET_PER_INTERVAL: Final = 4


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
class OpenFlush(Generic[L]):
    """The flush that gathers now. Plain state: no awaits, no clock of its own."""

    batches: dict[L, list[Batch]] = field(default_factory=dict)
    size_bytes: int = 0
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
        return gathered

    def is_full(self, settings: FlushSettings) -> Trigger | None:
        if self.size_bytes >= settings.bytes_max:
            return Trigger.BYTES
        if len(self.batches) >= settings.partitions_max:
            return Trigger.PARTITIONS
        return None

    def quiet_s(self, settings: FlushSettings, *, last_began_s: float) -> float | None:
        """When it is due if nothing else arrives; None: not before time makes it due. Bursts make QUIET_PER_INTERVAL flushes at most."""
        if self.size_bytes < QUIET_BYTES_MIN:
            return None
        return max(self.added_s + QUIET_S, last_began_s + settings.interval_s / QUIET_PER_INTERVAL)

    def due_s(self, settings: FlushSettings, *, last_began_s: float) -> float:
        """When time alone makes it due: at once (after the gather time) if the last flush began an interval ago, else when that is over."""
        return max(self.opened_s + settings.gather_s, last_began_s + settings.interval_s)
