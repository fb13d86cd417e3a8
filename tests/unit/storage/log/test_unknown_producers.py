"""A producer that a partition does not know begins at once where nothing of it can be on its way, and waits elsewhere (ADR 28)."""

import asyncio
from collections.abc import Sequence
from typing import Final

import pytest

from runtime.clock import SystemClock
from storage.errors import NotFound, PredecessorMissing
from storage.formats.manifest import LogState, Manifest, PageRef, ProducerBatch, ProducerState, encode
from storage.limits import PRODUCER_PAGES_MAX
from storage.log.batch import Appended
from storage.log.decide import FORGOTTEN_AFTER, PRODUCER_EXPIRATION_MS
from storage.log.unknown_producers import AT_ONCE_MAX, Former
from storage.metadata import keys
from storage.metadata.port import ABSENT, Put
from storage.vocabulary import PartitionId, TopicId
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, TOPIC, Rig, rig

PID: Final = 9
OLDER, OLD = TopicId("00000000-0000-4000-8000-00000000000a"), TopicId("00000000-0000-4000-8000-00000000000b")


def batch(first_seq: int, *, epoch: int = 0, count: int = 1) -> bytearray:
    return batch_bytes(count, producer_id=PID, producer_epoch=epoch, first_seq=first_seq)


def is_refused(results: Sequence[object]) -> bool:
    return [type(result) for result in results] == [PredecessorMissing]


NOW_MS: Final = SystemClock().now_ms()
FORGOTTEN_MS: Final = NOW_MS - FORGOTTEN_AFTER * PRODUCER_EXPIRATION_MS


def until(last_seq: int, *, at_ms: int = NOW_MS) -> dict[int, ProducerState]:
    return {PID: ProducerState(0, (ProducerBatch(last_seq, last_seq, 40, at_ms),))}


async def bury(broker: Rig, topic_id: TopicId, manifest: Manifest) -> None:
    key = keys.PartitionKeys(PartitionId(topic_id, 0)).manifest
    await broker.shared.write([Put(key, encode(manifest), ABSENT)])


def told(*topic_ids: TopicId) -> Former:
    async def former(topic_id: TopicId) -> Sequence[TopicId]:
        assert topic_id == TOPIC
        return topic_ids

    return former


def dead(producers: dict[int, ProducerState], *, pages: tuple[PageRef, ...] = ()) -> Manifest:
    return Manifest(log_state=LogState.DELETED, producers=producers, pages=pages)


async def test_others_of_its_commit_are_appended_whatever_becomes_of_it() -> None:
    async with rig() as broker:
        known, unknown = await broker.send(batch_bytes(1), batch(6))

        assert known == Appended(0, 0)
        assert isinstance(unknown, PredecessorMissing)


async def test_a_batch_that_goes_on_from_the_deleted_topic_of_the_name_begins_at_once() -> None:
    async with rig(former=told(OLD)) as broker:
        await bury(broker, OLD, dead(until(5)))

        assert await broker.send(batch(6), batch(7)) == [Appended(0, 0), Appended(1, 0)]


@pytest.mark.parametrize(
    ("sent", "old", "older"),
    [
        pytest.param(batch(7), dead(until(5)), None, id="6 is missing"),
        pytest.param(batch(5), dead(until(5)), None, id="5 is there, and what was in flight before it may come again"),
        pytest.param(batch(6, epoch=1), dead(until(5)), None, id="another epoch"),
        pytest.param(batch(6), dead({}), None, id="a producer that the deleted topic did not know"),
        pytest.param(batch(6), dead(until(9)), dead(until(5)), id="a copy of what was appended to the newer one"),
        pytest.param(batch(6), dead({}, pages=(PageRef("1-7-1-1-0", 0, 50, 1),)), dead(until(5)), id="the newer one may have known it"),
        pytest.param(batch(6), dead(until(5, at_ms=FORGOTTEN_MS)), None, id="the topic of today may have had 6, and forgotten it"),
        pytest.param(batch(6), Manifest(producers=until(5)), None, id="a deposed leader's answer: it is not deleted yet"),
    ],
)
async def test_a_batch_that_does_not_waits(sent: bytearray, old: Manifest, older: Manifest | None) -> None:
    async with rig(former=told(OLD, OLDER)) as broker:
        await bury(broker, OLD, old)
        if older is not None:
            await bury(broker, OLDER, older)

        assert is_refused(await broker.send(bytearray(sent)))


FULL: Final = tuple([PageRef(f"1-7-1-1-{number}", 100 + number, 100 + number, 1) for number in range(PRODUCER_PAGES_MAX)])


@pytest.mark.parametrize(
    "today",
    [
        pytest.param(Manifest(producers=until(24, at_ms=1)), id="expired, and forgotten only by the clock"),
        pytest.param(Manifest(pages=FULL), id="a partition that may have forgotten anybody to make room"),
    ],
)
async def test_a_copy_of_what_the_topic_of_today_had_is_not_appended_again_behind_the_deleted_one(today: Manifest) -> None:
    async with rig(former=told(OLD)) as broker:
        await bury(broker, OLD, dead(until(5)))
        key = keys.PartitionKeys(PARTITION).manifest
        (record,) = await broker.shared.get_many([key])
        assert record is not None
        await broker.shared.write([Put(key, encode(today), record.version)])

        assert is_refused(await broker.send(batch(6)))


async def test_a_batch_that_goes_on_from_the_deleted_topic_waits_behind_one_that_was_refused() -> None:
    """Its answer was lost with the old topic, so its producer sends it again: beginning behind it would make it out of order."""
    async with rig(former=told(OLD)) as broker:
        await bury(broker, OLD, dead(until(5)))

        assert is_refused(await broker.send(batch(5)))
        assert is_refused(await broker.send(batch(6)))


async def test_a_batch_whose_predecessor_found_the_deleted_topic_waits_for_it() -> None:
    """One broker and one connection, both in flight: the topic was created again between them."""
    async with rig(former=told(OLD)) as broker:
        await bury(broker, OLD, dead(until(4)))

        (error,) = await broker.send(batch(5), partition=PartitionId(OLD, 0))
        assert isinstance(error, NotFound)
        assert is_refused(await broker.send(batch(6)))
        assert await broker.send(batch(5)) == [Appended(0, 0)]
        assert await broker.send(batch(6)) == [Appended(1, 0)]


async def test_proofs_that_do_not_come_hold_nobody_up_for_long() -> None:
    never = asyncio.Event()

    async def silent(_topic_id: TopicId) -> Sequence[TopicId]:
        await never.wait()
        return ()

    async with rig(former=silent) as broker, asyncio.timeout(30):
        assert is_refused(await broker.send(batch(6)))
        assert await broker.send(batch(0)) == [Appended(0, 0)]


async def test_of_many_commits_with_unknown_producers_few_are_looked_for() -> None:
    asked, end = 0, asyncio.Event()

    async def slow(_topic_id: TopicId) -> Sequence[TopicId]:
        nonlocal asked
        asked += 1
        await end.wait()
        return ()

    partitions = [PartitionId(TOPIC, number) for number in range(2 * AT_ONCE_MAX)]
    async with rig(former=slow) as broker, asyncio.timeout(60):
        for partition in partitions[1:]:
            await broker.shared.write([Put(keys.PartitionKeys(partition).manifest, encode(Manifest()), ABSENT)])
        sent = [broker.send(batch(6), partition=partition) for partition in partitions]

        assert all([is_refused(await one) for one in sent])
        assert asked == AT_ONCE_MAX
        end.set()
