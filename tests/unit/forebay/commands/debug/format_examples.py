"""The examples of docs/internals/formats, made by the code that writes the real thing.

`python -m tests.unit.forebay.commands.debug.format_examples` renews them in the pages; a test compares.

One cluster in memory, with a clock and a source of chance that are the same each time: a topic of two partitions, one object that both
share, and then enough commits of the first partition that its oldest entries stand in an index chunk.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from broker.cluster.leadership import slot_of
from broker.cluster.ownership import Slots
from broker.groups.coordinator import Coordinator
from broker.groups.group import CommitOffsets
from broker.groups.state import Committed, GroupSettings, Join, Protocol, Sync
from forebay.commands.trace import trace_as_table
from forebay.commands.tracing import Tracer
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.cache.blocks import BlockCache
from storage.catalog.brokers import BrokerDirectory, Endpoint
from storage.catalog.identity import MARKER_KEY as MARKER
from storage.catalog.identity import open_cluster, open_zone_secret, write_marker
from storage.catalog.producer_ids import ProducerIds
from storage.catalog.topics import Topics
from storage.errors import StorageError
from storage.formats.early_page import decode_page, encode_page
from storage.formats.manifest import Early, Manifest, ProducerPage, SegmentEntry, decode_manifest, encode, with_rewritten
from storage.formats.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from storage.formats.segment import Segment, SegmentWriter
from storage.formats.wal import HEAD_BYTES, Slice, WalHeader, decode_header, header_bytes, object_key
from storage.log.batch import Append, Appended, batch_of
from storage.log.flush import FlushSettings
from storage.log.limits import DEFAULT_LIMITS
from storage.log.partition import BrokerEpoch
from storage.log.parts import LogParts, open_log
from storage.log.producer_pages import page_name
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Key, Put
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import HEADER_BYTES, parse_header, restamp
from storage.vocabulary import ObjectId, PartitionId
from tests.kit.early_entries import around
from tests.kit.record_batches import record_batch

PAGES: Final = Path(__file__).parents[5] / "docs" / "internals" / "formats"
TOPIC: Final = "orders"
GROUP: Final = "baristas"
SUBSCRIPTION: Final = b"\x00\x01\x00\x00\x00\x01\x00\x06orders\xff\xff\xff\xff"
ASSIGNMENT: Final = b"\x00\x01\x00\x00\x00\x01\x00\x06orders\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff"
EPOCH_MS: Final = 1_735_689_600_000
"""2025-01-01T00:00:00Z"""
STEP_MS: Final = 250
TRACED_OFFSET: Final = 1
LISTED_MAX: Final = 3
BYTES_PER_LINE: Final = 16


class SteadyClock(SystemClock):
    """The wall stands still until it is moved."""

    wall_ms = EPOCH_MS

    def now_ms(self) -> int:
        return self.wall_ms


class EarlyExample(NamedTuple):
    """The shared object as it would be if its batches had been committed before it was stored: it, and a page with its first slice."""

    object_key: str
    body: bytes
    page_key: str
    page: bytes


class Example(NamedTuple):
    """`records`: the parts of the page on metadata by name; `object_key` and `body` are the shared object, `segment` is one of the
    first partition."""

    records: dict[str, tuple[str, bytes]]
    object_key: str
    body: bytes
    trace: str
    segment: Segment
    early: EarlyExample


async def make() -> Example:
    clock, chance, telemetry = SteadyClock(), random.Random(2025), Telemetry()
    ids = IdSource(clock=clock, entropy=chance.randbytes)
    metadata, objects = MemoryMetadataStore(clock=clock, shards=1), MemoryObjectStore(clock=clock)
    cluster = await open_cluster(metadata, ids, clock, entropy=chance.randbytes)
    directory = BrokerDirectory(metadata, clock=clock)
    registration = await directory.register(
        listeners=(Endpoint("PLAINTEXT", "broker-1", 9092),), rack="zone-a", version="0.1.0", broker_id=None
    )
    topics = Topics(metadata, clock=clock, ids=ids, entropy=chance.randbytes)
    topic = await topics.create(TOPIC, partition_count=2, replication_factor=1, configs={"retention.ms": "3600000"})
    producer_id = await ProducerIds(metadata, entropy=chance.randbytes).next()

    async def live_epochs() -> frozenset[int]:
        return frozenset({registration.epoch})

    async with Nursery() as nursery:
        parts = open_log(
            metadata=metadata,
            objects=objects,
            blocks=BlockCache(objects, bytes_max=1 << 20, clock=clock, telemetry=telemetry),
            tail_bytes_max=1 << 20,
            flush=FlushSettings(interval_s=0.0, gather_s=0.0),
            epoch=BrokerEpoch(registration.epoch, registered_epoch=lambda: registration.epoch, live=live_epochs),
            ids=ids,
            clock=clock,
            chance=chance,
            nursery=nursery,
            telemetry=telemetry,
        )
        first, second = topic.partition(0), topic.partition(1)
        together = [
            send(parts, first, idempotent_batch(producer_id, 0, b"espresso", b"latte", clock=clock)),
            send(parts, second, record_batch(b"mocha", base_timestamp=clock.now_ms())),
        ]
        for done in together:
            await done
        (shared,) = [stat.key async for stat in objects.list("")]
        for number in range(DEFAULT_LIMITS.pending_entries_max + 1):
            clock.wall_ms += STEP_MS
            await send(parts, first, idempotent_batch(producer_id, number + 2, b"latte", clock=clock))
    trace = await Tracer(metadata=metadata, objects=objects).trace(TOPIC, 0, TRACED_OFFSET)
    at = keys.PartitionKeys(first)
    control = decode_manifest(await value_of(metadata, at.manifest), path=at.manifest.path)
    # What a commit does when a manifest holds too many producers.
    page = encode(ProducerPage(producers={producer_id: control.producers[producer_id]}))
    spilled = Put(at.producer_page(page_name(version=17, epoch=registration.epoch, commit_seq=18, attempt=1) + "-0"), page, ABSENT)
    await metadata.write([spilled])
    group_keys = await group_with_offset(metadata, directory, first, clock=clock, ids=ids)
    examples = {
        "cluster": keys.CLUSTER,
        "topic": keys.topic(TOPIC),
        "topic-id": keys.topic_id(topic.topic_id),
        "control": at.manifest,
        "control-new": keys.PartitionKeys(second).manifest,
        "index": at.index(DEFAULT_LIMITS.pending_entries_max),
        "producer": spilled.key,
        "broker": keys.broker(registration.broker_id),
        "producer-ids": keys.PRODUCER_IDS,
        "zone-secret": keys.ZONE_SECRET,
        "coordinator": keys.coordinator(slot_of(GROUP)),
        "group": group_keys.group,
        "group-offset": group_keys.offset(first),
    }
    await open_zone_secret(metadata, entropy=random.Random(2026).randbytes)
    found = {name: (key.path, await value_of(metadata, key)) for name, key in examples.items()}
    await write_marker(objects, cluster)
    found["marker"] = MARKER, await objects.get_range(MARKER, 0, (await objects.stat(MARKER)).size_bytes)
    body = await objects.get_range(shared, 0, (await objects.stat(shared)).size_bytes)
    topics.close()
    directory.close()
    await directory.deregister()
    await metadata.close()
    segment = segment_of(first, ids, clock=clock)
    found["control-merging"] = at.manifest.path, encode(merging(control, ids))
    early_id = ObjectId(ids.next_ulid())
    early = early_of(body, shared, early_id)
    path, value = found["control-new"]
    found["control-early"] = path, encode(with_early(decode_manifest(value, path=path), decode_header(early.body, key=early.object_key)))
    return Example(found, shared, body, trace_as_table(trace), segment, early)


def merging(control: Manifest, ids: IdSource) -> Manifest:
    """The record as it would be with three segments, of which the first two are being merged."""
    newest = SegmentEntry(17, 18, ObjectId(ids.next_ulid()), 393, control.max_timestamp, control.max_timestamp)
    merged = SegmentEntry(0, 16, ObjectId(ids.next_ulid()), 1_427, control.max_timestamp - 2 * STEP_MS, control.max_timestamp - 2 * STEP_MS)
    return with_rewritten(msgspec.structs.replace(control, compaction_cursor=19, segment=newest), merged)


def early_of(body: bytes, key: str, early_id: ObjectId) -> EarlyExample:
    """The slices of an object of format 1 in one of format 2, and the early page of the first."""
    header = decode_header(body, key=key)
    slices, parts, position = [], [], HEAD_BYTES
    for one in header.slices:
        slices.append(one._replace(position=position))
        parts.append(body[one.position : one.position + one.length])
        position += one.length
    head, directory = around(early_id, header.broker_epoch, slices)
    page = keys.early_page(early_id, HEAD_BYTES, keys.PartitionKeys(slices[0].partition).partition_key)
    return EarlyExample(object_key(early_id), b"".join((head, *parts, directory)), page.path, encode_page([slices[0].partition], parts[0]))


def with_early(control: Manifest, header: WalHeader) -> Manifest:
    """The record of the second partition as it would be if its only entry were an early one."""
    one = header.slices[1]
    entry = msgspec.structs.replace(
        control.pending[0], object_id=header.object_id, batches=Early(one.position, ((one.position, one.length),))
    )
    return msgspec.structs.replace(control, pending=(entry,))


def segment_of(partition: PartitionId, ids: IdSource, *, clock: SteadyClock) -> Segment:
    """Two batches; the offsets 2, 3 and 5 have none, as in a compacted topic."""
    writer = SegmentWriter(partition, ObjectId(ids.next_ulid()), 0)
    for base, values in ((0, (b"espresso", b"latte")), (4, (b"mocha",))):
        batch = record_batch(*values, base_timestamp=clock.now_ms())
        restamp(batch, 0, base)
        writer.add(batch)
    return writer.finish(5)


async def group_with_offset(
    metadata: MemoryMetadataStore, directory: BrokerDirectory, partition: PartitionId, *, clock: SteadyClock, ids: IdSource
) -> keys.GroupKeys:
    """A group of one consumer, which has committed."""
    async with Nursery() as nursery:
        settings = GroupSettings(initial_delay_s=0)
        groups = Coordinator(metadata=metadata, slots=Slots(metadata, directory), clock=clock, ids=ids, nursery=nursery, settings=settings)
        member_id = groups.new_member_id("app")
        join = Join(
            token=0,
            member_id="",
            new_member_id=member_id,
            instance_id=None,
            client_id="app",
            client_host="/10.0.0.7",
            session_timeout_s=45.0,
            rebalance_timeout_s=300.0,
            protocol_type="consumer",
            protocols=(Protocol("range", SUBSCRIPTION),),
            knows_member_ids=False,
            knows_skip_assignment=True,
        )
        generation = (await groups.join(GROUP, join)).generation
        sync = Sync(
            token=0,
            member_id=member_id,
            instance_id=None,
            generation=generation,
            protocol_type="consumer",
            protocol="range",
            assignments=((member_id, ASSIGNMENT),),
        )
        await groups.sync(GROUP, sync)
        offsets = {partition: Committed(19, 0, "", clock.now_ms())}
        await groups.commit(GROUP, CommitOffsets(member_id=member_id, instance_id=None, generation=generation, offsets=offsets))
        groups.stop()
    return keys.GroupKeys(GROUP, slot_of(GROUP))


def idempotent_batch(producer_id: int, base_sequence: int, *values: bytes, clock: SteadyClock) -> bytearray:
    return record_batch(*values, producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence, base_timestamp=clock.now_ms())


def send(parts: LogParts, partition: PartitionId, batch: bytearray) -> "asyncio.Future[None]":
    """One append; done when it is acknowledged."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(append: Append) -> None:
        (result,) = append.results
        if isinstance(result, StorageError):
            done.set_exception(result)
        else:
            assert isinstance(result, Appended)
            done.set_result(None)

    append = Append(object(), finish, [None], 1)
    parts.appender.submit(parts.partitions.get(partition), batch_of(memoryview(batch), parse_header(batch), append, 0))
    return done


async def value_of(metadata: MemoryMetadataStore, key: Key) -> bytes:
    (record,) = await metadata.get_many([key])
    assert record is not None, key.path
    return record.value


def record_text(path: str, value: bytes) -> str:
    """Key and value, a field a line; of a long list the first entry, the last, and how many lie between."""
    lines = [f"{json.dumps(name)}: {field}" for name, one in json.loads(value).items() for field in [_field(one)]]
    body = ",\n ".join(lines)
    return f"```\n{path}\n\n{{{body}}}\n```"


def object_text(key: str, body: bytes) -> str:
    """Every byte of a WAL object, field by field: position, bytes, meaning."""
    return _bytes_text(key, body, [*_header_rows(body, key), *_slice_rows(body, key)])


def early_object_text(key: str, body: bytes) -> str:
    """Every byte of a WAL object of format 2, field by field."""
    header = decode_header(body, key=key)
    directory_at = sum(header.slices[-1][1:])
    fields: list[tuple[int, str]] = [(8, 'magic "FOREBAYW"'), (2, "format"), (2, "0"), (4, f"slices {len(header.slices)}")]
    fields += [(8, f"broker epoch {header.broker_epoch}"), (26, f"object id {header.object_id}")]
    fields += [(8, f"position of the directory {directory_at}"), (2, "0"), (4, "CRC-32C of bytes 0 to here")]
    directory = [field for number, one in enumerate(header.slices) for field in _slice_fields(number, one)]
    rows = [*_rows(body, 0, tuple(fields)), *_slice_rows(body, key)]
    rows += _rows(body, directory_at, (*directory, (4, "CRC-32C of the directory to here")))
    return _bytes_text(key, body, rows)


def page_text(key: str, value: bytes) -> str:
    """Every byte of an early page, field by field."""
    page = decode_page(value, path=key)
    fields: list[tuple[int, str]] = [(4, 'magic "FBEP"'), (2, "format"), (2, f"partitions {len(page.partitions)}")]
    fields.append((4, "CRC-32C of all other bytes"))
    for one in page.partitions:
        fields += [(16, f"topic id {one.topic_id}"), (4, f"partition {one.partition}")]
    begin = sum(size for size, _ in fields)
    fields += [*_batch_fields(f"bytes of the object from {HEAD_BYTES} on: a batch, base offset 0", -1)]
    fields.append((len(value) - begin - HEADER_BYTES, "records"))
    return _bytes_text(key, value, list(_rows(value, 0, tuple(fields))))


def segment_text(segment: Segment) -> str:
    """Every byte of a segment, field by field."""
    body = b"".join(segment.parts)
    footer = segment.footer
    identity = (
        (16, f"topic id {footer.partition.topic_id}"),
        (4, f"partition {footer.partition.partition}"),
        (26, f"object id {footer.object_id}"),
        (8, f"base {footer.base}"),
    )
    fields: list[tuple[int, str]] = [(8, 'magic "FOREBAYS"'), (2, "format"), (4, "bytes of the header"), *identity]
    fields.append((4, "CRC-32C of bytes 0 to here"))
    position = SEGMENT_HEADER_BYTES
    while position < SEGMENT_HEADER_BYTES + footer.body_bytes:
        batch = parse_header(body, position)
        fields += _batch_fields(f"batch: base offset {batch.base_offset}", batch.partition_leader_epoch)
        fields.append((batch.size_bytes - HEADER_BYTES, "records"))
        position += batch.size_bytes
    fields += [(size, f"footer: {meaning}" if not number else meaning) for number, (size, meaning) in enumerate(identity)]
    fields += [
        (8, f"last {footer.last}"),
        (8, f"batches {footer.batch_count}"),
        (8, f"records {footer.record_count}"),
        (8, f"bytes of the body {footer.body_bytes}"),
        (8, "greatest timestamp"),
        (8, f"base offset of the first batch that has it {footer.max_timestamp_offset}"),
        (4, f"blocks {len(footer.firsts)}"),
        (4, "facts 0"),
    ]
    for number, length in enumerate(footer.lengths):
        fields += [
            (8, f"block {number}: base offset of the first batch {footer.firsts[number]}"),
            (8, f"last offset of the last batch {footer.lasts[number]}"),
            (8, f"position {footer.positions[number]}"),
            (4, f"length {length}"),
            (4, "CRC-32C of the block"),
            (8, "greatest timestamp"),
        ]
    fields += [
        (4, "CRC-32C of the footer to here"),
        (4, f"bytes of the footer {len(segment.parts[-1])}"),
        (2, "format"),
        (8, 'magic "FOREBAYE"'),
    ]
    return _bytes_text(segment.key, body, list(_rows(body, 0, tuple(fields))))


def _bytes_text(key: str, body: bytes, rows: list[tuple[int, str, str]]) -> str:
    width = max(len(row[1]) for row in rows)
    shown = "\n".join(f"{position:>4}  {data:<{width}}  {meaning}".rstrip() for position, data, meaning in rows)
    return f"```\n{key}  ({len(body)} bytes)\n\n{shown}\n```"


def renewed(page: str, parts: dict[str, str]) -> str:
    """The page with its examples as the code makes them now."""
    for name, text in parts.items():
        begin, end = f"<!-- example: {name} -->", "<!-- end -->"
        before, marked, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if marked:
            assert closed, f"{begin} has no end"
            page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def texts(example: Example) -> dict[str, str]:
    """The text of each example by its name in the pages."""
    parts = {name: record_text(path, value) for name, (path, value) in example.records.items()}
    command = f"forebay debug trace-offset {TOPIC} 0 {TRACED_OFFSET}"
    return parts | {
        "object": object_text(example.object_key, example.body),
        "segment": segment_text(example.segment),
        "object-early": early_object_text(example.early.object_key, example.early.body),
        "early-page": page_text(example.early.page_key, example.early.page),
        "trace": f"```\n$ {command}\n{example.trace}\n```",
    }


def _field(value: object) -> str:
    if not isinstance(value, list) or not value or not isinstance(value[0], list):
        return json.dumps(value, separators=(",", ":"))
    shown = [json.dumps(one, separators=(",", ":")) for one in value]
    if len(shown) > LISTED_MAX:
        shown = [shown[0], f"… {len(shown) - 2} more …", shown[-1]]
    return "[" + ",\n   ".join(shown) + "]"


def _header_rows(body: bytes, key: str) -> Iterator[tuple[int, str, str]]:
    header = decode_header(body, key=key)
    yield from _rows(body, 0, ((8, 'magic "FOREBAYW"'), (2, "format"), (2, "slices"), (4, "bytes of the header")))
    yield from _rows(body, 16, ((8, f"broker epoch {header.broker_epoch}"), (26, f"object id {header.object_id}")))
    position = 50
    for number, one in enumerate(header.slices):
        yield from _rows(body, position, _slice_fields(number, one))
        position += 36
    yield from _rows(body, position, ((4, "CRC-32C of bytes 0 to here"),))
    assert position + 4 == header_bytes(len(header.slices))


def _slice_fields(number: int, one: Slice) -> tuple[tuple[int, str], ...]:
    return (
        (16, f"slice {number}: topic id {one.partition.topic_id}"),
        (4, f"partition {one.partition.partition}"),
        (8, f"position {one.position}"),
        (8, f"length {one.length}"),
    )


def _slice_rows(body: bytes, key: str) -> Iterator[tuple[int, str, str]]:
    for number, one in enumerate(decode_header(body, key=key).slices):
        yield from _rows(body, one.position, _batch_fields(f"batch of slice {number}: base offset 0", -1))
        start = one.position + HEADER_BYTES
        yield from _rows(body, start, ((one.position + one.length - start, "records"),))


def _batch_fields(first: str, leader_epoch: int) -> tuple[tuple[int, str], ...]:
    return (
        (8, first),
        (4, "batch length"),
        (4, f"leader epoch {leader_epoch}"),
        (1, "magic 2"),
        (4, "CRC-32C of the rest of the batch"),
        (2, "attributes: codec none"),
        (4, "last offset delta"),
        (8, "base timestamp"),
        (8, "max timestamp"),
        (8, "producer id"),
        (2, "producer epoch"),
        (4, "base sequence"),
        (4, "record count"),
    )


def _rows(body: bytes, position: int, fields: tuple[tuple[int, str], ...]) -> Iterator[tuple[int, str, str]]:
    for size, meaning in fields:
        for start in range(position, position + size, BYTES_PER_LINE):
            part = body[start : min(start + BYTES_PER_LINE, position + size)]
            yield start, part.hex(" "), meaning if start == position else ""
        position += size


if __name__ == "__main__":
    made = texts(asyncio.run(make()))
    for file in sorted(PAGES.glob("*.md")):
        file.write_text(renewed(file.read_text(), made))
