"""Frames leave their account in whatever thread they die."""

import mmap
import sys
import threading
from pathlib import Path

import pytest

from runtime import frames
from runtime.frames import FRAME_OVERHEAD_BYTES, MAPPED_FROM_BYTES, Account, Frame, HeapFrame, make_frame


def test_frames_that_die_in_many_threads_at_once_are_all_counted() -> None:
    account = Account()
    made = [make_frame(100, account) for _ in range(40_000)]
    held = account.held_bytes
    parts = [made[start::4] for start in range(4)]
    made.clear()

    def drop(part: list[object]) -> None:
        while part:
            part.pop()

    threads = [threading.Thread(target=drop, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    own = [make_frame(100, account) for _ in range(10_000)]
    own.clear()
    for thread in threads:
        thread.join()

    assert held == 40_000 * (100 + FRAME_OVERHEAD_BYTES)
    assert account.held_bytes == 0


def test_what_happens_while_a_frame_is_measured_is_not_lost_from_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads may be switched at a call, and another one's frame may die there."""
    account = Account()

    class Interrupted(HeapFrame):
        __slots__ = ()

        def __len__(self) -> int:
            account.held_bytes += 1
            return super().__len__()

    monkeypatch.setattr(frames, "HeapFrame", Interrupted)
    frame = make_frame(100, account)
    assert account.held_bytes == 1 + 100 + FRAME_OVERHEAD_BYTES

    del frame

    assert account.held_bytes == 2


def test_an_account_that_is_watched_is_told_of_every_frame_that_left() -> None:
    told: list[int] = []

    class Watching(Account):
        __slots__ = ()

        def on_less(self) -> None:
            told.append(self.held_bytes)

    account, other = Watching(), Account()
    frames = [make_frame(memoryview(b"abc"), account) for _ in range(3)]
    frames.pop()
    account.is_watched = True
    frames.pop()
    frames[0].move_to(other)
    frames.clear()

    assert told == [3 + FRAME_OVERHEAD_BYTES, 0]
    assert other.held_bytes == 0


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 1 << 20, MAPPED_FROM_BYTES])
def test_a_frame_of_a_size_is_written_and_read_as_a_whole_and_has_no_room_to_grow_into(size_bytes: int) -> None:
    account = Account()
    frame = make_frame(size_bytes, account)
    view = memoryview(frame)
    pattern = (bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]
    view[:] = pattern

    assert (len(frame), view.nbytes, frame.cost_bytes) == (size_bytes, size_bytes, size_bytes + FRAME_OVERHEAD_BYTES)
    assert view == pattern
    assert sys.getsizeof(frame) <= size_bytes + 100


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_large_frame_takes_memory_as_it_fills_and_gives_it_back_with_its_last_view() -> None:
    account, size_bytes = Account(), 10 * MAPPED_FROM_BYTES
    before_bytes = resident_bytes()
    frame = make_frame(size_bytes, account)
    view = memoryview(frame)
    empty_bytes = resident_bytes() - before_bytes
    half = size_bytes // 2
    view[:half] = bytes(half)
    half_bytes = resident_bytes() - before_bytes
    is_frame = isinstance(view.obj, Frame)
    held_bytes = account.held_bytes, frame.cost_bytes
    del frame
    held_by_view_bytes = account.held_bytes
    del view

    assert is_frame
    assert held_bytes == (size_bytes + FRAME_OVERHEAD_BYTES,) * 2
    assert held_by_view_bytes == size_bytes + FRAME_OVERHEAD_BYTES
    assert empty_bytes < MAPPED_FROM_BYTES
    assert MAPPED_FROM_BYTES < half_bytes < size_bytes - MAPPED_FROM_BYTES
    assert resident_bytes() - before_bytes < MAPPED_FROM_BYTES
    assert account.held_bytes == 0


def test_a_frame_that_there_is_no_memory_for_is_a_memory_error_and_counts_nowhere() -> None:
    account = Account()
    with pytest.raises(MemoryError, match="no memory for a request of"):
        make_frame(1 << 60, account)

    assert account.held_bytes == 0
