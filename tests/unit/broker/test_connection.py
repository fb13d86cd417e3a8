import gc
import itertools
import sys
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.admission import BEHIND_LOOKS_MIN, LAST_READ_BYTES, READ_PER_TURN_BYTES, READERS_PER_TURN, Admission, Sender
from broker.connection import (
    ARENA_BYTES,
    FRAME_GROWTH,
    GATHERED_BYTES_MAX,
    NO_MEMORY,
    OWN_BUFFER_FROM_BYTES,
    PREFIX_BYTES,
    PROVEN_BYTES_MAX,
    TOGETHER_BYTES_MAX,
    UNANSWERED_BYTES_MAX,
    UNANSWERED_REQUESTS_MAX,
)
from broker.dispatch import Unanswerable
from broker.protocol.wire import ProtocolViolation
from runtime.frames import FRAME_OVERHEAD_BYTES, Frame
from runtime.telemetry import Telemetry
from storage.limits import FRAME_BYTES_MAX, KIB, MIB
from tests.unit.broker.connecting import Play, Timers, cost, framed, occupied, playing, settle

EDGES = [1, 2, 100, *(edge + off for edge in (16 * KIB, 64 * KIB, 256 * KIB) for off in (-5, -4, -1, 0, 1)), 300_000]

assert OWN_BUFFER_FROM_BYTES in EDGES
assert ARENA_BYTES in EDGES


def body(kind: str, number: int, size: int) -> bytes:
    """A request of `size` bytes, unlike any other of its test."""
    head = f"{kind}{number}.".encode()[:size]
    return head + bytes((number * 31 + at) % 251 for at in range(min(size - len(head), 1000))) + bytes(max(0, size - len(head) - 1000))


def views_of(size: int) -> int:
    """How many views of this size are alive."""
    return sum(isinstance(found, memoryview) and found.nbytes == size for found in gc.get_objects())


@settings(max_examples=150)
@given(
    sizes=st.lists(st.sampled_from(EDGES) | st.integers(1, 70_000), min_size=1, max_size=6),
    chunks=st.lists(st.sampled_from([3, 4, 5, 1000, 16 * KIB, 64 * KIB, 1 << 20]) | st.integers(1, 70_000), min_size=1, max_size=5),
)
def test_how_frames_are_cut_into_chunks_does_not_matter(sizes: list[int], chunks: list[int]) -> None:
    play = Play()
    play.requests.instant = b"ok"
    bodies = [body("P", number, size) for number, size in enumerate(sizes)]
    stream = framed(*bodies)
    position, turn = 0, 0
    while position < len(stream):
        # Small chunks of a large frame would take long and show nothing new.
        size = max(chunks[turn % len(chunks)], len(stream) // 500)
        play.receive_bytes(stream[position : position + size])
        position += size
        turn += 1

    assert play.requests.begun == bodies
    assert play.replies == [b"ok"] * len(bodies)
    assert play.admission.held_bytes == 0
    assert not play.transport.is_closing()


def test_a_frame_at_a_time_byte_by_byte() -> None:
    play = Play()
    play.receive_bytes(framed(b"P1", b"P22", b"P333"), chunk_bytes=1)

    assert play.requests.begun == [b"P1", b"P22", b"P333"]


def test_the_claim_of_a_large_frame_costs_nothing_and_its_buffer_follows_what_has_arrived() -> None:
    play = Play(budget_bytes=256 * MIB)
    play.receive_bytes(FRAME_BYTES_MAX.to_bytes(4, "big") + b"P" + bytes(OWN_BUFFER_FROM_BYTES - 2))
    claimed = play.admission.held_bytes
    arrived = OWN_BUFFER_FROM_BYTES - 1
    ratios = []
    while arrived < 4 * MIB:
        play.receive_bytes(bytes(10_000))
        arrived += 10_000
        ratios.append((play.admission.held_bytes - FRAME_OVERHEAD_BYTES) / arrived)

    assert claimed == 0
    assert 1 <= max(ratios) <= FRAME_GROWTH


def begun(play: Play, frame_bytes: int) -> int:
    """Begin a frame of this size, as far as gets it a buffer. Returns the size of that."""
    before_bytes = play.admission.held_bytes
    play.receive_bytes(frame_bytes.to_bytes(4, "big") + b"P" + bytes(OWN_BUFFER_FROM_BYTES - 1))
    return play.admission.held_bytes - before_bytes - FRAME_OVERHEAD_BYTES


@pytest.mark.parametrize(
    ("sent", "next_sent", "room"),
    [
        (MIB, MIB, MIB),
        (MIB, MIB // 2, MIB // 2),
        (3 * MIB, PROVEN_BYTES_MAX, PROVEN_BYTES_MAX),
        (MIB, MIB + 1, OWN_BUFFER_FROM_BYTES * FRAME_GROWTH),
        (3 * MIB, 3 * MIB, OWN_BUFFER_FROM_BYTES * FRAME_GROWTH),
    ],
)
def test_whoever_has_sent_a_frame_of_a_size_gets_room_for_the_next_one_at_once_up_to_a_bound(sent: int, next_sent: int, room: int) -> None:
    play = Play(budget_bytes=256 * MIB)
    first = b"P" + bytes(sent - 1)
    play.receive(first)
    play.requests.answer(first, b"ok")

    assert begun(play, next_sent) == room
    play.receive_bytes(bytes(next_sent - OWN_BUFFER_FROM_BYTES))
    assert play.requests.begun[-1] == b"P" + bytes(next_sent - 1)


def test_a_request_that_waits_for_memory_holds_none_of_it_and_nothing_that_waits_is_evicted() -> None:
    play = Play(budget_bytes=64 * MIB)
    large = b"P" + bytes(8 * MIB - 1)
    others = [occupied(play.admission, 8 * MIB) for _ in range(6)]
    before_bytes = play.admission.held_bytes
    play.receive_bytes(framed(large))
    while_waiting_bytes = play.admission.held_bytes
    play.timers.go_off(1000)
    others.clear()
    play.read_on()

    assert while_waiting_bytes == before_bytes
    assert play.evicted_for == []
    assert play.requests.begun == [large]


def test_small_requests_are_read_while_large_ones_fill_the_budget_and_wait() -> None:
    bystander = Play(budget_bytes=64 * MIB)
    bystander.requests.instant = b"ok"
    producers = [Play(admission=bystander.admission, address=bystander.connection.address) for _ in range(16)]
    large = b"P" + bytes(8 * MIB - 1)
    for one in producers:
        one.receive(large)
    begun = sum(len(one.requests.begun) for one in producers)
    for number in range(100):
        bystander.receive(b"P%d" % number)

    assert 0 < begun < len(producers)
    assert bystander.admission.is_short
    assert len(bystander.replies) == 100
    while waiting := [one for one in producers if one.replies == []]:
        for one in [one for one in waiting if one.requests.begun]:
            one.requests.answer(large, b"ok")
        for one in producers:
            one.read_on()
    assert [one.evicted_for for one in producers] == [[]] * len(producers)
    assert not bystander.admission.is_short


def test_a_frame_of_the_largest_size_is_taken_and_no_byte_is_lost() -> None:
    play = Play(budget_bytes=256 * MIB)
    piece = bytes(range(256)) * 4096
    large = b"P" + piece * 99
    play.receive(large)
    held = play.admission.held_bytes
    play.requests.answer(large, b"ok")

    assert held == cost(len(large))
    assert play.replies == [b"ok"]
    assert play.admission.held_bytes == 0


def test_a_frame_as_large_as_may_be_is_taken_when_it_is_alone() -> None:
    play = Play(budget_bytes=8 * MIB, frame_bytes_max=6 * MIB)
    large = b"P" + bytes(6 * MIB - 1)
    play.receive_bytes(framed(large), chunk_bytes=100 * KIB)

    assert play.requests.begun == [large]
    assert play.evicted_for == []


def test_who_waits_for_room_when_it_is_drained_waits_no_longer() -> None:
    timers = Timers()
    admission = Admission(bytes_max=4 * MIB, telemetry=Telemetry(), soon=lambda call: call(), later=timers.later)
    whole = occupied(admission, 7 * MIB // 2)
    play = Play(admission=admission)
    play.receive_bytes(framed(b"P" + bytes(4 * MIB - 1))[: MIB + 100])
    play.connection.drain()
    timers.go_off()

    assert whole is not None
    assert play.transport.has_written_eof
    assert timers.calls == []


def test_a_frame_above_the_limit_closes_the_connection_before_it_is_read() -> None:
    play = Play(frame_bytes_max=1 * MIB)
    play.receive_bytes((MIB + 1).to_bytes(4, "big"))

    assert play.transport.is_aborted
    assert play.violations == 1
    assert play.admission.held_bytes == 0


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1])
def test_a_length_that_is_none_closes_the_connection(length: int) -> None:
    play = Play()
    play.receive_bytes(length.to_bytes(4, "big", signed=True) + b"rest")

    assert play.transport.is_aborted
    assert play.violations == 1


@pytest.mark.parametrize("content", [b"", b"M"])
async def test_a_frame_without_room_for_a_header_closes_the_connection(content: bytes) -> None:
    async with playing() as play:
        play.receive(content)
        await settle()

        assert play.transport.is_aborted
        assert play.violations == 1
        play.lose()
        assert play.admission.held_bytes == 0


def test_what_came_behind_a_violation_is_not_begun() -> None:
    play = Play()
    play.receive(b"P1", b"!", b"P2")

    assert play.requests.begun == [b"P1"]
    assert play.transport.is_aborted


async def test_produce_overlaps_and_replies_leave_in_order() -> None:
    async with playing() as play:
        play.receive(b"P1", b"P2", b"P3")
        play.requests.answer(b"P2")
        play.requests.answer(b"P3")
        early = play.replies
        play.requests.answer(b"P1")

        assert play.requests.begun == [b"P1", b"P2", b"P3"]
        assert early == []
        assert play.replies == [b"P1", b"P2", b"P3"]
        play.lose()


async def test_any_other_request_starts_when_all_before_it_are_answered_and_runs_alone() -> None:
    async with playing() as play:
        play.receive(b"P1", b"P2", b"M1", b"M2", b"P3")
        await settle()
        play.requests.answer(b"P2")
        await settle()
        before = list(play.requests.begun)
        play.requests.answer(b"P1")
        await settle()
        alone = list(play.requests.begun)
        play.requests.answer(b"M1")
        await settle()
        next_alone = list(play.requests.begun)
        play.requests.answer(b"M2")
        await settle()

        assert before == [b"P1", b"P2"]
        assert alone == [b"P1", b"P2", b"M1"]
        assert next_alone == [b"P1", b"P2", b"M1", b"M2"]
        assert play.requests.begun == [b"P1", b"P2", b"M1", b"M2", b"P3"]
        assert play.replies == [b"P1", b"P2", b"M1", b"M2"]
        play.lose()


@pytest.mark.parametrize("follower", [b"M1", b"P1", b"!"])
@pytest.mark.parametrize("is_there_before", [False, True])
async def test_a_request_that_runs_alone_is_told_once_of_another_behind_it(follower: bytes, is_there_before: bool) -> None:
    async with playing() as play:
        told: list[str] = []
        play.receive(b"F1", *[follower] * is_there_before)
        await settle()
        play.connection.when_followed(lambda: told.append("followed"))
        play.receive(*[follower] * (not is_there_before), b"M2")

        assert told == ["followed"]
        play.lose()


async def test_a_fetch_behind_it_is_told_of_to_nobody_but_what_is_behind_that_is_told_to_that() -> None:
    async with playing() as play:
        told: list[str] = []
        play.receive(b"F1", b"F2")
        await settle()
        play.connection.when_followed(lambda: told.append("first"))
        play.receive(b"M1")
        assert told == []

        play.connection.when_followed(None)
        play.requests.answer(b"F1")
        await settle()
        play.connection.when_followed(lambda: told.append("second"))

        assert told == ["second"]
        play.lose()


async def test_who_no_longer_wants_to_be_told_of_what_follows_is_not() -> None:
    async with playing() as play:
        told: list[str] = []
        play.receive(b"F1")
        await settle()
        play.connection.when_followed(lambda: told.append("followed"))
        play.connection.when_followed(None)
        play.receive(b"M1")

        assert told == []
        play.lose()


async def test_a_produce_request_that_has_to_wait_is_not_overtaken_but_overlaps_once_begun() -> None:
    async with playing() as play:
        play.receive(b"P1", b"W1", b"P2", b"M1")
        await settle()
        waiting = list(play.requests.begun)
        play.requests.answer(b"prepare W1")
        await settle()
        begun = list(play.requests.begun)
        for answered in (b"P2", b"W1", b"P1"):
            play.requests.answer(answered)
        await settle()

        assert waiting == [b"P1", b"prepare W1"]
        assert begun == [b"P1", b"prepare W1", b"W1", b"P2"]
        assert play.requests.begun[-1] == b"M1"
        assert play.replies == [b"P1", b"W1", b"P2"]
        play.lose()


async def test_a_produce_request_that_turns_out_to_be_wide_runs_alone_and_is_answered_in_its_place() -> None:
    async with playing() as play:
        play.receive(b"P1", b"V1", b"P2", b"M1")
        await settle()
        alone = list(play.requests.begun)
        play.requests.answer(b"V1")
        await settle()
        begun = list(play.requests.begun)
        for answered in (b"P2", b"P1"):
            play.requests.answer(answered)
        await settle()

        assert alone == [b"P1", b"V1"]
        assert begun == [b"P1", b"V1", b"P2"]
        assert play.replies == [b"P1", b"V1", b"P2"]
        play.lose()


async def test_requests_that_waited_are_begun_in_turns_and_in_order() -> None:
    later: list[Callable[[], None]] = []
    async with playing(soon=later.append) as play:
        bodies = [b"P%02d" % number + bytes(60 * KIB) for number in range(9)]
        play.receive(b"M1", *bodies)
        await settle()
        play.requests.answer(b"M1")
        await settle()
        turns = [len(play.requests.begun)]
        while later:
            calls, later[:] = list(later), []
            for call in calls:
                call()
            turns.append(len(play.requests.begun))
        play.lose()

    assert play.requests.begun == [b"M1", *bodies]
    assert turns[0] == 1 + 3
    assert max(after - before for before, after in itertools.pairwise(turns)) == 3


def test_small_replies_that_are_ready_in_one_turn_of_the_loop_leave_together() -> None:
    later: list[Callable[[], None]] = []
    play = Play(soon=later.append)
    play.receive(b"P1", b"P2", b"P3")
    play.requests.answer(b"P1")
    play.requests.answer(b"P2")
    in_this_turn = play.replies
    later.pop()()
    at_its_end = play.replies
    play.requests.answer(b"P3")

    assert in_this_turn == []
    assert at_its_end == [b"P1", b"P2"]
    assert len(later) == 1


def test_large_replies_leave_at_once_so_that_no_more_are_made_than_the_client_takes() -> None:
    later: list[Callable[[], None]] = []
    play = Play(soon=later.append)
    play.transport.when_written = play.connection.pause_writing
    play.requests.instant = bytes(GATHERED_BYTES_MAX)
    play.receive(b"P1", b"P2", b"P3")
    for call in later:
        call()

    assert play.requests.begun == [b"P1"]
    assert play.replies == [bytes(GATHERED_BYTES_MAX)]


def test_closing_sends_what_was_gathered() -> None:
    play = Play(soon=lambda call: None)
    play.receive(b"P1")
    play.requests.answer(b"P1")
    play.connection.close()

    assert play.replies == [b"P1"]
    assert play.transport.is_closing()


async def test_a_request_without_a_reply_lets_the_next_one_start() -> None:
    async with playing() as play:
        play.receive(b"P1", b"P2", b"M1")
        play.requests.answer(b"P1", None)
        play.requests.answer(b"P2")
        await settle()
        play.requests.answer(b"M1")
        await settle()

        assert play.replies == [b"P2", b"M1"]
        assert play.admission.held_bytes == 0
        play.lose()


def test_a_deep_queue_of_requests_that_are_answered_at_once_does_not_recurse() -> None:
    play = Play()
    play.requests.instant = b"ok"
    count = 5 * sys.getrecursionlimit()
    play.receive_bytes(framed(b"P1") * count)

    assert play.replies == [b"ok"] * count


async def test_a_deep_queue_behind_a_slow_request_does_not_recurse() -> None:
    async with playing() as play:
        play.requests.instant = b"ok"
        count = 3 * sys.getrecursionlimit()
        play.receive_bytes(framed(b"M1") + framed(b"P1") * count)
        await settle()
        play.requests.answer(b"M1")
        await settle()
        play.read_on()

        assert play.replies == [b"M1"] + [b"ok"] * count
        play.lose()


@pytest.mark.parametrize("kind", [b"M1", b"W1"])
async def test_nothing_refers_to_a_request_that_was_answered(kind: bytes) -> None:
    async with playing() as play:
        large = kind + bytes(100 * KIB)
        play.receive(large)
        await settle()
        while_under_way = views_of(len(large))
        if kind == b"W1":
            play.requests.answer(b"prepare " + large)
            await settle()
        play.requests.answer(large, b"ok")
        await settle()

        assert while_under_way > 0
        assert views_of(len(large)) == 0
        play.lose()


@pytest.mark.parametrize(("error", "violations"), [(ProtocolViolation, 1), (Unanswerable, 0)])
async def test_a_request_that_cannot_be_answered_closes_its_connection(error: type[Exception], violations: int) -> None:
    async with playing() as play:
        play.receive(b"M1", b"P1")
        await settle()
        play.requests.fail(b"M1", error())
        await settle()

        assert play.transport.is_aborted
        assert play.violations == violations
        assert play.requests.begun == [b"M1"]
        play.lose()
        assert play.admission.held_bytes == 0


async def test_a_violation_that_waits_behind_a_request_is_found_when_that_is_answered() -> None:
    async with playing() as play:
        play.receive(b"W1", b"!")
        await settle()
        play.requests.answer(b"prepare W1")
        await settle()

        assert play.transport.is_aborted
        play.lose()
        play.requests.answer(b"W1")
        assert play.admission.held_bytes == 0


def test_an_overlapping_request_that_fails_half_way_is_given_up_whole() -> None:
    play = Play()
    play.requests.start_fails = Unanswerable
    play.receive(b"P1")
    play.lose()
    held = play.admission.held_bytes
    play.requests.answer(b"P1")

    assert play.transport.is_aborted
    assert held == cost(2), "the fake has begun it, and holds it until it is done"
    assert play.admission.held_bytes == 0
    assert play.replies == []


async def test_what_nobody_works_on_is_given_back_when_the_connection_is_lost_and_the_rest_when_it_is_done() -> None:
    async with playing() as play:
        begun, waiting = b"P" + bytes(1000), b"M" + bytes(500)
        play.receive(begun, waiting)
        play.receive_bytes((50_000).to_bytes(4, "big") + bytes(20_000))
        before = play.admission.held_bytes
        play.lose()
        after = play.admission.held_bytes
        play.requests.answer(begun)
        await settle()

        assert before == cost(len(begun), len(waiting), 50_000)
        assert after == cost(len(begun))
        assert play.admission.held_bytes == 0
        assert play.replies == []
        assert play.requests.begun == [begun]


async def test_repeated_requests_that_wait_are_answered_together_and_in_order() -> None:
    async with playing() as play:
        play.receive(b"R1", b"R2", b"R3", b"M1", b"R4")
        await settle()
        together = list(play.requests.begun)
        play.receive(b"R5")
        play.requests.answer(b"R1 R2 R3")
        await settle()
        assert play.replies == [b"R1", b"R2", b"R3"]
        play.requests.answer(b"M1")
        await settle()
        play.requests.answer(b"R4 R5")
        await settle()

        assert together == [b"R1 R2 R3"]
        assert play.requests.begun == [b"R1 R2 R3", b"M1", b"R4 R5"]
        assert play.replies == [b"R1", b"R2", b"R3", b"M1", b"R4", b"R5"]
        assert play.connection.is_between_requests


async def test_a_repeated_request_waits_for_what_overlaps_before_it_and_holds_up_what_follows() -> None:
    async with playing() as play:
        play.receive(b"P1", b"R1", b"P2")
        await settle()
        before = list(play.requests.begun)
        play.requests.answer(b"P1")
        await settle()
        alone = list(play.requests.begun)
        play.requests.answer(b"R1")
        await settle()
        play.requests.answer(b"P2")
        await settle()

        assert before == [b"P1"]
        assert alone == [b"P1", b"R1"]
        assert play.replies == [b"P1", b"R1", b"P2"]


async def test_repeated_requests_are_answered_together_up_to_so_many_bytes() -> None:
    bodies = [body("R", number, TOGETHER_BYTES_MAX // 2) for number in range(3)]
    async with playing() as play:
        play.receive(*bodies)
        await settle()
        first = list(play.requests.begun)
        play.requests.answer(b" ".join(bodies[:2]))
        await settle()
        play.requests.answer(bodies[2])
        await settle()

        assert first == [b" ".join(bodies[:2])]
        assert play.replies == bodies


async def test_repeated_requests_whose_answer_fails_close_the_connection_once() -> None:
    async with playing() as play:
        play.receive(b"R1", b"R2")
        await settle()
        play.requests.fail(b"R1 R2", Unanswerable())
        await settle()

        assert play.replies == []
        assert play.transport.is_closing()


async def test_a_request_that_runs_alone_ends_with_its_connection() -> None:
    async with playing() as play:
        play.receive(b"M1")
        await settle()
        play.lose()
        await settle()

        assert play.admission.held_bytes == 0
        assert play.requests.waiting[b"M1"].cancelled()


async def test_a_request_that_is_being_prepared_ends_with_its_connection() -> None:
    async with playing() as play:
        play.receive(b"W1")
        await settle()
        play.lose()
        await settle()

        assert play.admission.held_bytes == 0
        assert play.requests.begun == [b"prepare W1"]


async def test_a_reply_that_comes_while_the_connection_is_closing_is_dropped() -> None:
    play = Play()
    play.receive(b"P1", b"P2")
    play.connection.close()
    play.requests.answer(b"P1")

    assert play.replies == []
    assert play.admission.held_bytes == cost(len(b"P2"))


@pytest.mark.parametrize("end", ["finish", "drain"])
def test_in_the_end_an_idle_connection_is_sent_the_end_of_the_stream_and_read_on_so_that_nothing_is_reset(end: str) -> None:
    play = Play()
    getattr(play.connection, end)()
    parted = play.transport.has_written_eof
    play.receive(b"P1")

    assert parted
    assert not play.transport.is_closing()
    assert not play.transport.is_paused
    assert play.unread == b""
    assert play.requests.begun == []
    assert play.admission.held_bytes == 0


async def test_finishing_goes_on_with_what_arrives_until_nothing_is_unanswered() -> None:
    async with playing() as play:
        play.receive(b"P1", b"P2", b"M1", b"P3")
        play.connection.finish()
        play.receive(b"P4")
        play.requests.answer(b"P2")
        play.requests.answer(b"P1")
        await settle()
        play.requests.answer(b"M1")
        await settle()
        play.requests.answer(b"P3")
        half_way = play.transport.has_written_eof
        play.requests.answer(b"P4")

        assert not half_way
        assert play.replies == [b"P1", b"P2", b"M1", b"P3", b"P4"]
        assert play.transport.has_written_eof
        play.lose()
        assert play.admission.held_bytes == 0


def test_finishing_waits_for_the_rest_of_a_request() -> None:
    play = Play()
    whole = framed(b"P" * 100)
    play.receive_bytes(whole[:50])
    play.connection.finish()
    half_way = play.transport.has_written_eof
    play.receive_bytes(whole[50:])
    play.requests.answer(b"P" * 100)

    assert not half_way
    assert play.replies == [b"P" * 100]
    assert play.transport.has_written_eof


def test_what_arrives_before_the_next_turn_of_the_loop_is_answered_before_the_end() -> None:
    later: deque[Callable[[], None]] = deque()
    play = Play(soon=later.append)
    play.connection.finish()
    later.popleft()()
    play.receive(b"P1")
    while later:
        later.popleft()()
    too_early = play.transport.has_written_eof
    play.requests.answer(b"P1")
    while later:
        later.popleft()()

    assert not too_early
    assert play.replies == [b"P1"]
    assert play.transport.has_written_eof


async def test_draining_answers_what_was_received_and_receives_no_more() -> None:
    async with playing() as play:
        play.receive(b"P1", b"P2", b"M1", b"P3")
        play.connection.drain()
        reads_on = not play.transport.is_paused
        play.receive(b"P4")
        play.requests.answer(b"P2")
        play.requests.answer(b"P1")
        await settle()
        play.requests.answer(b"M1")
        await settle()
        half_way = play.transport.has_written_eof
        play.requests.answer(b"P3")
        await settle()

        assert not reads_on
        assert not half_way
        assert play.replies == [b"P1", b"P2", b"M1", b"P3"]
        assert play.transport.has_written_eof
        assert play.requests.begun == [b"P1", b"P2", b"M1", b"P3"]
        play.lose()
        assert play.admission.held_bytes == 0


async def test_draining_waits_for_a_request_that_is_being_prepared() -> None:
    async with playing() as play:
        play.receive(b"W1", b"P1")
        await settle()
        play.connection.drain()
        play.requests.answer(b"prepare W1")
        await settle()
        while_begun = play.transport.has_written_eof
        play.requests.answer(b"W1")
        play.requests.answer(b"P1")

        assert not while_begun
        assert play.requests.begun == [b"prepare W1", b"W1", b"P1"]
        assert play.replies == [b"W1", b"P1"]
        assert play.transport.has_written_eof
        play.lose()


def test_draining_closes_at_once_who_does_not_take_its_answers() -> None:
    play = Play()
    play.connection.pause_writing()
    play.connection.drain()

    assert play.transport.is_aborted


def test_reading_pauses_while_the_client_does_not_take_its_replies() -> None:
    play = Play()
    play.connection.pause_writing()
    paused = play.transport.is_paused
    play.connection.resume_writing()

    assert paused
    assert not play.transport.is_paused


async def test_nothing_is_started_while_the_client_does_not_take_its_replies() -> None:
    async with playing() as play:
        play.receive(b"M1", b"P1", b"P2", b"M2")
        await settle()
        play.connection.pause_writing()
        play.requests.answer(b"M1")
        await settle()
        paused = list(play.requests.begun)
        play.connection.resume_writing()

        assert paused == [b"M1"]
        assert play.requests.begun == [b"M1", b"P1", b"P2"]
        assert not play.transport.is_paused
        play.lose()


def test_reading_pauses_while_too_many_bytes_are_unanswered_until_half_of_them_are_answered() -> None:
    play = Play()
    bodies = [body("P", number, MIB) for number in range(9)]
    play.receive(*bodies[:8])
    at_the_limit = play.transport.is_paused
    play.receive(bodies[8])
    above = play.transport.is_paused
    paused = []
    for answered in bodies[:5]:
        play.requests.answer(answered)
        paused.append(play.transport.is_paused)

    assert UNANSWERED_BYTES_MAX == 8 * MIB
    assert not at_the_limit
    assert above
    assert paused == [True, True, True, True, False]


def test_reading_pauses_while_too_many_requests_are_unanswered() -> None:
    play = Play()
    bodies = [f"P{number}".encode() for number in range(UNANSWERED_REQUESTS_MAX + 1)]
    play.receive(*bodies[:-1])
    at_the_limit = play.transport.is_paused
    play.receive(bodies[-1])
    above = play.transport.is_paused
    for answered in bodies[: UNANSWERED_REQUESTS_MAX // 2]:
        play.requests.answer(answered)
    just_above_half = play.transport.is_paused
    play.requests.answer(bodies[UNANSWERED_REQUESTS_MAX // 2])

    assert not at_the_limit
    assert above
    assert just_above_half
    assert not play.transport.is_paused


async def test_requests_that_wait_behind_another_count_too() -> None:
    async with playing() as play:
        play.receive(b"M1", *[b"P1"] * UNANSWERED_REQUESTS_MAX)
        await settle()

        assert play.transport.is_paused
        play.lose()


def test_who_holds_much_of_what_is_left_is_read_on_when_there_is_more() -> None:
    play = Play(budget_bytes=MIB)
    held = [occupied(play.admission, MIB // 4) for _ in range(3)]
    first, second = b"P1" + bytes(20_000), b"P2" + bytes(20_000)
    play.receive(first, second)
    at_first = list(play.requests.begun)
    is_paused = play.transport.is_paused
    held.pop()
    play.read_on()

    assert at_first == [first]
    assert is_paused
    assert not play.transport.is_paused
    assert play.requests.begun == [first, second]


def test_a_frame_that_was_begun_may_be_finished_over_the_budget() -> None:
    play = Play(budget_bytes=MIB)
    large = b"P" + bytes(200_000)
    play.receive_bytes(framed(large)[:100_000])
    others = occupied(play.admission, MIB - 205_000)
    play.receive_bytes(framed(large)[100_000:])
    del others

    assert play.requests.begun == [large]


def test_a_connection_that_is_gone_no_longer_waits_for_room() -> None:
    play = Play(budget_bytes=MIB)
    held = occupied(play.admission, MIB - 10_000)
    play.receive(b"P1" + bytes(10_000))
    was_short = play.admission.is_short
    play.lose()

    assert held is not None
    assert was_short
    assert not play.admission.is_short


async def test_whose_requests_are_held_for_as_long_as_the_client_likes_is_told_apart() -> None:
    async with playing() as play:
        at_first = play.connection.is_holding_memory
        play.connection.pause_writing()
        holds_nothing = play.connection.is_holding_memory
        play.clock.advance(5.0)
        play.connection.resume_writing()
        play.receive(b"P1")
        answered_by_us = play.connection.is_holding_memory
        play.receive_bytes(framed(b"P" + bytes(100_000))[:50_000])

        assert (at_first, holds_nothing, answered_by_us, play.connection.is_holding_memory) == (False, False, False, True)
        assert play.connection.last_active_s == play.clock.monotonic_s()
        play.lose()


async def test_requests_queued_behind_one_that_runs_alone_are_held_for_as_long_as_that_likes() -> None:
    async with playing() as play:
        play.receive(b"M1")
        await settle()
        alone = play.connection.is_holding_memory
        play.receive(b"P1")

        assert not alone
        assert play.connection.is_holding_memory
        play.lose()


def test_replies_that_a_client_does_not_take_count_until_it_has_taken_all_of_them() -> None:
    play = Play()
    play.requests.instant = bytes(1000)
    play.receive(b"P1")
    taken_at_once = play.responses.held_bytes
    play.transport.unwritten_bytes = 10
    play.receive(b"P1", b"P1")
    waiting = play.responses.held_bytes
    play.transport.unwritten_bytes = 0
    play.connection.resume_writing()

    assert taken_at_once == 0
    assert waiting == 2 * (1000 + PREFIX_BYTES)
    assert play.responses.held_bytes == 0


def test_replies_that_a_lost_connection_leaves_count_no_longer() -> None:
    play = Play()
    play.transport.unwritten_bytes = 1
    play.requests.instant = bytes(1000)
    play.receive(b"P1")
    before = play.responses.held_bytes
    play.lose()

    assert before == 1000 + PREFIX_BYTES
    assert play.responses.held_bytes == 0


async def test_who_answers_for_a_reply_is_called_when_it_was_taken_and_only_the_rest_of_it_is_counted() -> None:
    async with playing() as play:
        released: list[str] = []
        play.transport.unwritten_bytes = 1
        play.receive(b"M1")
        await settle()
        play.connection.until_written(lambda: released.append("M1"), 900)
        play.requests.answer(b"M1", bytes(1000))
        await settle()
        while_untaken = list(released), play.responses.held_bytes
        play.transport.unwritten_bytes = 0
        play.connection.resume_writing()
        taken = list(released)
        play.receive(b"M2")
        await settle()
        play.connection.until_written(lambda: released.append("M2"), 900)
        play.requests.answer(b"M2", bytes(1000))
        await settle()

        assert while_untaken == ([], 100 + PREFIX_BYTES)
        assert taken == ["M1"]
        assert released == ["M1", "M2"]
        assert play.responses.held_bytes == 0
        play.lose()


async def test_who_answers_for_a_reply_that_is_gathered_is_not_called_by_those_before_it() -> None:
    later: list[Callable[[], None]] = []
    async with playing(soon=later.append) as play:
        released: list[str] = []
        play.receive(b"M1")
        await settle()
        play.connection.until_written(lambda: released.append("M1"), 0)
        play.requests.answer(b"M1", b"small")
        await settle()
        play.connection.resume_writing()
        gathered = list(released)
        while later:
            later.pop()()

        assert gathered == []
        assert released == ["M1"]
        play.lose()


async def test_who_answers_for_a_reply_that_is_still_made_is_not_called_when_those_before_it_were_taken() -> None:
    async with playing() as play:
        released: list[str] = []
        play.receive(b"M1")
        await settle()
        play.connection.until_written(lambda: released.append("M1"), 900)
        play.connection.resume_writing()  # of a reply before it
        while_made = list(released)
        play.transport.unwritten_bytes = 1
        play.requests.answer(b"M1", bytes(1000))
        await settle()
        while_untaken = list(released), play.responses.held_bytes
        play.connection.resume_writing()

        assert while_made == []
        assert while_untaken == ([], 100 + PREFIX_BYTES)
        assert released == ["M1"]
        play.lose()


async def test_a_connection_waits_while_it_fetches_and_not_while_it_changes_something() -> None:
    async with playing() as play:
        seen = []
        for request in (b"M1", b"W2", b"P3", b"F4"):
            play.receive(request)
            await settle()
            seen.append(play.connection.is_waiting)
            play.requests.answer(b"prepare W2" if request == b"W2" else request)
            await settle()
            if request == b"W2":
                seen.append(play.connection.is_waiting)
                play.requests.answer(b"W2")
                await settle()
        play.connection.pause_writing()

        assert seen == [False, False, False, False, True]
        assert play.connection.is_waiting, "for its client, which takes nothing"
        play.lose()


class WithoutMemory(Admission):
    """Finds no memory for a request of this size."""

    __slots__ = ()
    missing_bytes = 300_000

    def begin(self, received: memoryview, room_bytes: int, sender: Sender) -> Frame | None:
        frame = super().begin(received, room_bytes, sender)
        if frame is not None and sender.whole_bytes == self.missing_bytes:
            self.end(sender)
            raise MemoryError
        return frame


def test_a_request_that_finds_no_memory_when_its_turn_comes_costs_its_own_connection_and_no_other() -> None:
    admission = WithoutMemory(bytes_max=MIB, telemetry=Telemetry(), soon=lambda call: call(), later=Timers().later)
    others = [occupied(admission, MIB // 2), occupied(admission, MIB // 2 - 20_000)]
    unlucky, next_one = (Play(admission=admission) for _ in range(2))
    unlucky.receive_bytes(framed(bytes(WithoutMemory.missing_bytes))[:100_000])
    next_one.receive(b"P" + bytes(200_000))
    before = list(next_one.requests.begun)
    others.clear()
    next_one.read_on()

    assert before == []
    assert unlucky.evicted_for == [NO_MEMORY]
    assert len(next_one.requests.begun) == 1
    assert next_one.evicted_for == []
    assert not admission.is_short


@pytest.mark.parametrize("is_lost_before", [False, True])
async def test_who_answers_for_a_reply_is_called_when_the_connection_is_lost(is_lost_before: bool) -> None:
    async with playing() as play:
        released: list[str] = []
        if is_lost_before:
            play.lose()
        play.connection.until_written(lambda: released.append("M1"), 0)
        if not is_lost_before:
            play.lose()

        assert released == ["M1"]


def test_a_client_that_takes_its_replies_slowly_is_not_silent_and_one_that_takes_nothing_is() -> None:
    play = Play()
    seen = []
    play.connection.pause_writing()
    for left_bytes in (5000, 4000, 4000):
        play.clock.advance(10.0)
        play.transport.unwritten_bytes = left_bytes
        play.connection.note_progress()
        seen.append(play.clock.monotonic_s() - play.connection.last_active_s)

    assert seen == [0.0, 0.0, 10.0]


def test_requests_for_which_there_is_no_memory_are_taken_when_there_is() -> None:
    play = Play(budget_bytes=MIB)
    others = [occupied(play.admission, size) for size in (MIB // 2, MIB // 2 - 20_000)]
    small, large = b"P" + bytes(20_000), b"P" + bytes(200_000)
    play.receive(small, large)
    before = list(play.requests.begun)
    play_is_paused, is_holding_memory = play.transport.is_paused, play.connection.is_holding_memory
    others.pop(0)
    play.read_on()

    assert before == []
    assert play_is_paused
    assert not is_holding_memory, "it is up to us"
    assert play.requests.begun == [small, large]


def test_what_has_begun_has_its_room_whatever_comes_after_it() -> None:
    play = Play(budget_bytes=MIB)
    large = body("P", 1, 500_000)
    play.receive_bytes(framed(large)[:100_000])
    later = Play(admission=play.admission)
    later.receive(body("P", 2, 500_000))
    play.receive_bytes(framed(large)[100_000:])

    assert later.requests.begun == []
    assert play.requests.begun == [large]


def test_in_a_turn_of_the_loop_no_more_of_large_requests_is_read_than_may_be_and_the_rest_in_the_next_ones() -> None:
    turns: list[Callable[[], None]] = []
    admission = Admission(bytes_max=256 * MIB, telemetry=Telemetry(), soon=turns.append, later=Timers().later)
    plays = [Play(admission=admission) for _ in range(20)]
    large = b"P" + bytes(8 * MIB - 1)
    for play in plays:
        play.receive_bytes(framed(large))
    read_bytes, most_bytes, left_bytes = [], 0, sum(len(play.unread) for play in plays)
    while turns:
        calls, turns[:] = list(turns), []
        for call in calls:
            call()
        for play in plays:
            play.read_on()
        before_bytes, left_bytes = left_bytes, sum(len(play.unread) for play in plays)
        read_bytes.append(before_bytes - left_bytes)
        most_bytes = max(most_bytes, read_bytes[-1])

    assert [len(play.requests.begun) for play in plays] == [1] * len(plays)
    assert most_bytes <= READ_PER_TURN_BYTES + READERS_PER_TURN * LAST_READ_BYTES
    assert [play.evicted_for for play in plays] == [[]] * len(plays)


@pytest.mark.parametrize("parting", [b"", b"HTTP/1.1 400 Bad Request\r\n"], ids=["nothing to say", "an answer"])
def test_who_speaks_another_protocol_is_sent_what_the_server_says_to_that_and_nothing_is_begun(parting: bytes) -> None:
    play = Play()
    play.parting = parting
    play.receive_bytes(b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n")

    assert play.requests.begun == []
    assert play.violations == 1
    assert bytes(play.transport.sent) == parting
    assert play.transport.is_closing()
    assert play.transport.is_aborted is not bool(parting), "an answer is sent before the end"


def half_sent(play: Play, *, arrived_bytes: int, whole_bytes: int) -> None:
    """As much of a request as the connection reads."""
    play.receive_bytes(whole_bytes.to_bytes(4, "big") + b"P")
    piece = bytes(ARENA_BYTES)
    while arrived_bytes > 0 and not play.unread:
        play.receive_bytes(piece[:arrived_bytes])
        arrived_bytes -= ARENA_BYTES


@pytest.mark.parametrize("attackers", [5, 50])
def test_sockets_that_stop_near_the_end_of_large_requests_delay_a_bystander_no_longer_than_it_takes_to_see_that(attackers: int) -> None:
    first = Play(budget_bytes=64 * MIB)
    address = first.connection.address
    stopped = [first, *(Play(admission=first.admission, address=address) for _ in range(attackers - 1))]
    for play in stopped:
        half_sent(play, arrived_bytes=24 * MIB, whole_bytes=25 * MIB)
    bystander = Play(admission=first.admission, address=address)
    bystander.requests.instant = b"ok"
    looks_waited = []
    for _ in range(20):
        bystander.receive(b"P" + bytes(MIB))
        looks = 0
        while bystander.unread:
            first.timers.go_off()
            bystander.read_on()
            looks += 1
        looks_waited.append(looks)
    held_bytes = first.admission.held_bytes

    assert bystander.replies == [b"ok"] * 20
    assert max(looks_waited) <= BEHIND_LOOKS_MIN
    assert held_bytes <= 64 * MIB
    assert not bystander.evicted_for


def test_who_is_evicted_in_the_middle_of_a_request_holds_nothing_any_more() -> None:
    play = Play()
    half_sent(play, arrived_bytes=1 * MIB, whole_bytes=2 * MIB)
    held_bytes = play.admission.held_bytes
    play.connection.evict("others need the memory")

    assert held_bytes >= 1 * MIB
    assert play.admission.held_bytes == 0
    assert play.evicted_for == ["others need the memory"]
    assert play.transport.is_aborted
