import asyncio
import itertools
from collections.abc import Callable

import pytest

from broker.addresses import COMPARED_MAX, Addresses, ClientAddress
from broker.responses import (
    ADDRESS_SHARE,
    BYTES_MIN,
    GRANT_BYTES_MIN,
    GRANT_SHARE_MAX,
    HOLDING_MEMORY_S,
    LOOKED_AT_PER_STEP,
    RESPONSE_BYTES,
    SHORTAGES,
    TASTE_BYTES,
    TASTES_SHARE,
    UNREAD,
    UNREAD_FINISH_S,
    UNREAD_S,
    Responses,
    Room,
)
from runtime.frames import Account, make_frame
from runtime.telemetry import Telemetry
from storage.limits import KIB, MIB
from tests.unit.broker.connecting import settle

LIMIT = 64 * MIB
TASTES = LIMIT // TASTES_SHARE // GRANT_BYTES_MIN
USED_MAX = LIMIT - TASTES * GRANT_BYTES_MIN
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


def used_up(budget: Responses, address: ClientAddress | None = None) -> list[Room]:
    """The rooms that took all there is."""
    rooms = [budget.room(address and address.replies)]
    while rooms[-1].to_read_now(WANTED):
        rooms.append(budget.room(address and address.replies))
    return rooms[:-1]


async def after_a_taste(budget: Responses, address: ClientAddress | None = None, *, tasted_bytes: int = 1 * MIB) -> Room:
    """A room for what turned out to be too much."""
    room = budget.room(address and address.replies)
    assert await room.to_read(WANTED, SHORT_S) == TASTE_BYTES
    assert not room.keep(tasted_bytes)
    return room


async def test_a_reader_holds_twice_what_it_may_read_and_then_what_it_has_read(budget: Responses) -> None:
    room = budget.room()
    granted = await room.to_read(WANTED, LONG_S)
    while_reading = budget.held_bytes
    assert room.keep(5 * MIB)
    read = budget.held_bytes
    room.give_back()
    room.give_back()

    assert granted == WANTED
    assert while_reading == 2 * WANTED
    assert read == 5 * MIB
    assert budget.held_bytes == 0


async def test_the_less_is_left_the_less_a_reader_gets_and_never_more_than_there_is(budget: Responses) -> None:
    granted = []
    while found := budget.room().to_read_now(WANTED):
        granted.append(found)

    assert granted == sorted(granted, reverse=True)
    assert granted[-1] >= GRANT_BYTES_MIN // 2
    assert len(granted) > GRANT_SHARE_MAX
    assert USED_MAX - GRANT_BYTES_MIN <= budget.held_bytes <= USED_MAX


async def test_readers_of_little_are_served_at_once_whatever_others_hold_and_for_however_long_they_wait(budget: Responses) -> None:
    used_up(budget)
    waiting = [asyncio.get_running_loop().create_task((await after_a_taste(budget)).to_read(WANTED, LONG_S)) for _ in range(20)]
    await settle()
    for _ in range(100):
        room = budget.room()
        assert await room.to_read(WANTED, 0.0) == TASTE_BYTES
        assert room.keep(5 * KIB)
        room.give_back()

    assert not any(task.done() for task in waiting)
    assert budget.is_short
    for task in waiting:
        task.cancel()


async def test_what_turns_out_to_be_much_waits_for_room_for_twice_as_much(budget: Responses) -> None:
    rooms, before_bytes = used_up(budget), budget.held_bytes
    room = await after_a_taste(budget, tasted_bytes=3 * MIB)
    tasted_bytes = budget.held_bytes - before_bytes
    waiting = asyncio.get_running_loop().create_task(room.to_read(WANTED, LONG_S))
    await settle()
    at_first = waiting.done()
    for one in rooms:
        one.give_back()
    await settle()

    assert tasted_bytes == 0, "it is let go"
    assert not at_first
    assert waiting.result() >= 3 * MIB


async def test_the_longer_the_first_waits_the_less_others_keep_of_what_they_tasted(budget: Responses) -> None:
    held = budget.room()
    await held.to_send(USED_MAX)
    large = await after_a_taste(budget, tasted_bytes=8 * MIB)
    waiting = asyncio.get_running_loop().create_task(large.to_read(WANTED, LONG_S))
    await settle()
    held.settle(USED_MAX - 12 * MIB)

    async def keeps(size_bytes: int) -> bool:
        room = budget.room()
        assert await room.to_read(WANTED, SHORT_S) == TASTE_BYTES
        is_kept = room.keep(size_bytes)
        room.give_back()
        return is_kept

    at_first = await keeps(MIB)
    looked_on(budget, [], 10)

    assert at_first
    assert not await keeps(MIB)
    assert await keeps(16 * KIB), "what is so little keeps nobody waiting"
    waiting.cancel()


async def test_so_many_taste_at_a_time_and_others_come_after_them(budget: Responses) -> None:
    used_up(budget)
    tasting = [budget.room() for _ in range(TASTES)]
    for room in tasting:
        assert await room.to_read(WANTED, SHORT_S) == TASTE_BYTES
    late = budget.room()
    in_time = await late.to_read(WANTED, SHORT_S)
    waiting = asyncio.get_running_loop().create_task(late.to_read(WANTED, LONG_S))
    await settle()
    before = waiting.done()
    tasting[0].give_back()
    await settle()

    assert in_time == 0
    assert not before
    assert waiting.result() == TASTE_BYTES


@pytest.mark.parametrize("turns", [0, 1], ids=["before", "after"])
async def test_who_gives_up_when_its_turn_has_come_leaves_no_room_behind(budget: Responses, turns: int) -> None:
    new_task = asyncio.get_running_loop().create_task
    rooms = used_up(budget)
    tasted = await after_a_taste(budget)
    tasting = [budget.room() for _ in range(TASTES)]
    for room in tasting:
        await room.to_read(WANTED, SHORT_S)
    waiting = [new_task(room.to_read(WANTED, LONG_S)) for room in (tasted, budget.room(), budget.room())]
    await settle()
    for room in (*rooms, *tasting):
        room.give_back()
    for _ in range(turns):
        await asyncio.sleep(0)
    granted_bytes = budget.held_bytes
    for task in waiting:
        task.cancel()
    await settle()
    held_bytes = budget.held_bytes
    used_up(budget)
    again = [await budget.room().to_read(WANTED, SHORT_S) for _ in range(TASTES + 1)]

    assert all(task.cancelled() for task in waiting)
    assert (granted_bytes > 0) is (turns > 0)
    assert held_bytes == 0
    assert again == [TASTE_BYTES] * TASTES + [0]


async def test_one_address_leaves_others_a_part_and_they_get_it_at_once(budget: Responses) -> None:
    known = Addresses(requests=Account(), replies=budget)
    many, one = known.of("10.0.0.1"), known.of("10.0.0.2")
    used_up(budget, many)
    held_bytes = many.replies.held_bytes
    room = budget.room(one.replies)
    readable_bytes = room.to_read_now(WANTED)

    assert held_bytes <= USED_MAX * ADDRESS_SHARE // (ADDRESS_SHARE + 1)
    assert held_bytes >= USED_MAX * ADDRESS_SHARE // (ADDRESS_SHARE + 1) - GRANT_BYTES_MIN, "alone it gets all but that"
    assert readable_bytes >= GRANT_BYTES_MIN // 2


async def test_the_address_that_holds_less_goes_first_whoever_waited_first(budget: Responses) -> None:
    known = Addresses(requests=Account(), replies=budget)
    many, one = known.of("10.0.0.1"), known.of("10.0.0.2")
    rooms = used_up(budget, many)
    others = used_up(budget)
    first = await after_a_taste(budget, many)
    crowd = asyncio.get_running_loop().create_task(first.to_read(WANTED, LONG_S))
    await settle()
    second = await after_a_taste(budget, one)
    lone = asyncio.get_running_loop().create_task(second.to_read(WANTED, LONG_S))
    await settle()
    while not lone.done():
        (rooms or others).pop().give_back()
        await settle()

    assert not crowd.done() or rooms == []
    assert lone.result() > 0
    crowd.cancel()


async def test_who_waits_for_a_large_batch_gets_room_however_many_addresses_wait_for_less(budget: Responses) -> None:
    known = Addresses(requests=Account(), replies=budget)
    new_task = asyncio.get_running_loop().create_task
    names = map(str, itertools.count())
    reading = [budget.room(known.of(next(names)).replies) for _ in range(USED_MAX // GRANT_BYTES_MIN)]
    assert all(room.to_read_now(1) for room in reading)
    large = new_task((await after_a_taste(budget, known.of("large"), tasted_bytes=8 * MIB)).to_read(WANTED, LONG_S))
    waiting: dict[asyncio.Task[int], Room] = {}
    for number in range(20 * COMPARED_MAX):
        room = budget.room(known.of(next(names)).replies)
        assert await room.to_read(WANTED, SHORT_S) == TASTE_BYTES
        if room.keep(2 * MIB):
            reading.append(room)
        else:
            waiting[new_task(room.to_read(1, LONG_S))] = room
        if number > 3 * COMPARED_MAX and reading:
            reading.pop(0).give_back()
        await settle()
        reading += [waiting.pop(task) for task in list(waiting) if task.done()]

    assert large.done()
    assert large.result() >= 8 * MIB
    for task in waiting:
        task.cancel()


async def test_readers_of_an_address_get_room_that_was_given_back_in_the_order_of_asking(budget: Responses) -> None:
    rooms = used_up(budget)
    waiting = [asyncio.get_running_loop().create_task((await after_a_taste(budget)).to_read(WANTED, LONG_S)) for _ in range(3)]
    await settle()
    waiting[0].cancel()
    await settle()
    rooms[-1].give_back()
    await settle()
    is_done = [task.done() for task in waiting]
    for room in rooms[:-1]:
        room.give_back()
    await settle()

    assert waiting[0].cancelled()
    assert is_done == [True, True, False]
    assert waiting[1].result() >= GRANT_BYTES_MIN // 2
    assert waiting[2].result() > 1


async def test_who_waits_for_more_records_answers_when_others_wait_for_its_room(budget: Responses) -> None:
    hurried: list[str] = []
    lounging, other = budget.room(), budget.room()
    lounging.to_read_now(WANTED)
    lounging.when_short(lambda: hurried.append("lounging"))
    other.when_short(lambda: hurried.append("other"))
    other.when_short(None)
    used_up(budget)
    at_first = list(hurried)
    room = await after_a_taste(budget)
    waiting = asyncio.get_running_loop().create_task(room.to_read(WANTED, LONG_S))
    await settle()
    late = budget.room()
    late.when_short(lambda: hurried.append("late"))

    assert at_first == []
    assert hurried == ["lounging", "late"]
    waiting.cancel()


async def test_a_frame_that_readers_let_go_makes_room(budget: Responses) -> None:
    dropped = [make_frame(LIMIT, budget.dropped)]
    room = await after_a_taste(budget)
    waiting = asyncio.get_running_loop().create_task(room.to_read(WANTED, LONG_S))
    await settle()
    before = waiting.done()
    dropped.clear()
    await settle()

    assert not before
    assert waiting.result() > 1


async def test_what_replies_hold_of_frames_that_the_cache_dropped_is_held_once(budget: Responses) -> None:
    room = budget.room()
    await room.to_read(WANTED, SHORT_S)
    room.settle(USED_MAX // 2)
    dropped = make_frame(USED_MAX // 2, budget.dropped)

    assert budget.room().to_read_now(WANTED) > GRANT_BYTES_MIN
    assert dropped.account is budget.dropped


async def test_a_reply_that_was_made_waits_for_its_whole_room(budget: Responses) -> None:
    rooms = used_up(budget)
    sending = budget.room()
    waiting = asyncio.get_running_loop().create_task(sending.to_send(30 * MIB))
    await settle()
    before = waiting.done()
    for room in rooms:
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

    assert len(used_up(budget)) == BYTES_MIN // GRANT_BYTES_MIN - 1
    assert await budget.room().to_read(WANTED, SHORT_S) == TASTE_BYTES


class Reader:
    """A client that takes so many bytes a second of its reply."""

    def __init__(self, budget: Responses, address: ClientAddress, reply_bytes: int, speed_bytes: int) -> None:
        self.address = address
        self.left_bytes = reply_bytes
        self.speed_bytes = speed_bytes
        self.evicted_for: str | None = None
        self._room = budget.room(address.replies)
        self._room.settle(reply_bytes)
        budget.note_untaken(self)

    def untaken_bytes(self) -> int:
        return self.left_bytes

    def evict(self, reason: str) -> None:
        self.evicted_for = reason
        self._room.give_back()


def looked_on(budget: Responses, readers: list[Reader], seconds: float) -> None:
    for second in range(int(seconds)):
        all(budget.look_in_steps(float(second)))
        for one in readers:
            one.left_bytes = max(0, one.left_bytes - one.speed_bytes)


class LookedAt(Reader):
    """Counts how often somebody asks what it has not taken."""

    def untaken_bytes(self) -> int:
        self.looks[-1] += 1
        return 1

    looks: list[int]


async def test_a_look_at_many_is_taken_in_turns_that_others_can_come_between(budget: Responses) -> None:
    address = Addresses(requests=Account(), replies=budget).of("10.0.0.1")
    looks = LookedAt.looks = [0]
    readers = [LookedAt(budget, address, 1, 0) for _ in range(1_000)]
    for second in range(3 * int(UNREAD_S)):
        looking = budget.look_in_steps(float(second))
        while next(looking, "end") != "end":
            looks.append(0)
        looks.append(0)

    assert readers
    assert sum(looks) >= 1_000 * 3 * int(UNREAD_S)
    assert max(looks) <= 2 * LOOKED_AT_PER_STEP


@pytest.mark.parametrize(
    ("speed_bytes", "is_evicted"),
    [(0, True), (2 * KIB, True), (int(2 * MIB / UNREAD_FINISH_S), False), (MIB, False)],
    ids=["nothing", "a trickle", "slow", "well"],
)
async def test_it_is_what_a_client_takes_that_counts_and_only_while_others_wait(
    budget: Responses, speed_bytes: int, *, is_evicted: bool
) -> None:
    address = Addresses(requests=Account(), replies=budget).of("10.0.0.1")
    readers = [Reader(budget, address, 2 * MIB, speed_bytes) for _ in range(USED_MAX // (2 * MIB))]
    looked_on(budget, readers, 2 * UNREAD_S)
    while_nobody_waits = {one.evicted_for for one in readers}
    for one in readers:
        one.left_bytes = 2 * MIB
        budget.note_untaken(one)
    room = await after_a_taste(budget, address)
    waiting = asyncio.get_running_loop().create_task(room.to_read(WANTED, LONG_S))
    await settle()
    looked_on(budget, readers, UNREAD_S)
    early = {one.evicted_for for one in readers}
    looked_on(budget, readers, UNREAD_S + 2)

    assert while_nobody_waits == early == {None}
    assert {one.evicted_for for one in readers} == ({UNREAD, None} if is_evicted else {None}), "no more of them than are in the way"
    waiting.cancel()


async def test_a_client_that_has_taken_all_it_was_sent_is_in_nobodys_way(budget: Responses) -> None:
    address = Addresses(requests=Account(), replies=budget).of("10.0.0.1")
    idle = [Reader(budget, address, 0, 0) for _ in range(40)]
    used_up(budget)
    room = await after_a_taste(budget, address)
    waiting = asyncio.get_running_loop().create_task(room.to_read(WANTED, LONG_S))
    await settle()
    looked_on(budget, idle, 3 * UNREAD_S)

    assert {one.evicted_for for one in idle} == {None}
    waiting.cancel()


async def test_who_holds_more_than_an_equal_part_and_takes_nothing_goes_first_and_sooner(budget: Responses) -> None:
    address = Addresses(requests=Account(), replies=budget).of("10.0.0.1")
    large = Reader(budget, address, 16 * MIB, 0)
    readers = [large, *(Reader(budget, address, 1 * MIB, 0) for _ in range(40))]
    room = await after_a_taste(budget, address)
    waiting = asyncio.get_running_loop().create_task(room.to_read(WANTED, LONG_S))
    await settle()
    looked_on(budget, readers, HOLDING_MEMORY_S + 2)

    assert [one.evicted_for for one in readers] == [UNREAD] + [None] * 40
    waiting.cancel()


async def test_who_holds_less_is_not_evicted_for_an_address_that_holds_more(budget: Responses) -> None:
    known = Addresses(requests=Account(), replies=budget)
    many, one = known.of("10.0.0.1"), known.of("10.0.0.2")
    stopped = Reader(budget, one, 1 * MIB, 0)
    readers = [stopped, *(Reader(budget, many, 1 * MIB, MIB) for _ in range(48))]
    room = await after_a_taste(budget, many)
    waiting = asyncio.get_running_loop().create_task(room.to_read(WANTED, LONG_S))
    await settle()
    looked_on(budget, readers, 2 * UNREAD_S)

    assert [one.evicted_for for one in readers] == [None] * 49
    waiting.cancel()


async def test_what_is_held_and_how_often_somebody_waited_is_measured(budget: Responses, telemetry: Telemetry) -> None:
    used_up(budget)
    room = await after_a_taste(budget)
    assert await room.to_read(WANTED, SHORT_S) == 0

    assert telemetry.registry.get_sample_value(RESPONSE_BYTES.name) == budget.held_bytes
    assert telemetry.registry.get_sample_value(SHORTAGES.name) == 1
