"""When the events of a load are due, and how far producers may go before. Pure: times are seconds of the caller's clock."""

from collections.abc import Sequence
from typing import Final

from forebay.commands.bench.load.scenario import LoadEvent

SENT_AHEAD_PERCENT: Final = 25
"""Producers wait so far behind an event that counts acknowledgements: it happens while records are under way."""


class EventSchedule:
    """Events that wait for their moment, and those that have to end."""

    def __init__(self, events: Sequence[LoadEvent], *, records: int) -> None:
        self.pending = sorted(events, key=lambda event: (event.at.acked_percent or 0, event.at.after_s or 0))
        self._records = records
        self._ending: list[tuple[float, LoadEvent]] = []

    @property
    def is_undoing(self) -> bool:
        """Whether an event that happened has not ended yet, and will."""
        return bool(self._ending)

    def due(self, elapsed_s: float, acked: int) -> list[LoadEvent]:
        """Events whose moment has come since the last call, with that many records acknowledged."""
        found = [event for event in self.pending if self._is_due(event, elapsed_s, acked)]
        self.pending = [event for event in self.pending if not self._is_due(event, elapsed_s, acked)]
        return found

    def happened(self, event: LoadEvent, now_s: float) -> None:
        if event.lasts_s is not None:
            self._ending.append((now_s + event.lasts_s, event))

    def over(self, now_s: float) -> list[LoadEvent]:
        """Events that have lasted long enough since the last call."""
        found = [event for due_s, event in self._ending if now_s >= due_s]
        self._ending = [(due_s, event) for due_s, event in self._ending if now_s < due_s]
        return found

    def until(self, records: int) -> int:
        """What a producer of `records` may send before the next event that counts acknowledgements has happened."""
        percents = [event.at.acked_percent for event in self.pending if event.at.acked_percent is not None]
        return records if not percents else min(records, -(-records * (min(percents) + SENT_AHEAD_PERCENT) // 100))

    def _is_due(self, event: LoadEvent, elapsed_s: float, acked: int) -> bool:
        if event.at.after_s is not None:
            return elapsed_s >= event.at.after_s
        return acked * 100 >= (event.at.acked_percent or 0) * self._records
