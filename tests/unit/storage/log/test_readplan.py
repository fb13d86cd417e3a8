"""Scanning windows of slices, and of segments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import Corrupt
from storage.log.scan import scan, scan_stamped
from storage.recordbatch import HEADER_BYTES, restamp
from tests.kit.batches import batch_bytes

SIZE = len(batch_bytes())


def slice_of(*counts: int) -> bytes:
    return b"".join(bytes(batch_bytes(count)) for count in counts)


def views_of(*counts: int) -> list[memoryview]:
    return [memoryview(slice_of(*counts))]


def test_batches_before_the_wanted_offset_are_passed_over() -> None:
    found = scan(views_of(2, 3, 4), base=10, wanted=12, bytes_max=10_000, where="test")

    assert (found.starts, found.positions) == ([12, 15], [SIZE, 2 * SIZE])
    assert (found.end_offset, found.end_position) == (19, 3 * SIZE)


def test_an_offset_inside_a_batch_gives_that_batch() -> None:
    assert scan(views_of(2, 5, 4), base=0, wanted=4, bytes_max=1, where="test").starts == [2]


def test_the_first_batch_is_kept_even_if_it_is_larger_than_asked_for() -> None:
    found = scan(views_of(1, 1), base=0, wanted=0, bytes_max=1, where="test")

    assert found.starts == [0]
    assert (found.end_offset, found.end_position) == (1, SIZE)


def test_a_batch_that_is_not_wholly_inside_ends_what_is_kept() -> None:
    found = scan([memoryview(slice_of(1, 1)[:-1])], base=0, wanted=0, bytes_max=10_000, where="test")

    assert (found.starts, found.end_offset, found.end_position, found.missing_bytes) == ([0], 1, SIZE, 0)


def test_a_first_batch_that_is_not_wholly_inside_says_what_is_missing() -> None:
    found = scan([memoryview(slice_of(1)[:-7])], base=0, wanted=0, bytes_max=10_000, where="test")

    assert (found.starts, found.missing_bytes) == ([], 7)


def test_a_cut_header_says_what_is_missing_of_it() -> None:
    found = scan([memoryview(slice_of(1)[:30])], base=0, wanted=0, bytes_max=10_000, where="test")

    assert found.missing_bytes == HEADER_BYTES - 30


def test_a_window_that_ends_with_its_last_batch_misses_nothing() -> None:
    found = scan(views_of(1, 1), base=0, wanted=2, bytes_max=10_000, where="test")

    assert (found.starts, found.end_offset, found.missing_bytes) == ([], 2, 0)


@pytest.mark.parametrize(("position", "value"), [(16, 1), (8, 0xFF), (23, 0xFF)], ids=["magic", "length", "last offset delta"])
def test_what_is_no_batch_is_corrupt(position: int, value: int) -> None:
    data = bytearray(slice_of(1))
    data[position] = value

    with pytest.raises(Corrupt, match="not a record batch"):
        scan([memoryview(data)], base=0, wanted=0, bytes_max=10_000, where="test")


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    wanted=st.integers(0, 60),
    window=st.integers(0, 12 * SIZE),
    bytes_max=st.integers(0, 12 * SIZE),
)
def test_what_is_kept_is_consecutive_and_begins_with_the_wanted_offset(counts: list[int], wanted: int, window: int, bytes_max: int) -> None:
    data = slice_of(*counts)[:window]
    found = scan([memoryview(data)], base=0, wanted=wanted, bytes_max=bytes_max, where="test")

    bases = [sum(counts[:n]) for n in range(len(counts) + 1)]
    first = next((n for n in range(len(counts)) if bases[n + 1] > wanted), None)
    assert found.starts == bases[first : first + len(found.starts)] if first is not None else not found.starts
    assert found.positions == [bases.index(start) * SIZE for start in found.starts]
    if first is not None and (first + 1) * SIZE <= len(data):
        assert found.starts, "a wanted batch that is whole is kept"
        assert len(found.starts) == 1 or len(found.starts) * SIZE <= bytes_max


def block_of(*batches: tuple[int, int]) -> bytes:
    """Of base offsets and counts."""
    whole = bytearray()
    for base, count in batches:
        batch = batch_bytes(count)
        restamp(batch, 0, base)
        whole += batch
    return bytes(whole)


WITH_GAPS = block_of((10, 2), (15, 3), (18, 1), (30, 4))


@pytest.mark.parametrize(
    ("wanted", "starts"),
    [
        (0, [10, 15, 18, 30]),
        (10, [10, 15, 18, 30]),
        (11, [10, 15, 18, 30]),
        (12, [15, 18, 30]),
        (17, [15, 18, 30]),
        (18, [18, 30]),
        (19, [30]),
        (33, [30]),
    ],
)
def test_batches_of_a_segment_are_kept_from_the_first_that_reaches_the_wanted_offset_on(wanted: int, starts: list[int]) -> None:
    found = scan_stamped([memoryview(WITH_GAPS)], wanted=wanted, bytes_max=10_000, where="test")

    assert found.starts == starts
    assert found.positions == [SIZE * number for number in range(4 - len(starts), 4)]
    assert (found.end_offset, found.end_position, found.missing_bytes, found.first_bytes) == (34, 4 * SIZE, 0, SIZE)


def test_a_block_that_ends_below_the_wanted_offset_gives_nothing() -> None:
    found = scan_stamped([memoryview(WITH_GAPS)], wanted=34, bytes_max=10_000, where="test")

    assert (found.starts, found.end_offset, found.end_position, found.missing_bytes, found.first_bytes) == ([], 34, 4 * SIZE, 0, 0)


def test_batches_of_a_segment_are_kept_up_to_so_many_bytes_and_the_offset_after_them_is_said() -> None:
    for bytes_max, starts, end_offset in ((1, [15], 18), (2 * SIZE - 1, [15], 18), (2 * SIZE, [15, 18], 19)):
        found = scan_stamped([memoryview(WITH_GAPS)], wanted=12, bytes_max=bytes_max, where="test")

        assert (found.starts, found.end_offset, found.end_position) == (starts, end_offset, (1 + len(starts)) * SIZE)


def test_a_batch_of_a_segment_that_is_not_wholly_inside_ends_what_is_kept() -> None:
    found = scan_stamped([memoryview(WITH_GAPS)[:-1]], wanted=12, bytes_max=10_000, where="test")

    assert (found.starts, found.end_offset, found.end_position, found.missing_bytes) == ([15, 18], 19, 3 * SIZE, 0)


def test_a_first_batch_of_a_segment_that_is_not_wholly_inside_says_what_is_missing_and_its_size() -> None:
    found = scan_stamped([memoryview(WITH_GAPS)[:-7]], wanted=19, bytes_max=10_000, where="test")

    assert (found.starts, found.end_offset, found.end_position) == ([], 19, 3 * SIZE)
    assert (found.missing_bytes, found.first_bytes) == (7, SIZE)


def test_a_cut_header_of_a_segment_s_batch_says_what_is_missing_of_it() -> None:
    found = scan_stamped([memoryview(WITH_GAPS)[: SIZE + 30]], wanted=12, bytes_max=10_000, where="test")

    assert (found.starts, found.missing_bytes, found.first_bytes) == ([], HEADER_BYTES - 30, 0)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(("position", "value"), [(16, 1), (8, 0xFF), (23, 0xFF)], ids=["magic", "length", "last offset delta"])
def test_what_is_no_batch_of_a_segment_is_corrupt_also_behind_kept_ones(number: int, position: int, value: int) -> None:
    data = bytearray(WITH_GAPS)
    data[number * SIZE + position] = value

    with pytest.raises(Corrupt, match=f"not a record batch: test position={number * SIZE} "):
        scan_stamped([memoryview(data)], wanted=0, bytes_max=10_000, where="test")


@pytest.mark.parametrize("batches", [((5, 1), (5, 1)), ((5, 3), (7, 1)), ((5, 1), (4, 1)), ((-1, 1), (5, 1))])
@pytest.mark.parametrize("wanted", [0, 6, 100])
def test_offsets_of_a_segment_that_do_not_rise_are_corrupt_kept_or_not(batches: tuple[tuple[int, int], ...], wanted: int) -> None:
    with pytest.raises(Corrupt, match="do not rise: test position="):
        scan_stamped([memoryview(block_of(*batches))], wanted=wanted, bytes_max=10_000, where="test")


def test_what_lies_behind_the_bytes_that_were_asked_for_is_not_looked_at() -> None:
    found = scan_stamped([memoryview(block_of((5, 1), (6, 1), (2, 1)))], wanted=0, bytes_max=SIZE, where="test")

    assert found.starts == [5]


def test_a_window_in_two_views_is_walked_as_one_wherever_it_is_cut() -> None:
    view = memoryview(WITH_GAPS)
    whole = scan_stamped([view], wanted=12, bytes_max=10_000, where="test")

    for cut in range(len(WITH_GAPS) + 1):
        assert scan_stamped([view[:cut], view[cut:]], wanted=12, bytes_max=10_000, where="test") == whole, cut
