import pytest

from broker.http.records import READ_HEADERS_MAX, JsonRecord, NotByHttp, WantedRecords, read_in_steps
from storage.errors import Corrupt
from storage.record_values import cut
from tests.kit.http_batches import batch_of
from tests.kit.record_batches import batch_of_records, record_batch


def test_a_record_of_very_many_headers_is_left_to_kafka_clients() -> None:
    for count in (READ_HEADERS_MAX, READ_HEADERS_MAX + 1):
        (batch,) = cut(memoryview(batch_of([JsonRecord(value="v", headers=[("h", None)] * count)])))
        reading = read_in_steps(batch.header, bytes(batch.body), WantedRecords(0, bytes_left=2**30, records_left=9))
        if count == READ_HEADERS_MAX:
            assert len(next(reading)[0].headers) == count
        else:
            with pytest.raises(NotByHttp, match="offset 0 has more than"):
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


def test_records_before_one_that_is_not_read_come_and_it_is_named_next() -> None:
    many = JsonRecord(value="v", headers=[("h", None)] * (READ_HEADERS_MAX + 1))
    (batch,) = cut(memoryview(batch_of(["a", "b", many, "c"])))
    wanted = WantedRecords(0, bytes_left=2**30, records_left=9)

    assert [record.value for part in read_in_steps(batch.header, bytes(batch.body), wanted) for record in part] == ["a", "b"]
    assert wanted.offset == 2

    wanted = WantedRecords(2, bytes_left=2**30, records_left=9)
    with pytest.raises(NotByHttp, match=r"offset 2 has more than .* go on at 3"):
        list(read_in_steps(batch.header, bytes(batch.body), wanted))
    wanted = WantedRecords(3, bytes_left=2**30, records_left=9)
    assert [record.value for part in read_in_steps(batch.header, bytes(batch.body), wanted) for record in part] == ["c"]


def test_a_step_ends_by_bytes_too() -> None:
    (batch,) = cut(memoryview(batch_of(["x" * 40_000] * 10)))
    wanted = WantedRecords(0, bytes_left=2**30, records_left=99)
    assert [len(part) for part in read_in_steps(batch.header, bytes(batch.body), wanted)] == [2] * 5
