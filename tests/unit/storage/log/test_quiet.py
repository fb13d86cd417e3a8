"""A flush that is large enough goes when nothing has arrived for a while: its producers have all under way that they may have."""

import asyncio

from storage.log.batch import Appended
from storage.log.batcher import QUIET_BYTES_MIN, QUIET_PER_INTERVAL, QUIET_S, FlushSettings, OpenFlush
from storage.log.upload_places import UPLOADS_MAX
from storage.recordbatch import HEADER_BYTES
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import rig

SLOW = FlushSettings(interval_s=0.2, gather_s=60.0)
"""What only time makes due is not sealed within a test."""
HALF = QUIET_BYTES_MIN // 2
WITHIN_S = 10.0


def of_size(size_bytes: int) -> bytearray:
    return batch_bytes(payload=b"x" * (size_bytes - HEADER_BYTES))


def test_it_is_due_a_while_after_what_came_last() -> None:
    flush: OpenFlush[str] = OpenFlush()
    settings = FlushSettings(interval_s=0.2)
    flush.size_bytes, flush.added_s = QUIET_BYTES_MIN - 1, 5.0
    assert flush.quiet_s(settings, last_began_s=4.0) is None

    flush.size_bytes = QUIET_BYTES_MIN
    assert flush.quiet_s(settings, last_began_s=4.0) == 5.0 + QUIET_S
    flush.added_s = 6.0
    assert flush.quiet_s(settings, last_began_s=4.0) == 6.0 + QUIET_S


def test_bursts_make_no_more_flushes_than_a_few_in_an_interval() -> None:
    flush: OpenFlush[str] = OpenFlush()
    flush.size_bytes, flush.added_s = QUIET_BYTES_MIN, 5.0

    assert flush.quiet_s(FlushSettings(interval_s=60.0), last_began_s=4.9) == 4.9 + 60.0 / QUIET_PER_INTERVAL


async def test_producers_that_wait_are_answered_long_before_the_interval_is_over() -> None:
    async with rig(flush=SLOW) as broker, asyncio.timeout(WITHIN_S):
        for number in range(3):
            results = await asyncio.gather(broker.send(of_size(HALF)), broker.send(of_size(HALF)))
            assert results == [[Appended(2 * number, 0)], [Appended(2 * number + 1, 0)]]

        assert len(broker.objects.put_keys) == 3


async def test_one_large_batch_does_not_wait_for_company() -> None:
    async with rig(flush=SLOW) as broker, asyncio.timeout(WITHIN_S):
        assert await broker.send(of_size(2 * QUIET_BYTES_MIN)) == [Appended(0, 0)]


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
            waiting.append(broker.send(of_size(QUIET_BYTES_MIN)))
            while appender._open.batches:  # noqa: ASYNC110 - a timer seals it
                await asyncio.sleep(QUIET_S / 10)
        late = broker.send(of_size(QUIET_BYTES_MIN))
        while appender._quiet_timer is not None:  # noqa: ASYNC110 - a timer looks
            await asyncio.sleep(QUIET_S / 10)
        assert appender._open.batches
        assert not appender._is_overdue

        gate.set()
        await asyncio.gather(late, *waiting)

        assert len(broker.objects.put_keys) == UPLOADS_MAX
