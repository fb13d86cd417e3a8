"""What a folder of shared blocks gives of an object is what was put of it, in order, whichever files there are."""

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.limits import BLOCK_BYTES
from storage.objects.block_folder import BlockExtent, BlockFolder, cover, extent_of

extents = st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 20)).map(
    lambda drawn: BlockExtent(start := drawn[0] * BLOCK_BYTES + drawn[1], start + drawn[2])
)
ranges = st.tuples(st.integers(0, 3 * BLOCK_BYTES), st.integers(1, 2 * BLOCK_BYTES)).map(lambda drawn: (drawn[0], sum(drawn)))
near = st.tuples(st.integers(0, 50), st.integers(1, 60)).map(lambda drawn: (drawn[0], sum(drawn)))


@given(st.lists(extents, max_size=12), st.one_of(ranges, near))
def test_parts_follow_each_other_and_lie_in_a_file_or_in_no_file_and_one_block(files: list[BlockExtent], wanted: tuple[int, int]) -> None:
    start, end = wanted
    parts = cover(files, start, end)

    assert [part.start for part in parts] == [start, *[part.end for part in parts[:-1]]]
    assert parts[-1].end == end
    for part in parts:
        if part.file is not None:
            assert part.file in files
            assert part.file.start <= part.start < part.end <= part.file.end
        else:
            assert part.start // BLOCK_BYTES == (part.end - 1) // BLOCK_BYTES
            assert not [file for file in files if file.start < part.end and part.start < file.end]


@settings(max_examples=40)
@given(st.lists(extents, max_size=8), st.lists(near, min_size=1, max_size=4))
def test_what_is_found_is_what_was_put(files: list[BlockExtent], wanted: list[tuple[int, int]]) -> None:
    body = bytes(range(256)) * 4
    with tempfile.TemporaryDirectory() as root:
        folder = BlockFolder(root, bytes_max=1 << 20, owner="1", now_s=float)
        near_files = [file for file in files if file.end < len(body)]
        for start, end in near_files:
            folder.put("c/wal+1+1", start, [body[start:end]])
        for start, end in wanted:
            look = folder.look("c/wal+1+1", [BlockExtent(start, end)], part_bytes=16, claims=False)
            there = [body[one.start : one.end] == b"".join(one.parts) for one in look.found if one.parts is not None]
            assert all(there)
            has = {position for file in near_files for position in range(*file)}
            assert {position for one in look.found if one.parts is not None for position in range(one.start, one.end)} == has & set(
                range(start, end)
            )


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_a_name_has_the_extent_that_it_was_made_of_or_none(start: int, end: int) -> None:
    extent = extent_of(f"{start}-{end}")

    assert extent in (None, BlockExtent(start, end))
    assert (extent is not None) == (start < end and start // BLOCK_BYTES == (end - 1) // BLOCK_BYTES)


@given(st.text(alphabet="0123456789-+ .\n", max_size=12))
def test_other_names_are_those_of_no_file(name: str) -> None:
    assert (extent := extent_of(name)) is None or str(extent) == name
