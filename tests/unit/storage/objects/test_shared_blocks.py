"""Reads through a folder that processes share: one GET for all of them, and the store whenever the folder is of no use."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from structlog.testing import capture_logs

from runtime.blocking import Blocking, ThreadBlocking
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.errors import EndsEarly, Unavailable
from storage.limits import BLOCK_BYTES, KIB, MIB
from storage.objects.block_folder import BlockExtent, BlockFolder, release
from storage.objects.shared_blocks import CLAIM_S, COMMIT_CLAIM_S, LOOKS_MAX, PUT_BYTES_MAX, THREADS, SharedBlocks
from storage.vocabulary import Buffer
from tests.kit.stepping_clock import SteppingClock

KEY = "wal/01ABCD/01ABCDEF"
FILES = "cluster/wal+01ABCD+01ABCDEF"
BODY = os.urandom(BLOCK_BYTES + 100 * KIB)
PART_BYTES = 512 * KIB
SOON_S = 30.0

T = TypeVar("T")


class Objects:
    """One object. Each GET waits for `gate`, and fails while there are `failures`."""

    def __init__(self) -> None:
        self.gets: list[tuple[int, int]] = []
        self.failures = 0
        self.body = BODY
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        (part,) = await self.get_parts(key, start, end, part_bytes=len(BODY))
        return bytes(part)

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        self.gets.append((start, end))
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise Unavailable("injected")
        return [self.body[start:end]]


class NoAnswer(ThreadBlocking):
    """A disk that gives no answers."""

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().create_future()


class Noted(ThreadBlocking):
    """Tells when a call has ended: to look for a claim would take it for a moment, from whoever tries to."""

    def __init__(self) -> None:
        super().__init__(threads=THREADS, name="noted")
        self.ended = asyncio.Event()

    async def run(self, call: Callable[[], T]) -> T:
        given = await super().run(call)
        self.ended.set()
        return given


class Machine:
    """Processes on one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.objects = Objects()
        self.clock = SteppingClock()
        self._closing = contextlib.AsyncExitStack()
        self._owner = 0

    async def process(
        self, *, cluster: str = "cluster", fills: bool = True, blocking: Blocking | None = None, claim_s: float = COMMIT_CLAIM_S
    ) -> "Process":
        threads = blocking or ThreadBlocking(threads=THREADS, name="shared")
        self._closing.callback(threads.close)
        nursery = await self._closing.enter_async_context(Nursery())
        telemetry = Telemetry()
        blocks = SharedBlocks(
            self.objects,
            self.folder(),
            cluster=lambda: cluster,
            blocking=threads,
            clock=self.clock,
            nursery=nursery,
            telemetry=telemetry,
            fills=fills,
            commit_claim_s=claim_s,
        )
        return Process(blocks, telemetry, nursery)

    def folder(self) -> BlockFolder:
        self._owner += 1
        return BlockFolder(str(self.root), bytes_max=64 * MIB, owner=str(self._owner), now_s=lambda: self.clock.now_ms() / 1_000)

    async def until_put(self, *names: str) -> None:
        async with asyncio.timeout(SOON_S):
            while not all((self.root / FILES / name).exists() for name in names):  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    def is_claimed(self, start: int) -> bool:
        """Whether a process is fetching the block that begins there, or has yet to put it."""
        look = self.folder().look(FILES, [BlockExtent(start, start + 1)], part_bytes=KIB, claims=True)
        release(look.claims)
        return look.found[0].is_claimed

    async def close(self) -> None:
        self.objects.gate.set()
        await self._closing.aclose()


class Process:
    def __init__(self, blocks: SharedBlocks, telemetry: Telemetry, nursery: Nursery) -> None:
        self.blocks = blocks
        self.nursery = nursery
        self._telemetry = telemetry

    async def read(self, start: int, end: int) -> bytes:
        return b"".join(await self.blocks.get_parts(KEY, start, end, part_bytes=PART_BYTES))

    def counted(self, outcome: str, *, of: str = "requests") -> float:
        return self._telemetry.registry.get_sample_value(f"forebay_shared_cache_{of}_total", {"outcome": outcome}) or 0.0


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path / "cache")
    try:
        yield machine
    finally:
        await machine.close()


# One GET


async def test_four_processes_that_read_one_block_at_once_send_one_get(machine: Machine) -> None:
    processes = [await machine.process() for _ in range(4)]
    machine.objects.gate.clear()
    async with asyncio.TaskGroup() as group:
        reads = [group.create_task(one.read(0, BLOCK_BYTES)) for one in processes]
        while not machine.objects.gets:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        machine.objects.gate.set()

    assert [read.result() == BODY[:BLOCK_BYTES] for read in reads] == [True] * 4
    assert machine.objects.gets == [(0, BLOCK_BYTES)]
    assert sorted(one.counted("miss") + 2 * one.counted("waited") for one in processes) == [1, 2, 2, 2]


async def test_what_one_has_fetched_another_finds_whole_and_in_part_and_fetches_the_rest(machine: Machine) -> None:
    one, other = await machine.process(), await machine.process()
    await one.read(0, BLOCK_BYTES + 10)
    await machine.until_put(f"0-{BLOCK_BYTES}", f"{BLOCK_BYTES}-{BLOCK_BYTES + 10}")

    assert await other.read(3, BLOCK_BYTES + 5) == BODY[3 : BLOCK_BYTES + 5]
    assert bytes(await other.blocks.get_range(KEY, BLOCK_BYTES - 2, BLOCK_BYTES + 2)) == BODY[BLOCK_BYTES - 2 : BLOCK_BYTES + 2]
    assert await other.read(BLOCK_BYTES - 1, len(BODY)) == BODY[BLOCK_BYTES - 1 :]
    assert machine.objects.gets == [(0, BLOCK_BYTES + 10), (BLOCK_BYTES + 10, len(BODY))]
    assert (other.counted("hit"), other.counted("miss")) == (2, 1)


async def test_what_lies_between_two_gaps_comes_with_their_get(machine: Machine) -> None:
    one = await machine.process()
    machine.folder().put(FILES, 100, [BODY[100:200]])

    assert await one.read(0, 300) == BODY[:300]
    assert machine.objects.gets == [(0, 300)]


async def test_a_claim_that_brings_nothing_is_waited_for_so_long_and_no_longer(machine: Machine) -> None:
    holder, one = machine.folder(), await machine.process()
    look = holder.look(FILES, [BlockExtent(0, 10)], part_bytes=KIB, claims=True)
    read = asyncio.ensure_future(one.read(0, 10))  # noqa: TID251
    await asyncio.sleep(0.05)
    assert machine.objects.gets == []

    machine.clock.advance(CLAIM_S)
    assert await read == BODY[:10]
    release(look.claims)
    assert machine.objects.gets == [(0, 10)]


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_a_get_that_came_to_nothing_leaves_no_claim(machine: Machine, how: str) -> None:
    one, other = await machine.process(), await machine.process()
    machine.objects.gate.clear()
    machine.objects.failures = 1
    read = asyncio.ensure_future(one.read(0, 10))  # noqa: TID251
    while not machine.objects.gets:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    if how == "cancelled":
        read.cancel()
        machine.objects.failures = 0
    machine.objects.gate.set()
    with pytest.raises((Unavailable, asyncio.CancelledError)):
        await read

    assert await other.read(0, 10) == BODY[:10]
    assert other.counted("waited") == 0


async def test_reads_that_are_cancelled_at_any_moment_leave_no_claim(machine: Machine) -> None:
    one = await machine.process()
    machine.objects.gate.clear()
    for turns in range(12):
        read = asyncio.ensure_future(one.read(0, 10))  # noqa: TID251
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        read.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await read
    async with asyncio.timeout(SOON_S):
        while machine.is_claimed(0):  # noqa: ASYNC110
            await asyncio.sleep(0.002)


# What is wrong with the folder


async def test_damage_is_counted_said_once_and_read_from_the_store(machine: Machine) -> None:
    one, other = await machine.process(), await machine.process()
    await one.read(0, 10)
    await one.read(10, 20)
    await machine.until_put("0-10", "10-20")
    for name in ("0-10", "10-20"):
        (machine.root / FILES / name).write_bytes(bytes(22))
    with capture_logs() as logs:
        assert await other.read(0, 20) == BODY[:20]

    assert other.counted("damaged") == 2
    assert [line["event"] for line in logs] == ["shared_cache_degraded"]


async def test_a_folder_that_is_none_is_said_once_and_every_read_is_answered(machine: Machine) -> None:
    machine.root.write_text("a file")
    one = await machine.process()
    with capture_logs() as logs:
        for _ in range(3):
            assert await one.read(0, 10) == BODY[:10]

    assert len(machine.objects.gets) == 3
    assert one.counted("failed") == 3
    [line] = logs
    assert (line["event"], line["cause"]) == ("shared_cache_degraded", "not a directory")
    assert "storage.cache_dir" in line["fix"]


async def test_files_of_another_cluster_are_none_of_ours(machine: Machine) -> None:
    one, other = await machine.process(), await machine.process(cluster="other")
    await one.read(0, 10)
    await machine.until_put("0-10")
    machine.objects.body = bytes(len(BODY))

    assert await other.read(0, 10) == bytes(10)


async def test_before_the_cluster_is_known_and_of_other_objects_the_store_is_asked(machine: Machine) -> None:
    unknown, one = await machine.process(cluster=""), await machine.process()
    for _ in range(2):
        assert await unknown.read(0, 10) == BODY[:10]
        await one.blocks.get_parts(".probe/1", 0, 10, part_bytes=PART_BYTES)

    assert len(machine.objects.gets) == 4
    assert not machine.root.exists()


async def test_a_disk_that_gives_no_answers_holds_reads_up_for_a_moment_and_then_not_at_all(machine: Machine) -> None:
    one = await machine.process(blocking=NoAnswer(threads=1, name="none"))
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        reads = [group.create_task(one.read(0, 10)) for _ in range(LOOKS_MAX)]
        await asyncio.sleep(0)
        assert await one.read(0, 10) == BODY[:10]
        assert not any(read.done() for read in reads)

    assert {read.result() for read in reads} == {BODY[:10]}
    assert one.counted("failed") == LOOKS_MAX + 1


async def test_what_was_read_and_is_not_what_was_written_is_read_from_the_store_again(machine: Machine) -> None:
    one, other = await machine.process(), await machine.process()
    right, machine.objects.body = machine.objects.body, bytes(len(BODY))
    await one.read(0, 10)
    await machine.until_put("0-10")
    machine.objects.body = right
    assert await other.read(0, 10) == bytes(10)

    other.blocks.distrust(KEY)
    assert await other.read(0, 10) == right[:10]
    assert await one.read(0, 10) == right[:10]
    await machine.until_put("0-10")
    assert await other.read(0, 10) == right[:10]
    assert len(machine.objects.gets) == 3


async def test_a_store_that_gives_too_little_is_told_and_nothing_of_it_is_kept(machine: Machine) -> None:
    one = await machine.process()
    machine.objects.body = BODY[:5]
    with pytest.raises(EndsEarly):
        await one.read(0, 10)
    machine.objects.body = BODY

    assert await one.read(0, 10) == BODY[:10]


# Who fills it


async def test_one_who_does_not_fill_it_reads_what_is_there(machine: Machine) -> None:
    one, other = await machine.process(fills=False), await machine.process()
    assert await one.read(0, 10) == BODY[:10]
    assert not machine.root.exists()
    await other.read(0, 10)
    await machine.until_put("0-10")
    await one.read(0, 10)

    assert (one.counted("miss"), one.counted("hit")) == (1, 1)


async def test_an_object_is_put_when_the_last_of_its_commits_is_applied_and_as_it_was_sealed(machine: Machine) -> None:
    one, other = await machine.process(), await machine.process()
    batch = bytearray(BODY[100:])
    committing = one.blocks.committing(KEY, [BODY[:100], memoryview(batch)], commits=2)
    assert committing is not None
    batch[:16] = bytes(16)  # it is given its offset
    committing.note_split()
    for _ in range(2):
        committing.note_applied()
    await asyncio.sleep(0.05)
    assert not machine.root.exists()
    committing.note_applied()
    await machine.until_put(f"0-{BLOCK_BYTES}", f"{BLOCK_BYTES}-{len(BODY)}")

    assert await other.read(0, len(BODY)) == BODY
    assert machine.objects.gets == []


async def test_one_who_hears_of_a_commit_before_there_is_a_file_waits_for_it(machine: Machine) -> None:
    claiming = Noted()
    one, other = await machine.process(blocking=claiming, claim_s=2 * SOON_S), await machine.process()
    committing = one.blocks.committing(KEY, [BODY], commits=1)
    assert committing is not None
    committing.note_stored()
    async with asyncio.timeout(SOON_S):
        await claiming.ended.wait()
    await asyncio.sleep(0)
    async with asyncio.TaskGroup() as group:
        read = group.create_task(other.read(5, len(BODY)))
        await asyncio.sleep(0.02)
        assert not read.done()
        committing.note_applied()

    assert read.result() == BODY[5:]
    assert machine.objects.gets == []


async def test_an_object_whose_commits_come_to_nothing_is_waited_for_a_moment(machine: Machine) -> None:
    claiming = Noted()
    one, other = await machine.process(blocking=claiming), await machine.process()
    committing = one.blocks.committing(KEY, [BODY], commits=1)
    assert committing is not None
    committing.note_stored()
    async with asyncio.timeout(SOON_S):
        await claiming.ended.wait()
    del committing

    assert await other.read(5, len(BODY)) == BODY[5:]
    assert (len(machine.objects.gets), other.counted("miss")) == (1, 1)


async def test_what_waits_to_be_put_is_bounded(machine: Machine) -> None:
    one = await machine.process(blocking=NoAnswer(threads=1, name="none"))
    assert one.blocks.committing(KEY, [bytes(PUT_BYTES_MAX + 1)], commits=1) is None
    for _ in range(3):
        committing = one.blocks.committing(KEY, [bytes(PUT_BYTES_MAX // 2)], commits=1)
        assert committing is not None
        committing.note_applied()

    assert one.counted("skipped", of="puts") == 1


async def test_its_size_is_on_the_page_of_metrics(machine: Machine) -> None:
    one = await machine.process()
    await one.read(0, 10)
    await machine.until_put("0-10")
    one.nursery.spawn(one.blocks.run(), name="run")
    async with asyncio.timeout(SOON_S):
        while not one._telemetry.registry.get_sample_value("forebay_shared_cache_bytes"):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert one._telemetry.registry.get_sample_value("forebay_shared_cache_bytes") == 22
