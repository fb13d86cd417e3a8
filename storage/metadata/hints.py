"""Subscriptions to changed keys, inside one process (hints of port.py, I10)."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

DELIVERED_PER_TURN: Final = 256
"""Paths, to one subscription, in one turn of the loop."""


class HintSubscription:
    """One call-back on the loop it was made on."""

    __slots__ = ("_callback", "_is_scheduled", "_loop", "_owner", "_paths", "prefix")

    def __init__(self, owner: "Hints", callback: Callable[[str], None], prefix: str) -> None:
        self._owner = owner
        self._callback: Callable[[str], None] | None = callback
        self._loop = asyncio.get_running_loop()
        self._paths: deque[str] = deque()
        self._is_scheduled = False
        self.prefix = prefix

    def cancel(self) -> None:
        self._callback = None
        self._paths.clear()
        self._owner.forget(self)

    def schedule(self, paths: Sequence[str]) -> None:
        self._paths += paths
        if self._paths and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        paths = self._paths
        self._is_scheduled = False
        try:
            for _ in range(min(len(paths), DELIVERED_PER_TURN)):
                # Cancelled between the change and now, or by what it was called with: the promise is that nothing comes after cancel().
                if self._callback is None:
                    return
                self._callback(paths.popleft())
        finally:
            self.schedule(())  # what is left, also after an error: that of one path takes no other with it


class Hints:
    """The subscriptions of one store; falsy while there are none."""

    __slots__ = ("_subscriptions",)

    def __init__(self) -> None:
        self._subscriptions: list[HintSubscription] = []

    def __bool__(self) -> bool:
        return bool(self._subscriptions)

    def subscribe(self, callback: Callable[[str], None], prefix: str) -> HintSubscription:
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

    def publish(self, paths: Sequence[str]) -> None:
        """Call back soon, never from here: a subscriber may use the store. Each subscription hears of the paths in their order."""
        for subscription in self._subscriptions:
            prefix = subscription.prefix
            subscription.schedule([path for path in paths if path.startswith(prefix)] if prefix else paths)
