"""Bytes that follow each other and lie in several buffers: what a read gives is cut from them, and sent, without a copy."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from storage.vocabulary import Buffer


def cut_views(views: Sequence[memoryview], start: int, end: int) -> list[memoryview]:
    """Bytes [start, end) of what `views` hold together, none of them empty."""
    found: list[memoryview] = []
    begin = 0
    for view in views:
        if begin >= end:
            break
        after = begin + len(view)
        if after > start:
            is_whole = start <= begin and after <= end
            piece = view if is_whole else view[max(start - begin, 0) : min(end, after) - begin]
            if len(piece):
                found.append(piece)
        begin = after
    return found


def split_views(views: Sequence[memoryview], ends: Iterable[int]) -> Iterator[list[memoryview]]:
    """What lies before the first of the rising `ends`, between it and the second, and so on: as by `cut_views`, in one walk."""
    number = position = begin = 0
    for end in ends:
        found: list[memoryview] = []
        while position < end and number < len(views):
            view = views[number]
            after = begin + len(view)
            cut = min(end, after)
            if cut > position:
                found.append(view if position == begin and cut == after else view[position - begin : cut - begin])
            position = cut
            if after <= end:
                number, begin = number + 1, after
        yield found


def in_parts(body: Buffer, start: int, part_bytes: int) -> list[Buffer]:
    """What `get_parts` of a store gives of a body that begins at `start` of its object: copies, unless it is `bytes` in one part. Other
    buffers may be a small piece of the memory that they keep alive.
    """
    cuts = [0, *range(part_bytes - start % part_bytes, len(body), part_bytes), len(body)]
    if len(cuts) == 2:
        return [bytes(body)]
    view = memoryview(body)
    return [bytes(view[begin:end]) for begin, end in pairwise(cuts)]
