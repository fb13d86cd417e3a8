import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from broker.delayed_fetch import Wait
from broker.handlers.log import fetch as fetch_module
from broker.handlers.log.fetch import PINNED_BYTES_MAX
from broker.limits import FetchLimits
from broker.protocol.fetch import PARTITIONS_PER_STEP, FetchedPartition, FetchResponse
from broker.responses import Responses
from runtime.clock import SystemClock
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.errors import Unavailable
from storage.formats.manifest import LogState, encode
from storage.limits import FETCH_RESPONSE_BYTES_MAX, KIB, MIB
from storage.log.partition import PartitionLog
from storage.log.reader import Reader
from storage.log.scan import BatchRun
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, Put
from storage.recordbatch import parse_header
from storage.vocabulary import PartitionId
from tests.kit.record_batches import record_batch
from tests.unit.broker.handlers.logged import (
    Node,
    Stores,
    asking,
    batches_of,
    fetch_request,
    node,
    nodes,
    offsets_of,
    produce_request,
)
from tests.unit.process.http.manual_clock import ManualClock

LONG_MS = 120_000
SOON_S = 25.0
clock = SystemClock()


async def filled(broker: Node, *batches: bytearray, topic: str = "t", partition_count: int = 1) -> None:
    await broker.create(topic, partition_count=partition_count)
    for batch in batches:
        (result,) = await broker.send((topic, 0, batch))
        assert result.error_code == 0


async def trimmed(broker: Node, topic: str, log_start: int) -> None:
    """Retention has moved the start of partition 0, told by the manifest."""
    found = (await broker.topics.lookup([topic]))[topic]
    manifest = await broker.log.manifest(found.partition(0))
    moved = type(manifest)(**{**{name: getattr(manifest, name) for name in manifest.__struct_fields__}, "log_start": log_start})
    outcome = await broker.log.shared.write([Put(PartitionKeys(found.partition(0)).manifest, encode(moved), None)])
    assert isinstance(outcome, Applied)


def code(answer: FetchedPartition) -> ErrorCode:
    return ErrorCode(answer.error_code)


@pytest.fixture
async def broker() -> AsyncIterator[Node]:
    async with node() as made:
        yield made


async def test_batches_come_whole_with_their_offsets_and_the_bounds_of_the_log(broker: Node) -> None:
    await filled(broker, record_batch(b"a", b"b", b"c"), record_batch(b"d"))
    answer = await broker.read_one(asking("t"))

    assert [parse_header(batch).base_offset for batch in batches_of(answer)] == [0, 3]
    assert answer[:8] == ("t", 0, 0, 4, 4, 0, None, -1)


async def test_a_read_in_the_middle_of_a_batch_gets_the_whole_batch(broker: Node) -> None:
    await filled(broker, record_batch(b"a"), record_batch(b"b", b"c", b"d"))
    answer = await broker.read_one(asking("t", offset=2))

    assert offsets_of(answer) == [1, 2, 3]


async def test_at_the_end_there_is_nothing_and_no_error(broker: Node) -> None:
    await filled(broker, record_batch(b"a"))
    answer = await broker.read_one(asking("t", offset=1))

    assert code(answer) is ErrorCode.none
    assert (answer.records, answer.high_watermark, answer.log_start_offset) == ([], 1, 0)


@pytest.mark.parametrize("offset", [-1, -(2**63), 3, 2**63 - 1])
async def test_an_offset_out_of_range_is_told_with_the_bounds(broker: Node, offset: int) -> None:
    await filled(broker, record_batch(b"a", b"b"))
    answer = await broker.read_one(asking("t", offset=offset), max_wait_ms=LONG_MS)

    assert answer == FetchedPartition("t", 0, ErrorCode.offset_out_of_range, 2, 2, 0)


async def test_an_offset_below_the_start_is_told_with_the_bounds_also_when_the_start_moved_unheard() -> None:
    async with node(is_deaf=True) as broker:
        await filled(broker, record_batch(b"a"), record_batch(b"b"), record_batch(b"c"))
        await trimmed(broker, "t", 2)
        await broker.read_one(asking("t", offset=3))
        at_start = await broker.read_one(asking("t", offset=2))
        await trimmed(broker, "t", 3)
        below = await broker.read_one(asking("t", offset=1))

        assert offsets_of(at_start) == [2]
        assert below == FetchedPartition("t", 0, ErrorCode.offset_out_of_range, 3, 3, 3), "a refusal is never given from memory"
        assert at_start.log_start_offset == 2


async def test_what_was_deleted_through_another_broker_is_not_served_from_memory_once_that_is_heard_of() -> None:
    async with node(is_deaf=True) as broker:
        await filled(broker, record_batch(b"a"), record_batch(b"b"), record_batch(b"c"))
        await trimmed(broker, "t", 2)
        seen = broker.log_of((await broker.topics.lookup(["t"]))["t"]).seen
        seen.note_hint(seen.version + 1, 0.0)
        below = await broker.read_one(asking("t", offset=1))

        assert below == FetchedPartition("t", 0, ErrorCode.offset_out_of_range, 3, 3, 2)


async def test_a_partition_deleted_while_it_is_read_is_told_and_its_neighbours_are_answered(
    broker: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(broker, record_batch(b"a"), partition_count=2)
    cached = Reader.cached

    def delete_and_read(reader: Reader, log: PartitionLog, offset: int) -> BatchRun | None:
        run = cached(reader, log, offset)
        assert log.seen.manifest is not None
        log.observe(msgspec.structs.replace(log.seen.manifest, log_state=LogState.DELETED), log.seen.version + 1)
        return run

    monkeypatch.setattr(Reader, "cached", delete_and_read)
    answer = await broker.read(asking("t"), asking("t", 1))

    assert [code(one) for one in answer.partitions] == [ErrorCode.unknown_topic_or_partition, ErrorCode.none]


async def test_the_end_is_read_anew_so_that_nothing_another_broker_acknowledged_is_missed() -> None:
    stores = Stores()
    async with node(stores, is_deaf=True) as broker, node(stores, epoch=8) as other:
        await filled(broker, record_batch(b"a"))
        await other.send(("t", 0, record_batch(b"b")))
        at_the_known_end = await broker.read_one(asking("t", offset=1))
        await other.send(("t", 0, record_batch(b"c")))
        beyond_it = await broker.read_one(asking("t", offset=3))

        assert offsets_of(at_the_known_end) == [1]
        assert (code(beyond_it), beyond_it.high_watermark) == (ErrorCode.none, 3)


async def test_what_another_broker_wrote_is_read_from_the_object_store() -> None:
    async with nodes(2) as (broker, other):
        await filled(other, *[record_batch(str(number).encode() * 1000) for number in range(40)])
        answer = await broker.read_one(asking("t"))

        assert offsets_of(answer) == list(range(40))


async def test_the_first_batch_comes_even_if_it_is_larger_than_asked_for(broker: Node) -> None:
    await filled(broker, record_batch(b"x" * 5000), record_batch(b"y"))
    by_partition = await broker.read_one(asking("t", max_bytes=100))
    by_request = await broker.read_one(asking("t"), max_bytes=1)
    by_neither = await broker.read_one(asking("t", max_bytes=0), max_bytes=0)

    assert [offsets_of(answer) for answer in (by_partition, by_request, by_neither)] == [[0]] * 3


async def test_only_the_first_partition_with_records_may_exceed_the_limit(broker: Node) -> None:
    await filled(broker, record_batch(b"x" * 5000))
    await filled(broker, record_batch(b"y" * 5000), topic="u")
    await broker.create("empty")
    response = await broker.read(asking("empty"), asking("t", max_bytes=100), asking("u", max_bytes=100))

    assert [offsets_of(answer) for answer in response.partitions] == [[], [0], []]
    assert [answer.high_watermark for answer in response.partitions] == [0, 1, 1]


async def test_limits_cut_between_batches(broker: Node) -> None:
    batches = [record_batch(bytes(1000)) for _ in range(10)]
    size = len(batches[0])
    await filled(broker, *batches)
    exactly = await broker.read_one(asking("t", max_bytes=3 * size))
    one_less = await broker.read_one(asking("t", max_bytes=3 * size - 1))
    of_request = await broker.read_one(asking("t"), max_bytes=4 * size)

    assert [len(offsets_of(answer)) for answer in (exactly, one_less, of_request)] == [3, 2, 4]


async def test_the_limit_of_the_request_is_shared_by_its_partitions(broker: Node) -> None:
    size = len(record_batch(bytes(1000)))
    await broker.create("t", partition_count=3)
    for partition in range(3):
        for _ in range(4):
            await broker.send(("t", partition, record_batch(bytes(1000))))
    response = await broker.read(*[asking("t", partition) for partition in range(3)], max_bytes=6 * size)

    assert [len(offsets_of(answer)) for answer in response.partitions] == [4, 2, 0]


async def test_a_partition_for_which_others_left_a_few_bytes_while_they_were_read_is_answered_when_they_need_less() -> None:
    """A reader of many partitions with the clients' default of 1 MiB each, who was granted what one batch may take."""
    async with nodes(2) as (broker, other):
        await broker.create("t", partition_count=3)
        for partition in range(3):
            await other.send(("t", partition, record_batch(b"a")))
        response = await broker.read(*[asking("t", partition, max_bytes=MIB) for partition in range(3)], max_bytes=MIB + 12)

        assert [offsets_of(answer) for answer in response.partitions] == [[0], [0], [0]]


async def test_a_response_has_a_limit_of_its_own(broker: Node) -> None:
    await filled(broker, *[record_batch(bytes(MIB - 100)) for _ in range(12)])
    response = await broker.read(asking("t", max_bytes=1 << 30), max_bytes=1 << 30)
    size = sum(map(len, response.partitions[0].records))

    assert FETCH_RESPONSE_BYTES_MAX - MIB < size <= FETCH_RESPONSE_BYTES_MAX


async def test_a_response_reads_a_bounded_number_of_objects() -> None:
    async with nodes(2, fetch_limits=FetchLimits(stored_runs_max=3)) as (broker, other):
        await filled(other, *[record_batch(str(number).encode()) for number in range(10)])
        first = await broker.read_one(asking("t"), max_wait_ms=LONG_MS, min_bytes=1 << 20)
        second = await broker.read_one(asking("t", offset=3))

        assert offsets_of(first) == [0, 1, 2]
        assert offsets_of(second) == [3, 4, 5]


async def test_what_was_read_before_an_error_is_answered_and_the_error_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(2) as (broker, other):
        await filled(other, record_batch(b"a"), record_batch(b"b"))
        stored = Reader.stored_within

        async def failing(self: Reader, log: object, offset: int, **options: int) -> object:
            if offset == 1:
                raise Unavailable("gone for a moment")
            return await stored(self, log, offset, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Reader, "stored_within", failing)
        first, second = await broker.read_one(asking("t")), await broker.read_one(asking("t", offset=1))

        assert offsets_of(first) == [0]
        assert code(second) is ErrorCode.kafka_storage_error


async def test_a_long_poll_is_answered_as_soon_as_there_is_a_record(broker: Node) -> None:
    await broker.create("t")
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        reading = group.create_task(broker.read_one(asking("t"), max_wait_ms=LONG_MS))
        await asyncio.sleep(0.01)
        await broker.send(("t", 0, record_batch(b"a")))

    assert offsets_of(reading.result()) == [0]


@pytest.mark.parametrize("is_deaf", [False, True], ids=["by hints", "by asking"])
async def test_a_long_poll_hears_of_what_another_broker_commits(is_deaf: bool) -> None:
    stores = Stores()
    async with node(stores, is_deaf=is_deaf) as broker, node(stores, epoch=8) as other:
        await broker.create("t")
        async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
            reading = group.create_task(broker.read_one(asking("t"), max_wait_ms=LONG_MS))
            await asyncio.sleep(0.01)
            await other.send(("t", 0, record_batch(b"a")))

        assert offsets_of(reading.result()) == [0]


async def test_a_long_poll_waits_for_min_bytes_over_all_partitions(broker: Node) -> None:
    size = len(record_batch(bytes(1000)))
    await broker.create("t", partition_count=2)
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        reading = group.create_task(broker.read(asking("t", 0), asking("t", 1), max_wait_ms=LONG_MS, min_bytes=3 * size))
        for partition in (0, 1):
            await broker.send(("t", partition, record_batch(bytes(1000))))
        await asyncio.sleep(0.05)
        is_early = reading.done()
        await broker.send(("t", 0, record_batch(bytes(1000))))

    assert not is_early
    assert [offsets_of(answer) for answer in reading.result().partitions] == [[0, 1], [0]]


async def test_a_long_poll_ends_when_its_time_is_over_with_what_there_is(broker: Node) -> None:
    await filled(broker, record_batch(b"a"))
    began_s = clock.monotonic_s()
    answer = await broker.read_one(asking("t"), max_wait_ms=60, min_bytes=1 << 20)
    took_s = clock.monotonic_s() - began_s

    assert offsets_of(answer) == [0]
    assert 0.06 <= took_s < SOON_S


async def test_who_waits_is_answered_at_once_with_what_there_is_when_the_broker_stops(broker: Node) -> None:
    await filled(broker, record_batch(b"a"))
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        reading = group.create_task(broker.read_one(asking("t"), max_wait_ms=LONG_MS, min_bytes=1 << 20))
        await asyncio.sleep(0.01)
        waited = not reading.done()
        broker.waiters.stop()
    async with asyncio.timeout(SOON_S):
        late = await broker.read_one(asking("t", 0, 1), max_wait_ms=LONG_MS, min_bytes=1 << 20)

    assert waited
    assert offsets_of(reading.result()) == [0]
    assert offsets_of(late) == []


async def test_a_partition_that_moved_while_waiting_may_use_the_whole_limit(broker: Node) -> None:
    size = len(record_batch(bytes(1000)))
    await filled(broker, record_batch(bytes(1000)), record_batch(bytes(1000)))
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        reading = group.create_task(broker.read_one(asking("t"), max_wait_ms=LONG_MS, min_bytes=4 * size, max_bytes=4 * size))
        await asyncio.sleep(0.01)
        for _ in range(2):
            await broker.send(("t", 0, record_batch(bytes(1000))))

    assert offsets_of(reading.result()) == [0, 1, 2, 3]


async def test_a_commit_between_the_first_look_and_the_wait_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(2) as (broker, other):
        await broker.create("t")
        await filled(other, record_batch(b"u"), topic="u")
        stored = Reader.stored_within

        async def overtaken(self: Reader, log: object, offset: int, **options: int) -> object:
            await broker.send(("t", 0, record_batch(b"t")))
            return await stored(self, log, offset, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Reader, "stored_within", overtaken)
        async with asyncio.timeout(SOON_S):
            response = await broker.read(asking("t"), asking("u"), max_wait_ms=LONG_MS, min_bytes=2 * len(record_batch(b"u")))

        assert [offsets_of(answer) for answer in response.partitions] == [[0], [0]]


class Followed:
    """A connection; `follow` when another request has come by it."""

    client_id, client_host, listener = "app", "10.0.0.1", "PLAINTEXT"

    def __init__(self, *, is_followed: bool = False) -> None:
        self.call: Callable[[], None] | None = None
        self._is_followed = is_followed

    def when_followed(self, call: Callable[[], None] | None) -> None:
        self.call = call
        if call is not None and self._is_followed:
            call()

    def follow(self) -> None:
        assert self.call is not None
        self.call()


async def test_a_long_poll_ends_with_what_there_is_when_another_request_waits_behind_it(broker: Node) -> None:
    await filled(broker, record_batch(b"a"))
    request = fetch_request(asking("t"), max_wait_ms=LONG_MS, min_bytes=1 << 20)
    later, before = Followed(), Followed(is_followed=True)
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        reading = group.create_task(broker.fetch.handle(request, version=12, client=later))
        while later.call is None:  # noqa: ASYNC110 - it tells nobody that it waits
            await asyncio.sleep(0)
        waited = not reading.done()
        later.follow()
    async with asyncio.timeout(SOON_S):
        at_once = await broker.fetch.handle(request, version=12, client=before)

    assert waited
    assert [offsets_of(answer) for answer in (*reading.result().partitions, *at_once.partitions)] == [[0], [0]]
    assert [later.call, before.call] == [None, None], "nobody tells a fetch that is answered"


async def test_a_long_poll_of_many_partitions_ends_when_another_request_waits_behind_it(broker: Node) -> None:
    count = PARTITIONS_PER_STEP + 1
    await filled(broker, record_batch(b"a"), partition_count=count)
    request = fetch_request(*[asking("t", partition) for partition in range(count)], max_wait_ms=LONG_MS, min_bytes=1 << 20)
    async with asyncio.timeout(SOON_S):
        answer = await broker.fetch.handle(request, version=12, client=Followed(is_followed=True))

    assert offsets_of(answer.partitions[0]) == [0]


async def test_a_request_behind_a_long_poll_does_not_make_it_answer_less_than_others_were_acknowledged() -> None:
    async with nodes(2, is_deaf=True) as (one, other):
        await one.create("t")
        assert offsets_of(await one.read_one(asking("t"))) == []
        await other.send(("t", 0, record_batch(b"a")))
        request = fetch_request(asking("t"), max_wait_ms=LONG_MS)
        async with asyncio.timeout(SOON_S):
            answer = await one.fetch.handle(request, version=12, client=Followed(is_followed=True))

    assert offsets_of(answer.partitions[0]) == [0]


@pytest.mark.parametrize("max_wait_ms", [0, -1])
async def test_who_does_not_want_to_wait_does_not(broker: Node, max_wait_ms: int) -> None:
    await broker.create("t")
    async with asyncio.timeout(SOON_S):
        answer = await broker.read_one(asking("t"), max_wait_ms=max_wait_ms, min_bytes=1 << 20)

    assert code(answer) is ErrorCode.none


async def test_nobody_waits_when_a_partition_has_more_than_fits(broker: Node) -> None:
    await filled(broker, record_batch(bytes(1000)), record_batch(bytes(1000)))
    async with asyncio.timeout(SOON_S):
        answer = await broker.read_one(asking("t", max_bytes=1500), max_wait_ms=LONG_MS, min_bytes=1 << 30)

    assert offsets_of(answer) == [0]


async def test_who_wants_more_than_it_takes_does_not_wait_for_it(broker: Node) -> None:
    await filled(broker, record_batch(b"a"))
    async with asyncio.timeout(SOON_S):
        answer = await broker.read_one(asking("t"), max_wait_ms=LONG_MS, min_bytes=10_000, max_bytes=10)

    assert answer.records


async def test_nobody_waits_beside_an_error(broker: Node) -> None:
    await broker.create("t")
    async with asyncio.timeout(SOON_S):
        response = await broker.read(asking("t"), asking("nope"), max_wait_ms=LONG_MS)

    assert [code(answer) for answer in response.partitions] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]


async def test_an_error_that_comes_while_waiting_ends_the_wait(broker: Node) -> None:
    await filled(broker, record_batch(b"a"))
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        reading = group.create_task(broker.read_one(asking("t"), max_wait_ms=LONG_MS, min_bytes=1 << 20))
        await asyncio.sleep(0.01)
        await trimmed(broker, "t", 1)

    assert reading.result() == FetchedPartition("t", 0, ErrorCode.offset_out_of_range, 1, 1, 1)


async def test_a_fetch_of_nothing_is_answered_at_once(broker: Node) -> None:
    async with asyncio.timeout(SOON_S):
        assert await broker.read(max_wait_ms=LONG_MS) == FetchResponse([])


async def test_partitions_that_did_not_move_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    async with nodes(2) as (broker, other):
        await filled(other, record_batch(b"a"))
        await other.create("u")
        stored = Reader.stored_within

        async def counted(self: Reader, log: object, offset: int, **options: int) -> object:
            read.append(offset)
            return await stored(self, log, offset, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Reader, "stored_within", counted)
        async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
            reading = group.create_task(broker.read(asking("t"), asking("u"), max_wait_ms=LONG_MS, min_bytes=300))
            await asyncio.sleep(0.05)
            for _ in range(4):
                await broker.send(("u", 0, record_batch(b"b")))

        assert [offsets_of(answer) for answer in reading.result().partitions] == [[0], [0, 1, 2, 3]]
        assert read == [0]


async def test_topics_are_named_by_id_from_v13_on(broker: Node) -> None:
    await filled(broker, record_batch(b"a"))
    topic = (await broker.topics.lookup(["t"]))["t"]
    nobody = "11111111-1111-4111-8111-111111111111"
    response = await broker.read(asking(topic.topic_id), asking(nobody), asking(topic.topic_id, 5), version=13)

    assert [answer.topic for answer in response.partitions] == [topic.topic_id, nobody, topic.topic_id]
    assert offsets_of(response.partitions[0]) == [0]
    assert [code(answer) for answer in response.partitions] == [
        ErrorCode.none,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    ]


async def test_a_topic_that_another_broker_made_is_found_by_name_and_by_id() -> None:
    async with nodes(2) as (broker, other):
        topic = await other.create("t")
        by_name, by_id = await broker.read_one(asking("t")), await broker.read_one(asking(topic.topic_id), version=17)

        assert code(by_name) is ErrorCode.none
        assert code(by_id) is ErrorCode.none


async def test_a_topic_that_was_deleted_is_unknown_and_forgotten() -> None:
    stores = Stores()
    async with node(stores, is_deaf=True) as broker, node(stores, epoch=8) as other:
        topic = await broker.create("t")
        await other.topics.delete(topic)
        first = await broker.read_one(asking("t"))

        assert code(first) is ErrorCode.unknown_topic_or_partition
        assert broker.topics.find("t") is None


async def test_readers_of_committed_records_get_a_list_of_aborted_transactions_others_null(broker: Node) -> None:
    await filled(broker, record_batch(b"a"))
    committed = await broker.read_one(asking("t"), isolation_level=1)
    uncommitted = await broker.read_one(asking("t"), isolation_level=0)

    assert (committed.aborted_transactions, committed.last_stable_offset) == ((), 1)
    assert uncommitted.aborted_transactions is None


async def test_a_session_is_not_found_as_there_are_none(broker: Node) -> None:
    await filled(broker, record_batch(b"a"))
    with_session = await broker.read(asking("t"), session_id=5, session_epoch=1)
    going_on = await broker.read(asking("t"), session_id=0, session_epoch=3)
    wanting_one = await broker.read(asking("t"), session_id=0, session_epoch=0)
    closing_one = await broker.read(asking("t"), session_id=5, session_epoch=-1)

    assert with_session == going_on == FetchResponse((), error_code=ErrorCode.fetch_session_id_not_found)
    assert wanting_one.session_id == closing_one.session_id == 0
    assert len(wanting_one.partitions) == len(closing_one.partitions) == 1
    assert offsets_of(wanting_one.partitions[0]) == [0]


@pytest.mark.parametrize("version", [4, 9, 10])
async def test_zstd_is_answered_in_every_version_as_kafka_4_does(broker: Node, version: int) -> None:
    await filled(broker, record_batch(b"a", codec=3), record_batch(b"b", codec=4), record_batch(b"c"))
    answer = await broker.read_one(asking("t"), version=version)

    assert (code(answer), offsets_of(answer)) == (ErrorCode.none, [0, 1, 2])


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, ErrorCode.none), (0, ErrorCode.none), (1, ErrorCode.unknown_leader_epoch), (9, ErrorCode.unknown_leader_epoch)],
)
async def test_the_only_leader_epoch_is_zero(broker: Node, epoch: int, expected: ErrorCode) -> None:
    await broker.create("t")

    assert code(await broker.read_one(asking("t", leader_epoch=epoch))) is expected


async def test_metadata_that_does_not_answer_is_an_error_that_clients_repeat(broker: Node) -> None:
    await filled(broker, record_batch(b"a"))
    await broker.topics.lookup(["t"])
    broker.log.metadata.reads_fail = True
    at_the_end = await broker.read_one(asking("t", offset=1))
    below = await broker.read_one(asking("t"))
    unknown = await broker.read_one(asking("u"))

    assert code(at_the_end) is ErrorCode.kafka_storage_error
    assert offsets_of(below) == [0]
    assert code(unknown) is ErrorCode.kafka_storage_error


async def test_a_small_part_of_a_large_request_does_not_keep_it_alive(broker: Node) -> None:
    await broker.create("t")
    frames = 16
    for _ in range(frames):
        frame = bytearray(MIB)
        batch = record_batch(bytes(80 * KIB))
        frame[: len(batch)] = batch
        request = produce_request(("t", 0, b""))
        request.partitions[0] = request.partitions[0]._replace(records=memoryview(frame)[: len(batch)])
        done: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()
        broker.produce.start(request, await broker.topics.lookup(["t"]), version=9, source=broker, done=done.set_result)  # type: ignore[arg-type]
        await done
    few = await broker.read_one(asking("t", max_bytes=5 * 81 * KIB))
    all_of_them = await broker.read_one(asking("t", max_bytes=4 * MIB))

    assert len(offsets_of(few)) == 5
    assert [memoryview(view).nbytes for view in few.records] != [_kept_alive(view) for view in few.records]
    assert offsets_of(all_of_them) == list(range(frames))
    assert frames * MIB > PINNED_BYTES_MAX
    kept_bytes = {id(memoryview(view).obj): _kept_alive(view) for view in all_of_them.records}
    assert PINNED_BYTES_MAX - MIB < sum(kept_bytes.values()) <= PINNED_BYTES_MAX, "no more is copied than has to be"
    for view in all_of_them.records:
        kept = _kept_alive(view)
        assert kept == MIB or kept <= memoryview(view).nbytes + KIB, "it is in its frame, or in memory of its own"


def test_of_an_answer_the_smallest_parts_are_copied_and_what_is_sent_almost_whole_never_is() -> None:
    memory = [memoryview(bytearray(1_000)) for _ in range(4)]
    sent = [[memory[0][:10], memory[1][:876]], [memory[2][:500], memory[0][20:30]], [memory[3]]]

    def copied(pinned_bytes_max: int) -> tuple[list[bool], int]:
        wanted = [fetch_module.FetchPartitionStatus(cast("Any", None), 0, 0) for _ in sent]
        for one, views in zip(wanted, sent, strict=True):
            one.buffers = list(views)
        pinned_bytes = fetch_module._copy_parts(wanted, pinned_bytes_max=pinned_bytes_max)
        found = [view for one in wanted for view in one.buffers]
        given = [view for views in sent for view in views]
        assert [bytes(view) for view in found] == [bytes(view) for view in given]
        assert pinned_bytes == sum({id(view.obj): memoryview(view.obj).nbytes for view in found}.values())
        return [view.obj is not original.obj for view, original in zip(found, given, strict=True)], pinned_bytes

    assert copied(4_000) == ([False] * 5, 4_000)
    assert copied(3_999) == ([True, False, False, True, False], 3_020)
    assert copied(3_019) == copied(0) == ([True, False, True, True, False], 2_520)


async def test_with_too_many_partitions_under_way_nobody_waits_and_then_nobody_is_served() -> None:
    async with node(fetch_limits=FetchLimits(partitions_waiting_max=3)) as broker:
        await broker.create("t", partition_count=6)
        asked = [asking("t", partition) for partition in range(6)]
        async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
            waiting = group.create_task(broker.read(*asked[:3], max_wait_ms=LONG_MS))
            await asyncio.sleep(0.01)
            without_a_wait = await broker.read(*asked[3:], max_wait_ms=LONG_MS)
            with pytest.raises(Unavailable, match="too many partitions are being fetched"):
                await broker.read(*asked[:4])
            await broker.send(("t", 0, record_batch(b"a")))
        at_last = await broker.read(*asked)

        assert len(without_a_wait.partitions) == 3
        assert offsets_of(waiting.result().partitions[0]) == [0]
        assert len(at_last.partitions) == 6


async def test_while_partitions_that_somebody_waits_for_take_too_much_memory_nobody_waits_for_more(
    broker: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.create("t", partition_count=2)
    monkeypatch.setattr(type(broker.log.parts.partitions), "is_crowded", True)
    async with asyncio.timeout(SOON_S):
        answer = await broker.read_one(asking("t"), max_wait_ms=LONG_MS)

    assert (code(answer), answer.high_watermark) == (ErrorCode.none, 0)


async def test_no_wait_is_longer_than_five_minutes() -> None:
    async with node(fetch_limits=FetchLimits(fetch_wait_s_max=0.02)) as broker, asyncio.timeout(SOON_S):
        await broker.create("t")
        answer = await broker.read_one(asking("t"), max_wait_ms=2**31 - 1)

    assert code(answer) is ErrorCode.none


async def test_a_reader_that_gives_up_leaves_nothing_behind(broker: Node) -> None:
    topic = await broker.create("t")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await broker.fetch.handle(fetch_request(asking("t"), max_wait_ms=LONG_MS), version=12)

    assert not broker.log_of(topic).readers.wakers
    assert not broker.waiters._waited.shards
    assert broker.fetch._partitions_under_way == 0


def _kept_alive(view: object) -> int:
    whole = view.obj if isinstance(view, memoryview) else view
    return memoryview(whole).nbytes  # type: ignore[arg-type]


class FakeReplicas:
    """Odd partitions are near broker 7, even ones are nowhere nearer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, object]] = []
        self.leaves_reading = False

    def sends_away(self, _reader: object) -> bool:
        return self.leaves_reading

    async def near(self, rack: str, reader: object) -> Callable[[PartitionId], int | None]:
        self.asked.append((rack, reader))
        return lambda partition: 7 if partition.partition % 2 else None


async def test_a_reader_of_another_rack_is_told_who_is_near_at_once_and_gets_the_rest_here() -> None:
    replicas, reader = FakeReplicas(), object()
    async with node(replicas=replicas) as broker:
        await broker.create("t", partition_count=4)
        for partition in range(4):
            await broker.send(("t", partition, record_batch(b"a", b"b")))
        asked = [asking("t", partition) for partition in range(4)]
        request = fetch_request(*asked, max_wait_ms=LONG_MS, min_bytes=1 << 20, rack="b")
        async with asyncio.timeout(SOON_S):
            response = await broker.fetch.handle(request, version=11, client=reader)  # type: ignore[arg-type]

    assert replicas.asked == [("b", reader)]
    assert [(code(answer), answer.preferred_read_replica, answer.high_watermark) for answer in response.partitions] == [
        (ErrorCode.none, -1, 2),
        (ErrorCode.none, 7, 2),
        (ErrorCode.none, -1, 2),
        (ErrorCode.none, 7, 2),
    ]
    assert [offsets_of(answer) for answer in response.partitions] == [[0, 1], [], [0, 1], []]


async def test_what_no_broker_can_serve_sends_a_reader_nowhere() -> None:
    async with node(replicas=FakeReplicas()) as broker:
        await broker.create("t", partition_count=2)
        response = await broker.fetch.handle(
            fetch_request(asking("t", 1, offset=5), asking("t", 9), asking("other", 1), rack="b"),
            version=11,
            client=Followed(),
        )

    assert [(code(answer), answer.preferred_read_replica) for answer in response.partitions] == [
        (ErrorCode.offset_out_of_range, -1),
        (ErrorCode.unknown_topic_or_partition, -1),
        (ErrorCode.unknown_topic_or_partition, -1),
    ]


async def test_a_reader_without_a_rack_is_served_here() -> None:
    replicas = FakeReplicas()
    async with node(replicas=replicas) as broker:
        await broker.create("t", partition_count=2)
        await broker.send(("t", 1, record_batch(b"a")))
        response = await broker.fetch.handle(fetch_request(asking("t", 1)), version=11, client=object())  # type: ignore[arg-type]

    assert not replicas.asked
    assert [offsets_of(answer) for answer in response.partitions] == [[0]]


async def test_a_reader_without_a_rack_is_sent_on_by_a_broker_that_leaves_reading_to_others_if_its_version_can_say_so() -> None:
    replicas, reader = FakeReplicas(), object()
    replicas.leaves_reading = True
    async with node(replicas=replicas) as broker:
        await broker.create("t", partition_count=2)
        await broker.send(("t", 1, record_batch(b"a")))
        old, new = [
            (await broker.fetch.handle(fetch_request(asking("t", 1)), version=version, client=reader)).partitions  # type: ignore[arg-type]
            for version in (10, 11)
        ]

    assert replicas.asked == [("", reader)]
    assert [(offsets_of(one), one.preferred_read_replica) for one in (*old, *new)] == [([0], -1), ([], 7)]


async def test_a_name_that_another_incarnation_has_by_now_is_read_from_that_one_though_no_hint_told_of_it() -> None:
    stores = Stores()
    async with node(stores) as writer, node(stores, epoch=8, is_deaf=True) as reader:
        await filled(writer, record_batch(b"a"))
        await writer.create("beside")
        await writer.send(("beside", 0, record_batch(b"x")))
        assert offsets_of(await reader.read_one(asking("t"))) == [0]
        old = (await writer.topics.lookup(["t"]))["t"]
        await writer.topics.delete(old)
        await filled(writer, record_batch(b"b"), record_batch(b"c"))

        assert reader.topics.find("t") == old
        answers = (await reader.read(asking("beside"), asking("t", offset=1))).partitions
        assert [offsets_of(answer) for answer in answers] == [[0], [1]]
        assert batches_of(answers[1])[0].endswith(bytes(record_batch(b"c"))[61:])


async def test_what_a_fetch_waited_for_its_topics_is_not_waited_for_once_more(broker: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(broker, record_batch(b"a"))
    await broker.read_one(asking("t"))
    slow = ManualClock()
    resolve = broker.fetch._resolve

    async def slowly(*asked: Any) -> Any:
        slow.advance(2 * LONG_MS / 1_000)
        return await resolve(*asked)

    monkeypatch.setattr(broker.fetch, "_clock", slow)
    monkeypatch.setattr(broker.fetch, "_resolve", slowly)
    budget = Responses(bytes_max=64 * MIB, telemetry=Telemetry(), soon=asyncio.get_running_loop().call_soon)
    async with asyncio.timeout(SOON_S):
        asked = fetch_request(asking("t"), max_wait_ms=LONG_MS, min_bytes=MIB)
        response = await broker.fetch.handle(asked, version=12, room=budget.room())

    assert [offsets_of(answer) for answer in response.partitions] == [[0]]


async def test_a_reader_that_tastes_does_not_wait_for_itself_when_a_name_has_another_incarnation() -> None:
    stores = Stores()
    budget = Responses(bytes_max=1, telemetry=Telemetry(), soon=asyncio.get_running_loop().call_soon)
    async with node(stores) as writer, node(stores, epoch=8, is_deaf=True) as reader:
        await filled(writer, record_batch(b"a"))
        await filled(writer, record_batch(b"x"), topic="beside")
        await reader.read(asking("t"), asking("beside"))
        await writer.topics.delete((await writer.topics.lookup(["t"]))["t"])
        await filled(writer, record_batch(b"b"), record_batch(b"c"))

        budget.held_bytes = 1_000 * MIB
        room = budget.room()
        asked = fetch_request(asking("beside"), asking("t", offset=1))
        async with asyncio.timeout(SOON_S):
            response = await reader.fetch.handle(asked, version=12, room=room)
        room.give_back()

        assert [offsets_of(answer) for answer in response.partitions] == [[0], [1]]
        assert budget.held_bytes == 1_000 * MIB


async def test_without_room_little_is_answered_at_once_whatever_was_to_be_waited_for_and_much_when_there_is_room() -> None:
    budget = Responses(bytes_max=1, telemetry=Telemetry(), soon=asyncio.get_running_loop().call_soon)
    async with node() as broker, asyncio.timeout(SOON_S):
        await filled(broker, record_batch(b"a"))
        await filled(broker, record_batch(bytes(500_000)), topic="large")
        budget.held_bytes = others_bytes = 1_000 * MIB
        little_room, large_room = budget.room(), budget.room()
        asked = fetch_request(asking("t"), max_wait_ms=LONG_MS, min_bytes=MIB)
        little = await broker.fetch.handle(asked, version=12, room=little_room)
        little_bytes = budget.held_bytes - others_bytes
        asked = fetch_request(asking("large"), max_wait_ms=LONG_MS)
        much = asyncio.get_running_loop().create_task(broker.fetch.handle(asked, version=12, room=large_room))
        while not budget.is_short:  # noqa: ASYNC110 - nothing else tells that it waits
            await asyncio.sleep(0)
        held_bytes = budget.held_bytes
        little_room.give_back()
        budget.change(-others_bytes)
        large = await much
        large_bytes = budget.held_bytes
        large_room.give_back()

        assert [offsets_of(answer) for answer in little.partitions] == [[0]]
        assert little_bytes > 0
        assert held_bytes == others_bytes + little_bytes, "what was tasted of the other is let go"
        assert [offsets_of(answer) for answer in large.partitions] == [[0]]
        assert large_bytes >= 500_000


async def test_a_name_that_nobody_has_any_more_is_unknown_though_no_hint_told_of_it() -> None:
    stores = Stores()
    async with node(stores) as writer, node(stores, epoch=8, is_deaf=True) as reader:
        await filled(writer, record_batch(b"a"))
        await reader.read_one(asking("t"))
        await writer.topics.delete((await writer.topics.lookup(["t"]))["t"])

        assert code(await reader.read_one(asking("t", offset=1), max_wait_ms=LONG_MS)) is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", [13, 17])
async def test_an_id_that_is_cached_but_dead_is_an_unknown_id_as_kafka_says_and_is_forgotten(version: int) -> None:
    stores = Stores()
    async with node(stores) as writer, node(stores, epoch=8, is_deaf=True) as reader:
        await filled(writer, record_batch(b"a"))
        topic = (await writer.topics.lookup(["t"]))["t"]
        await reader.read_one(asking(topic.topic_id), version=version)
        await writer.topics.delete(topic)
        await filled(writer, record_batch(b"b"))
        first = await reader.read_one(asking(topic.topic_id, offset=1), version=version)
        second = await reader.read_one(asking(topic.topic_id, offset=1), version=version)

        assert [code(first), code(second)] == [ErrorCode.unknown_topic_id] * 2
        assert reader.topics.find_id(topic.topic_id) is None


async def test_of_a_partition_that_a_long_fetch_names_again_the_last_is_answered_once() -> None:
    async with node() as made:
        await made.create("t", partition_count=3)
        for number in range(4):
            await made.send(("t", number % 2, record_batch(b"x")))
        answer = await made.read(*[asking("t", 0)] * PARTITIONS_PER_STEP, asking("t", 1, 1), asking("t", 0, 1))

    assert [(one.topic, one.partition, offsets_of(one)) for one in answer.partitions] == [("t", 0, [1]), ("t", 1, [1])]


async def test_others_have_turns_while_a_long_fetch_is_resolved_and_answered() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with node() as made, Nursery() as nursery:
        await made.create("t")
        nursery.spawn(count(), name="others")
        answer = await made.read(*[asking("t", number) for number in range(1, 20 * PARTITIONS_PER_STEP)])

    assert turns > 40
    assert {one.error_code for one in answer.partitions} == {ErrorCode.unknown_topic_or_partition}


async def test_what_comes_while_a_wide_fetch_begins_to_wait_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = 3 * PARTITIONS_PER_STEP
    begin_in_steps = Wait.begin_in_steps
    async with node() as broker:
        await broker.create("t", partition_count=partitions)
        topic = (await broker.topics.lookup(["t"]))["t"]
        moved = broker.log.parts.partitions.get(topic.partition(partitions - 1))

        def begin(self: Wait) -> Iterator[None]:
            steps = begin_in_steps(self)
            yield next(steps)
            assert not moved.readers.wakers, "it is not waited for yet"
            manifest = moved.seen.manifest
            assert manifest is not None
            moved.observe(msgspec.structs.replace(manifest, log_start=5, sequence_counter=5), moved.seen.version + 1)
            yield from steps

        monkeypatch.setattr(Wait, "begin_in_steps", begin)
        async with asyncio.timeout(SOON_S):
            answer = await broker.read(*[asking("t", number) for number in range(partitions)], max_wait_ms=LONG_MS)

    assert code(answer.partitions[-1]) is ErrorCode.offset_out_of_range
