import io
from typing import BinaryIO, cast

import pytest

from forebay.commands.topic.record_commands import WholeWrites


class Sparing(io.RawIOBase):
    """As a raw file: it takes what there is room for."""

    def __init__(self, *, room: int) -> None:
        self.held = b""
        self._room = room

    def write(self, data: object) -> int | None:
        taken = bytes(cast("memoryview", data))[: min(3, self._room - len(self.held))]
        self.held += taken
        return len(taken) or None


def test_a_record_is_written_whole_where_nothing_buffers() -> None:
    raw = Sparing(room=100)

    WholeWrites(cast("BinaryIO", raw)).write(b"ten bytes.")

    assert raw.held == b"ten bytes."


def test_a_record_that_is_cut_short_does_not_count_as_written() -> None:
    raw = Sparing(room=5)

    with pytest.raises(BlockingIOError):
        WholeWrites(cast("BinaryIO", raw)).write(b"ten bytes.")

    assert raw.held == b"ten b"
