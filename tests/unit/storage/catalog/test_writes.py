from storage.catalog.records import write_each
from storage.limits import WRITE_REQUEST_BYTES_MAX, WRITE_REQUEST_OPS_MAX
from storage.metadata.port import ABSENT, Delete, Key, OpResult, Put, Status, Unknown
from tests.kit.faulty_metadata import Fault, FaultyMetadata


def put(number: int, *, size_bytes: int = 1) -> Put:
    return Put(Key(f"llog/test/{number}", f"partition-{number}"), b"x" * size_bytes, ABSENT)


async def test_requests_keep_to_one_shard_and_to_the_bounds() -> None:
    metadata = FaultyMetadata()
    ops = [put(number, size_bytes=100 if number % 2 else 10_000) for number in range(5_000)]

    outcomes = await write_each(metadata, ops)

    assert all(isinstance(outcome, OpResult) and outcome.status is Status.OK for outcome in outcomes)
    for request in metadata.writes:
        puts = [op for op in request if isinstance(op, Put)]
        assert len(puts) == len(request) <= WRITE_REQUEST_OPS_MAX
        assert sum(len(op.value) for op in puts) <= WRITE_REQUEST_BYTES_MAX
        assert len({metadata.shard_of(op.key.partition_key) for op in puts}) == 1


async def test_outcomes_come_in_the_order_of_the_operations() -> None:
    metadata = FaultyMetadata()
    await metadata.write([put(3)])

    outcomes = await write_each(metadata, [put(number) for number in range(6)] + [Delete(put(9).key)])

    statuses = [outcome.status for outcome in outcomes if isinstance(outcome, OpResult)]
    ok = Status.OK
    assert statuses == [ok, ok, ok, Status.UNEXPECTED_VERSION, ok, ok, Status.KEY_NOT_FOUND]


async def test_a_lost_reply_concerns_the_operations_of_its_request_only() -> None:
    metadata = FaultyMetadata()
    metadata.faults[0] = Fault.REPLY_LOST

    outcomes = await write_each(metadata, [put(number) for number in range(8)])

    lost = {op.key for op in metadata.writes[0] if isinstance(op, Put)}
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, Unknown) == (put(number).key in lost)


async def test_nothing_to_write_is_nothing_sent() -> None:
    metadata = FaultyMetadata()

    assert await write_each(metadata, []) == []
    assert metadata.writes == []
