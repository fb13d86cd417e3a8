"""Few uploads at a time, and a slow one does not hold up the others (review G: a slow prefix of the bucket)."""

import asyncio

from storage.log.batch import Appended
from storage.log.flush import FlushSettings
from storage.log.limits import LogLimits
from storage.log.uploads import UPLOADS_MAX, UploadPlaces
from storage.vocabulary import Buffer, PartitionId
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, TOPIC, rig


async def hold(places: UploadPlaces, gate: asyncio.Event) -> None:
    async with places.ask():
        await gate.wait()


async def test_who_asks_for_more_than_there_are_waits_for_one_to_be_free() -> None:
    freed: list[bool] = []
    places = UploadPlaces(on_free=lambda: freed.append(True))
    gates = [asyncio.Event() for _ in range(UPLOADS_MAX + 1)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(hold(places, gate)) for gate in gates]
        await asyncio.sleep(0)
        assert places.are_taken
        gates[0].set()
        gates[-1].set()
        await tasks[0]
        await tasks[-1]
        assert len(freed) == 2
        assert not places.are_taken
        for gate in gates:
            gate.set()


async def test_a_cancelled_wait_for_a_place_takes_none() -> None:
    places = UploadPlaces(on_free=lambda: None)
    gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(hold(places, gate)) for _ in range(UPLOADS_MAX + 3)]
        await asyncio.sleep(0)
        for task in tasks[UPLOADS_MAX:]:
            task.cancel()
        gate.set()
    assert not places.are_taken


async def test_slow_uploads_give_their_places_up_and_only_so_many_of_them() -> None:
    places = UploadPlaces(on_free=lambda: None, limits=LogLimits(slow_upload_s=0.01, slow_uploads_max=6))
    gate = asyncio.Event()
    entered = 0

    async def enter() -> None:
        nonlocal entered
        async with places.ask():
            entered += 1
            await gate.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(enter())
        await asyncio.sleep(0.1)
        assert entered == 6 + UPLOADS_MAX
        gate.set()
    assert entered == 20
    assert not places.are_taken


async def test_partitions_go_on_while_the_uploads_of_others_hang() -> None:
    async with rig(flush=FlushSettings(interval_s=0.0, gather_s=0.0, bytes_max=1), limits=LogLimits(slow_upload_s=0.02)) as broker:
        gate = asyncio.Event()
        inner = broker.objects.put_if_absent
        hanging = 0

        async def put_if_absent(key: str, parts: list[Buffer]) -> None:
            nonlocal hanging
            if hanging < UPLOADS_MAX:
                hanging += 1
                await gate.wait()
            await inner(key, parts)

        broker.objects.put_if_absent = put_if_absent  # type: ignore[method-assign, assignment]
        other = PartitionId(TOPIC, 0)
        assert other == PARTITION
        held = [broker.send(batch_bytes(1), partition=PartitionId(TOPIC, number)) for number in range(1, 1 + UPLOADS_MAX)]
        sent = broker.send(batch_bytes(1))

        assert await asyncio.wait_for(sent, 5) == [Appended(0, 0)]
        assert not any(one.done() for one in held)
        gate.set()
        await broker.parts.appender.drain()
