"""Batches that the HTTP API writes are such as the strictest consumers read, and what it reads is what was written."""

from hypothesis import given
from hypothesis import strategies as st

from broker.http.records import AnyRecord, JsonRecord, WantedRecords, read_in_steps
from storage.record_values import cut
from storage.recordbatch import parse_header, verify
from storage.records import decompress_records, read_records
from tests.kit.http_batches import NOW_MS, batch_of

TEXT = st.text(st.characters(codec="utf-8"), max_size=300)
RECORDS = st.one_of(
    TEXT,
    st.builds(
        JsonRecord,
        value=st.none() | TEXT,
        key=st.none() | TEXT,
        headers=st.none() | st.lists(st.tuples(TEXT, st.none() | TEXT), max_size=4),
        timestamp=st.none() | st.integers(0, 2**42),
    ),
)


@given(st.lists(RECORDS, min_size=1, max_size=40), st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]), st.integers(0, 50))
def test_what_is_written_is_read_back_from_any_offset(records: list[AnyRecord], codec: str, offset: int) -> None:
    batch = batch_of(records, codec)
    header = parse_header(batch)
    verify(batch, header, where="here")
    found = read_records(batch, header, earliest_ms=-(2**62), latest_ms=2**62)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 5)
    assert header.max_timestamp == found.greatest_ms

    wanted = WantedRecords(offset, bytes_left=2**40, records_left=1_000)
    (cut_batch,) = cut(memoryview(batch))
    body = bytes(decompress_records(cut_batch.body, cut_batch.codec))
    read = [record for part in read_in_steps(cut_batch.header, body, wanted) for record in part]

    expected = [JsonRecord(value=record) if isinstance(record, str) else record for record in records][offset:]
    assert [record.value for record in read] == [record.value for record in expected]
    assert [record.key for record in read] == [record.key for record in expected]
    assert [record.headers for record in read] == [list(record.headers or []) for record in expected]
    assert [record.timestamp for record in read] == [NOW_MS if one.timestamp is None else one.timestamp for one in expected]
    assert [record.offset for record in read] == list(range(offset, len(records)))
    assert wanted.taken == len(expected)
