"""Room for reads under way, in the order of asking."""

import asyncio

from storage.cache.blocks import ReadRoom


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Holding:
    def __init__(self, room: ReadRoom, size_bytes: int) -> None:
        self.is_held = False
        self.release = asyncio.Event()
        self._room, self._size_bytes = room, size_bytes

    async def run(self) -> None:
        async with self._room.held(self._size_bytes):
            self.is_held = True
            await self.release.wait()


async def test_a_small_one_does_not_overtake_a_large_one_and_a_cancelled_one_leaves_the_line() -> None:
    room = ReadRoom(bytes_max=10)
    first, large, small = Holding(room, 6), Holding(room, 8), Holding(room, 2)
    async with asyncio.timeout(25), asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in (first, large, small)]
        await turns()
        assert [one.is_held for one in (first, large, small)] == [True, False, False]
        assert not room.has(1), "others wait"
        tasks[1].cancel()
        await turns()
        assert small.is_held
        assert (room.bytes, room.has(2), room.has(3)) == (8, True, False)
        for one in (first, small):
            one.release.set()

    assert room.bytes == 0


async def test_one_that_is_larger_than_the_room_goes_alone() -> None:
    room = ReadRoom(bytes_max=10)
    small, larger = Holding(room, 1), Holding(room, 50)
    async with asyncio.timeout(25), asyncio.TaskGroup() as group:
        for one in (small, larger):
            group.create_task(one.run())
        await turns()
        assert not larger.is_held
        small.release.set()
        await turns()
        assert larger.is_held
        larger.release.set()
