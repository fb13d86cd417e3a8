"""Brokers that lose the metadata store together register again one after the other. Clients drop a broker that a Metadata response does
not list (KIP-1102; librdkafka fails what is on its way to it), so those of before the loss are listed until each has had time to return.
"""

from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

RETURN_GRACE_S: Final = 5.0
"""Registering is tried once a second. A broker that died during the outage is listed for as long, as it would be by its session."""


class Identified(Protocol):
    @property
    def broker_id(self) -> int: ...


B = TypeVar("B", bound=Identified)


class Companions(Generic[B]):
    """One broker's memory of who was registered with it. `now_s` of all methods is one monotonic clock."""

    def __init__(self) -> None:
        self._before: tuple[B, ...] = ()
        self._until_s: float | None = None

    def note(self, live: Sequence[B], *, is_registered: bool, now_s: float) -> None:
        """A list was read from the store, while this broker was registered or was not. The first one read after a loss starts the grace."""
        if is_registered and (self._until_s is None or now_s >= self._until_s):
            self._before, self._until_s = tuple(live), None
        elif not is_registered and self._until_s is None:
            self._until_s = now_s + RETURN_GRACE_S

    def returned(self, *, now_s: float) -> None:
        """This broker is registered, for the first time or again: the others may need as long once more."""
        if self._before:
            self._until_s = now_s + RETURN_GRACE_S

    def forget(self) -> None:
        """This broker leaves for good: what it knows of others is no better than the store's list."""
        self._before, self._until_s = (), None

    def missing(self, live: Sequence[B], *, now_s: float) -> list[B]:
        """The brokers of before the loss that are not in `live` and still have time to return."""
        if self._until_s is None or now_s >= self._until_s:
            return []
        present = {broker.broker_id for broker in live}
        return [broker for broker in self._before if broker.broker_id not in present]
