"""Of what commits carry, no more than so much lies in the metadata store: then batches are stored as objects until it is compacted."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from structlog.testing import capture_logs

from sim.loop import VirtualClock, VirtualLoop
from storage.errors import Unavailable
from storage.formats.manifest import LogState, Manifest, encode
from storage.log.batch import Appended
from storage.log.flush import FlushSettings, InlineSettings, NotInlined
from storage.log.inline_backlog import LOOK_EVERY_S
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Put
from storage.vocabulary import PartitionId
from tests.unit.compactor.compacting import compacting
from tests.unit.storage.log.rig import PARTITION, TOPIC, Rig, rig
from tests.unit.storage.log.test_inline import of_size, reasons

BOUND = 4_000
INLINE = InlineSettings(bytes_max=1_024, uncompacted_bytes_max=BOUND)
AT_ONCE = FlushSettings(interval_s=0.0, gather_s=0.0)
OTHER = PartitionId(TOPIC, 1)


def in_virtual_time(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test)


async def fill(broker: Rig, partition: PartitionId = PARTITION) -> None:
    while not reasons(broker):
        assert isinstance((await broker.send(of_size(1_000), partition=partition))[0], Appended)


def uncompacted_bytes(broker: Rig) -> float | None:
    return broker.telemetry.registry.get_sample_value("forebay_inline_uncompacted_bytes")


async def compact(broker: Rig, partition: PartitionId = PARTITION) -> None:
    async with compacting(broker.shared, broker.objects) as compaction:
        await compaction.run(partition)


def test_at_the_bound_batches_go_into_objects_and_a_line_says_why() -> None:
    async def play() -> None:
        with capture_logs() as logs:
            async with rig(inline=INLINE, flush=AT_ONCE, clock=VirtualClock(asyncio.get_running_loop())) as broker:
                await fill(broker)
                await broker.send(of_size(100))

                assert reasons(broker) == {NotInlined.UNCOMPACTED: 2}
                assert uncompacted_bytes(broker) == 5_000
                assert len(broker.objects.put_keys) == 2
                assert len(await broker.read_all()) == 6_100
        assert [line["event"] for line in logs] == ["commits_carry_nothing"]
        assert "compactor status" in logs[0]["fix"]

    in_virtual_time(play())


def test_when_it_is_compacted_commits_carry_again() -> None:
    async def play() -> None:
        with capture_logs() as logs:
            async with rig(inline=INLINE, flush=AT_ONCE, clock=VirtualClock(asyncio.get_running_loop())) as broker:
                await fill(broker)
                await compact(broker)
                await asyncio.sleep(2 * LOOK_EVERY_S)

                assert uncompacted_bytes(broker) == 0
                before = len(broker.objects.put_keys)
                await broker.send(of_size(1_000))
                assert (len(broker.objects.put_keys), reasons(broker)) == (before, {NotInlined.UNCOMPACTED: 1})
        assert [line["event"] for line in logs] == ["commits_carry_nothing", "commits_carry_again"]

    in_virtual_time(play())


def test_what_was_compacted_meanwhile_does_not_count() -> None:
    async def play() -> None:
        async with rig(inline=INLINE, flush=AT_ONCE, clock=VirtualClock(asyncio.get_running_loop())) as broker:
            for _ in range(10):
                for _ in range(3):
                    await broker.send(of_size(1_000))
                await compact(broker)

            assert reasons(broker) == {}

    in_virtual_time(play())


def test_what_was_trimmed_counts_no_more() -> None:
    async def play() -> None:
        async with rig(inline=INLINE, flush=AT_ONCE, clock=VirtualClock(asyncio.get_running_loop())) as broker:
            await fill(broker)
            await broker.parts.trimmer.trim(PARTITION, (await broker.manifest()).sequence_counter)
            await asyncio.sleep(2 * LOOK_EVERY_S)

            assert uncompacted_bytes(broker) == 0

    in_virtual_time(play())


def test_idle_partitions_that_were_compacted_never_count_as_much_as_the_bound() -> None:
    async def play() -> None:
        others = [PartitionId(TOPIC, number) for number in range(1, 6)]
        async with rig(inline=INLINE, flush=AT_ONCE, clock=VirtualClock(asyncio.get_running_loop())) as broker:
            for one in others:
                await broker.shared.write([Put(PartitionKeys(one).manifest, encode(Manifest()), ABSENT)])
                for _ in range(2):
                    await broker.send(of_size(1_000), partition=one)
                await compact(broker, one)
                await asyncio.sleep(2 * LOOK_EVERY_S)

            assert reasons(broker) == {}

    in_virtual_time(play())


def test_a_partition_of_a_deleted_topic_counts_no_more_and_another_still_does() -> None:
    async def play() -> None:
        async with rig(inline=INLINE, flush=AT_ONCE, clock=VirtualClock(asyncio.get_running_loop())) as broker:
            await broker.shared.write([Put(PartitionKeys(OTHER).manifest, encode(Manifest()), ABSENT)])
            await broker.send(of_size(1_000))
            await fill(broker, OTHER)
            await broker.shared.write([Put(PartitionKeys(OTHER).manifest, encode(Manifest(log_state=LogState.DELETED)), None)])
            await asyncio.sleep(2 * LOOK_EVERY_S)

            assert uncompacted_bytes(broker) == 1_000

    in_virtual_time(play())


def test_when_objects_cannot_be_stored_either_batches_are_refused() -> None:
    async def play() -> None:
        async with rig(inline=INLINE, flush=AT_ONCE, clock=VirtualClock(asyncio.get_running_loop())) as broker:
            await fill(broker)
            broker.objects.gate = asyncio.Event()

            (answer,) = await broker.send(of_size(100))

            assert isinstance(answer, Unavailable)
            broker.objects.gate.set()

    in_virtual_time(play())
