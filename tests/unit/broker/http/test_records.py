import pytest

from broker.http.records import READ_HEADERS_MAX, JsonRecord, TooManyHeaders, WantedRecords, cut, read_in_steps
from storage.errors import Corrupt
from tests.kit.http_batches import batch_of
from tests.kit.record_batches import batch_of_records, record_batch


def test_a_record_of_very_many_headers_is_left_to_kafka_clients() -> None:
    for count in (READ_HEADERS_MAX, READ_HEADERS_MAX + 1):
        (batch,) = cut(memoryview(batch_of([JsonRecord(value="v", headers=[("h", None)] * count)])))
        reading = read_in_steps(batch.header, bytes(batch.body), WantedRecords(0, bytes_left=2**30, records_left=9))
        if count == READ_HEADERS_MAX:
            assert len(next(reading)[0].headers) == count
        else:
            with pytest.raises(TooManyHeaders, match="offset 0 has 10001 headers"):
                next(reading)


@pytest.mark.parametrize("body", [b"", b"\x02", b"\xff" * 11, b"\x10\x00\x00\x00\x01\x7e\x00\x00", b"\x0e\x00\x00\x00\x01\x01\x7e\x00"])
def test_records_that_are_none_are_corrupt(body: bytes) -> None:
    (batch,) = cut(memoryview(batch_of_records(body, 1)))
    with pytest.raises(Corrupt):
        list(read_in_steps(batch.header, bytes(batch.body), WantedRecords(0, bytes_left=2**30, records_left=9)))


@pytest.mark.parametrize("data", [b"x", b"x" * 61, record_batch(magic=1), record_batch()[:-1], record_batch(batch_length=2**31 - 1)])
def test_what_is_no_batch_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        list(cut(memoryview(data)))
