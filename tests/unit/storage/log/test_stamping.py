"""Batches get their offsets: large ones where they were read, small ones in a copy, and the same bytes either way."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import Corrupt
from storage.formats.manifest import Entry
from storage.log.limits import DEFAULT_LIMITS
from storage.log.scan import BatchRun, check_passed, scan, stamp
from storage.recordbatch import HEADER_BYTES, STAMP_BYTES, restamp
from storage.vocabulary import ObjectId
from tests.kit.batches import batch_bytes

BASE = 1_000
LARGE = DEFAULT_LIMITS.join_below_bytes
SIZES = st.lists(
    st.sampled_from([1, 300, DEFAULT_LIMITS.join_below_bytes - HEADER_BYTES, 3 * DEFAULT_LIMITS.join_below_bytes]), min_size=1, max_size=6
)
"""Of the records of each batch, in bytes."""


def entry_of(count: int) -> Entry:
    return Entry(BASE, BASE + count - 1, ObjectId("01M8ENPC0WP3R34E36D6181E6P"), ((0, 1),), 0, 0)


def expected(sizes: list[int]) -> bytes:
    """One record in each batch."""
    whole = bytearray()
    for number, size in enumerate(sizes):
        batch = batch_bytes(payload=b"x" * size)
        restamp(batch, 0, BASE + number)
        whole += batch
    return bytes(whole)


def window_of(sizes: list[int], cuts: list[int] | None = None) -> list[memoryview]:
    whole = b"".join(bytes(batch_bytes(payload=b"x" * size)) for size in sizes)
    bounds = [0, *sorted(min(cut, len(whole)) for cut in cuts or []), len(whole)]
    return [memoryview(bytearray(whole[begin:end])) for begin, end in pairwise(bounds)]


def stamped(
    views: list[memoryview], count: int, *, wanted: int = BASE, join_below_bytes: int = DEFAULT_LIMITS.join_below_bytes
) -> tuple[BatchRun, int]:
    found = scan(views, base=BASE, wanted=wanted, bytes_max=1 << 30, where="test")
    check_passed(views, found, "test")
    return stamp(views, found, "test", entry_of(count), join_below_bytes=join_below_bytes)


@given(sizes=SIZES, cuts=st.lists(st.integers(0, 4 * DEFAULT_LIMITS.join_below_bytes), max_size=8), data=st.data())
def test_batches_are_stamped_whatever_pieces_they_were_read_in_and_no_piece_is_written_to(
    sizes: list[int], cuts: list[int], data: st.DataObject
) -> None:
    views = window_of(sizes, cuts)
    before = [bytes(view) for view in views]
    first = data.draw(st.integers(0, len(sizes) - 1))

    run, end_position = stamped(views, len(sizes), wanted=BASE + first)

    assert bytes(run.buffer) == expected(sizes)[-run.size_bytes :]
    assert (run.base, run.last, run.starts) == (BASE + first, BASE + len(sizes) - 1, tuple(range(BASE + first, BASE + len(sizes))))
    assert list(run.positions) == [sum(HEADER_BYTES + size for size in sizes[first:number]) for number in range(first, len(sizes))]
    assert end_position == sum(map(len, before))
    assert [bytes(view) for view in views] == before
    assert all(view.readonly or any(view.obj is piece.obj for piece in views) for view in run.views)


def test_large_batches_are_not_copied_and_small_ones_are() -> None:
    large, small = window_of([LARGE, LARGE]), window_of([300, 300])

    run, _ = stamped(large, 2)
    copied, _ = stamped(small, 2)

    assert [len(view) for view in run.views] == [STAMP_BYTES, HEADER_BYTES + LARGE - STAMP_BYTES] * 2
    assert [view.obj is large[0].obj for view in run.views] == [False, True] * 2
    assert [view.obj is small[0].obj for view in copied.views] == [False]


@pytest.mark.parametrize(("others", "is_copied"), [(3, False), (4, True)])
def test_a_small_part_of_a_piece_does_not_keep_the_rest_of_it_alive(others: int, is_copied: bool) -> None:
    first, *rest = window_of([LARGE] * (1 + others), [])
    assert not rest
    found = scan([first], base=BASE, wanted=BASE, bytes_max=1, where="test")

    run, _ = stamp([first], found, "test", entry_of(1), join_below_bytes=DEFAULT_LIMITS.join_below_bytes)

    assert (run.views[-1].obj is not first.obj) is is_copied


@pytest.mark.parametrize("size", [300, LARGE])
@pytest.mark.parametrize("cut", [0, 30], ids=["in one piece", "with a header in two pieces"])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_what_lies_before_a_damaged_batch_is_served(size: int, cut: int, damaged: int) -> None:
    whole = HEADER_BYTES + size
    views = window_of([size] * 3, [damaged * whole + cut] if cut else [])
    last = views[-1]
    last[-1 - (2 - damaged) * whole] ^= 1

    if not damaged:
        with pytest.raises(Corrupt, match=f"checksum mismatch.* offset={BASE}"):
            stamped(views, 3)
        return
    run, end_position = stamped(views, 3)
    assert bytes(run.buffer) == expected([size] * damaged)
    assert (run.last, end_position, run.starts) == (BASE + damaged - 1, damaged * whole, tuple(range(BASE, BASE + damaged)))
    assert len(run.positions) == damaged


@pytest.mark.parametrize("size", [300, LARGE])
def test_what_ends_before_a_damaged_batch_ends_there_in_the_window_behind_what_was_passed_over(size: int) -> None:
    views = window_of([size] * 3)
    views[-1][-1] ^= 1

    _, end_position = stamped(views, 3, wanted=BASE + 1)

    assert end_position == 2 * (HEADER_BYTES + size)


@pytest.mark.parametrize("size", [300, LARGE])
@pytest.mark.parametrize(("number", "passed"), [(0, 1), (0, 2), (1, 2)])
def test_a_damaged_batch_that_is_passed_over_is_told_with_its_position(size: int, number: int, passed: int) -> None:
    whole = HEADER_BYTES + size
    cuts = [whole // 2, whole + 3]
    views = window_of([size] * 3, cuts)
    last_byte = (number + 1) * whole - 1
    view, begin = [(view, begin) for view, begin in zip(views, [0, *cuts], strict=True) if begin <= last_byte][-1]
    view[last_byte - begin] ^= 1

    with pytest.raises(Corrupt, match=f"checksum mismatch.* position={number * whole}$"):
        stamped(views, 3, wanted=BASE + passed)


@pytest.mark.parametrize("size", [300, LARGE])
def test_more_records_than_the_entry_says_are_corrupt(size: int) -> None:
    with pytest.raises(Corrupt, match="an entry has more records than it says"):
        stamped(window_of([size] * 3), 2)


def test_a_read_of_parts_of_a_run_gets_whole_batches() -> None:
    sizes = [300, 20, 500]
    run, _ = stamped(window_of(sizes, [100, 370]), 3, join_below_bytes=1)
    for first in range(3):
        for after in range(first + 1, 4):
            part = sum(HEADER_BYTES + size for size in sizes[first:after])
            found = run.from_offset(BASE + first, part, at_least_one=True)
            assert found is not None
            views, following = found
            assert following == BASE + after
            start = sum(HEADER_BYTES + size for size in sizes[:first])
            assert b"".join(views) == expected(sizes)[start : start + part]
