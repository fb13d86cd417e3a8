"""Subscriptions to changed keys, inside one process (hints of port.py, I10)."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from storage.metadata.port import KeyChange, OnChange

DELIVERED_PER_TURN: Final = 256
"""Changes, to one subscription, in one turn of the loop."""


class HintSubscription:
    """One call-back on the loop it was made on."""

    __slots__ = ("_callback", "_changes", "_is_scheduled", "_loop", "_owner", "prefix")

    def __init__(self, owner: "Hints", callback: OnChange, prefix: str) -> None:
        self._owner = owner
        self._callback: OnChange | None = callback
        self._loop = asyncio.get_running_loop()
        self._changes: deque[KeyChange] = deque()
        self._is_scheduled = False
        self.prefix = prefix

    def cancel(self) -> None:
        self._callback = None
        self._changes.clear()
        self._owner.forget(self)

    def schedule(self, changes: Sequence[KeyChange]) -> None:
        self._changes += changes
        if self._changes and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        changes = self._changes
        self._is_scheduled = False
        try:
            for _ in range(min(len(changes), DELIVERED_PER_TURN)):
                # Cancelled between the change and now, or by what it was called with: the promise is that nothing comes after cancel().
                if self._callback is None:
                    return
                self._callback(*changes.popleft())
        finally:
            self.schedule(())  # what is left, also after an error: that of one change takes no other with it


class Hints:
    """The subscriptions of one store; falsy while there are none."""

    __slots__ = ("_subscriptions",)

    def __init__(self) -> None:
        self._subscriptions: list[HintSubscription] = []

    def __bool__(self) -> bool:
        return bool(self._subscriptions)

    def subscribe(self, callback: OnChange, prefix: str) -> HintSubscription:
        """Must be called on the loop that the call-back shall run on."""
        subscription = HintSubscription(self, callback, prefix)
        self._subscriptions.append(subscription)
        return subscription

    def forget(self, subscription: HintSubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def cancel_all(self) -> None:
        for subscription in tuple(self._subscriptions):
            subscription.cancel()

    def publish(self, changes: Sequence[KeyChange]) -> None:
        """Call back soon, never from here: a subscriber may use the store. Each subscription hears of the changes in their order."""
        for subscription in self._subscriptions:
            prefix = subscription.prefix
            subscription.schedule([(path, version) for path, version in changes if path.startswith(prefix)] if prefix else changes)
