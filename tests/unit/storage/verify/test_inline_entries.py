"""`storage verify`, `summary` and the collector's references, of entries that carry their batches."""

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from compactor.references import wal_references
from storage.formats.manifest import Entry
from storage.verify.findings import FindingKind
from storage.verify.inventory import partition_totals
from storage.verify.reading import StoreReading
from tests.kit.inline_entries import put_inline
from tests.kit.record_batches import record_batch
from tests.unit.storage.log.rig import PARTITION, Rig, rig
from tests.unit.storage.verify.stores import DEEP, NAME, OTHER, change_manifest, compact, fill, make_topic, verify


@pytest.fixture
async def broker() -> AsyncIterator[Rig]:
    async with rig() as made:
        await make_topic(made.shared)
        yield made


async def put_both(broker: Rig, count: int) -> None:
    """Logs of entries that carry their batches, two records each."""
    for partition in (PARTITION, OTHER):
        await put_inline(broker.shared, [record_batch(b"%d" % number, b"and") for number in range(count)], partition)


async def test_entries_that_carry_their_batches_are_sound_and_name_no_object(broker: Rig) -> None:
    await put_both(broker, 60)

    result = await verify(broker, depth=DEEP)

    assert result.findings.kept == []
    assert (result.checked.entries, result.checked.objects) == (120, 0)
    assert result.checked.deep_bytes == 2 * (await broker.manifest()).bytes_total
    assert wal_references(await broker.manifest()) == set()


async def test_inline_entries_become_a_segment_and_others_follow_it(broker: Rig) -> None:
    await put_both(broker, 40)
    before = await broker.read_all()
    segment = await compact(broker)
    await fill(broker, 5, begin=40)

    result = await verify(broker, depth=DEEP)
    assert result.findings.kept == []
    assert (segment.base, segment.last, result.checked.segments, result.checked.entries) == (0, 79, 1, 45)
    assert (await broker.read_all())[: len(before)] == before


async def test_what_each_partition_has_inline_is_counted_apart(broker: Rig) -> None:
    await put_both(broker, 20)

    first, _ = await partition_totals(StoreReading(broker.shared, broker.objects, concurrency=4), [NAME])

    assert (first.inline_bytes, first.wal_objects, first.wal_bytes) == ((await broker.manifest()).bytes_total, 0, 0)


def flipped(entry: Entry) -> Entry:
    assert isinstance(entry.batches, bytes)
    return msgspec.structs.replace(entry, batches=entry.batches[:-1] + bytes([entry.batches[-1] ^ 1]))


def cut(entry: Entry) -> Entry:
    assert isinstance(entry.batches, bytes)
    return msgspec.structs.replace(entry, batches=entry.batches[:-1])


def longer(entry: Entry) -> Entry:
    assert isinstance(entry.batches, bytes)
    return msgspec.structs.replace(entry, batches=entry.batches + entry.batches)


def empty(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, batches=b"")


def later(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, max_timestamp=entry.max_timestamp + 1, running_max_timestamp=entry.running_max_timestamp + 1)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (flipped, FindingKind.BATCH_DAMAGED),
        (cut, FindingKind.BATCH_DAMAGED),
        (longer, FindingKind.OFFSETS_WRONG),
        (empty, FindingKind.MALFORMED_ENTRY),
        (later, FindingKind.TIMESTAMP_WRONG),
    ],
)
async def test_a_damaged_inline_entry_is_found_and_named(broker: Rig, damage: Callable[[Entry], Entry], expected: FindingKind) -> None:
    await put_both(broker, 3)

    pending = (await broker.manifest()).pending
    await change_manifest(broker, pending=(*pending[:-1], damage(pending[-1])))
    kinds = {one.kind: one for one in (await verify(broker, depth=DEEP)).findings.kept}

    assert expected in kinds
    assert (kinds[expected].first_offset, kinds[expected].last_offset) == (4, 5)
    assert (kinds[expected].object or "").startswith("inline/")
