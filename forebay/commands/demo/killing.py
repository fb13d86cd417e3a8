"""The mishap of the demo: the broker that the producer sends to is killed when half of the records were acknowledged."""

from typing import Final

from rich.console import Console

from forebay.commands.demo.cluster import Brokers
from runtime.clock import Clock

_PERCENT_ACKED_MIN: Final = 50
_PERCENT_SENT_MAX: Final = 75


class Killing:
    """`victim` is the address of the broker that was killed, empty before."""

    def __init__(self, brokers: Brokers, *, record_count: int, console: Console, clock: Clock) -> None:
        self.acked_min = record_count * _PERCENT_ACKED_MIN // 100
        self.sent_max = max(1, record_count * _PERCENT_SENT_MAX // 100)
        self.victim = ""
        self._brokers = brokers
        self._console = console
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._at_s = 0.0

    def prepare(self, address: str) -> None:
        self._brokers.note_metrics(self._brokers.at(address))

    def strike(self, address: str) -> None:
        self._brokers.kill9(self._brokers.at(address))
        self._at_s = self._clock.monotonic_s() - self._began_s
        self.victim = address

    def struck(self, *, acked: int, open_count: int) -> None:
        self._console.print(
            f"killed    the broker on {self.victim}, which the producer was sending to, with kill -9 after {self._at_s:.1f} s: "
            f"{acked:,} records were acknowledged by then, {open_count:,} on their way"
        )
