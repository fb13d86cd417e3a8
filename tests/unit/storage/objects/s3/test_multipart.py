from hypothesis import given
from hypothesis import strategies as st

from storage.objects.s3.object_store import cut


@given(parts=st.lists(st.binary(max_size=50), max_size=20), part_bytes=st.integers(1, 60))
def test_an_object_is_cut_into_equal_pieces_whatever_its_parts_are(parts: list[bytes], part_bytes: int) -> None:
    pieces = list(cut([memoryview(part) for part in parts], part_bytes))

    assert b"".join(pieces) == b"".join(parts)
    assert all(len(piece) == part_bytes for piece in pieces[:-1])
    assert all(0 < len(piece) <= part_bytes for piece in pieces)
