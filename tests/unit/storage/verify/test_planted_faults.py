"""Each fault that is planted in a healthy log is found, and named by the object, the key and the offsets it concerns."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from storage.formats.manifest import IndexChunk, PageRef, SegmentFact, encode
from storage.formats.segment import HEADER_BYTES, decode_footer
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.verify.findings import FindingKind, Severity, StoreFinding
from storage.verify.reading import VerifyLimits
from storage.verify.verification import Depth
from tests.unit.storage.log.rig import Rig, rig
from tests.unit.storage.verify.stores import (
    DEEP,
    KEYS,
    NAME,
    OTHER,
    change_manifest,
    change_object,
    compact,
    delete,
    fill,
    fill_both,
    flipped,
    found,
    index_chunks,
    make_topic,
    objects_of,
    put,
    segment_of,
    three_segments,
    verify,
    wal_of,
)


@pytest.fixture
async def broker() -> AsyncIterator[Rig]:
    async with rig() as made:
        await make_topic(made.shared)
        yield made


def one(findings: list[StoreFinding], kind: FindingKind, **fields: Any) -> StoreFinding:
    """The only finding, of this kind and with these fields, in the partition where faults are planted."""
    assert [found.kind for found in findings] == [kind], findings
    (only,) = findings
    fields = {"topic": NAME, "partition": 0, **fields}
    assert {name: getattr(only, name) for name in fields} == fields
    assert only.means.endswith(".")
    assert only.do.endswith(".")
    return only


async def test_an_object_that_is_missing(broker: Rig) -> None:
    await fill(broker)
    entry = (await index_chunks(broker))[0].entries[3]
    await objects_of(broker).delete_many([wal_of(entry)])

    only = one(
        await found(broker), FindingKind.OBJECT_MISSING, object=wal_of(entry), first_offset=6, last_offset=7, key=KEYS.index(31).path
    )
    assert only.severity is Severity.ERROR
    assert "cannot be read" in only.means
    assert "Check storage.url" in only.do


async def test_an_object_that_is_cut_short(broker: Rig) -> None:
    await fill(broker)
    entry = (await broker.manifest()).pending[0]
    await change_object(broker, wal_of(entry), lambda body: body[:-1])

    only = one(await found(broker), FindingKind.OBJECT_CUT, object=wal_of(entry), first_offset=entry.base, key=KEYS.manifest.path)
    assert "and the entry needs" in only.found


async def test_a_byte_flipped_in_a_slice_is_found_when_all_bytes_are_read(broker: Rig) -> None:
    await fill(broker)
    entry = (await broker.manifest()).pending[-1]
    await change_object(broker, wal_of(entry), flipped(-3))

    assert await found(broker) == []
    only = one(await found(broker, depth=DEEP), FindingKind.BATCH_DAMAGED, object=wal_of(entry), first_offset=78, last_offset=79)
    assert "checksum mismatch" in only.found


async def test_a_byte_flipped_in_the_header_of_a_wal_object(broker: Rig) -> None:
    await fill(broker)
    entry = (await broker.manifest()).pending[-1]
    await change_object(broker, wal_of(entry), flipped(20))

    only = one(await found(broker), FindingKind.HEADER_DAMAGED, object=wal_of(entry))
    assert only.severity is Severity.WARNING, "readers do not need it"


async def test_an_object_under_the_name_of_another(broker: Rig) -> None:
    await fill(broker)
    first, second = (await broker.manifest()).pending[:2]
    body = bytes(await objects_of(broker).get_range(wal_of(second), 0, (await objects_of(broker).stat(wal_of(second))).size_bytes))
    await change_object(broker, wal_of(first), lambda _: body)

    only = one(await found(broker), FindingKind.HEADER_DAMAGED, object=wal_of(first), first_offset=first.base)
    assert second.object_id in only.found


async def test_a_byte_flipped_in_a_block_of_a_segment_is_found_when_all_bytes_are_read(broker: Rig) -> None:
    segment = (await three_segments(broker))[1]
    body = await objects_of(broker).get_range(segment_of(segment), 0, segment.size_bytes)
    footer = decode_footer(body, size_bytes=len(body), key=segment_of(segment))
    assert len(footer.firsts) > 2
    await change_object(broker, segment_of(segment), flipped(footer.positions[1] + 70))

    assert await found(broker) == []
    only = one(await found(broker, depth=DEEP), FindingKind.BLOCK_DAMAGED, object=segment_of(segment), key=KEYS.segment(segment.last).path)
    assert (only.first_offset, only.last_offset) == (footer.firsts[1], footer.lasts[1]), "those of the block"


async def test_a_byte_flipped_in_the_footer_of_a_segment(broker: Rig) -> None:
    segment = (await three_segments(broker))[0]
    await change_object(broker, segment_of(segment), flipped(-60))

    one(await found(broker), FindingKind.FOOTER_DAMAGED, object=segment_of(segment), first_offset=0, last_offset=39)


async def test_a_byte_flipped_in_the_header_of_a_segment_is_found_when_all_bytes_are_read(broker: Rig) -> None:
    segment = (await three_segments(broker))[2]
    await change_object(broker, segment_of(segment), flipped(HEADER_BYTES - 5))

    one(await found(broker, depth=DEEP), FindingKind.FOOTER_DAMAGED, object=segment_of(segment), key=KEYS.manifest.path)


async def test_a_segment_that_is_missing_or_cut_short(broker: Rig) -> None:
    first, _, newest = await three_segments(broker)
    await objects_of(broker).delete_many([segment_of(first)])
    await change_object(broker, segment_of(newest), lambda body: body[:-1])

    missing, cut = await found(broker)
    assert (missing.kind, missing.object, missing.last_offset) == (FindingKind.OBJECT_MISSING, segment_of(first), 39)
    assert (cut.kind, cut.object, cut.last_offset) == (FindingKind.OBJECT_CUT, segment_of(newest), 119)


async def test_an_index_chunk_that_is_missing_in_the_middle(broker: Rig) -> None:
    await fill(broker, 60)
    await delete(broker.shared, KEYS.index(63))

    only = one(await found(broker), FindingKind.ENTRIES_MISSING, key=KEYS.index_prefix, first_offset=32, last_offset=63)
    assert "backup" in only.do


async def test_the_last_index_chunk_before_pending_that_is_missing(broker: Rig) -> None:
    await fill(broker, 60)
    await delete(broker.shared, KEYS.index(95))

    one(await found(broker), FindingKind.ENTRIES_MISSING, first_offset=64, last_offset=95)


async def test_a_chunk_under_the_wrong_key(broker: Rig) -> None:
    await fill(broker, 60)
    chunk = (await index_chunks(broker))[1]
    await delete(broker.shared, KEYS.index(63))
    await put(broker.shared, KEYS.index(62), encode(chunk))

    only = one(await found(broker), FindingKind.WRONG_KEY, key=KEYS.index(62).path, first_offset=32, last_offset=63)
    assert "a chunk of offsets 32..63" in only.found


async def test_an_overlapping_chunk_that_disagrees(broker: Rig) -> None:
    await fill(broker, 60)
    chunk = (await index_chunks(broker))[1]
    other = msgspec.structs.replace(chunk.entries[4], object_id=chunk.entries[5].object_id)
    await put(broker.shared, KEYS.index(41), encode(IndexChunk(entries=(*chunk.entries[:4], other))))

    findings = [each for each in await found(broker) if each.kind is FindingKind.OVERLAP_DISAGREES]
    assert [(each.first_offset, each.last_offset, each.key) for each in findings] == [(40, 41, KEYS.index(63).path)]
    assert KEYS.index(41).path in findings[0].found, "both keys are named"


async def test_a_chunk_that_disagrees_with_what_is_pending(broker: Rig) -> None:
    await fill(broker)
    first, second = (await broker.manifest()).pending[:2]
    lie = msgspec.structs.replace(first, object_id=second.object_id)
    await put(broker.shared, KEYS.index(first.last), encode(IndexChunk(entries=(lie,))))

    one(await found(broker), FindingKind.OVERLAP_DISAGREES, first_offset=first.base, last_offset=first.last)


async def test_an_entry_above_the_counter(broker: Rig) -> None:
    await fill(broker)
    last = (await broker.manifest()).pending[-1]
    above = msgspec.structs.replace(last, base=80, last=85)
    await put(broker.shared, KEYS.index(85), encode(IndexChunk(entries=(above,))))

    only = one(await found(broker), FindingKind.ABOVE_THE_END, key=KEYS.index(85).path, first_offset=80, last_offset=85)
    assert only.found == "sequence_counter=80"


async def test_pending_entries_above_the_counter(broker: Rig) -> None:
    await fill(broker)
    await change_manifest(broker, sequence_counter=78, bytes_total=(await broker.manifest()).bytes_total)

    findings = await found(broker)
    assert findings[0].kind is FindingKind.ABOVE_THE_END
    assert (findings[0].first_offset, findings[0].last_offset, findings[0].key) == (78, 79, KEYS.manifest.path)


async def test_a_segment_without_its_key(broker: Rig) -> None:
    _, second, _ = await three_segments(broker)
    await delete(broker.shared, KEYS.segment(second.last))

    one(await found(broker), FindingKind.ENTRIES_MISSING, key=KEYS.segments_prefix, first_offset=second.base, last_offset=second.last)


async def test_a_segment_under_the_wrong_key(broker: Rig) -> None:
    _, second, _ = await three_segments(broker)
    await delete(broker.shared, KEYS.segment(second.last))
    await put(broker.shared, KEYS.segment(second.last + 1), encode(SegmentFact(entry=second)))

    one(await found(broker), FindingKind.WRONG_KEY, key=KEYS.segment(second.last + 1).path, object=segment_of(second))


async def test_a_segment_above_the_cursor(broker: Rig) -> None:
    *_, newest = await three_segments(broker)
    above = msgspec.structs.replace(newest, base=newest.last + 1, last=newest.last + 2)
    await put(broker.shared, KEYS.segment(above.last), encode(SegmentFact(entry=above)))

    one(await found(broker), FindingKind.ABOVE_THE_END, key=KEYS.segment(above.last).path, first_offset=120)


async def test_a_cursor_that_is_not_at_the_end_of_the_newest_segment(broker: Rig) -> None:
    await three_segments(broker)
    await change_manifest(broker, compaction_cursor=122)

    findings = await found(broker)
    assert findings[0].kind is FindingKind.MANIFEST_CONTRADICTS
    assert (findings[0].first_offset, findings[0].last_offset) == (120, 121)
    assert findings[0].found == "compaction_cursor=122, but the newest segment ends at 119"


async def test_an_entry_that_points_into_the_slice_of_another_partition(broker: Rig) -> None:
    await fill_both(broker)
    entry = (await broker.manifest()).pending[2]
    (other,) = [each for each in (await broker.manifest(OTHER)).pending if each.object_id == entry.object_id]
    await change_manifest(
        broker,
        pending=tuple(
            msgspec.structs.replace(each, batches=other.batches) if each == entry else each for each in (await broker.manifest()).pending
        ),
    )

    only = one(await found(broker, depth=DEEP), FindingKind.NOT_NAMED, object=wal_of(entry), first_offset=entry.base)
    assert f"are of {OTHER}" in only.found, "the batches are whole, so only the header tells"


async def test_spans_that_cover_too_little(broker: Rig) -> None:
    await fill(broker)
    *before, last = (await broker.manifest()).pending
    await change_manifest(broker, pending=(*before, msgspec.structs.replace(last, last=80)), sequence_counter=81)

    one(await found(broker, depth=DEEP), FindingKind.OFFSETS_WRONG, first_offset=78, last_offset=80)


async def test_a_running_maximum_that_is_wrong(broker: Rig) -> None:
    await fill(broker)
    chunk = (await index_chunks(broker))[0]
    wrong = msgspec.structs.replace(chunk.entries[7], running_max_timestamp=5)
    await put(broker.shared, KEYS.index(31), encode(IndexChunk(entries=(*chunk.entries[:7], wrong, *chunk.entries[8:]))))

    only = one(await found(broker), FindingKind.RUNNING_MAXIMUM, key=KEYS.index(31).path, first_offset=14, last_offset=15)
    assert only.severity is Severity.WARNING


async def test_a_timestamp_that_is_not_that_of_the_batches(broker: Rig) -> None:
    await fill(broker)
    *before, last = (await broker.manifest()).pending
    await change_manifest(broker, pending=(*before, msgspec.structs.replace(last, max_timestamp=7)))

    one(await found(broker, depth=DEEP), FindingKind.TIMESTAMP_WRONG, first_offset=78)


async def test_bytes_that_are_not_the_sum_of_the_entries(broker: Rig) -> None:
    await three_segments(broker)
    manifest = await broker.manifest()
    await change_manifest(broker, bytes_total=manifest.bytes_total + 1)

    only = one(await found(broker), FindingKind.BYTES_TOTAL, key=KEYS.manifest.path)
    assert f"entries from 0 on have {manifest.bytes_total} bytes" in only.found


async def test_a_manifest_that_cannot_be_decoded(broker: Rig) -> None:
    await put(broker.shared, KEYS.manifest, b'{"fmt":1,"sequence_counter":')

    one(await found(broker), FindingKind.UNDECODABLE, key=KEYS.manifest.path)


async def test_a_manifest_that_is_missing(broker: Rig) -> None:
    await delete(broker.shared, PartitionKeys(OTHER).manifest)

    one(await found(broker), FindingKind.MANIFEST_MISSING, key=PartitionKeys(OTHER).manifest.path, partition=1)


async def test_a_chunk_that_cannot_be_decoded(broker: Rig) -> None:
    await fill(broker, 60)
    await put(broker.shared, KEYS.index(63), b"{}")

    findings = {each.kind: each for each in await found(broker)}
    assert findings.keys() == {FindingKind.UNDECODABLE, FindingKind.ENTRIES_MISSING}
    assert findings[FindingKind.UNDECODABLE].key == KEYS.index(63).path
    assert findings[FindingKind.ENTRIES_MISSING].first_offset == 32


@pytest.mark.parametrize("fmt", [b'{"fmt":99,"more":1}', b'{"fmt":1,"more":1}'])
async def test_a_record_of_a_newer_release_is_no_damage_but_is_not_judged_either(broker: Rig, fmt: bytes) -> None:
    await put(broker.shared, KEYS.manifest, fmt)

    only = one(await found(broker), FindingKind.NEWER_FORMAT, key=KEYS.manifest.path)
    assert only.do == "Run this command of that release."


async def test_an_object_of_a_newer_release(broker: Rig) -> None:
    await fill(broker)
    entry = (await broker.manifest()).pending[0]
    await change_object(broker, wal_of(entry), lambda body: body[:8] + b"\x00\x63" + body[10:])

    one(await found(broker), FindingKind.NEWER_FORMAT, object=wal_of(entry))


async def test_an_entry_that_names_no_bytes(broker: Rig) -> None:
    await fill(broker)
    *before, last = (await broker.manifest()).pending
    await change_manifest(broker, pending=(*before, msgspec.structs.replace(last, object_id="x")), bytes_total=0)

    findings = await found(broker)
    assert findings[0].kind is FindingKind.MALFORMED_ENTRY
    assert "'x' is no object id" in findings[0].found


async def test_a_page_of_producers_that_is_missing(broker: Rig) -> None:
    await change_manifest(broker, pages=(PageRef("1-2-3-4", 10, 20, 0),))

    one(await found(broker), FindingKind.PRODUCERS_MISSING, key=KEYS.producer_page("1-2-3-4").path)


async def test_a_topic_that_cannot_be_decoded(broker: Rig) -> None:
    await put(broker.shared, keys.topic(NAME), b"[]")

    one(await found(broker), FindingKind.UNDECODABLE, key=keys.topic(NAME).path, topic=None, partition=None)


async def test_one_damaged_partition_keeps_nobody_from_the_others(broker: Rig) -> None:
    await fill_both(broker)
    await put(broker.shared, KEYS.manifest, b"")
    entry = (await broker.manifest(OTHER)).pending[0]
    await objects_of(broker).delete_many([wal_of(entry)])

    assert {(each.partition, each.kind) for each in await found(broker)} == {
        (0, FindingKind.UNDECODABLE),
        (1, FindingKind.OBJECT_MISSING),
    }


async def test_a_sample_looks_at_some_objects_and_at_all_metadata(broker: Rig) -> None:
    await fill(broker, 60)
    await compact(broker)
    await fill(broker, 60, begin=60)
    whole = await verify(broker)
    some = await verify(broker, depth=Depth(sample_parts=5_000))
    none = await verify(broker, depth=Depth(sample_parts=0))

    assert (whole.checked.objects, none.checked.objects) == (61, 0)
    assert 10 < some.checked.objects < 50
    assert whole.checked.entries == some.checked.entries == none.checked.entries == 60
    assert some.findings.is_sound, "sums of bytes are not known, so not judged"
    assert none.findings.is_sound


async def test_findings_beyond_those_that_are_kept_are_counted(broker: Rig) -> None:
    await fill(broker)
    await objects_of(broker).delete_many([stat.key async for stat in objects_of(broker).list("wal/")])

    findings = (await verify(broker, limits=VerifyLimits(findings_kept_max=3))).findings
    assert len(findings.kept) == 3
    assert findings.counts[FindingKind.OBJECT_MISSING] == findings.severities[Severity.ERROR] == 40
    assert not findings.is_sound


async def test_headers_that_are_dropped_for_lack_of_memory_are_read_again(broker: Rig) -> None:
    await fill_both(broker, 60)
    entry = (await broker.manifest(OTHER)).pending[0]
    await change_object(broker, wal_of(entry), lambda body: body[:-1])

    one(await found(broker, limits=VerifyLimits(slices_kept_max=4)), FindingKind.OBJECT_CUT, object=wal_of(entry), partition=1)
