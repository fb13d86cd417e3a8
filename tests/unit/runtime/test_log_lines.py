import contextlib
import errno
import fcntl
import io
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from runtime import log_lines
from runtime.clock import SystemClock
from runtime.log_lines import FAILED, FULL, OTHER_KINDS, LeftOut, LineShares, LineWriter, StreamLines

WITHIN_S = 30.0
PIPE_BYTES = 2**16
WAITING_BYTES_MAX = 10_000
SOON_S = 0.05

_clock = SystemClock()


class Rig:
    """A writer on a pipe that is read when a test wants it."""

    def __init__(self, *, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        self.read_end, write_end = os.pipe()
        self.dropped: Counter[str] = Counter()
        self.writer = LineWriter(
            write_end,
            on_dropped=lambda reason, lines: self.dropped.update({reason: lines}),
            notice=lambda reason, lines, cause: f"{lines} {reason} {cause}".strip().encode() + b"\n",
            waiting_bytes_max=waiting_bytes_max,
        )
        os.close(write_end)

    def close(self) -> None:
        self.stop_reading()
        self.writer.close(WITHIN_S)

    def stop_reading(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.read_end)

    def read_to_the_end(self) -> bytes:
        """The writer is closed meanwhile."""
        closing = threading.Thread(target=self.writer.close, args=(WITHIN_S,))
        closing.start()
        found = bytearray()
        while data := os.read(self.read_end, PIPE_BYTES):
            found += data
        closing.join()
        return bytes(found)


@pytest.fixture
def rig() -> Iterator[Rig]:
    one = Rig()
    yield one
    one.close()


def until(is_so: Callable[[], bool]) -> None:
    give_up_s = _clock.monotonic_s() + WITHIN_S
    while not is_so():
        assert _clock.monotonic_s() < give_up_s
        time.sleep(0.001)


def line(number: int, size: int = 100) -> bytes:
    return f"{number} ".encode().ljust(size - 1, b"x") + b"\n"


def test_lines_come_out_whole_and_in_order(rig: Rig) -> None:
    lines = [line(number, 20 + number % 50) for number in range(150)]
    for one in lines:
        rig.writer.write(one)

    assert rig.read_to_the_end() == b"".join(lines)
    assert not rig.dropped


def test_a_line_longer_than_a_pipe_holds_goes_on_where_it_was_broken_off() -> None:
    rig = Rig(waiting_bytes_max=10 * PIPE_BYTES)
    lines = [line(0), line(1, 3 * PIPE_BYTES), line(2)]
    for one in lines:
        rig.writer.write(one)

    assert rig.read_to_the_end() == b"".join(lines)
    rig.close()


def test_when_nobody_reads_nobody_waits_and_what_has_no_room_is_counted_and_said(rig: Rig) -> None:
    lines = [line(number) for number in range(5_000)]
    for one in lines:
        rig.writer.write(one)
    dropped = rig.dropped[FULL]
    found = rig.read_to_the_end().splitlines(keepends=True)

    notices = [one for one in found if one.endswith(b" full\n")]
    kept = [one for one in found if one not in notices]
    assert dropped >= len(lines) - (WAITING_BYTES_MAX + PIPE_BYTES) // 100 - 1
    assert sum(int(one.split()[0]) for one in notices) == dropped
    assert kept == [one for one in lines if one in set(kept)], "whole and in order"
    assert len(kept) + dropped == len(lines)
    assert found[0] == lines[0], "what was there first comes out"


def test_a_hole_is_said_once_for_each_time_that_nobody_read() -> None:
    rig = Rig(waiting_bytes_max=1_000)
    found = bytearray()
    for _ in range(2):
        while rig.dropped[FULL] == 0:
            rig.writer.write(line(0))
        rig.dropped.clear()
        while b"1 full\n" not in found:
            found += os.read(rig.read_end, PIPE_BYTES)
        found.clear()
    rig.close()


def test_a_line_that_never_has_room_is_dropped(rig: Rig) -> None:
    rig.writer.write(line(0, WAITING_BYTES_MAX + 1))
    rig.writer.write(line(1))

    assert rig.read_to_the_end() == b"1 full\n" + line(1)
    assert rig.dropped == {FULL: 1}


def test_a_reader_that_is_gone_costs_lines_and_nothing_else(rig: Rig) -> None:
    rig.stop_reading()

    for number in range(10):
        rig.writer.write(line(number))
    rig.writer.flush(WITHIN_S)

    assert rig.dropped == {FAILED: 10}


def test_flush_waits_for_the_reader_but_not_longer_than_its_deadline(rig: Rig) -> None:
    rig.writer.write(line(0))
    rig.writer.flush(WITHIN_S)
    assert os.read(rig.read_end, PIPE_BYTES) == line(0)
    while not rig.dropped:
        rig.writer.write(line(1))

    began_s = _clock.monotonic_s()
    rig.writer.flush(SOON_S)
    rig.writer.close(SOON_S)
    rig.writer.flush(WITHIN_S)

    assert _clock.monotonic_s() - began_s < WITHIN_S / 2


def test_what_is_written_after_the_close_is_dropped_and_the_descriptor_is_closed(rig: Rig) -> None:
    rig.writer.write(line(0))
    rig.writer.close(WITHIN_S)
    rig.writer.close(WITHIN_S)
    rig.writer.write(line(1))

    assert rig.read_to_the_end() == line(0)
    assert rig.dropped == {FULL: 1}


def test_a_descriptor_that_others_made_non_blocking_loses_nothing() -> None:
    rig = Rig(waiting_bytes_max=10 * PIPE_BYTES)
    fcntl.fcntl(rig.writer._descriptor, fcntl.F_SETFL, os.O_NONBLOCK)
    lines = [line(number, 1_000) for number in range(4 * PIPE_BYTES // 1_000)]
    for one in lines:
        rig.writer.write(one)

    assert rig.read_to_the_end() == b"".join(lines)
    rig.close()


def test_after_the_disk_was_full_the_missing_lines_are_said_and_a_torn_line_spoils_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    room = 150

    def write_while_there_is_room(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[:room])
        room -= written
        return written

    monkeypatch.setattr(log_lines.os, "write", write_while_there_is_room)
    for number in range(3):
        rig.writer.write(line(number))
        rig.writer.flush(WITHIN_S)
    assert rig.dropped == {FAILED: 2}
    room = 10_000
    rig.writer.write(line(3))

    assert rig.read_to_the_end() == line(0) + line(1)[:50] + b"\n2 failed No space left on device\n" + line(3)


def test_a_forked_child_writes_its_own_lines_and_none_of_its_parents(rig: Rig) -> None:
    while not rig.dropped:
        rig.writer.write(line(0))
    child = os.fork()
    if child == 0:
        rig.writer.write(b"of the child\n")
        rig.writer.flush(WITHIN_S)
        os._exit(rig.dropped[FULL] - 1)

    found = rig.read_to_the_end()

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert found.count(b"of the child\n") == 1
    assert set(found.splitlines(keepends=True)) == {line(0), b"of the child\n", b"1 full\n"}


def test_many_threads_lose_nothing_between_them(rig: Rig) -> None:
    reader = threading.Thread(target=lambda: received.append(rig.read_to_the_end()))
    received: list[bytes] = []
    writers = [
        threading.Thread(target=lambda start=start: [rig.writer.write(line(start + number, 30)) for number in range(200)])
        for start in range(0, 800, 200)
    ]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    reader.start()
    reader.join()

    (found,) = received
    numbers = [int(one.split()[0]) for one in found.splitlines() if not one.endswith(b"full")]
    assert len(numbers) + rig.dropped[FULL] == 800
    assert len(set(numbers)) == len(numbers)


def test_a_stream_in_memory_gets_its_lines_at_once_and_one_that_is_closed_or_missing_none() -> None:
    dropped: Counter[str] = Counter()
    out = io.StringIO()
    in_memory = StreamLines(out, on_dropped=lambda reason, lines: dropped.update({reason: lines}))

    in_memory.write("größer\n".encode())
    assert out.getvalue() == "größer\n"
    out.close()
    in_memory.write(b"x\n")
    StreamLines(None, on_dropped=lambda reason, lines: dropped.update({reason: lines})).write(b"x\n")

    assert dropped == {FAILED: 2}


def test_a_kind_has_its_share_of_a_window_and_what_was_left_out_is_known_at_its_end() -> None:
    shares = LineShares(lines_max=3, window_s=10.0)

    admitted = [shares.admit("bad request", 0.1 * number) for number in range(10)]
    other = shares.admit("ready", 1.0)

    assert admitted == [True] * 3 + [False] * 7
    assert other
    assert shares.next_end_s() == 10.0
    assert shares.take_left_out(9.9) == []
    assert shares.take_left_out(10.0) == [LeftOut("bad request", 7)]
    assert shares.take_left_out(10.0) == []
    assert shares.next_end_s() is None
    assert shares.admit("bad request", 10.0)


def test_a_window_that_ended_unnoticed_is_told_of_later() -> None:
    shares = LineShares(lines_max=1, window_s=10.0)
    shares.admit("a", 0.0)
    shares.admit("a", 1.0)
    shares.admit("a", 30.0)

    assert shares.next_end_s() == 0.0
    assert shares.take_left_out(30.0) == [LeftOut("a", 1)]


def test_kinds_without_end_share_what_one_has() -> None:
    shares = LineShares(lines_max=2, window_s=10.0, kinds_max=4)

    admitted = [shares.admit(f"kind {number}", 0.0) for number in range(100)]

    assert sum(admitted) == 4 + 2
    assert shares.take_all() == [LeftOut(OTHER_KINDS, 94)]
    assert [shares.admit(f"kind {number}", 11.0) for number in range(4)] == [True] * 4


def test_the_windows_of_old_kinds_make_room_for_new_ones() -> None:
    shares = LineShares(lines_max=1, window_s=10.0, kinds_max=2)
    for number in range(50):
        assert shares.admit(f"kind {number}", number * 6.0)

    assert shares.take_all() == []
