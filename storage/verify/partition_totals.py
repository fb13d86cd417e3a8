"""What each partition of a topic holds: records, and the objects that its entries name. From the metadata alone."""

from collections.abc import Collection

import msgspec

from storage.formats.control import Entry
from storage.verify.findings import FindingKind, StoreFinding
from storage.verify.partitions import ActivePartition, PartitionWalk, active_partitions, side_by_side
from storage.verify.reading import StoreReading


class PartitionTotal(msgspec.Struct, kw_only=True):
    """`wal_bytes` are those of its slices; their objects may be shared with other partitions. `inline_bytes` lie in the metadata store.
    `is_readable`: whether this is all of it.
    """

    topic: str
    partition: int
    log_start: int
    log_end: int
    records: int
    wal_objects: int = 0
    wal_bytes: int = 0
    inline_bytes: int = 0
    segments: int = 0
    segment_bytes: int = 0
    is_readable: bool = True


async def partition_totals(reading: StoreReading, topics: Collection[str]) -> list[PartitionTotal]:
    """By topic and partition. A partition without a control record that can be decoded is left out. Raises `Unavailable`."""
    found: list[PartitionTotal] = []

    async def work(one: ActivePartition) -> None:
        total = await _total(reading, one)
        if total is not None:
            found.append(total)

    await side_by_side(active_partitions(reading, topics, lambda _: None), work)
    return sorted(found, key=lambda total: (total.topic, total.partition))


async def _total(reading: StoreReading, one: ActivePartition) -> PartitionTotal | None:
    is_readable = True

    def report(problem: StoreFinding) -> None:
        nonlocal is_readable
        is_readable &= problem.kind not in (FindingKind.UNDECODABLE, FindingKind.NEWER_FORMAT, FindingKind.ENTRIES_MISSING)

    walk = PartitionWalk(reading, one.partition, report)
    control = await walk.start()
    if control is None:
        return None
    total = PartitionTotal(
        topic=one.topic.name,
        partition=one.partition.partition,
        log_start=control.log_start,
        log_end=control.sequence_counter,
        records=control.sequence_counter - control.log_start,
    )
    last_object = ""
    async for page in walk.pages():
        for source, _ in page:
            if isinstance(source, Entry) and source.is_inline:
                total.inline_bytes += source.size_bytes
            elif isinstance(source, Entry):
                # Entries of one object follow each other: a flush is committed in one piece, or what is left of it next.
                total.wal_objects += source.object_id != last_object
                total.wal_bytes += source.size_bytes
            else:
                total.segments += 1
                total.segment_bytes += source.size_bytes
            last_object = source.object_id
    total.is_readable = is_readable
    return total
