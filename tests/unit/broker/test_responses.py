import asyncio
from collections.abc import Callable

import pytest

from broker.responses import BYTES_MIN, GRANT_BYTES_MIN, GRANT_SHARE_MAX, RESPONSE_BYTES, SHORTAGES, Responses, Room
from runtime.frames import make_frame
from runtime.telemetry import Telemetry
from storage.limits import MIB
from tests.unit.broker.connecting import settle

LIMIT = 64 * MIB
WANTED = 8 * MIB
LONG_S = 10.0
SHORT_S = 0.01


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def budget(telemetry: Telemetry) -> Responses:
    def soon(call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    return Responses(bytes_max=LIMIT, telemetry=telemetry, soon=soon)


async def used_up(budget: Responses) -> tuple[list[Room], Room]:
    """The rooms that took all there is, and the one that goes on beyond."""
    rooms = []
    while True:
        room = budget.room()
        if await room.to_read(WANTED, SHORT_S) == 1:
            return rooms, room
        rooms.append(room)


async def test_a_reader_holds_twice_what_it_may_read_and_then_what_it_has_read(budget: Responses) -> None:
    room = budget.room()
    granted = await room.to_read(WANTED, LONG_S)
    while_reading = budget.held_bytes
    room.settle(5 * MIB)
    read = budget.held_bytes
    room.give_back()
    room.give_back()

    assert granted == WANTED
    assert while_reading == 2 * WANTED
    assert read == 5 * MIB
    assert budget.held_bytes == 0


async def test_the_less_is_left_the_less_a_reader_gets_and_never_more_than_there_is(budget: Responses) -> None:
    granted = []
    while (found := await budget.room().to_read(WANTED, SHORT_S)) > 1:
        granted.append(found)

    assert granted == sorted(granted, reverse=True)
    assert granted[-1] >= GRANT_BYTES_MIN // 2
    assert len(granted) > GRANT_SHARE_MAX
    assert LIMIT - GRANT_BYTES_MIN <= budget.held_bytes <= LIMIT


async def test_beyond_the_budget_one_reader_at_a_time_gets_one_batch_and_others_wait_for_it(budget: Responses) -> None:
    _, beyond = await used_up(budget)
    beyond.settle(3 * MIB)
    in_time = await budget.room().to_read(WANTED, SHORT_S)
    waiting = [asyncio.get_running_loop().create_task(budget.room().to_read(WANTED, LONG_S)) for _ in range(2)]
    await settle()
    at_first = [task.done() for task in waiting]
    beyond.give_back()
    await settle()

    assert in_time == 0
    assert at_first == [False, False]
    assert [task.done() for task in waiting] == [True, False]
    assert waiting[0].result() == 1
    assert budget.is_short
    waiting[1].cancel()


async def test_readers_get_room_that_was_given_back_in_the_order_of_asking(budget: Responses) -> None:
    rooms, _ = await used_up(budget)
    waiting = [asyncio.get_running_loop().create_task(budget.room().to_read(WANTED, LONG_S)) for _ in range(3)]
    await settle()
    waiting[0].cancel()
    await settle()
    rooms[0].give_back()
    await settle()

    assert waiting[0].cancelled()
    assert waiting[1].done()
    assert waiting[1].result() > 1
    for room in rooms[1:]:
        room.give_back()
    await settle()
    assert waiting[2].result() > 1


async def test_who_comes_later_does_not_overtake_who_waits(budget: Responses) -> None:
    rooms, _ = await used_up(budget)
    first = asyncio.get_running_loop().create_task(budget.room().to_send(LIMIT))
    await settle()
    rooms[0].give_back()
    later = await budget.room().to_read(WANTED, SHORT_S)

    assert not first.done()
    assert later == 0
    first.cancel()


async def test_a_frame_that_readers_let_go_makes_room(budget: Responses) -> None:
    dropped = [make_frame(LIMIT, budget)]
    beyond = budget.room()
    assert await beyond.to_read(WANTED, SHORT_S) == 1
    waiting = asyncio.get_running_loop().create_task(budget.room().to_read(WANTED, LONG_S))
    await settle()
    before = waiting.done()
    dropped.clear()
    await settle()

    assert not before
    assert waiting.result() == WANTED


async def test_a_reply_that_was_made_waits_for_its_whole_room(budget: Responses) -> None:
    rooms, beyond = await used_up(budget)
    sending = budget.room()
    waiting = asyncio.get_running_loop().create_task(sending.to_send(30 * MIB))
    await settle()
    before = waiting.done()
    for room in [*rooms, beyond]:
        room.give_back()
    await settle()

    assert not before
    assert waiting.done()
    assert budget.held_bytes == 30 * MIB


async def test_a_reply_larger_than_the_budget_is_sent_alone(budget: Responses) -> None:
    first, second = budget.room(), budget.room()
    await first.to_send(2 * LIMIT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT_S):
            await second.to_send(2 * LIMIT)
    first.give_back()
    await second.to_send(2 * LIMIT)

    assert budget.held_bytes == 2 * LIMIT


async def test_a_small_budget_is_taken_to_be_one_that_serves_somebody(telemetry: Telemetry) -> None:
    budget = Responses(bytes_max=0, telemetry=telemetry, soon=lambda call: None)
    rooms, _ = await used_up(budget)

    assert len(rooms) == BYTES_MIN // GRANT_BYTES_MIN


async def test_what_is_held_and_how_often_somebody_waited_is_measured(budget: Responses, telemetry: Telemetry) -> None:
    await used_up(budget)
    await budget.room().to_read(WANTED, SHORT_S)

    assert telemetry.registry.get_sample_value(RESPONSE_BYTES.name) == budget.held_bytes
    assert telemetry.registry.get_sample_value(SHORTAGES.name) == 1
