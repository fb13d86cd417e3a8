import io
import os
import pty
import sys

import pytest

from forebay.kafka_client.text import DRAWN_EVERY_S, SHOWN_AFTER_S, ProgressLine, Silent, progress


class HandClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return 0


class Watched:
    def __init__(self, *, whole: int | None = None, in_bytes: bool = False) -> None:
        self.clock = HandClock()
        self.stream = io.StringIO()
        self.line = ProgressLine(self.stream, whole=whole, in_bytes=in_bytes, clock=self.clock)

    def after(self, seconds: float, records: int, size_bytes: int) -> str:
        """What is on the line now, if it was drawn."""
        self.clock.now_s += seconds
        before = self.stream.tell()
        self.line.moved(records, size_bytes)
        return self.stream.getvalue()[before:].removeprefix("\r\x1b[K")


def test_what_is_done_soon_is_not_talked_about() -> None:
    watched = Watched()
    watched.after(SHOWN_AFTER_S * 0.9, 10, 10)
    watched.line.erased()

    assert watched.stream.getvalue() == ""


def test_records_bytes_and_rate_are_told_ten_times_a_second_and_erased() -> None:
    watched = Watched()

    assert watched.after(2, 3_000, 4_500_000) == "3,000 records  4.5 MB  1,500/s"
    assert watched.after(DRAWN_EVERY_S / 2, 1_000, 0) == ""
    assert watched.after(DRAWN_EVERY_S, 0, 0).startswith("4,000 records")
    watched.line.erased()
    assert watched.stream.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(("whole", "in_bytes"), [(400, False), (4_000, True)])
def test_there_is_a_bar_where_the_whole_is_known(whole: int, in_bytes: bool) -> None:
    watched = Watched(whole=whole, in_bytes=in_bytes)

    assert watched.after(1, 100, 1_000).startswith("[#####---------------]  25%  100 records")
    assert watched.after(1, 900, 9_000).startswith("[####################] 100%")


def test_nothing_is_drawn_where_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())

    with progress(quiet=False, clock=HandClock()) as shown:
        assert isinstance(shown, Silent)


def test_a_terminal_is_drawn_on_unless_it_is_to_be_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)

        with progress(quiet=False, clock=HandClock()) as shown:
            assert isinstance(shown, ProgressLine)
        with progress(quiet=True, clock=HandClock()) as shown:
            assert isinstance(shown, Silent)
    os.close(ours)
