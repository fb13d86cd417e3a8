"""Which entries become the next segment of a partition, pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runtime.ulid import ulid_ms
from storage.formats.control import Entry
from storage.limits import SEGMENT_BLOCK_BYTES_TARGET, SEGMENT_BYTES_TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """A segment is due when it is full (`segment_bytes`), of many entries (`entries_due`), or when its first entry is `age_due_ms` old."""

    segment_bytes: int = SEGMENT_BYTES_TARGET
    block_bytes: int = SEGMENT_BLOCK_BYTES_TARGET
    entries_due: int = 512
    age_due_ms: int = 3_600_000


def entry_bytes(entry: Entry) -> int:
    return sum([length for _, length in entry.spans])


def count_due(entries: Sequence[Entry], *, now_ms: int, policy: CompactionPolicy) -> int:
    """How many of `entries`, consecutive ones, oldest first, become a segment now; 0 if none is due.

    No more are needed than fill a segment: with those given, the answer is the same whether others follow or not.
    """
    filled_bytes = 0
    for number, entry in enumerate(entries, 1):
        filled_bytes += entry_bytes(entry)
        if filled_bytes >= policy.segment_bytes:
            return number
    if len(entries) >= policy.entries_due:
        return len(entries)
    if entries and now_ms - ulid_ms(entries[0].object_id) >= policy.age_due_ms:
        return len(entries)
    return 0


def in_runs(entries: Sequence[Entry], *, bytes_max: int) -> Iterator[Sequence[Entry]]:
    """`entries` in order, in runs of at most `bytes_max`; one that is larger is a run by itself."""
    begin = filled_bytes = 0
    for number, entry in enumerate(entries):
        size_bytes = entry_bytes(entry)
        if number > begin and filled_bytes + size_bytes > bytes_max:
            yield entries[begin:number]
            begin, filled_bytes = number, 0
        filled_bytes += size_bytes
    if begin < len(entries):
        yield entries[begin:]
