"""Which record of a batch carries a time. Slow, by record: call it off the event loop.

Differs from Apache Kafka: `records_max` records of a batch are looked at. What lies behind them is known by the header alone, so the
answer is the first offset behind them, with the batch's greatest timestamp: never an offset behind the right one.
"""

from itertools import islice

from storage.errors import Corrupt
from storage.log.timestamps import TimestampedOffset
from storage.recordbatch import BatchHeader
from storage.records import walk
from storage.vocabulary import Buffer


def first_reaching(
    batch: Buffer, header: BatchHeader, start: int, timestamp_ms: int, from_offset: int, *, records_max: int
) -> TimestampedOffset | None:
    """The first record at or after a time, from `from_offset` on, of the batch at offset `start` whose header reaches that time."""
    try:
        for record in islice(walk(batch, header), records_max):
            if record.timestamp_ms >= timestamp_ms and start + record.offset_delta >= from_offset:
                return TimestampedOffset(start + record.offset_delta, record.timestamp_ms)
    except Corrupt:
        # A producer may store records that do not decode: its batch is known by its header alone.
        return TimestampedOffset(max(start, from_offset), header.max_timestamp)
    if header.record_count > records_max:
        return TimestampedOffset(max(start + records_max, from_offset), header.max_timestamp)
    return None


def greatest_from(batch: Buffer, header: BatchHeader, start: int, from_offset: int, *, records_max: int) -> TimestampedOffset | None:
    """The first record with the greatest timestamp, from `from_offset` on, of the batch at offset `start`."""
    best: TimestampedOffset | None = None
    try:
        for record in islice(walk(batch, header), records_max):
            offset = start + record.offset_delta
            if offset >= from_offset and record.timestamp_ms > (-1 if best is None else best.timestamp_ms):
                best = TimestampedOffset(offset, record.timestamp_ms)
    except Corrupt:
        return TimestampedOffset(from_offset, header.max_timestamp)
    if header.record_count > records_max and (best is None or header.max_timestamp > best.timestamp_ms):
        return TimestampedOffset(max(start + records_max, from_offset), header.max_timestamp)
    return best
