import asyncio

import pytest

from storage.catalog.records import SharedReads
from storage.errors import Unavailable


class Reader:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.rounds: list[list[int]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def read(self, keys: list[int]) -> dict[int, str]:
        self.rounds.append(keys)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return {key: f"{key}@{len(self.rounds)}" for key in keys}


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_questions_that_arrive_during_a_read_share_the_next_one() -> None:
    reader = Reader()
    gathering = SharedReads(reader.read)
    loop = asyncio.get_running_loop()
    first = loop.create_task(gathering.ask([1, 1]))
    await turn()
    others = [loop.create_task(gathering.ask([1, number])) for number in (2, 3, 4)]
    await turn()
    reader.gate.set()

    assert await first == {1: "1@1"}
    assert await asyncio.gather(*others) == [{1: "1@2", number: f"{number}@2"} for number in (2, 3, 4)]
    assert reader.rounds == [[1], [1, 2, 3, 4]]


async def test_an_error_reaches_everyone_of_the_round_and_nobody_of_the_next() -> None:
    reader = Reader()
    reader.error = Unavailable("down")
    gathering = SharedReads(reader.read)
    loop = asyncio.get_running_loop()
    first = loop.create_task(gathering.ask([0]))
    await turn()
    others = [loop.create_task(gathering.ask([1])) for _ in range(2)]
    await turn()
    reader.gate.set()
    outcomes = await asyncio.gather(first, *others, return_exceptions=True)
    reader.error = None

    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
    assert await gathering.ask([5]) == {5: "5@3"}


async def test_two_reads_never_run_at_once_even_if_the_one_that_waits_is_cancelled() -> None:
    reader = Reader()
    gathering = SharedReads(reader.read)
    loop = asyncio.get_running_loop()
    running = loop.create_task(gathering.ask([0]))
    await turn()
    waiting = loop.create_task(gathering.ask([1]))
    await turn()
    waiting.cancel()
    await turn()

    last = loop.create_task(gathering.ask([2]))
    await turn()

    assert reader.rounds == [[0]]
    reader.gate.set()
    assert await running == {0: "0@1"}
    assert await last == {2: "2@2"}


@pytest.mark.parametrize("leader_runs", [True, False])
async def test_when_the_asker_that_reads_is_cancelled_another_reads(leader_runs: bool) -> None:
    reader = Reader()
    gathering = SharedReads(reader.read)
    loop = asyncio.get_running_loop()
    blocker = loop.create_task(gathering.ask([0]))
    await turn()
    leader = loop.create_task(gathering.ask([1]))
    await turn()
    follower = loop.create_task(gathering.ask([2]))
    await turn()
    if leader_runs:
        blocker.cancel()
        await turn()

    leader.cancel()
    await turn()
    reader.gate.set()

    assert list(await follower) == [2]
    assert leader.cancelled()


async def test_a_cancelled_follower_disturbs_nobody() -> None:
    reader = Reader()
    gathering = SharedReads(reader.read)
    loop = asyncio.get_running_loop()
    blocker, leader, follower = (loop.create_task(gathering.ask([number])) for number in range(3))
    await turn()

    follower.cancel()
    reader.gate.set()

    assert await blocker == {0: "0@1"}
    assert await leader == {1: "1@2"}
