"""The tail cache and its runs."""

from itertools import pairwise

import pytest

from runtime.frames import FRAME_OVERHEAD_BYTES, Account, make_frame
from runtime.telemetry import Telemetry
from storage.log.batch import Append, Batch
from storage.log.limits import DEFAULT_LIMITS
from storage.log.partition import DROPPED_KEPT_MAX, FRAME_SHARE_MIN, RUN_OVERHEAD_BYTES, Tail, TailCache
from storage.log.scan import BatchRun
from storage.recordbatch import parse_header
from tests.kit.batches import batch_bytes


def batch(count: int = 1, payload: bytes = b"x" * 20) -> Batch:
    data = batch_bytes(count, payload=payload)
    return Batch(memoryview(data), Append(None, lambda _: None, [None], 1), 0, -1, -1, -1, count, 0, len(data))


def framed(account: Account, *sizes: int, unused_bytes: int = 0) -> list[Batch]:
    """Batches with payloads of these sizes that came in one frame."""
    data = [batch_bytes(payload=b"z" * size) for size in sizes]
    frame = memoryview(make_frame(memoryview(b"".join(data) + bytes(unused_bytes)), account))
    batches, position = [], 0
    for part in data:
        view = frame[position : position + len(part)]
        position += len(part)
        batches.append(Batch(view, Append(None, lambda _: None, [None], 1), 0, -1, -1, -1, 1, 0, len(part)))
    return batches


def cache(bytes_max: int = 1 << 20) -> TailCache:
    return TailCache(bytes_max=bytes_max, telemetry=Telemetry(), readers=Account())


def test_batches_are_stamped_with_their_offsets() -> None:
    tail, kept = Tail(), cache()
    kept.add(tail, [(batch(2), 10), (batch(3), 12)])

    run = tail.find(11)
    assert run is not None
    assert [parse_header(run.buffer, position).base_offset for position in run.positions] == [10, 12]
    assert (run.base, run.last) == (10, 14)


def test_small_batches_are_joined_and_large_ones_stay_where_they_are() -> None:
    tail, kept = Tail(), cache()
    large = [batch(payload=b"y" * DEFAULT_LIMITS.join_below_bytes) for _ in range(2)]
    kept.add(tail, [(batch(), 0), (batch(), 1)])
    kept.add(tail, [(large[0], 2), (large[1], 3)])

    assert tail.find(0) is tail.find(1)
    assert tail.find(2) is not tail.find(3)
    run = tail.find(2)
    assert run is not None
    assert run.buffer.obj is large[0].view.obj, "no copy"


def test_the_oldest_runs_of_any_partition_make_room() -> None:
    one, other = Tail(), Tail()
    size_bytes = len(batch_bytes()) + RUN_OVERHEAD_BYTES
    kept = cache(bytes_max=3 * size_bytes)
    for n in range(3):
        kept.add(one, [(batch(), n)])
    kept.add(other, [(batch(), 0)])

    assert one.find(0) is None
    assert one.find(1) is not None
    assert other.find(0) is not None
    assert kept.size_bytes <= 3 * size_bytes


def test_a_frame_counts_whole_and_once_however_many_batches_of_it_are_kept_and_no_longer_where_it_came_from() -> None:
    admission, kept = Account(), cache()
    batches = framed(admission, DEFAULT_LIMITS.join_below_bytes, DEFAULT_LIMITS.join_below_bytes, unused_bytes=100_000)
    frame_bytes = admission.held_bytes
    kept.add(Tail(), [(batches[0], 0)])
    kept.add(Tail(), [(batches[1], 0)])
    both = kept.size_bytes
    del batches

    assert both == frame_bytes + 2 * RUN_OVERHEAD_BYTES
    assert kept.size_bytes == both, "it is kept alive here"
    assert admission.held_bytes == 0


def test_a_frame_that_is_dropped_dies_unless_a_reader_holds_it_and_counts_with_the_readers_then() -> None:
    admission, readers, tail = Account(), Account(), Tail()
    size = DEFAULT_LIMITS.join_below_bytes + FRAME_OVERHEAD_BYTES
    kept = TailCache(bytes_max=2 * size, telemetry=Telemetry(), readers=readers)
    kept.add(tail, [(framed(admission, DEFAULT_LIMITS.join_below_bytes)[0], 0)])
    read = tail.find(0)
    for offset in range(1, 4):
        kept.add(tail, [(framed(admission, DEFAULT_LIMITS.join_below_bytes)[0], offset)])
    while_read = readers.held_bytes
    del read

    assert while_read > size
    assert readers.held_bytes == 0
    assert admission.held_bytes == 0
    assert 0 < kept.size_bytes <= 2 * size


def test_a_frame_leaves_when_the_last_of_its_batches_is_dropped() -> None:
    admission, readers = Account(), Account()
    kept = TailCache(bytes_max=4 * DEFAULT_LIMITS.join_below_bytes, telemetry=Telemetry(), readers=readers)
    one, other = framed(admission, DEFAULT_LIMITS.join_below_bytes, DEFAULT_LIMITS.join_below_bytes)
    kept.add(Tail(), [(one, 0)])
    kept.add(Tail(), [(other, 0)])
    view = one.view
    kept._drop_oldest()
    half = kept.size_bytes, readers.held_bytes
    kept._drop_oldest()

    assert half[0] > 2 * DEFAULT_LIMITS.join_below_bytes
    assert half[1] == 0
    assert kept.size_bytes == 0
    assert readers.held_bytes > 2 * DEFAULT_LIMITS.join_below_bytes
    assert len(view) > DEFAULT_LIMITS.join_below_bytes


def test_a_small_part_of_a_frame_is_copied_and_the_frame_goes() -> None:
    admission, kept, tail = Account(), cache(), Tail()
    batches = framed(admission, DEFAULT_LIMITS.join_below_bytes, unused_bytes=FRAME_SHARE_MIN * (DEFAULT_LIMITS.join_below_bytes + 200))
    kept.add(tail, [(batches[0], 7)])
    size_bytes = batches[0].size_bytes
    batches.clear()
    run = tail.find(7)

    assert kept.size_bytes == size_bytes + RUN_OVERHEAD_BYTES
    assert admission.held_bytes == 0
    assert run is not None
    assert parse_header(run.buffer).base_offset == 7


def test_offsets_of_other_brokers_commits_are_not_found() -> None:
    tail, kept = Tail(), cache()
    kept.add(tail, [(batch(2), 0)])
    kept.add(tail, [(batch(2), 7)])

    assert tail.find(2) is None
    assert tail.find(6) is None
    assert tail.find(8) is not None
    assert tail.find(9) is None


def test_dropping_goes_on_for_ever() -> None:
    tail = Tail()
    for n in range(10 * DROPPED_KEPT_MAX):
        tail.append(BatchRun(n, n, (memoryview(b""),), (n,), (0,)))
        if n >= 3:
            tail.drop_oldest()

    assert tail.find(10 * DROPPED_KEPT_MAX - 1) is not None
    assert tail.find(10 * DROPPED_KEPT_MAX - 4) is None


def test_a_tail_whose_runs_were_all_dropped_holds_nothing() -> None:
    tail = Tail()
    for n in range(DROPPED_KEPT_MAX // 2):
        tail.append(BatchRun(n, n, (memoryview(b""),), (n,), (0,)))
    for _ in range(DROPPED_KEPT_MAX // 2):
        tail.drop_oldest()

    assert (tail._bases, tail._runs) == ([], [])
    tail.append(BatchRun(70, 70, (memoryview(b""),), (70,), (0,)))
    assert tail.find(70) is not None


@pytest.mark.parametrize("cuts", [[0, 300], [0, 1, 299, 300], [0, 100, 200, 300], [0, 150, 224, 225, 226, 300]])
def test_a_run_is_cut_at_whole_batches_however_many_views_it_lies_in(cuts: list[int]) -> None:
    batches = bytes(range(100)) + bytes(range(100, 200)) + bytes(range(100))
    run = BatchRun(10, 39, tuple([memoryview(batches)[begin:end] for begin, end in pairwise(cuts)]), (10, 20, 30), (0, 100, 200))

    def piece(offset: int, bytes_max: int, *, at_least_one: bool = False) -> tuple[bytes, int] | None:
        found = run.from_offset(offset, bytes_max, at_least_one=at_least_one)
        return None if found is None else (b"".join(found[0]), found[1])

    assert run.size_bytes == 300
    assert run.buffer == batches
    assert piece(15, 300) == (batches, 40)
    assert piece(10, 299) == (batches[:200], 30)
    assert piece(20, 199) == (batches[100:200], 30)
    assert piece(20, 200) == (batches[100:], 40)
    assert piece(20, 99) is None
    assert piece(20, 99, at_least_one=True) == (batches[100:200], 30)
    assert piece(39, 1, at_least_one=True) == (batches[200:], 40)


def test_what_is_whole_in_a_run_is_handed_on_as_it_is() -> None:
    run = BatchRun(10, 39, (memoryview(bytes(300)),), (10, 20, 30), (0, 100, 200))
    found = run.from_offset(15, 300, at_least_one=False)

    assert found is not None
    assert found[0] is run.views
