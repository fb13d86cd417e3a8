"""Frames leave their account in whatever thread they die."""

import threading

from runtime.frames import FRAME_OVERHEAD_BYTES, Account, counted


def test_frames_that_die_in_many_threads_at_once_are_all_counted() -> None:
    account = Account()
    frames = [counted(100, account) for _ in range(40_000)]
    held = account.held_bytes
    parts = [frames[start::4] for start in range(4)]
    frames.clear()

    def drop(part: list[object]) -> None:
        while part:
            part.pop()

    threads = [threading.Thread(target=drop, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    own = [counted(100, account) for _ in range(10_000)]
    own.clear()
    for thread in threads:
        thread.join()

    assert held == 40_000 * (100 + FRAME_OVERHEAD_BYTES)
    assert account.held_bytes == 0


def test_an_account_that_is_watched_is_told_of_every_frame_that_left() -> None:
    told: list[int] = []

    class Watching(Account):
        __slots__ = ()

        def on_less(self) -> None:
            told.append(self.held_bytes)

    account, other = Watching(), Account()
    frames = [counted(memoryview(b"abc"), account) for _ in range(3)]
    frames.pop()
    account.is_watched = True
    frames.pop()
    frames[0].move_to(other)
    frames.clear()

    assert told == [3 + FRAME_OVERHEAD_BYTES, 0]
    assert other.held_bytes == 0
