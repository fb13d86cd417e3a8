"""How a broker that drains gets producers to leave before it closes their connections (docs/adr/0016-leaving-without-an-error.md).

A client that has a request under way when its connection closes cannot know what became of it: without retries that is an error. Clients
look for the leader anew after minutes or after an error, so they are asked in two ways, one after the other:

asked     Produce is answered as ever, and with a throttle time: clients that honour it (KIP-219, Java from 2.0 on) send no more for so long
refused   Produce is answered NOT_LEADER_OR_FOLLOWER, before anything was done: librdkafka looks for the leader anew and does not count it
          as a retry

Either way a moment comes when nothing is under way on a connection and nothing will be sent: that is when it is closed.
"""

from typing import Final

from runtime.clock import Clock

THROTTLE_MS: Final = 2_000
"""Longer than QUIET_S, so that a connection is closed before it is used again; short, because some clients keep it for the next broker."""
QUIET_S: Final = 0.5
"""A client answered so that stays silent for this long has understood: more than a packet takes, and a client that waits for its CPU."""


class Leaving:
    """Which of the two is in force, and whom it has reached. Made once per broker; `ask`, then `refuse`."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.is_asking = False
        self.is_refusing = False
        self._answered_at_s: dict[object, float] = {}

    def ask(self) -> None:
        self.is_asking = True

    def refuse(self) -> None:
        self.is_asking = self.is_refusing = True

    def throttle_ms(self, connection: object) -> int:
        """What an answer to Produce that is sent now says; it is noted that this connection gets one."""
        if not self.is_asking:
            return 0
        self._answered_at_s[connection] = self._clock.monotonic_s()
        return THROTTLE_MS

    def has_understood(self, connection: object, *, last_received_s: float) -> bool:
        """It was asked, and has been silent since."""
        return connection in self._answered_at_s and not self.is_under_way(connection, last_received_s=last_received_s)

    def is_under_way(self, connection: object, *, last_received_s: float) -> bool:
        """It was asked, and may send something that it began to send before it heard of it."""
        answered_at_s = self._answered_at_s.get(connection)
        return answered_at_s is not None and self._clock.monotonic_s() - max(answered_at_s, last_received_s) < QUIET_S

    def forget(self, connection: object) -> None:
        """It is closed."""
        self._answered_at_s.pop(connection, None)
