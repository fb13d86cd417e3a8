"""When a segment is due: by bytes, by number, by age, and by what lies in the metadata store until then."""

import pytest

from compactor.limits import DEFAULT_LIMITS
from compactor.plan import CompactionPolicy, count_due
from runtime.ulid import RANDOM_BITS, encode_ulid
from storage.formats.manifest import Entry
from storage.limits import KIB
from storage.vocabulary import ObjectId

POLICY = CompactionPolicy()
INLINE_BYTES_MANY = DEFAULT_LIMITS.inline_bytes_many
HOUR_MS = 3_600_000
WRITTEN_MS = 1_000_000_000


def due(entries: list[Entry], *, now_ms: int, policy: CompactionPolicy = POLICY) -> int:
    return count_due(entries, now_ms=now_ms, policy=policy, inline_bytes_many=INLINE_BYTES_MANY)


def carried(count: int, size_bytes: int) -> list[Entry]:
    name = ObjectId(encode_ulid(WRITTEN_MS << RANDOM_BITS))
    return [Entry(number, number, name, b"x" * size_bytes, 0, 0) for number in range(count)]


def stored(count: int, size_bytes: int) -> list[Entry]:
    name = ObjectId(encode_ulid(WRITTEN_MS << RANDOM_BITS))
    return [Entry(number, number, name, ((0, size_bytes),), 0, 0) for number in range(count)]


@pytest.mark.parametrize(
    ("entries", "age_ms"),
    [
        (stored(3, 100), HOUR_MS),
        (stored(3, 100) + carried(3, 100), HOUR_MS),
        (carried(3, 100), 6 * HOUR_MS),
        (carried(INLINE_BYTES_MANY // KIB, KIB), HOUR_MS // 6),
        (stored(1, 100) + carried(INLINE_BYTES_MANY // KIB, KIB), HOUR_MS // 6),
    ],
    ids=["objects", "both", "few inline bytes", "many inline bytes", "many inline bytes and objects"],
)
def test_a_segment_is_due_at_an_age_that_depends_on_what_the_metadata_store_carries(entries: list[Entry], age_ms: int) -> None:
    assert due(entries, now_ms=WRITTEN_MS + age_ms - 1) == 0
    assert due(entries, now_ms=WRITTEN_MS + age_ms) == len(entries)


def test_so_many_inline_bytes_are_due_at_once() -> None:
    entries = carried(64, KIB)

    assert due(entries[:-1], now_ms=WRITTEN_MS) == 0
    assert due(entries, now_ms=WRITTEN_MS) == 64


def test_a_compactor_that_waits_for_nothing_compacts_inline_entries_too() -> None:
    assert due(carried(1, 100), now_ms=WRITTEN_MS, policy=CompactionPolicy(age_due_ms=0)) == 1
