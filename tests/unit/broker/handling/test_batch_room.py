import asyncio

import pytest

from broker.handlers.log.produce import UNDER_WAY, BatchRoom
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Takers:
    """Who has been given room, by name."""

    def __init__(self, room: BatchRoom, nursery: Nursery) -> None:
        self.room = room
        self.nursery = nursery
        self.had: list[str] = []

    def take(self, name: str, batches: int) -> "asyncio.Task[None]":
        async def wait() -> None:
            await self.room.take(batches)
            self.had.append(name)

        return self.nursery.spawn(wait(), name=name)


def test_there_is_room_up_to_the_bound_and_for_one_alone_beyond_it() -> None:
    telemetry = Telemetry()
    room = BatchRoom(telemetry=telemetry, batches_max=10)

    assert room.take_now(6)
    assert not room.take_now(5)
    assert room.take_now(4)
    assert telemetry.registry.get_sample_value(UNDER_WAY.name) == 10
    room.give_back(6)
    room.give_back(4)
    assert room.take_now(1_000)
    assert not room.take_now(1)
    room.give_back(1_000)
    assert telemetry.registry.get_sample_value(UNDER_WAY.name) == 0


async def test_who_waits_has_room_in_the_order_of_coming_and_nobody_takes_it_before() -> None:
    room = BatchRoom(telemetry=Telemetry(), batches_max=10)
    async with Nursery() as nursery:
        takers = Takers(room, nursery)
        assert room.take_now(10)
        takers.take("large", 9)
        takers.take("small", 1)
        await turns()
        room.give_back(5)
        await turns()
        assert takers.had == []
        assert not room.take_now(1), "others wait"
        room.give_back(5)
        await turns()

        assert takers.had == ["large", "small"]


@pytest.mark.parametrize("when", ["waiting", "granted"])
async def test_who_leaves_while_waiting_keeps_no_room_and_holds_up_nobody(when: str) -> None:
    room = BatchRoom(telemetry=Telemetry(), batches_max=10)
    async with Nursery() as nursery:
        takers = Takers(room, nursery)
        assert room.take_now(10)
        first, _ = takers.take("leaves", 10), takers.take("stays", 10)
        await turns()
        if when == "waiting":
            first.cancel()
            await turns()
            room.give_back(10)
        else:
            room.give_back(10)
            first.cancel()
        await turns()

        assert takers.had == ["stays"]
        room.give_back(10)
        assert room.take_now(10)
