"""Brokers that lose the metadata store together register again one after the other. Clients drop a broker that a Metadata response does
not list (KIP-1102; librdkafka fails what is on its way to it), so those of before the loss are listed until each has had time to return.
"""

from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

RETURN_GRACE_S: Final = 5.0
"""Registering is tried once a second, and sessions that were kept alive together end within seconds of each other. A broker that died or
left in that time is listed for as long.
"""


class Listening(Protocol):
    """A broker's record, as far as this concerns."""

    @property
    def broker_id(self) -> int: ...
    @property
    def kafka_listeners(self) -> Sequence[object]: ...


B = TypeVar("B", bound=Listening)


class Companions(Generic[B]):
    """One broker's memory of who was registered with it. `now_s` of all methods is one monotonic clock."""

    def __init__(self) -> None:
        self._known: dict[int, B] = {}
        """Registered when they were last looked at, or before the loss, or less than RETURN_GRACE_S before one that may come."""
        self._missing_since_s: dict[int, float] = {}
        self._returned: set[int] = set()
        """Since the loss."""
        self._is_lost = False
        self._until_s: float | None = None
        """The end of the grace; None if nothing was lost since the last one was over."""

    def note(self, live: Sequence[B], *, is_registered: bool, now_s: float) -> None:
        """A list was read from the store, while this broker was registered or was not. The first one read after a loss starts the grace."""
        present = {broker.broker_id: broker for broker in live}
        if not (is_registered or self._is_lost):
            self._begin(now_s)
        elif is_registered and self._until_s is not None and now_s >= self._until_s:
            self.forget()
        self._is_lost = not is_registered
        self._note_missing(present, now_s)
        self._known.update(present)

    def returned(self, *, now_s: float) -> None:
        """This broker is registered, for the first time or again: the others may need as long once more."""
        if not self._is_lost:
            self._begin(now_s)
        elif self._until_s is not None:
            self._until_s = now_s + RETURN_GRACE_S
        self._is_lost = False

    def forget(self) -> None:
        """What is known of others is no better than the store's list, as when this broker leaves for good."""
        self._known.clear()
        self._missing_since_s.clear()
        self._returned.clear()
        self._until_s = None

    def missing(self, live: Sequence[B], *, now_s: float) -> list[B]:
        """The brokers of before the loss that are not in `live`, not under another id either, and still have time to return."""
        if self._until_s is None or now_s >= self._until_s:
            return []
        present = {broker.broker_id for broker in live}
        places = {listener for broker in live for listener in broker.kafka_listeners}
        return [
            broker
            for broker_id, broker in self._known.items()
            if broker_id not in present and broker_id not in self._missing_since_s and places.isdisjoint(broker.kafka_listeners)
        ]

    def _begin(self, now_s: float) -> None:
        if not self._known:
            return
        self._until_s = now_s + RETURN_GRACE_S
        self._drop_missing(now_s)
        self._missing_since_s.clear()
        self._returned.clear()

    def _note_missing(self, present: dict[int, B], now_s: float) -> None:
        """In the grace only of who has come back in it: the others are waited for."""
        for broker_id in self._known:
            if broker_id in present:
                self._missing_since_s.pop(broker_id, None)
            elif self._until_s is None or broker_id in self._returned:
                self._missing_since_s.setdefault(broker_id, now_s)
        self._returned.update(present)
        self._drop_missing(now_s)

    def _drop_missing(self, now_s: float) -> None:
        for broker_id, since_s in tuple(self._missing_since_s.items()):
            if now_s - since_s >= RETURN_GRACE_S:
                del self._known[broker_id], self._missing_since_s[broker_id]
                self._returned.discard(broker_id)
