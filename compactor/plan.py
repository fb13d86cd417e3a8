"""Which entries become the next segment of a partition, pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runtime.ulid import ulid_ms
from storage.formats.control import Entry, inline_bytes
from storage.limits import KIB, SEGMENT_BLOCK_BYTES_TARGET, SEGMENT_BYTES_TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """A segment is due when it is full (`segment_bytes`), of many entries (`entries_due`), or when its first entry is `age_due_ms` old.

    What entries carry lies in the metadata store, which should hold minutes and not history: `inline_bytes_due` make a segment due at once,
    `inline_bytes_many` of CompactorLimits at a sixth of that age, and fewer, where there is no object beside them, at six times that age.
    """

    segment_bytes: int = SEGMENT_BYTES_TARGET
    block_bytes: int = SEGMENT_BLOCK_BYTES_TARGET
    entries_due: int = 512
    age_due_ms: int = 3_600_000
    inline_bytes_due: int = 64 * KIB


def count_due(entries: Sequence[Entry], *, now_ms: int, policy: CompactionPolicy, inline_bytes_many: int) -> int:
    """How many of `entries`, consecutive ones, oldest first, become a segment now; 0 if none is due.

    No more are needed than fill a segment: with those given, the answer is the same whether others follow or not.
    """
    filled_bytes = 0
    for number, entry in enumerate(entries, 1):
        filled_bytes += entry.size_bytes
        if filled_bytes >= policy.segment_bytes:
            return number
    if len(entries) >= policy.entries_due or inline_bytes(entries) >= policy.inline_bytes_due:
        return len(entries)
    if entries and now_ms - ulid_ms(entries[0].object_id) >= age_due_ms(entries, policy, inline_bytes_many=inline_bytes_many):
        return len(entries)
    return 0


def age_due_ms(entries: Sequence[Entry], policy: CompactionPolicy, *, inline_bytes_many: int) -> int:
    """The age of its first entry at which a segment of `entries` is due."""
    if inline_bytes(entries) >= inline_bytes_many:
        return policy.age_due_ms // 6
    return policy.age_due_ms * 6 if all(entry.is_inline for entry in entries) else policy.age_due_ms


def in_runs(entries: Sequence[Entry], *, bytes_max: int) -> Iterator[Sequence[Entry]]:
    """`entries` in order, in runs of at most `bytes_max`; one that is larger is a run by itself."""
    begin = filled_bytes = 0
    for number, entry in enumerate(entries):
        size_bytes = entry.size_bytes
        if number > begin and filled_bytes + size_bytes > bytes_max:
            yield entries[begin:number]
            begin, filled_bytes = number, 0
        filled_bytes += size_bytes
    if begin < len(entries):
        yield entries[begin:]
