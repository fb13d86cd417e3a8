import asyncio
import contextlib
import datetime
import importlib
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from structlog.testing import capture_logs

from broker.addresses import Addresses
from broker.cluster.registration import THROTTLE_MS, ControlledShutdown
from broker.dispatch import (
    LARGE_ANSWERS_MAX,
    LARGE_REQUEST_BYTES,
    LONG_REQUEST_BYTES,
    REQUEST_BYTES,
    REQUEST_SECONDS,
    REQUESTS,
    UNEXPECTED,
    Dispatch,
    Unanswerable,
)
from broker.handlers.table import HANDLERS
from broker.handlers.topics import metadata as metadata_module
from broker.handlers.topics.metadata import PLACED_AT_ONCE
from broker.handling.context import Context
from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from broker.protocol import codec
from broker.protocol import produce as produce_wire
from broker.protocol.compiler import ENCODED_PER_STEP
from broker.protocol.produce import LonePrefix
from broker.protocol.wire import ProtocolViolation, Request
from broker.responses import HasReplies, Responses
from runtime.clock import Clock, SystemClock
from runtime.frames import Account
from runtime.telemetry import Telemetry
from storage.catalog.topics import Topics
from storage.errors import Unavailable
from storage.limits import MIB
from storage.vocabulary import Buffer
from tests.kit.raw_client import frame_of, header
from tests.kit.record_batches import record_batch
from tests.unit.broker.handlers.asking import Cluster, cluster
from tests.unit.broker.handlers.logged import Node, node

METADATA = 3
SOON_S = 25.0


@dataclass(eq=False)
class FakeClient:
    client_id: str | None = None
    lone_prefix: LonePrefix | None = None
    listener: str = "PLAINTEXT"
    client_host: str = "127.0.0.1"
    address: HasReplies = field(default_factory=lambda: Addresses(requests=Account(), replies=Account()).of("127.0.0.1"))
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True

    def until_written(self, release: Callable[[], None], covered_bytes: int) -> None:
        release()

    def when_followed(self, call: Callable[[], None] | None) -> None:
        """Nothing else is asked by this connection."""


@dataclass
class Desk:
    """A dispatcher and what stands behind it; topics of Produce and Fetch are the node's, of others `topics`."""

    dispatch: Dispatch
    node: Node
    telemetry: Telemetry
    client: FakeClient
    topics: Topics
    controlled_shutdown: ControlledShutdown
    cluster: Cluster

    def counted(self, api: str, error: str) -> float | None:
        return self.telemetry.registry.get_sample_value(REQUESTS.name, {"api": api, "error": error})

    def unexpected(self) -> float | None:
        return self.telemetry.registry.get_sample_value(UNEXPECTED.name)

    async def handle(self, frame: bytes) -> Sequence[Buffer] | None:
        async with asyncio.timeout(SOON_S):
            return await self.dispatch.handle(memoryview(frame), self.client)

    async def produce(self, frame: bytes) -> bytes | None:
        """The reply of an overlapping request, prepared if it has to be."""
        done: asyncio.Future[Sequence[Buffer] | None] = asyncio.get_running_loop().create_future()
        view = memoryview(bytearray(frame))
        async with asyncio.timeout(SOON_S):
            if not self.dispatch.start(view, self.client, done.set_result):
                start = await self.dispatch.prepare(view, self.client)
                assert start(view, self.client, done.set_result)
            return joined(await done)


@contextlib.asynccontextmanager
async def desk(*, clock: Clock | None = None, limits: BrokerLimits = DEFAULT_BROKER_LIMITS) -> AsyncIterator[Desk]:
    telemetry = Telemetry()
    responses = Responses(bytes_max=64 * MIB, telemetry=telemetry, soon=asyncio.get_running_loop().call_soon_threadsafe)
    async with cluster(limits=limits) as made, node(request_limits=limits) as log:
        controlled_shutdown = ControlledShutdown(clock=SystemClock())
        dispatch = Dispatch(
            parts=made.context.parts,
            produce_handler=log.produce,
            fetch_handler=log.fetch,
            controlled_shutdown=controlled_shutdown,
            responses=responses,
            clock=clock or SystemClock(),
            telemetry=telemetry,
        )
        yield Desk(dispatch, log, telemetry, FakeClient(), made.topics, controlled_shutdown, made)


def joined(reply: Sequence[Buffer] | None) -> bytes | None:
    return None if reply is None else b"".join(map(bytes, reply))


def answer(reply: Sequence[Buffer] | bytes | None, api_key: int, version: int) -> Any:
    frame = reply if isinstance(reply, bytes) else joined(reply)
    assert frame is not None
    schema = load_response_schema(api_key, version)
    header_bytes = 5 if schema.__header_schema__.__flexible__ else 4
    entity, size = entity_reader(schema)(frame, header_bytes)
    assert header_bytes + size == len(frame)
    return entity


def api_versions(version: int = 0) -> bytes:
    module = importlib.import_module(f"kio.schema.api_versions.v{version}.request")
    names = {"client_software_name": "test", "client_software_version": "1"} if version >= 3 else {}
    return frame_of(module.ApiVersionsRequest(**names), correlation_id=99)


def metadata(*names: str, version: int = 9) -> bytes:
    module = importlib.import_module(f"kio.schema.metadata.v{version}.request")
    return frame_of(
        module.MetadataRequest(
            topics=tuple(module.MetadataRequestTopic(name=name) for name in names),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
    )


def produced(topic: str, records: bytes | bytearray, *, acks: int = -1, version: int = 9) -> bytes:
    module = importlib.import_module(f"kio.schema.produce.v{version}.request")
    data = module.TopicProduceData(name=topic, partition_data=(module.PartitionProduceData(index=0, records=bytes(records)),))
    timeout = datetime.timedelta(seconds=30)
    return frame_of(module.ProduceRequest(transactional_id=None, acks=acks, timeout=timeout, topic_data=(data,)), correlation_id=5)


def fetched(topic: str, *, version: int = 11, max_wait_ms: int = 0) -> bytes:
    module = importlib.import_module(f"kio.schema.fetch.v{version}.request")
    partition = module.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return frame_of(
        module.FetchRequest(
            max_wait=datetime.timedelta(milliseconds=max_wait_ms),
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=(module.FetchTopic(topic=topic, partitions=(partition,)),),
            forgotten_topics_data=(),
            rack_id="",
        )
    )


async def test_a_request_is_answered_with_its_correlation_id_and_counted() -> None:
    async with desk() as broker:
        reply = joined(await broker.handle(api_versions(3)))

        assert reply is not None
        assert reply[:4] == (99).to_bytes(4, "big")
        assert answer(reply, 18, 3).error_code is ErrorCode.none
        assert broker.client.client_id == "raw"
        assert broker.counted("ApiVersions", "NONE") == 1
        sample = broker.telemetry.registry.get_sample_value
        assert sample(REQUEST_BYTES.name, {"api": "ApiVersions", "direction": "in"}) == len(api_versions(3))
        assert sample(REQUEST_BYTES.name, {"api": "ApiVersions", "direction": "out"}) == len(reply)
        assert sample(f"{REQUEST_SECONDS.name}_count", {"api": "ApiVersions"}) == 1


@pytest.mark.parametrize("version", [5, 99, 32_767, -1])
async def test_api_versions_of_an_unknown_version_is_answered_in_version_0(version: int) -> None:
    async with desk() as broker:
        reply = await broker.handle(header(18, version, correlation_id=7) + b"whatever follows")

        assert answer(reply, 18, 0).error_code is ErrorCode.unsupported_version
        assert [(found.api_key, found.max_version) for found in answer(reply, 18, 0).api_keys] == [(18, 4)]
        assert broker.counted("ApiVersions", "UNSUPPORTED_VERSION") == 1


@pytest.mark.parametrize(("api_key", "version"), [(METADATA, 14), (METADATA, -1), (4, 0), (1, 3), (999, 0), (-1, 0)])
async def test_what_is_not_served_closes_the_connection(api_key: int, version: int) -> None:
    async with desk() as broker:
        with pytest.raises(ProtocolViolation, match=f"not served: api_key={api_key} api_version={version}"):
            await broker.handle(header(api_key, version))

        assert broker.unexpected() == 0


@pytest.mark.parametrize("version", [0, 1, 2, 12, -1])
async def test_produce_of_a_version_that_is_not_served_closes_the_connection(version: int) -> None:
    async with desk() as broker:
        with pytest.raises(ProtocolViolation, match=f"not served: api_key=0 api_version={version}"):
            await broker.produce(header(0, version))


@pytest.mark.parametrize(
    "frame", [b"", b"\x00", api_versions()[:9], metadata("t")[:-2], fetched("t")[:-5], header(METADATA, 9, client_id="\x80")[:-3]]
)
async def test_a_frame_that_ends_early_closes_the_connection(frame: bytes) -> None:
    async with desk() as broker:
        with pytest.raises(ProtocolViolation):
            await broker.handle(frame)

        assert broker.unexpected() == 0


async def test_a_produce_frame_that_ends_early_closes_the_connection() -> None:
    async with desk() as broker:
        with pytest.raises(ProtocolViolation):
            await broker.produce(produced("t", record_batch())[:-10])


@pytest.mark.parametrize(
    ("frame", "overlaps"),
    [
        (b"", False),
        (b"\x00", False),
        (b"\x00\x00", True),
        (struct.pack(">hh", 0, 9), True),
        (struct.pack(">hh", 1, 9), False),
        (struct.pack(">hh", 256, 9), False),
    ],
)
async def test_only_produce_overlaps(frame: bytes, overlaps: bool) -> None:
    async with desk() as broker:
        assert broker.dispatch.is_overlapping(memoryview(frame)) is overlaps


async def test_produce_to_a_topic_that_is_known_starts_at_once() -> None:
    async with desk() as broker:
        await broker.node.create("t")
        await broker.node.topics.lookup(["t"])
        replies: list[Sequence[Buffer] | None] = []
        is_started = broker.dispatch.start(memoryview(bytearray(produced("t", record_batch()))), broker.client, replies.append)
        await broker.node.log.parts.appender.drain()

        assert is_started
        result = answer(replies[0], 0, 9).responses[0].partition_responses[0]
        assert (result.error_code, result.base_offset) == (ErrorCode.none, 0)
        assert broker.counted("Produce", "NONE") == 1


async def test_produce_to_a_topic_that_is_not_known_yet_looks_it_up_first() -> None:
    async with desk() as broker:
        await broker.node.create("t")
        await asyncio.sleep(0)  # the hint about the new topic drops it from the cache
        reply = await broker.produce(produced("t", record_batch()))

        assert answer(reply, 0, 9).responses[0].partition_responses[0].error_code is ErrorCode.none


async def test_produce_to_a_topic_that_does_not_exist_says_so() -> None:
    async with desk() as broker:
        reply = await broker.produce(produced("t", record_batch()))

        assert answer(reply, 0, 9).responses[0].partition_responses[0].error_code is ErrorCode.unknown_topic_or_partition
        assert broker.counted("Produce", "UNKNOWN_TOPIC_OR_PARTITION") == 1


async def test_produce_while_topics_cannot_be_read_is_refused_with_an_error_that_clients_repeat() -> None:
    async with desk() as broker:
        broker.node.log.metadata.reads_fail = True
        reply = await broker.produce(produced("t", record_batch()))
        result = answer(reply, 0, 9).responses[0].partition_responses[0]

        assert result.error_code is ErrorCode.kafka_storage_error
        assert "reads are switched off" in result.error_message


async def test_a_broker_that_asks_its_clients_to_leave_appends_as_ever_and_says_so_in_the_throttle_time() -> None:
    async with desk() as broker:
        await broker.node.create("t")
        before = answer(await broker.produce(produced("t", record_batch())), 0, 9)
        broker.controlled_shutdown.ask()
        asked = answer(await broker.produce(produced("t", record_batch())), 0, 9)

        assert before.throttle_time == datetime.timedelta(0)
        assert asked.throttle_time == datetime.timedelta(milliseconds=THROTTLE_MS)
        result = asked.responses[0].partition_responses[0]
        assert (result.error_code, result.base_offset) == (ErrorCode.none, 1)


@pytest.mark.parametrize("version", [3, 9, 11])
async def test_a_broker_that_refuses_to_produce_names_no_leader_and_has_appended_nothing(version: int) -> None:
    async with desk() as broker:
        await broker.node.create("t")
        broker.controlled_shutdown.refuse()
        refused = answer(await broker.produce(produced("t", record_batch(), version=version)), 0, version)
        unknown = answer(await broker.produce(produced("u", record_batch())), 0, 9)
        fetched_then = answer(await broker.handle(fetched("t")), 1, 11).responses[0].partitions[0]

        assert refused.responses[0].partition_responses[0].error_code is ErrorCode.not_leader_or_follower
        assert unknown.responses[0].partition_responses[0].error_code is ErrorCode.not_leader_or_follower
        assert refused.throttle_time == datetime.timedelta(milliseconds=THROTTLE_MS)
        assert (fetched_then.error_code, fetched_then.high_watermark) == (ErrorCode.none, 0)


async def test_who_waits_for_no_answer_is_served_to_the_end() -> None:
    async with desk() as broker:
        await broker.node.create("t")
        broker.controlled_shutdown.refuse()
        await broker.produce(produced("t", record_batch(), acks=0))
        read = answer(await broker.handle(fetched("t")), 1, 11).responses[0].partitions[0]

        assert read.high_watermark == 1
        assert not broker.client.is_closed


async def test_acks_0_is_never_answered_and_an_error_closes_the_connection() -> None:
    async with desk() as broker:
        await broker.node.create("t")
        good = await broker.produce(produced("t", record_batch(), acks=0))
        closed_after_good = broker.client.is_closed
        bad = await broker.produce(produced("t", record_batch(crc=0), acks=0))

        assert (good, bad) == (None, None)
        assert not closed_after_good
        assert broker.client.is_closed


async def test_a_fetch_waits_as_long_as_it_asked_for_and_is_answered_without_a_copy() -> None:
    async with desk() as broker:
        await broker.node.create("t")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(broker.handle(fetched("t", max_wait_ms=30_000)))
            await asyncio.sleep(0.01)
            await broker.node.send(("t", 0, record_batch(b"a")))
        reply = waiting.result()

        assert reply is not None
        assert any(isinstance(piece, memoryview) for piece in reply)
        assert answer(reply, 1, 11).responses[0].partitions[0].high_watermark == 1
        assert broker.counted("Fetch", "NONE") == 1


async def test_a_fetch_is_counted_by_the_first_error_of_its_partitions() -> None:
    async with desk() as broker:
        await broker.handle(fetched("t"))

        assert broker.counted("Fetch", "UNKNOWN_TOPIC_OR_PARTITION") == 1


@pytest.mark.parametrize("protocols", [1, 5_000])
async def test_a_request_that_may_wait_for_long_keeps_no_frame_and_is_answered_however_long_it_is(protocols: int) -> None:
    module = importlib.import_module("kio.schema.join_group.v7.request")
    timeout = datetime.timedelta(seconds=30)
    named = tuple(module.JoinGroupRequestProtocol(name=f"protocol-{number}", metadata=b"") for number in range(protocols))
    request = module.JoinGroupRequest(
        group_id="",
        session_timeout=timeout,
        rebalance_timeout=timeout,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=named,
    )
    async with desk() as made:
        reply = await made.handle(frame_of(request))

    assert answer(reply, 11, 7).error_code is ErrorCode.invalid_group_id


async def test_a_handler_that_fails_costs_this_connection_only_and_is_told_as_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(context: Context, request: Request[Any]) -> object:
        raise KeyError("nobody foresaw this")

    async with desk() as broker:
        monkeypatch.setitem(HANDLERS, METADATA, broken)
        with capture_logs() as logs, pytest.raises(Unanswerable):
            await broker.handle(metadata("t"))
        after = await broker.handle(api_versions())

        assert broker.unexpected() == 1
        assert [line["event"] for line in logs] == ["request_failed"]
        assert after is not None


@pytest.mark.parametrize("error", [Unavailable("metadata is away"), TimeoutError()])
async def test_an_answer_that_cannot_be_had_now_closes_the_connection_and_is_no_bug(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(context: Context, request: Request[Any]) -> object:
        raise error

    async with desk() as broker:
        monkeypatch.setitem(HANDLERS, METADATA, away)
        with capture_logs() as logs, pytest.raises(Unanswerable):
            await broker.handle(metadata("t"))

        assert broker.unexpected() == 0
        assert [line["event"] for line in logs] == ["request_not_answered"]


async def test_no_handler_takes_longer_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hanging(context: Context, request: Request[Any]) -> object:
        await asyncio.Event().wait()
        return None

    async with desk(limits=BrokerLimits(handler_timeout_s=0.02)) as broker:
        monkeypatch.setitem(HANDLERS, METADATA, hanging)
        with pytest.raises(Unanswerable):
            await broker.handle(metadata("t"))


async def test_produce_that_fails_in_an_unforeseen_way_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk() as broker:
        await broker.node.create("t")
        monkeypatch.setattr(broker.node.produce, "_rules_of", lambda topic: 1 / 0)
        with capture_logs() as logs, pytest.raises(Unanswerable):
            await broker.produce(produced("t", record_batch()))

        assert broker.unexpected() == 1
        assert [line["event"] for line in logs] == ["request_failed"]


async def test_a_produce_answer_that_cannot_be_written_closes_its_connection_and_not_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk() as broker:
        await broker.node.create("t")
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(produce_wire, "write_response", lambda *_: 1 / 0)
            reply = await broker.produce(produced("t", record_batch()))
        after = await broker.produce(produced("t", record_batch()))

        assert reply is None
        assert broker.client.is_closed
        assert broker.unexpected() == 1
        assert [line["event"] for line in logs] == ["request_failed"]
        assert answer(after, 0, 9).responses[0].partition_responses[0].base_offset == 1


async def test_large_requests_are_handled_one_at_a_time_and_small_ones_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[int] = []
    gate = asyncio.Event()
    handle = HANDLERS[METADATA]

    async def slow(context: Context, request: Request[Any]) -> object:
        under_way.append(len(request.body.topics))
        await gate.wait()
        return await handle(context, request)

    async with desk() as broker:
        monkeypatch.setitem(HANDLERS, METADATA, slow)
        large = metadata(*(f"a-topic-with-a-name-{number:05}" for number in range(3000)))
        async with asyncio.TaskGroup() as group:
            replies = [group.create_task(broker.handle(frame)) for frame in (large, large, metadata("t"), metadata("t"))]
            async with asyncio.timeout(SOON_S):
                while len(under_way) < 3:  # noqa: ASYNC110 - a list tells nobody that it grew
                    await asyncio.sleep(0)
            for _ in range(100):  # what the second one would take to be decoded, were it begun
                await asyncio.sleep(0)
            beside_each_other = list(under_way)
            gate.set()

        assert len(large) > LARGE_REQUEST_BYTES
        assert beside_each_other == [1, 1, 3000]
        assert under_way == [1, 1, 3000, 3000]
        assert [len(answer(task.result(), METADATA, 9).topics) for task in replies] == [3000, 3000, 1, 1]


async def test_a_large_answer_leaves_the_loop_to_others_for_each_step_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    encode = codec.encode_in_steps

    def counted(*arguments: Any) -> Iterator[None]:
        steps.append(0)
        for _ in encode(*arguments):
            steps[-1] += 1
            yield

    monkeypatch.setattr(codec, "encode_in_steps", counted)
    turns = 0

    def take_turn() -> None:
        nonlocal turns, following
        turns += 1
        following = asyncio.get_running_loop().call_soon(take_turn)

    async with desk() as made:
        names = [f"t{number}" for number in range(100)]
        for name in names:
            await made.topics.create(name, partition_count=10, replication_factor=1, configs={})
        following = asyncio.get_running_loop().call_soon(take_turn)
        reply = await made.handle(metadata(*names))
        alone = turns
        replies = await asyncio.gather(*[made.handle(metadata(*names)) for _ in range(3 * LARGE_ANSWERS_MAX)])
        following.cancel()

    assert steps[0] >= 1_000 // ENCODED_PER_STEP
    assert alone >= steps[0] + 1_000 // PLACED_AT_ONCE
    assert turns - alone >= 2 * steps[0]
    assert sum(len(topic.partitions) for topic in answer(reply, METADATA, 9).topics) == 1_000
    assert {joined(other) for other in replies} == {joined(reply)}


async def test_no_more_large_answers_are_held_than_are_written_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: set[int] = set()
    held: list[int] = []
    found, encode = metadata_module._Answer.found, codec.encode_in_steps

    async def noted(self: Any, topic: Any) -> Any:
        begun.add(id(self))
        held.append(len(begun))
        return await found(self, topic)

    def written(*arguments: Any) -> Iterator[None]:
        yield from encode(*arguments)
        begun.pop()

    monkeypatch.setattr(metadata_module._Answer, "found", noted)
    monkeypatch.setattr(codec, "encode_in_steps", written)
    async with desk() as made:
        await made.topics.create("large", partition_count=1_000, replication_factor=1, configs={})
        replies = await asyncio.gather(*[made.handle(metadata("large")) for _ in range(3 * LARGE_ANSWERS_MAX)])

    assert max(held) == LARGE_ANSWERS_MAX
    assert {joined(reply) for reply in replies} == {joined(replies[0])}


async def test_a_large_answer_whose_client_left_gives_its_place_to_others() -> None:
    async with desk() as made:
        await made.topics.create("large", partition_count=1_000, replication_factor=1, configs={})
        async with asyncio.TaskGroup() as group:
            leaving = [group.create_task(made.handle(metadata("large"))) for _ in range(2 * LARGE_ANSWERS_MAX)]
            for _ in range(5):
                await asyncio.sleep(0)
            for task in leaving:
                task.cancel()
        reply = await made.handle(metadata("large"))

    assert all(task.cancelled() for task in leaving)
    assert len(answer(reply, METADATA, 9).topics[0].partitions) == 1_000


async def test_of_long_requests_that_come_together_one_is_begun_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    begun_at: list[int] = []
    decode = codec.decode_in_steps
    turn = 0

    def noted(*arguments: Any) -> Any:
        begun_at.append(turn)
        return decode(*arguments)

    def take_turn() -> None:
        nonlocal turn, following
        turn += 1
        following = asyncio.get_running_loop().call_soon(take_turn)

    monkeypatch.setattr(codec, "decode_in_steps", noted)
    long = metadata(*(f"name-{number:05}" for number in range(500)))
    async with desk() as made:
        following = asyncio.get_running_loop().call_soon(take_turn)
        await asyncio.gather(*[made.handle(long) for _ in range(8)])
        following.cancel()

    assert LONG_REQUEST_BYTES < len(long) < LARGE_REQUEST_BYTES
    assert len(set(begun_at)) == len(begun_at) == 8
