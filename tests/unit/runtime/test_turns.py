import asyncio
from collections.abc import Awaitable, Callable

import pytest

from runtime.turns import Turns


async def turns_of(work: Callable[[], Awaitable[object]]) -> int:
    """How often others had their turn meanwhile."""
    others = 0

    def other() -> None:
        nonlocal others, next_one
        others += 1
        next_one = asyncio.get_running_loop().call_soon(other)

    next_one = asyncio.get_running_loop().call_soon(other)
    await work()
    next_one.cancel()
    return others


@pytest.mark.parametrize(("items", "others"), [(0, 0), (8, 0), (9, 1), (100, 10)])
async def test_others_have_their_turn_after_so_many_items(items: int, others: int) -> None:
    made: list[str] = []

    async def work() -> None:
        made.extend(await Turns(10).each(str, range(items)))

    assert await turns_of(work) == others
    assert made == [str(number) for number in range(items)]


async def test_loops_within_loops_count_as_one() -> None:
    turns = Turns(10)

    async def work() -> None:
        for _ in range(20):
            await turns.each(str, range(4))

    assert await turns_of(work) == 10


async def test_empty_sequences_count_too() -> None:
    turns = Turns(10)

    async def work() -> None:
        for _ in range(20):
            await turns.each(str, ())

    assert await turns_of(work) == 2


async def test_what_was_done_otherwise_is_spent() -> None:
    turns = Turns(10)

    async def work() -> None:
        for _ in range(20):
            await turns.spent(5)

    assert await turns_of(work) == 10


async def test_keys_are_counted_and_looked_up_in_turns_too() -> None:
    made: list[object] = []

    async def work() -> None:
        made.append(await Turns(10).by_key(str, range(100)))
        made.append(await Turns(10).count([*"aab"] * 30))

    assert await turns_of(work) == 19
    assert made == [{number: str(number) for number in range(100)}, {"a": 60, "b": 30}]
