import io

from rich.console import Console

from forebay.kafka_client.text import LINE_EVERY_S, step_progress


class SteppedClock:
    def __init__(self) -> None:
        self.at_s = 0.0

    def monotonic_s(self) -> float:
        return self.at_s

    def now_ms(self) -> int:
        return 0


def test_without_a_terminal_a_line_now_and_then_says_how_far() -> None:
    clock, out = SteppedClock(), io.StringIO()

    with step_progress(Console(file=out, force_terminal=False), "producing", total=5_000, clock=clock) as advance:
        advance(1_000)
        clock.at_s = LINE_EVERY_S
        advance(1_000)
        clock.at_s = LINE_EVERY_S * 1.5
        advance(1_000)
        clock.at_s = LINE_EVERY_S * 2
        advance(1_000)

    assert out.getvalue().splitlines() == ["producing: 2,000 of 5,000", "producing: 4,000 of 5,000"]


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    clock, out = SteppedClock(), io.StringIO()

    with step_progress(Console(file=out, force_terminal=True, width=100), "producing", total=10, clock=clock) as advance:
        advance(10)

    assert "10/10" in out.getvalue()
