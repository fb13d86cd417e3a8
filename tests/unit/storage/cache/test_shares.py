"""Places for calls under way: bounded in number and bytes, shared between folders."""

import asyncio
import random

from storage.cache.blocks import CacheLimits, Shares

SMALL = CacheLimits(fetches_max=6, folder_fetches_max=2, fetches_bytes_max=60, folder_bytes_max=30)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_slow_folder_takes_its_share_and_leaves_the_others_theirs() -> None:
    places = Shares(limits=SMALL)
    async with asyncio.timeout(25), asyncio.TaskGroup() as group:
        slow = [group.create_task(places.take(f"wal/slow/{number}", 1)) for number in range(5)]
        await turns()
        assert [task.done() for task in slow] == [True, True, False, False, False]
        for number in range(100):
            await places.take(f"wal/quick/{number}", 1)
            places.give_back(f"wal/quick/{number}", 1)
        places.give_back("wal/slow/0", 1)
        await turns()
        assert [task.done() for task in slow] == [True, True, True, False, False]
        for task in slow:
            task.cancel()


async def test_bytes_are_bounded_and_what_is_larger_runs_alone() -> None:
    places = Shares(limits=SMALL)
    async with asyncio.timeout(25), asyncio.TaskGroup() as group:
        await places.take("a/1", 20)
        too_many = group.create_task(places.take("a/2", 20))
        huge = group.create_task(places.take("b/1", 1_000))
        small_one = group.create_task(places.take("c/1", 1))
        await turns()
        assert not too_many.done()
        assert not huge.done()
        assert not small_one.done(), "a large one is not overtaken for ever by small ones"
        places.give_back("a/1", 20)
        await turns()
        assert too_many.done()
        assert not huge.done()
        places.give_back("a/2", 20)
        await turns()
        assert huge.done()
        places.give_back("b/1", 1_000)
        await turns()
        assert small_one.done()


async def test_who_is_cancelled_holds_no_place_whenever_that_happens() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        places, held = Shares(limits=SMALL), set[asyncio.Task[None] | None]()

        async def call(
            key: str, size_bytes: int, chance: random.Random = chance, places: Shares = places, held: set[asyncio.Task[None] | None] = held
        ) -> None:
            await places.take(key, size_bytes)
            held.add(asyncio.current_task())
            try:
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                assert len(held) <= SMALL.fetches_max
            finally:
                held.discard(asyncio.current_task())
                places.give_back(key, size_bytes)

        async with asyncio.timeout(25), asyncio.TaskGroup() as group:
            calls = [group.create_task(call(f"{chance.randrange(4)}/x", chance.randrange(40))) for _ in range(60)]
            while not all(task.done() for task in calls):
                if chance.random() < 0.5:
                    chance.choice(calls).cancel()
                await asyncio.sleep(0)

        for number in range(SMALL.fetches_max):
            key, size_bytes = f"{number // SMALL.folder_fetches_max}/x", SMALL.fetches_bytes_max // SMALL.fetches_max
            assert places.has(key, size_bytes)
            await places.take(key, size_bytes)
