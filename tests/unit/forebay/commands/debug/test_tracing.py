"""offset → control → entry → object → batch."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from forebay.commands.trace import Trace, TraceFailed, trace_as_table
from forebay.commands.tracing import ATTEMPTS_MAX, Tracer
from storage.catalog.records import encode as encode_record
from storage.catalog.topics import Topic, TopicState
from storage.errors import Unavailable
from storage.formats.manifest import Entry, LogState, Manifest, encode
from storage.formats.wal import Slice, encode_header, header_bytes, object_key
from storage.log.limits import DEFAULT_LIMITS
from storage.metadata import keys
from storage.metadata.port import Delete, Key, Put, Record
from storage.vocabulary import ObjectId, PartitionId
from tests.kit.batches import batch_bytes
from tests.kit.inline_entries import put_inline
from tests.kit.record_batches import record_batch
from tests.unit.forebay.commands.debug.logged import NAME, Logged, logged
from tests.unit.storage.log.rig import PARTITION, TOPIC

AT = keys.PartitionKeys(PARTITION)
ANY_ID = ObjectId("01J00000000000000000000000")


@pytest.fixture
async def log() -> AsyncIterator[Logged]:
    async with logged() as made:
        yield made


async def failure(log: Logged, offset: int, *, topic: str = NAME, partition: int = 0) -> TraceFailed:
    with pytest.raises(TraceFailed) as raised:
        await log.tracer.trace(topic, partition, offset)
    assert "\n" not in str(raised.value)
    return raised.value


async def put_manifest(log: Logged, **changes: object) -> None:
    control = msgspec.structs.replace(await log.rig.manifest(), **changes)
    await log.metadata.write([Put(AT.manifest, encode(control), None)])


async def dump(log: Logged) -> tuple[list[Record], list[object]]:
    start, end = keys.topics()
    records = await log.metadata.get_many([AT.manifest, keys.topic(NAME), keys.topic_id(TOPIC)])
    return [one for one in records if one] + [one async for one in log.metadata.range_scan(start, end)], [
        one async for one in log.objects.list("")
    ]


async def test_the_newest_entry_is_found_in_the_manifest(log: Logged) -> None:
    await log.append(batch_bytes(3))
    await log.append(batch_bytes(2), batch_bytes(4))

    trace = await log.tracer.trace(NAME, 0, 6)

    assert trace.entry is not None
    assert (trace.entry.source, trace.entry.source_key) == ("pending", AT.manifest.path)
    assert (trace.entry.base_offset, trace.entry.last_offset) == (3, 8)
    assert (trace.control.sequence_counter, trace.control.pending_count, trace.control.writers) == (9, 2, {"7": (2, 1)})
    assert trace.problem is None


async def test_the_batch_is_the_one_that_covers_the_offset_and_its_range_holds_its_bytes(log: Logged) -> None:
    await log.append(batch_bytes(1))
    sent = batch_bytes(4)
    await log.append(batch_bytes(2), sent)

    trace = await log.tracer.trace(NAME, 0, 5)

    assert trace.batch is not None
    assert trace.entry is not None
    assert (trace.batch.base_offset_stored, trace.batch.base_offset, trace.batch.last_offset) == (0, 3, 6)
    assert (await log.body(trace.entry.object_key))[trace.batch.start : trace.batch.end] == sent
    assert trace.batch.crc_ok
    assert trace.batch.crc_stored == trace.batch.crc_computed


async def test_an_older_entry_is_found_in_its_index_chunk(log: Logged) -> None:
    for _ in range(DEFAULT_LIMITS.pending_entries_max + 1):
        await log.append(batch_bytes(2))

    trace = await log.tracer.trace(NAME, 0, 7)

    assert trace.entry is not None
    assert (trace.entry.source, trace.entry.source_key) == ("index", AT.index(2 * DEFAULT_LIMITS.pending_entries_max - 1).path)
    assert (trace.entry.base_offset, trace.entry.last_offset) == (6, 7)


@pytest.mark.parametrize(("codec", "name"), list(enumerate(("none", "gzip", "snappy", "lz4", "zstd"))))
async def test_the_header_of_the_batch_is_shown_as_its_producer_wrote_it(log: Logged, codec: int, name: str) -> None:
    await log.append(record_batch(b"a", b"b", codec=codec, attributes=0x10, producer_id=4_000, producer_epoch=3, base_sequence=0))

    batch = (await log.tracer.trace(NAME, 0, 1)).batch

    assert batch is not None
    assert (batch.codec, batch.attributes) == (name, 0x10 | codec)
    assert (batch.is_transactional, batch.is_control, batch.is_log_append_time) == (True, False, False)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4_000, 3, 0)
    assert (batch.record_count, batch.last_offset_delta) == (2, 1)


async def test_the_object_says_which_partitions_it_holds_and_when_its_id_was_made(log: Logged) -> None:
    await log.append(batch_bytes(1))

    found = (await log.tracer.trace(NAME, 0, 0)).object

    assert found is not None
    (only,) = found.slices
    assert (only.topic, only.topic_id, only.partition, only.is_traced) == (NAME, TOPIC, 0, True)
    assert (only.start, only.end) == (header_bytes(1), found.size_bytes)
    assert found.broker_epoch == 7
    assert abs(found.modified_ms - found.created_ms) < 60_000


async def test_a_topic_that_is_gone_has_no_name_in_the_header(log: Logged) -> None:
    await log.append(batch_bytes(1))
    await log.metadata.write([Delete(keys.topic_id(TOPIC))])

    found = (await log.tracer.trace(NAME, 0, 0)).object

    assert found is not None
    assert found.slices[0].topic is None


async def test_tracing_changes_nothing_not_even_a_topic_in_deletion(log: Logged) -> None:
    await log.append(batch_bytes(1))
    topic = Topic(
        name=NAME, topic_id=TOPIC, partition_count=1, replication_factor=1, configs={}, created_at_ms=1, state=TopicState.DELETING
    )
    await log.metadata.write([Put(keys.topic(NAME), encode_record(topic), None)])
    before = await dump(log)

    trace = await log.tracer.trace(NAME, 0, 0)

    assert trace.topic.state == "DELETING"
    assert await dump(log) == before


async def test_an_unknown_topic_is_answered_with_the_nearest_name(log: Logged) -> None:
    error = await failure(log, 0, topic="ordres")

    assert str(error).startswith('Topic "ordres" does not exist. Nearest: "orders".')
    assert (error.exit_code, error.so_far) == (4, None)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 250, "zzzzzz"])
async def test_a_name_no_topic_has_is_not_found(log: Logged, name: str) -> None:
    assert (await failure(log, 0, topic=name)).exit_code == 4


async def test_a_partition_out_of_range_is_answered_with_the_range(log: Logged) -> None:
    error = await failure(log, 0, partition=1)

    assert (str(error), error.exit_code) == ('Topic "orders" has no partition 1. It has 1: 0..0.', 4)


@pytest.mark.parametrize(
    ("offset", "words"),
    [(1, "is below log_start 2"), (9, "is at the end of the log, 9"), (10, "is past the end of the log, 9"), (10**30, "is past the end")],
)
async def test_an_offset_outside_the_log_is_answered_with_the_bounds(log: Logged, offset: int, words: str) -> None:
    await log.append(batch_bytes(9))
    await put_manifest(log, log_start=2)

    error = await failure(log, offset)

    assert words in str(error)
    assert str(error).endswith("Readable: 2..8.")
    assert error.exit_code == 4
    assert error.so_far is not None
    assert error.so_far.problem == str(error)


async def test_an_empty_log_says_so(log: Logged) -> None:
    assert str(await failure(log, 0)) == "orders/0 holds no records: log_start and the end are both 0."


async def test_a_deleted_partition_takes_no_reads(log: Logged) -> None:
    await put_manifest(log, log_state=LogState.DELETED)

    assert "was deleted" in str(await failure(log, 0))


async def test_a_partition_without_manifest_is_not_found(log: Logged) -> None:
    await log.metadata.write([Delete(AT.manifest)])

    error = await failure(log, 0)

    assert (error.exit_code, AT.manifest.path in str(error)) == (4, True)


async def test_a_missing_index_chunk_is_damage(log: Logged) -> None:
    for _ in range(DEFAULT_LIMITS.pending_entries_max + 1):
        await log.append(batch_bytes(1))
    await log.metadata.write([Delete(AT.index(DEFAULT_LIMITS.pending_entries_max - 1))])

    error = await failure(log, 3)

    assert str(error).startswith("No entry covers offset 3 of orders/0")
    assert error.exit_code == 1


async def test_an_entry_that_moves_to_the_index_between_the_two_reads_is_found_there(log: Logged) -> None:
    for _ in range(DEFAULT_LIMITS.pending_entries_max):
        await log.append(batch_bytes(1))
    (old,) = await log.metadata.get_many([AT.manifest])
    assert old is not None
    first = msgspec.json.decode(old.value, type=Manifest)
    # As one would read it who sees the ring before its oldest entries came: offset 3 is neither in `pending` nor, yet, in index/.
    stale = encode(msgspec.structs.replace(first, pending=first.pending[8:]))

    class Drained:
        reads = 0

        def __getattr__(self, name: str) -> object:
            return getattr(log.metadata, name)

        async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
            if list(wanted) != [AT.manifest]:
                return await log.metadata.get_many(wanted)
            self.reads += 1
            if self.reads > 1:
                return await log.metadata.get_many(wanted)
            return [Record(AT.manifest.path, stale, 1)]

    trace = await Tracer(metadata=Drained(), objects=log.objects).trace(NAME, 0, 3)  # type: ignore[arg-type]

    assert trace.entry is not None
    assert trace.entry.base_offset == 3


async def test_a_missing_object_is_told_with_all_that_led_to_it(log: Logged) -> None:
    await log.append(batch_bytes(3))
    key = await log.newest_key()
    await log.objects.delete_many([key])

    error = await failure(log, 1)

    assert str(error).startswith(f"Object {key} of a live entry is missing: offsets 0..2 of orders/0 cannot be read.")
    assert error.exit_code == 1
    assert error.so_far is not None
    assert error.so_far.entry is not None
    assert (error.so_far.object, error.so_far.batch) == (None, None)


async def test_an_object_that_goes_while_its_entry_does_is_looked_for_again(log: Logged) -> None:
    await log.append(batch_bytes(3))
    key = await log.newest_key()
    body = bytes(await log.body(key))
    await log.objects.delete_many([key])

    class Restored:
        stats = 0

        def __getattr__(self, name: str) -> object:
            return getattr(log.objects, name)

        async def stat(self, wanted: str) -> object:
            self.stats += 1
            if self.stats == 2:
                await log.objects.put_if_absent(key, [body])
            return await log.objects.stat(wanted)

    trace = await Tracer(metadata=log.metadata, objects=Restored()).trace(NAME, 0, 1)  # type: ignore[arg-type]

    assert trace.batch is not None


async def test_a_log_that_is_compacted_each_time_ends_after_its_attempts(log: Logged) -> None:
    for _ in range(ATTEMPTS_MAX):
        await log.append(batch_bytes(1))
    control = await log.rig.manifest()
    whole = msgspec.structs.replace(control.pending[0], base=0, last=2)
    entries = iter([msgspec.structs.replace(whole, object_id=ObjectId(f"01J0000000000000000000000{n}")) for n in range(ATTEMPTS_MAX)])

    class Moving:
        def __getattr__(self, name: str) -> object:
            return getattr(log.metadata, name)

        async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
            if list(wanted) != [AT.manifest]:
                return await log.metadata.get_many(wanted)
            return [Record(AT.manifest.path, encode(msgspec.structs.replace(control, pending=(next(entries),))), 1)]

    with pytest.raises(TraceFailed, match="compacted each time") as raised:
        await Tracer(metadata=Moving(), objects=log.objects).trace(NAME, 0, 1)  # type: ignore[arg-type]

    assert raised.value.exit_code == 3


async def test_a_flipped_bit_in_the_records_is_a_mismatch_that_is_shown(log: Logged) -> None:
    await log.append(batch_bytes(3))
    key = await log.newest_key()
    body = await log.body(key)
    body[-1] ^= 1
    await log.replace(key, bytes(body))

    error = await failure(log, 1)

    assert str(error).startswith("Checksum mismatch: the batch at bytes [90, ")
    assert key in str(error)
    assert error.so_far is not None
    assert error.so_far.batch is not None
    assert not error.so_far.batch.crc_ok
    assert error.so_far.batch.crc_stored != error.so_far.batch.crc_computed


async def test_bytes_that_are_no_batch_are_damage(log: Logged) -> None:
    await log.append(batch_bytes(3))
    key = await log.newest_key()
    body = await log.body(key)
    body[header_bytes(1) + 16] = 1
    await log.replace(key, bytes(body))

    error = await failure(log, 1)

    assert str(error).startswith("Damaged object: not a record batch")
    assert error.so_far is not None
    assert error.so_far.object is not None


async def test_a_damaged_header_is_told(log: Logged) -> None:
    await log.append(batch_bytes(3))
    key = await log.newest_key()
    body = await log.body(key)
    body[30] ^= 1
    await log.replace(key, bytes(body))

    assert str(await failure(log, 1)).startswith("Damaged object: checksum mismatch")


async def test_an_object_of_a_newer_format_asks_for_a_newer_program(log: Logged) -> None:
    await log.append(batch_bytes(3))
    key = await log.newest_key()
    body = await log.body(key)
    body[8:10] = (9).to_bytes(2, "big")
    await log.replace(key, bytes(body))

    error = await failure(log, 1)

    assert (error.exit_code, "format 9" in str(error)) == (2, True)


async def test_an_object_cut_short_is_told_with_both_sizes(log: Logged) -> None:
    await log.append(batch_bytes(3))
    key = await log.newest_key()
    body = await log.body(key)
    await log.replace(key, bytes(body[:-5]))

    assert f"is cut short: {len(body) - 5} bytes, and its entry needs {len(body)}" in str(await failure(log, 1))


async def test_an_object_cut_short_in_a_later_span_is_told_though_the_offset_lies_in_the_first(log: Logged) -> None:
    sent = batch_bytes(3)
    await log.append(sent)
    control = await log.rig.manifest()
    spans = ((header_bytes(1), len(sent)), (header_bytes(1) + len(sent), 70))
    await put_manifest(log, pending=(msgspec.structs.replace(control.pending[0], last=5, batches=spans),), sequence_counter=6)

    assert "is cut short" in str(await failure(log, 0))


async def test_a_span_that_begins_before_the_slice_of_its_partition_is_damage(log: Logged) -> None:
    await log.append(batch_bytes(3))
    control = await log.rig.manifest()
    (position, length), *_ = control.pending[0].batches
    await put_manifest(log, pending=(msgspec.structs.replace(control.pending[0], batches=((position - 1, length),)),))

    assert "gives these bytes to no slice of the partition" in str(await failure(log, 0))


async def test_an_object_that_gives_the_bytes_to_another_partition_is_damage(log: Logged) -> None:
    await log.append(batch_bytes(3))
    entry = (await log.rig.manifest()).pending[-1]
    body = await log.body(await log.newest_key())
    other = [Slice(PartitionId(TOPIC, 5), header_bytes(1), len(body) - header_bytes(1))]
    await log.replace(await log.newest_key(), encode_header(entry.object_id, 7, other) + bytes(body[header_bytes(1) :]))

    assert "gives these bytes to no slice of the partition" in str(await failure(log, 1))


async def test_an_object_that_is_another_is_damage(log: Logged) -> None:
    await log.append(batch_bytes(3))
    body = await log.body(await log.newest_key())
    own = [Slice(PARTITION, header_bytes(1), len(body) - header_bytes(1))]
    other = encode_header(ANY_ID, 7, own)
    await log.replace(await log.newest_key(), other + bytes(body[header_bytes(1) :]))

    assert "calls itself by another id" in str(await failure(log, 1))


async def test_an_entry_that_promises_more_records_than_it_has_is_damage(log: Logged) -> None:
    await log.append(batch_bytes(3))
    control = await log.rig.manifest()
    longer = msgspec.structs.replace(control.pending[0], last=8)
    await put_manifest(log, pending=(longer,), sequence_counter=9)

    assert "an entry has fewer records than it says" in str(await failure(log, 7))


async def test_a_batch_in_the_second_span_is_found_behind_the_gap(log: Logged) -> None:
    first, refused, second = batch_bytes(2), batch_bytes(3), batch_bytes(4)
    await log.append(first, refused, second)
    control = await log.rig.manifest()
    start = header_bytes(1)
    spans = ((start, len(first)), (start + len(first) + len(refused), len(second)))
    await put_manifest(log, pending=(msgspec.structs.replace(control.pending[0], last=5, batches=spans),), sequence_counter=6)

    trace = await log.tracer.trace(NAME, 0, 3)

    assert trace.batch is not None
    assert (trace.batch.base_offset, trace.batch.last_offset, trace.batch.start) == (2, 5, spans[1][0])


@settings(max_examples=40)
@given(layout=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 300), st.booleans()), min_size=1, max_size=12))
def test_each_offset_leads_to_the_batch_that_a_log_of_kept_batches_has_there(layout: list[tuple[int, int, bool]]) -> None:
    """`layout`: record count, record bytes, and whether the batch was kept; what was not lies between the spans."""
    batches = [(batch_bytes(count, payload=bytes(size)), count, kept) for count, size, kept in layout]

    async def check() -> None:
        async with logged() as log:
            spans: list[tuple[int, int]] = []
            expected: list[tuple[int, int, int]] = []  # per offset: first offset and byte range of its batch
            position, offset = header_bytes(1), 0
            for body, count, kept in batches:
                end = position + len(body)
                if kept:
                    joined = bool(spans) and spans[-1][0] + spans[-1][1] == position
                    spans[-1:] = [(spans[-1][0], spans[-1][1] + len(body))] if joined else [*spans[-1:], (position, len(body))]
                    expected += [(offset, position, end)] * count
                    offset += count
                position = end
            assume(bool(expected))
            slices = [Slice(PARTITION, header_bytes(1), position - header_bytes(1))]
            await log.objects.put_if_absent(object_key(ANY_ID), [encode_header(ANY_ID, 7, slices), *(body for body, _, _ in batches)])
            entry = Entry(0, offset - 1, ANY_ID, tuple(spans), 1_000, 1_000)
            await put_manifest(log, pending=(entry,), sequence_counter=offset)

            found = [(await log.tracer.trace(NAME, 0, one)).batch for one in range(offset)]

            assert [(one.base_offset, one.start, one.end) for one in found if one is not None and one.crc_ok] == expected

    asyncio.run(check())


@pytest.mark.parametrize(("object_id", "spans"), [("../../x", ((90, 10),)), (ANY_ID, ()), (ANY_ID, ((-1, 10),)), (ANY_ID, ((90, 0),))])
async def test_an_entry_that_names_no_bytes_is_damaged_metadata(log: Logged, object_id: str, spans: tuple[tuple[int, int], ...]) -> None:
    await put_manifest(log, pending=(Entry(0, 2, ObjectId(object_id), spans, 1, 1),), sequence_counter=3)

    assert str(await failure(log, 1)).startswith("Damaged metadata: an entry names no")


async def test_an_undecodable_manifest_is_damaged_metadata(log: Logged) -> None:
    await log.metadata.write([Put(AT.manifest, b"{", None)])

    assert str(await failure(log, 0)).startswith("Damaged metadata: undecodable record")


async def test_a_newer_manifest_asks_for_a_newer_program(log: Logged) -> None:
    await log.metadata.write([Put(AT.manifest, b'{"fmt":99}', None)])

    assert (await failure(log, 0)).exit_code == 2


async def test_a_store_that_does_not_answer_ends_the_trace_in_time(log: Logged) -> None:
    class Silent:
        async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
            await asyncio.Event().wait()
            raise AssertionError

    with pytest.raises(TraceFailed, match="did not answer") as raised:
        await Tracer(metadata=Silent(), objects=log.objects, timeout_s=0.01).trace(NAME, 0, 0)  # type: ignore[arg-type]

    assert raised.value.exit_code == 124


async def test_a_store_that_cannot_be_reached_is_told_by_its_cause(log: Logged) -> None:
    class Away:
        async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
            raise Unavailable("connection refused")

    with pytest.raises(TraceFailed, match="Cannot read the stores: connection refused") as raised:
        await Tracer(metadata=Away(), objects=log.objects).trace(NAME, 0, 0)  # type: ignore[arg-type]

    assert raised.value.exit_code == 3


async def test_json_round_trips(log: Logged) -> None:
    await log.append(batch_bytes(3))
    trace = await log.tracer.trace(NAME, 0, 1)

    assert msgspec.json.decode(msgspec.json.encode(trace), type=Trace) == trace


async def test_offsets_are_found_while_appends_go_on(log: Logged) -> None:
    """Between any two reads of a trace, entries come into the ring and leave it for the index."""
    await log.append(batch_bytes(2))
    found: list[Trace] = []

    async def appends() -> None:
        for _ in range(4 * DEFAULT_LIMITS.pending_entries_max):
            await log.append(batch_bytes(2))

    async def traces(running: "asyncio.Task[None]") -> None:
        while not running.done():
            end = (await log.rig.manifest()).sequence_counter
            found.append(await log.tracer.trace(NAME, 0, end - 1))
            found.append(await log.tracer.trace(NAME, 0, max(0, end - 2 * DEFAULT_LIMITS.pending_entries_max)))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(traces(group.create_task(appends())))

    assert {one.entry.source for one in found if one.entry is not None} == {"pending", "index"}
    assert all(one.batch is not None and one.batch.base_offset <= one.offset <= one.batch.last_offset for one in found)


async def test_a_record_that_its_entry_carries_is_traced_without_an_object(log: Logged) -> None:
    await put_inline(log.metadata, [record_batch(b"a", b"b"), record_batch(b"c")])
    trace = await log.tracer.trace(NAME, 0, 1)
    control = await log.rig.manifest()

    assert trace.entry is not None
    assert trace.batch is not None
    assert (trace.entry.source, trace.entry.spans, trace.entry.inline_bytes) == ("pending", (), control.pending[0].size_bytes)
    assert trace.object is None
    assert (trace.batch.base_offset, trace.batch.last_offset, trace.batch.crc_ok) == (0, 1, True)
    assert f"{control.pending[0].size_bytes} bytes inline" in trace_as_table(trace)


async def test_a_damaged_inline_record_is_said_to_be(log: Logged) -> None:
    await put_inline(log.metadata, [record_batch(b"a")])
    (entry,) = (await log.rig.manifest()).pending
    assert isinstance(entry.batches, bytes)
    damaged = msgspec.structs.replace(entry, batches=entry.batches[:-1] + b"\xff")
    await put_manifest(log, pending=(damaged,))

    with pytest.raises(TraceFailed, match=r"Checksum mismatch: the batch at bytes .* of inline/.* Restore the metadata store"):
        await log.tracer.trace(NAME, 0, 0)
