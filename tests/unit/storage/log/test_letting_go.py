"""What has been answered holds no memory, wherever it still waits, and without the cyclic collector (review E, W2, W3)."""

import asyncio
import weakref
from collections.abc import Iterator

import pytest

from storage.errors import OutcomeUnknown, StorageError, Unavailable
from storage.log.batch import Append, Appended, batch_of
from storage.log.flush import FlushSettings
from storage.log.limits import LogLimits
from storage.log.uploads import UPLOADS_MAX
from storage.recordbatch import parse_header
from tests.kit.batches import batch_bytes
from tests.kit.collector import no_collector
from tests.unit.storage.log.rig import PARTITION, Rig, rig


class Frame(bytearray):
    """A buffer that tells when it is gone."""


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    with no_collector():
        yield


def submit(broker: Rig, frames: list["weakref.ref[Frame]"], source: object = None) -> "asyncio.Future[Appended | StorageError | None]":
    frame = Frame(batch_bytes(1))
    frames.append(weakref.ref(frame))
    done: asyncio.Future[Appended | StorageError | None] = asyncio.get_running_loop().create_future()
    view = memoryview(frame)
    append = Append(source or object(), lambda append: done.set_result(append.results[0]), [None], 1)
    broker.parts.appender.submit(broker.parts.partitions.get(PARTITION), batch_of(view, parse_header(view), append, 0))
    return done


async def alive(frames: list["weakref.ref[Frame]"]) -> int:
    for _ in range(10):
        await asyncio.sleep(0)
    return sum(frame() is not None for frame in frames)


async def test_batches_whose_upload_failed_are_let_go() -> None:
    async with rig(limits=LogLimits(upload_timeout_s=0.0)) as broker:
        broker.objects.puts_fail = Unavailable("away")
        frames: list[weakref.ref[Frame]] = []
        for _ in range(50):
            assert isinstance(await submit(broker, frames), Unavailable)

        assert await alive(frames) == 0
        assert not broker.parts.partitions.get(PARTITION).commit_queue.commits


async def test_what_waits_behind_a_commit_without_an_answer_is_answered_in_time_and_let_go() -> None:
    async with rig(limits=LogLimits(commit_timeout_s=0.1, overdue_check_s=0.02)) as broker:
        await broker.send(batch_bytes(1))
        gate = asyncio.Event()
        inner = broker.metadata.write

        async def hangs(ops: object) -> object:
            await gate.wait()
            return await inner(ops)  # type: ignore[arg-type]

        broker.metadata.write = hangs  # type: ignore[method-assign, assignment]
        frames: list[weakref.ref[Frame]] = []
        waiting = []
        for _ in range(20):
            waiting.append(submit(broker, frames))
            await asyncio.sleep(0.001)
        results = [await one for one in waiting]
        log = broker.parts.partitions.get(PARTITION)

        assert isinstance(results[0], OutcomeUnknown), "its write may yet be applied"
        assert all(isinstance(result, Unavailable) for result in results[1:])
        assert len(log.commit_queue.commits) == 1, "only the one that was sent is still in the commit queue"
        assert await alive(frames) == 0
        gate.set()
        await broker.parts.appender.drain()
        assert log.is_idle


async def test_flushes_that_wait_for_a_place_are_answered_in_time_and_never_uploaded() -> None:
    limits = LogLimits(commit_timeout_s=0.1, overdue_check_s=0.02)
    async with rig(flush=FlushSettings(interval_s=0.0, gather_s=0.0, bytes_max=1), limits=limits) as broker:
        broker.objects.gate = asyncio.Event()
        frames: list[weakref.ref[Frame]] = []
        results = [await one for one in [submit(broker, frames) for _ in range(UPLOADS_MAX + 20)]]

        assert all(isinstance(result, Unavailable) for result in results)
        assert len(broker.objects.put_keys) == UPLOADS_MAX
        broker.objects.gate.set()
        await broker.parts.appender.drain()
        assert await alive(frames) == 0
        assert len(broker.objects.put_keys) == UPLOADS_MAX
        assert (await broker.manifest()).sequence_counter == 0


async def test_refused_batches_that_are_still_gathered_are_not_stored() -> None:
    async with rig(flush=FlushSettings(interval_s=0.0, gather_s=0.03), limits=LogLimits(upload_timeout_s=0.0)) as broker:
        broker.objects.puts_fail, broker.objects.gate = Unavailable("away"), asyncio.Event()
        frames: list[weakref.ref[Frame]] = []
        source = object()
        first = submit(broker, frames, source)
        await asyncio.sleep(0.05)
        behind = submit(broker, frames, source)
        broker.objects.gate.set()
        results = [await first, await behind]
        await asyncio.sleep(0.05)

        assert all(isinstance(result, Unavailable) for result in results), "it must not overtake the retry of what was lost"
        assert len(broker.objects.put_keys) == 1
        assert await alive(frames) == 0
