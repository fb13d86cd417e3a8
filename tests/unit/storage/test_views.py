"""Bytes in several buffers: whatever is cut, it is the bytes that were asked for."""

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from storage.recordbatch import cut_views, in_parts, split_views

WHOLE = bytes(range(200))


@given(cuts=st.lists(st.integers(0, 200)), ends=st.tuples(st.integers(0, 210), st.integers(0, 210)))
def test_what_is_cut_is_what_was_asked_for_and_no_view_of_it_is_empty(cuts: list[int], ends: tuple[int, int]) -> None:
    views = [memoryview(WHOLE)[begin:end] for begin, end in pairwise([0, *sorted(cuts), 200])]
    start, end = sorted(ends)
    found = cut_views(views, start, end)

    assert b"".join(found) == WHOLE[start:end]
    assert all(map(len, found))


def test_a_view_that_is_wanted_whole_is_handed_on_as_it_is() -> None:
    views = [memoryview(WHOLE)[:50], memoryview(WHOLE)[50:]]

    assert [found is view for found, view in zip(cut_views(views, 0, 200), views, strict=True)] == [True, True]


@given(start=st.integers(0, 100), size=st.integers(0, 100), part_bytes=st.integers(1, 120))
def test_parts_end_at_multiples_of_their_size_in_the_object(start: int, size: int, part_bytes: int) -> None:
    parts = in_parts(WHOLE[start : start + size], start, part_bytes)
    cuts = [cut for cut in range(0, 320, part_bytes) if start < cut < start + size]

    assert b"".join(parts) == WHOLE[start : start + size]
    assert [len(part) for part in parts] == [end - begin for begin, end in pairwise([start, *cuts, start + size])]


def test_a_body_that_is_one_part_is_not_copied_unless_it_may_be_a_piece_of_more_memory() -> None:
    (copied,) = in_parts(memoryview(WHOLE)[:10], 0, 200)

    assert in_parts(WHOLE, 0, 200)[0] is WHOLE
    assert (type(copied), copied) == (bytes, WHOLE[:10])


@given(cuts=st.lists(st.integers(0, 200)), ends=st.lists(st.integers(0, 200)))
def test_views_are_split_as_they_would_be_cut(cuts: list[int], ends: list[int]) -> None:
    views = [memoryview(WHOLE)[begin:end] for begin, end in pairwise([0, *sorted(cuts), 200])]
    ends = sorted(ends)

    found = list(split_views(views, ends))

    assert [b"".join(split) for split in found] == [WHOLE[begin:end] for begin, end in pairwise([0, *ends])]
    assert all(map(len, chain.from_iterable(found)))
