"""A flush that is large enough goes when nothing has arrived for a while: its producers have all under way that they may have."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from sim.loop import VirtualClock, VirtualLoop
from storage.log.batch import Appended
from storage.log.flush import (
    ACK_BURST_BEGINS_S,
    ACK_BURST_GROWS_MAX,
    ACK_BURST_PACED_PARTS,
    ACK_BURST_QUIETS_MIN,
    ACK_BURST_S,
    ACK_BURST_SHARE,
    QUIET_PER_INTERVAL,
    QUIET_S,
    FlushSettings,
    LastFlush,
    OpenFlush,
)
from storage.log.limits import DEFAULT_LIMITS
from storage.log.uploads import UPLOADS_MAX
from storage.recordbatch import HEADER_BYTES
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import Rig, rig

T = TypeVar("T")
SLOW = FlushSettings(interval_s=0.2, gather_s=60.0)
"""What only time makes due is not sealed within a test."""
QUIET_BYTES = DEFAULT_LIMITS.quiet_bytes_min
ECHO_BYTES = ACK_BURST_QUIETS_MIN * QUIET_BYTES
PACED_BYTES = QUIET_BYTES // ACK_BURST_PACED_PARTS
HALF = QUIET_BYTES // 2
WITHIN_S = 25.0


def of_size(size_bytes: int) -> bytearray:
    return batch_bytes(payload=b"x" * (size_bytes - HEADER_BYTES))


def test_it_is_due_a_while_after_what_came_last() -> None:
    flush: OpenFlush[str] = OpenFlush()
    settings, last = FlushSettings(interval_s=0.2), LastFlush(began_s=4.0)
    flush.size_bytes, flush.added_s = QUIET_BYTES - 1, 5.0
    assert flush.quiet_s(settings, last, quiet_bytes_min=QUIET_BYTES) is None

    flush.size_bytes = QUIET_BYTES
    assert flush.quiet_s(settings, last, quiet_bytes_min=QUIET_BYTES) == 5.0 + QUIET_S
    flush.added_s = 6.0
    assert flush.quiet_s(settings, last, quiet_bytes_min=QUIET_BYTES) == 6.0 + QUIET_S


def test_bursts_make_no_more_flushes_than_a_few_in_an_interval() -> None:
    flush: OpenFlush[str] = OpenFlush()
    flush.size_bytes, flush.added_s = QUIET_BYTES, 5.0

    assert (
        flush.quiet_s(FlushSettings(interval_s=60.0), LastFlush(began_s=4.9), quiet_bytes_min=QUIET_BYTES)
        == 4.9 + 60.0 / QUIET_PER_INTERVAL
    )


ANSWERED_S = 5.0
PACED_S = ANSWERED_S + 20.0
SPACED = FlushSettings(interval_s=QUIET_PER_INTERVAL * 20.0)
ANSWERED = LastFlush(began_s=ANSWERED_S, size_bytes=4 * ECHO_BYTES, batch_count=4, ended_s=ANSWERED_S)
MOST = int(ACK_BURST_SHARE * ANSWERED.size_bytes)


def gathered(*, opened_s: float = ANSWERED_S, size_bytes: int = ANSWERED.size_bytes, batch_count: int = 1) -> OpenFlush[str]:
    return OpenFlush(size_bytes=size_bytes, batch_count=batch_count, opened_s=opened_s, added_s=opened_s)


@pytest.mark.parametrize("after_s", [-ACK_BURST_S, 0.0, ACK_BURST_BEGINS_S])
def test_what_producers_send_again_once_they_were_answered_waits_for_no_interval(after_s: float) -> None:
    assert gathered(opened_s=ANSWERED_S + after_s).quiet_s(SPACED, ANSWERED, quiet_bytes_min=QUIET_BYTES) == pytest.approx(
        ANSWERED_S + after_s + ACK_BURST_S
    )


@pytest.mark.parametrize(
    ("size_bytes", "batch_count", "due_s"),
    [
        (ANSWERED.size_bytes, 1, ANSWERED_S + ACK_BURST_S),
        (ECHO_BYTES, 4, ANSWERED_S + ACK_BURST_S),
        (int(ACK_BURST_GROWS_MAX * ANSWERED.size_bytes), 4, ANSWERED_S + ACK_BURST_S),
        (int(ACK_BURST_GROWS_MAX * ANSWERED.size_bytes) + 1, 4, PACED_S),
        (ANSWERED.size_bytes - 1, 3, ANSWERED_S + QUIET_S),
        (MOST, 3, ANSWERED_S + QUIET_S),
        (MOST - 1, 3, PACED_S),
        (ECHO_BYTES - 1, 4, PACED_S),
        (PACED_BYTES, 4, PACED_S),
        (PACED_BYTES - 1, 4, None),
        (QUIET_BYTES, 3, PACED_S),
        (QUIET_BYTES - 1, 3, None),
    ],
)
def test_an_echo_waits_for_those_that_are_missing_and_a_small_one_for_its_pace(
    size_bytes: int, batch_count: int, due_s: float | None
) -> None:
    found = gathered(size_bytes=size_bytes, batch_count=batch_count).quiet_s(SPACED, ANSWERED, quiet_bytes_min=QUIET_BYTES)
    assert found == (None if due_s is None else pytest.approx(due_s))


@pytest.mark.parametrize("after_s", [-2 * ACK_BURST_S, 1.1 * ACK_BURST_BEGINS_S])
def test_what_began_long_before_or_after_the_answer_is_paced(after_s: float) -> None:
    """A load that does not wait for answers."""
    assert gathered(opened_s=ANSWERED_S + after_s).quiet_s(SPACED, ANSWERED, quiet_bytes_min=QUIET_BYTES) == PACED_S


def test_while_another_flush_is_under_way_more_may_come() -> None:
    assert gathered().quiet_s(SPACED, dataclasses.replace(ANSWERED, under_way=1), quiet_bytes_min=QUIET_BYTES) == PACED_S


def test_the_first_flush_of_all_is_no_echo() -> None:
    assert not gathered().is_ack_burst(LastFlush())


PUT_S = 0.03
COMMIT_S = 0.005
GAP_S = 0.001


async def send_each(broker: Rig, sizes: Sequence[int]) -> None:
    """As a producer does that was answered: one request after the other, and then it waits for them all."""
    sent = []
    for size_bytes in sizes:
        await asyncio.sleep(GAP_S)
        sent.append(broker.send(of_size(size_bytes)))
    await asyncio.gather(*sent)


def simulated(scenario: Callable[[Rig, VirtualClock], Awaitable[T]], *, interval_s: float, put_s: float = PUT_S) -> T:
    async def run() -> T:
        clock = VirtualClock(asyncio.get_running_loop())
        async with rig(flush=FlushSettings(interval_s=interval_s), clock=clock) as broker:
            broker.objects.put_s, broker.metadata.write_s = put_s, COMMIT_S
            return await scenario(broker, clock)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def seconds_of_flushes(*flushes: Sequence[int]) -> list[float]:
    """How long each of these took by a broker whose interval is an hour."""

    async def scenario(broker: Rig, clock: VirtualClock) -> list[float]:
        seconds = []
        for sizes in flushes:
            began_s = clock.monotonic_s()
            await send_each(broker, sizes)
            seconds.append(clock.monotonic_s() - began_s)
        assert len(broker.objects.put_keys) == len(flushes)
        return seconds

    return simulated(scenario, interval_s=3_600.0)


def test_a_producer_with_several_batches_under_way_waits_for_no_part_of_an_interval() -> None:
    """Each flush holds all that it may have under way, and is not sealed before the last batch has come."""
    batches = 5
    _, *others_s = seconds_of_flushes(*[[QUIET_BYTES] * batches] * 6)
    assert others_s == pytest.approx([batches * GAP_S + ACK_BURST_S + PUT_S + COMMIT_S] * 5)


def test_what_is_less_than_was_answered_waits_for_its_pace() -> None:
    _, paced_s = seconds_of_flushes([QUIET_BYTES] * 4, [QUIET_BYTES] * 2)
    assert paced_s == pytest.approx(3_600.0 / QUIET_PER_INTERVAL, rel=0.01)


def test_an_answer_makes_an_echo_of_what_came_a_moment_before_it() -> None:
    """The shards of a flush answer one after the other, and its producers do not wait for the last."""

    async def scenario(broker: Rig, clock: VirtualClock) -> float:
        size_bytes = ECHO_BYTES
        await broker.send(of_size(size_bytes))
        first = broker.send(of_size(size_bytes))
        await asyncio.sleep(ACK_BURST_S + PUT_S + COMMIT_S - ACK_BURST_S / 2)
        began_s = clock.monotonic_s()
        await asyncio.gather(first, broker.send(of_size(size_bytes)))
        return clock.monotonic_s() - began_s

    assert simulated(scenario, interval_s=3_600.0) == pytest.approx(ACK_BURST_S + PUT_S + COMMIT_S, abs=ACK_BURST_S)


@pytest.mark.parametrize("put_s", [0.002, 0.01, 0.03])
@pytest.mark.parametrize(("producers", "mb_per_s"), [(1, 10), (1, 20), (1, 40), (2, 5), (4, 2.5)])
def test_producers_held_by_a_rate_and_by_their_answers_wait_for_no_whole_interval(producers: int, mb_per_s: float, put_s: float) -> None:
    """An ack burst leaves little for the next flush, which must not wait for its time: it would be large again, and so on."""
    interval_s, batches_max, batch_bytes_min = 0.2, 5, 16_384

    async def scenario(broker: Rig, clock: VirtualClock) -> list[float]:
        latencies_s: list[float] = []

        async def send(size_bytes: int) -> None:
            began_s = clock.monotonic_s()
            await broker.send(of_size(size_bytes))
            latencies_s.append(clock.monotonic_s() - began_s)

        async def produce(tasks: asyncio.TaskGroup) -> None:
            made_bytes, under_way = 0.0, set[asyncio.Task[None]]()
            while clock.monotonic_s() < 5.0:
                await asyncio.sleep(GAP_S)
                made_bytes += mb_per_s * 1e6 * GAP_S
                if made_bytes >= batch_bytes_min and len(under_way) < batches_max:
                    size_bytes = int(min(made_bytes, 1e6))
                    made_bytes -= size_bytes
                    task = tasks.create_task(send(size_bytes))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(producers):
                tasks.create_task(produce(tasks))
        return latencies_s

    latencies_s = simulated(scenario, interval_s=interval_s, put_s=put_s)
    settled_s = latencies_s[len(latencies_s) // 2 :]
    assert sum(settled_s) / len(settled_s) < interval_s / 2


async def test_producers_that_wait_are_answered_long_before_the_interval_is_over() -> None:
    async with rig(flush=SLOW) as broker, asyncio.timeout(WITHIN_S):
        for number in range(3):
            results = await asyncio.gather(broker.send(of_size(HALF)), broker.send(of_size(HALF)))
            assert results == [[Appended(2 * number, 0)], [Appended(2 * number + 1, 0)]]

        assert len(broker.objects.put_keys) == 3


async def test_one_large_batch_does_not_wait_for_company() -> None:
    async with rig(flush=SLOW) as broker, asyncio.timeout(WITHIN_S):
        assert await broker.send(of_size(2 * QUIET_BYTES)) == [Appended(0, 0)]


async def test_what_is_too_little_for_a_put_waits_for_its_time() -> None:
    async with rig(flush=SLOW) as broker:
        small = broker.send(of_size(HALF))
        await asyncio.sleep(5 * QUIET_S)
        assert not small.done()

        large = broker.send(of_size(HALF))
        async with asyncio.timeout(WITHIN_S):
            assert await small == [Appended(0, 0)]
            assert await large == [Appended(1, 0)]
        assert len(broker.objects.put_keys) == 1


async def test_it_leaves_a_place_for_uploads_to_what_time_makes_due_and_goes_when_one_more_is_free() -> None:
    async with rig(flush=SLOW) as broker, asyncio.timeout(WITHIN_S):
        broker.objects.gate = gate = asyncio.Event()
        appender, waiting = broker.parts.appender, []
        for _ in range(UPLOADS_MAX - 1):
            waiting.append(broker.send(of_size(QUIET_BYTES)))
            while appender._open.batches:  # noqa: ASYNC110 - a timer seals it
                await asyncio.sleep(QUIET_S / 10)
        late = broker.send(of_size(QUIET_BYTES))
        while appender._quiet_timer is not None:  # noqa: ASYNC110 - a timer looks
            await asyncio.sleep(QUIET_S / 10)
        assert appender._open.batches
        assert not appender._is_overdue

        gate.set()
        await asyncio.gather(late, *waiting)

        assert len(broker.objects.put_keys) == UPLOADS_MAX
