"""Records as values: what is written into a batch is read from it, and other bytes are refused or read, never worse."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from runtime.turns import in_turns
from storage.errors import Corrupt
from storage.record_values import (
    Record,
    SequencedBy,
    StoredRecord,
    Written,
    batch_bytes,
    cut,
    read_values,
    write_batch,
    write_values_in_steps,
)
from storage.recordbatch import parse_header, verify
from storage.records import read_records

NOW_MS = 1_760_000_000_000
FIELD = st.none() | st.binary(max_size=300)
RECORDS = st.lists(
    st.binary(max_size=300)
    | st.builds(
        Record,
        value=FIELD,
        key=FIELD,
        headers=st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=20), FIELD), max_size=4).map(tuple),
        timestamp_ms=st.none() | st.integers(0, 2**42),
    ),
    min_size=1,
    max_size=40,
)


async def batch_of(records: list[bytes | Record]) -> bytearray:
    written: Written = await in_turns(write_values_in_steps(records, now_ms=NOW_MS, values_of=list))
    batch = bytearray(batch_bytes(written.body))
    write_batch(memoryview(batch), written, written.body, 0, SequencedBy(7, 1, 5))
    return batch


@given(records=RECORDS)
async def test_records_are_read_as_they_were_written_by_whoever_reads_them(records: list[bytes | Record]) -> None:
    batch = await batch_of(records)
    header = parse_header(batch)
    verify(batch, header, where="here")
    found = read_records(batch, header, earliest_ms=0, latest_ms=2**63 - 1)
    (whole,) = cut(memoryview(batch))

    values = [Record(one) if isinstance(one, bytes) else one for one in records]
    times = [NOW_MS if one.timestamp_ms is None else one.timestamp_ms for one in values]
    assert list(read_values(whole.header, bytes(whole.body))) == [
        StoredRecord(one.value, one.key, one.headers, at_ms, offset=offset)
        for offset, (one, at_ms) in enumerate(zip(values, times, strict=True))
    ]
    assert found.greatest_ms == header.max_timestamp == max(times)


@given(records=RECORDS, data=st.data())
async def test_bytes_that_were_changed_are_corrupt_or_read(records: list[bytes | Record], data: st.DataObject) -> None:
    batch = await batch_of(records)
    (whole,) = cut(memoryview(batch))
    body = bytearray(whole.body)
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(body)))
    with contextlib.suppress(Corrupt):
        assert len(list(read_values(whole.header, bytes(body[:end])))) == len(records)
