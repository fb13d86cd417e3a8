"""The epoch of this broker: the version of its registration record, under which its commits are made (docs/design/coordination.md)."""

from collections.abc import Awaitable, Callable, Collection

from storage.errors import StorageError


class BrokerEpoch:
    """`current` is what new commits begin under.

    `live` reads which epochs are registered, as of a moment after it is called: one that was read in a control record before, and is not
    among them, is gone for ever. It raises `Unavailable` when that cannot be shown.
    """

    def __init__(self, epoch: int, *, registered_epoch: Callable[[], int | None], live: Callable[[], Awaitable[frozenset[int]]]) -> None:
        """`registered_epoch`: the epoch whose registration certainly exists; None if none does."""
        self.current = epoch
        self.registered_epoch = registered_epoch
        self.live = live
        self._commit_seq = 0

    def is_registered(self, epoch: int) -> bool:
        """True if the registration of `epoch` certainly exists, so that nobody may have dropped what that epoch wrote into `writers`."""
        return self.registered_epoch() == epoch

    async def gone(self, epochs: Collection[int]) -> frozenset[int]:
        """The members of `epochs`, read before the call, whose registration is certainly over; none while that cannot be shown."""
        try:
            live = await self.live()
        except StorageError:
            return frozenset()
        return frozenset(epochs) - live - {self.current}

    def next_commit_seq(self) -> int:
        """A number that no other commit of this process has, in whatever partition and under whatever epoch."""
        self._commit_seq += 1
        return self._commit_seq

    def renew(self, epoch: int) -> None:
        """The broker registered again. Commits that were begun under the old epoch keep it."""
        assert epoch != self.current, "an epoch is never handed out twice"
        self.current = epoch
