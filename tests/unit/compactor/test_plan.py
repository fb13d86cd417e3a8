"""When a segment is due: by bytes, by number and by age."""

from collections.abc import Callable

import pytest

from compactor.plan import CompactionPolicy, count_due
from runtime.ulid import RANDOM_BITS, encode_ulid
from storage.formats.manifest import Early, Entry
from storage.limits import KIB, MIB
from storage.vocabulary import ObjectId

POLICY = CompactionPolicy(entries_due=512, entries_due_bytes=4 * MIB, little_bytes=64 * KIB)
HOUR_MS = 3_600_000
WRITTEN_MS = 1_000_000_000


def due(entries: list[Entry], *, now_ms: int = WRITTEN_MS, policy: CompactionPolicy = POLICY) -> int:
    return count_due(entries, now_ms=now_ms, policy=policy)


def carried(count: int, size_bytes: int) -> list[Entry]:
    name = ObjectId(encode_ulid(WRITTEN_MS << RANDOM_BITS))
    return [Entry(number, number, name, b"x" * size_bytes, 0, 0) for number in range(count)]


def stored(count: int, size_bytes: int) -> list[Entry]:
    name = ObjectId(encode_ulid(WRITTEN_MS << RANDOM_BITS))
    return [Entry(number, number, name, ((0, size_bytes),), 0, 0) for number in range(count)]


def early(count: int, size_bytes: int) -> list[Entry]:
    name = ObjectId(encode_ulid(WRITTEN_MS << RANDOM_BITS))
    return [Entry(number, number, name, Early(64, ((64, size_bytes),)), 0, 0) for number in range(count)]


@pytest.mark.parametrize("kind", [stored, early])
@pytest.mark.parametrize(("count", "size_bytes", "age_ms"), [(64, KIB, HOUR_MS), (63, KIB, 6 * HOUR_MS)], ids=["usual", "little"])
def test_a_segment_is_due_at_an_age_and_little_waits_longer(
    kind: Callable[[int, int], list[Entry]], count: int, size_bytes: int, age_ms: int
) -> None:
    entries = kind(count, size_bytes)

    assert due(entries, now_ms=WRITTEN_MS + age_ms - 1) == 0
    assert due(entries, now_ms=WRITTEN_MS + age_ms) == count


@pytest.mark.parametrize("kind", [stored, early])
@pytest.mark.parametrize(("count", "size_bytes"), [(512, 8 * KIB), (8_192, 100)], ids=["of some size", "of any size"])
def test_many_entries_are_due_at_once_and_small_ones_when_there_are_more_of_them(
    kind: Callable[[int, int], list[Entry]], count: int, size_bytes: int
) -> None:
    assert due(kind(count - 1, size_bytes)) == 0
    assert due(kind(count, size_bytes)) == count


def test_what_entries_carry_is_due_at_once_when_it_is_much() -> None:
    assert due(carried(63, KIB)) == 0
    assert due(carried(64, KIB)) == 64


def test_a_compactor_that_waits_for_nothing_compacts_inline_entries_too() -> None:
    assert due(carried(1, 100), now_ms=WRITTEN_MS, policy=CompactionPolicy(age_due_ms=0)) == 1
