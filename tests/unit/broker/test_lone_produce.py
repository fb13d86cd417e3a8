"""A request that is like the last one of its connection is answered as any other: twice the same conversation, remembered and not."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.dispatch import Dispatch, Unanswerable
from broker.protocol.produce import LonePrefix
from storage.catalog.topics import Topic
from tests.kit.record_batches import NOW_MS, record_batch
from tests.unit.broker.test_dispatch import Desk, FakeClient, desk, produced

GOOD = record_batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0)
NEXT = record_batch(b"y", producer_id=7, producer_epoch=0, base_sequence=1)
GAP = record_batch(b"z", producer_id=7, producer_epoch=0, base_sequence=5)


class Forgetful(FakeClient):
    """A connection without a memory: each request is read in full."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, None if name == "lone_prefix" else value)


@contextlib.asynccontextmanager
async def asked_of(client: type[FakeClient], **configs: str) -> AsyncIterator[tuple[Desk, Topic]]:
    """With a topic that is cached until it is forgotten."""
    async with desk() as made:
        made.client = client()
        topic = await made.node.create("t", **configs)
        for _ in range(5):
            await asyncio.sleep(0)  # the hint of its creation has it forgotten
        cached = {"t": topic}
        topics = made.node.produce._topics
        topics.find = cached.get  # type: ignore[method-assign]
        topics.forget = lambda name: cached.pop(name, None)  # type: ignore[method-assign,assignment,return-value]
        yield made, topic


@pytest.fixture
def lone(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request that looked like the last one was begun as such."""
    begun: list[bool] = []
    start = Dispatch._start_lone

    def noted(self: Dispatch, *arguments: Any) -> bool:
        is_begun = start(self, *arguments)
        begun.append(is_begun)
        return is_begun

    monkeypatch.setattr(Dispatch, "_start_lone", noted)
    return begun


async def hold(client: type[FakeClient], frames: list[bytes], configs: dict[str, str], *, leaving: str = "") -> list[object]:
    """The replies, what was counted, and how far the log came."""
    async with asked_of(client, **configs) as (broker, topic):
        replies: list[object] = []
        for number, frame in enumerate(frames):
            if number == 1 and leaving:
                getattr(broker.controlled_shutdown, leaving)()
            reply = await broker.produce(frame)
            replies.append(reply and reply.replace(topic.topic_id.encode(), b"the topic"))
        counted = {error: broker.counted("Produce", error) for error in ("NONE", "CORRUPT_MESSAGE", "OUT_OF_ORDER_SEQUENCE_NUMBER")}
        size = broker.telemetry.registry.get_sample_value("forebay_kafka_request_bytes_total", {"api": "Produce", "direction": "out"})
        await broker.node.log.parts.appender.drain()
        return [*replies, counted, size, broker.node.log_of(topic).seen.high_watermark]


@pytest.mark.parametrize(
    ("second", "configs", "leaving", "is_lone"),
    [
        (produced("t", NEXT), {}, "", [True]),
        (produced("t", GOOD), {}, "", [True]),
        (produced("t", GAP), {}, "", [True]),
        (produced("t", record_batch(crc=0)), {}, "", [True]),
        (produced("t", b""), {}, "", [True]),
        (produced("t", record_batch(b"x" * 2_000)), {"max_message_bytes": "1000"}, "", [True]),
        (produced("t", NEXT), {"compression_type": "gzip"}, "", [False]),
        (produced("t", NEXT), {"message_timestamp_before_max_ms": "1000"}, "", [False]),
        (produced("u", NEXT), {}, "", []),
        (produced("t", NEXT, acks=1), {}, "", []),
        (produced("t", NEXT, version=10), {}, "", []),
        (produced("t", NEXT, version=8), {}, "", []),
        (produced("t", NEXT), {}, "ask", []),
        (produced("t", NEXT), {}, "refuse", []),
    ],
    ids=[
        "next",
        "again",
        "a gap",
        "damaged",
        "empty",
        "too large",
        "another codec",
        "records to be read",
        "another topic",
        "other acks",
        "another version",
        "not flexible",
        "asked to leave",
        "refused",
    ],
)
async def test_it_is_answered_as_any_other(
    lone: list[bool], second: bytes, configs: dict[str, str], leaving: str, is_lone: list[bool]
) -> None:
    frames = [produced("t", GOOD), second, produced("t", NEXT)]
    remembered = await hold(FakeClient, frames[:2], configs, leaving=leaving)
    begun = list(lone)
    read_in_full = await hold(Forgetful, frames[:2], configs, leaving=leaving)

    assert remembered == read_in_full
    assert begun == is_lone
    assert lone == begun, "one without a memory begins none so"


async def test_batches_with_the_time_of_their_append_have_the_time_of_theirs(lone: list[bool]) -> None:
    async with asked_of(FakeClient, message_timestamp_type="LogAppendTime") as (broker, topic):
        await broker.produce(produced("t", GOOD))
        old = record_batch(b"y", producer_id=7, producer_epoch=0, base_sequence=1, base_timestamp=1_600_000_000_000)
        await broker.produce(produced("t", old))
        manifest = broker.node.log_of(topic).seen.manifest

    assert lone == [True]
    assert manifest.pending[-1].max_timestamp == NOW_MS


async def test_a_topic_that_was_deleted_is_looked_up_again_with_the_next_request(lone: list[bool]) -> None:
    async with asked_of(FakeClient) as (broker, topic):
        await broker.produce(produced("t", GOOD))
        broker.node.produce._topics.forget("t")
        await broker.produce(produced("t", NEXT))

        assert lone == [False]
        assert broker.node.log_of(topic).seen.high_watermark == 2


async def test_what_fails_in_an_unforeseen_way_closes_its_connection_and_holds_no_room(
    lone: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked_of(FakeClient) as (broker, _):
        await broker.produce(produced("t", GOOD))

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(broker.node.produce, "start_lone", fail)
        with capture_logs(), pytest.raises(Unanswerable):
            await broker.produce(produced("t", NEXT))
        assert broker.unexpected() == 1
        assert broker.dispatch._room._held == 0


async def test_an_answer_that_cannot_be_written_closes_its_connection_and_not_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asked_of(FakeClient) as (broker, topic):
        await broker.produce(produced("t", GOOD))
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(LonePrefix, "reply", lambda *_: 1 / 0)
            reply = await broker.produce(produced("t", NEXT))

        assert reply is None
        assert broker.client.is_closed
        assert [line["event"] for line in logs] == ["request_failed"]
        assert broker.node.log_of(topic).seen.high_watermark == 2


async def test_a_frame_whose_commit_failed_is_let_go_with_its_answer() -> None:
    class Frame(bytearray):
        """One that can be referred to weakly."""

    async with asked_of(FakeClient) as (broker, _):
        await broker.produce(produced("t", GOOD))
        broker.node.log.metadata.faults.append("request lost")
        broker.node.log.metadata.reads_fail = True
        frame = Frame(produced("t", NEXT))
        alive = weakref.ref(frame)
        replies: list[object] = []
        gc.disable()  # what a cycle keeps would be let go by chance
        try:
            assert broker.dispatch.start(memoryview(frame), broker.client, replies.append)
            del frame
            broker.node.log.parts.appender.refuse("for a test")
            await asyncio.sleep(0)
            is_alive = alive() is not None
        finally:
            gc.enable()

    assert len(replies) == 1
    assert not is_alive
