"""A fetch of what lies in segments: what is in memory is taken in the first look, and nothing is read twice."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.delayed_fetch import DelayedFetch, FetchPartitionStatus
from broker.limits import DEFAULT_FETCH_LIMITS, FetchLimits
from storage.errors import Corrupt
from storage.formats.segment import segment_key
from storage.log import segments
from tests.unit.storage.log.made_segments import IDS, batch, put_segment, set_segments
from tests.unit.storage.log.rig import PARTITION, Rig, rig

SIZE = len(batch(0, size=100))
BATCHES = [batch(offset, size=100) for offset in range(12)]


@pytest.fixture
async def broker() -> AsyncIterator[Rig]:
    """Two segments of six batches, two in a block, all of them in memory."""
    async with rig() as made:
        await fill(made)
        for offset in (0, 6):
            await made.parts.reader.stored(made.parts.partitions.get(PARTITION), offset, bytes_max=1 << 20)
        yield made


async def fill(made: Rig) -> None:
    entries = [
        await put_segment(made, IDS[place], BATCHES[base : base + 6], base=base, last=base + 5, block_bytes=2 * SIZE)
        for place, base in enumerate((0, 6))
    ]
    await set_segments(made, *entries)
    await made.parts.manifest_reads.refresh([made.parts.partitions.get(PARTITION)])


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The blocks whose checksums are computed."""
    numbers: list[int] = []
    check = segments.check_block_of

    def noted(block: Any, footer: Any, number: int, *, key: str) -> None:
        numbers.append(footer.base // 2 + number)
        check(block, footer, number, key=key)

    monkeypatch.setattr(segments, "check_block_of", noted)
    return numbers


def begin(
    broker: Rig, *wanted: FetchPartitionStatus, bytes_max: int | None = 1 << 20, limits: FetchLimits = DEFAULT_FETCH_LIMITS
) -> DelayedFetch:
    return DelayedFetch(
        wanted,
        bytes_max=bytes_max,
        bytes_min=1,
        is_refused=False,
        began_s=0.0,
        deadline_s=10.0,
        reader=broker.parts.reader,
        manifest_reads=broker.parts.manifest_reads,
        wake=lambda: None,
        limits=limits,
    )


def gather(
    broker: Rig, *wanted: FetchPartitionStatus, bytes_max: int = 1 << 20, limits: FetchLimits = DEFAULT_FETCH_LIMITS
) -> DelayedFetch:
    made = begin(broker, *wanted, bytes_max=bytes_max, limits=limits)
    made.look(0.0)
    return made


def want(broker: Rig, offset: int = 0, bytes_max: int = 1 << 20) -> FetchPartitionStatus:
    return FetchPartitionStatus(broker.parts.partitions.get(PARTITION), offset, bytes_max)


async def until_read(broker: Rig) -> None:
    await asyncio.gather(*[stored_read.task for stored_read in broker.parts.reader.stored_reads._stored_reads.values() if stored_read.task])


def found(wanted: FetchPartitionStatus) -> bytes:
    return b"".join(wanted.buffers)


async def test_what_is_in_memory_is_taken_at_once_and_checked_once(broker: Rig, checked: list[int]) -> None:
    wanted = want(broker)
    made = gather(broker, wanted)
    wanted.manifest = None  # as when it has moved
    made.look(0.1)

    assert made.may_leave()
    assert len(broker.parts.reader.stored_reads) == 0
    assert found(wanted) == b"".join(BATCHES)
    assert checked == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("room", "batches"), [(2 * SIZE, 2), (3 * SIZE, 2), (4 * SIZE - 1, 2), (4 * SIZE, 4), (7 * SIZE - 1, 6), (7 * SIZE, 7)]
)
async def test_whole_blocks_are_taken_and_of_a_segment_that_is_begun_what_fits(
    broker: Rig, checked: list[int], room: int, batches: int
) -> None:
    wanted = want(broker, bytes_max=room)
    made = gather(broker, wanted)

    assert made.may_leave()
    assert len(broker.parts.reader.stored_reads) == 0
    assert found(wanted) == b"".join(BATCHES[:batches])
    assert checked == list(range((batches + 1) // 2))


async def test_a_batch_that_is_too_large_for_what_others_left_is_not_read(broker: Rig, checked: list[int]) -> None:
    first, second = want(broker, bytes_max=2 * SIZE), want(broker, 6)
    made = gather(broker, first, second, bytes_max=3 * SIZE - 1)

    assert made.may_leave()
    assert (second.is_too_large, second.is_cut, second.buffers) == (True, True, [])
    assert len(broker.parts.reader.stored_reads) == 0
    assert checked == [0]


async def test_an_answer_has_so_many_runs_at_most(broker: Rig) -> None:
    wanted = want(broker)
    made = gather(broker, wanted, limits=FetchLimits(stored_runs_max=1))

    assert made.may_leave()
    assert found(wanted) == b"".join(BATCHES[:6]), "the second segment would be another run"
    assert len(broker.parts.reader.stored_reads) == 0


async def test_what_is_damaged_in_memory_is_read(broker: Rig, checked: list[int]) -> None:
    blocks = broker.parts.reader.segments._blocks
    for name, view in tuple(blocks._views.items()):
        damaged = bytearray(view)
        damaged[200] ^= 1
        blocks._views[name] = memoryview(damaged)
    wanted = want(broker)
    made = gather(broker, wanted)

    assert not made.may_leave()
    assert len(broker.parts.reader.stored_reads) == 1
    assert checked == [0]
    made.close()


async def test_records_before_damage_that_is_known_are_answered_and_the_damage_to_the_fetch_that_begins_there(broker: Rig) -> None:
    reader, log = broker.parts.reader, broker.parts.partitions.get(PARTITION)
    damaged = segment_key(PARTITION, IDS[1])
    reader.segments._blocks.drop(damaged)
    await broker.objects.inner.delete_many([damaged])
    with pytest.raises(Corrupt):
        await reader.stored(log, 6, bytes_max=1)
    await reader.stored(log, 0, bytes_max=1)
    before, there = want(broker), want(broker, 6)
    made = gather(broker, before, there)
    for _ in range(2):  # `there` has room when `before` needs none
        await until_read(broker)
        made.look(0.1)

    assert made.may_leave()
    assert (found(before), before.error) == (b"".join(BATCHES[:6]), None)
    assert isinstance(there.error, Corrupt)
    made.close()


async def test_what_was_read_is_taken_wherever_it_lies_before_what_was_taken_first(broker: Rig) -> None:
    blocks, log = broker.parts.reader.segments._blocks, broker.parts.partitions.get(PARTITION)
    wanted = want(broker)
    wanted.runs.append(await broker.parts.reader.stored(log, 6, bytes_max=1 << 20))  # when others lay before it in the tail cache
    for key in tuple(blocks._starts):
        blocks.drop(key)
    made = gather(broker, wanted)
    await until_read(broker)
    for key in tuple(blocks._starts):
        blocks.drop(key)
    made.look(0.1)

    assert made.may_leave()
    assert found(wanted) == b"".join(BATCHES)
    made.close()


@pytest.mark.parametrize("is_wide", [False, True])
async def test_in_one_step_the_bytes_of_so_many_partitions_are_checked_whether_they_fit_or_not(
    broker: Rig, checked: list[int], is_wide: bool
) -> None:
    first, others = want(broker, 0, 2 * SIZE), [want(broker, 1, SIZE - 1) for _ in range(19)]
    made = begin(broker, first, *others, limits=FetchLimits(spared_per_step=3, looked_at_per_step=10))
    if is_wide:
        assert [len(checked) for _ in made.look_in_steps(0.0)] == [3, 6]
    else:
        made.look(0.0)
        assert len(checked) == 3
    while not made.may_leave():
        await until_read(broker)
        made.look(0.1)

    assert found(first) == b"".join(BATCHES[:2])
    assert all(one.is_too_large and one.is_cut and not one.buffers and one.error is None for one in others)
    made.close()


@pytest.mark.parametrize(("left_bytes", "is_read"), [(SIZE // 2, True), (SIZE // 2 - 1, False)])
async def test_of_a_response_that_is_nearly_full_the_rest_is_worth_no_read(broker: Rig, left_bytes: int, is_read: bool) -> None:
    """A GET for each of the other partitions, only to see that its first batch does not fit, would hold it up."""
    bytes_max = 2 * SIZE + left_bytes
    limits = FetchLimits(worth_a_read_share=SIZE / 2 / (2 * SIZE + SIZE // 2))
    first, other, only = want(broker, 0, 2 * SIZE), want(broker, 6), want(broker, 6)
    made = begin(broker, first, other, bytes_max=2 * SIZE + SIZE // 2 if is_read else bytes_max, limits=limits)
    broker.parts.reader.segments.drop(IDS[1])  # its footer has to be read again
    made.look(0.0)
    reads = len(broker.parts.reader.stored_reads)
    alone = gather(broker, only, bytes_max=1, limits=limits)

    assert (reads, other.is_too_large) == ((1, False) if is_read else (0, True))
    assert len(broker.parts.reader.stored_reads) == reads + 1, "the only one is read, however little it may have"
    await until_read(broker)
    for one in (made, alone):
        one.close()


class UnderWay:
    """A read of an object that began at `began_s`."""

    is_done = was_left = False

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s


async def test_a_fetch_that_is_hurried_late_in_its_wait_still_waits_for_its_read_and_not_every_millisecond(broker: Rig) -> None:
    wanted = FetchPartitionStatus(broker.parts.partitions.get(PARTITION), 0, 100)
    fetch = begin(broker, wanted)
    stored_read: Any = UnderWay(began_s=3.95)
    wanted.stored_read = stored_read
    fetch._reading[wanted] = None
    fetch._now_s = 4.0
    fetch.hurry()

    assert not fetch.may_leave()
    assert fetch.left_s() == pytest.approx(DEFAULT_FETCH_LIMITS.late_after_s - 0.05)
    wanted.stored_read = None
    assert fetch.may_leave()


@pytest.mark.parametrize("is_read_before", [False, True])
async def test_a_strict_fetch_takes_no_batch_that_is_larger_than_what_it_may_take(*, is_read_before: bool) -> None:
    seen: list[tuple[bool, bool, bytes]] = []
    async with rig() as broker:
        await fill(broker)
        if is_read_before:
            await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), 0, bytes_max=1 << 20)
        for is_strict in (True, False):
            wanted = want(broker)
            made = begin(broker, wanted, bytes_max=None)
            made.look(0.0)
            made.open(SIZE - 1, is_strict=is_strict)
            made.hurry()
            for now_s in (0.1, 0.2, 0.3):
                made.look(now_s)
                await until_read(broker)
            made.look(0.4)
            seen.append((made.may_leave(), wanted.is_too_large, found(wanted)))
            made.close()

    assert seen == [(True, True, b""), (True, False, BATCHES[0])]
