"""A session of the embedded store, as its owner holds it: renewed three times per timeout, through the same commits as all else."""

import asyncio

from storage.errors import OutcomeUnknown, Unavailable
from storage.metadata.port import NotApplied, Unknown
from storage.metadata.sqlite_group_commit import GroupCommit
from storage.metadata.sqlite_owners import Liveness

RENEWALS_PER_TIMEOUT = 3


class SqliteSession:
    """Lost when the file says so, or when its time has passed without a renewal that is known to be committed."""

    def __init__(self, session_id: int, *, timeout_ms: int, renewed_ms: int, commits: GroupCommit, liveness: Liveness) -> None:
        self._session_id = session_id
        self._timeout_ms = timeout_ms
        self._renewed_ms = renewed_ms
        self._commits = commits
        self._liveness = liveness
        self._lost = asyncio.Event()
        self._is_gone = False

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def is_lost(self) -> bool:
        if not self._lost.is_set() and self._remaining_s() <= 0:
            self._lost.set()
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        """Raise `Unavailable` or `OutcomeUnknown` if the store could not do it; the session then ends by itself, unrenewed."""
        self._lost.set()
        if self._is_gone:
            return
        outcome = await self._commits.submit(lambda transaction: transaction.end_session(self._session_id))
        match outcome:
            case NotApplied(reason):
                raise Unavailable(f"session not closed: {reason}")
            case Unknown(reason):
                raise OutcomeUnknown(f"session perhaps not closed: {reason}")

    def ended(self) -> None:
        """Its records are gone from the file."""
        self._is_gone = True
        self._lost.set()

    async def keep_alive(self) -> None:
        """Renew until it is lost. Belongs into the nursery of the store."""
        while not await self._is_lost_within(self._timeout_ms / 1_000 / RENEWALS_PER_TIMEOUT):
            try:
                async with asyncio.timeout(self._remaining_s()):
                    renewed = await self._commits.submit(lambda transaction: transaction.renew_session(self._session_id))
            except TimeoutError:
                break
            match renewed:
                case None:
                    break
                case int():
                    self._renewed_ms = renewed
                case NotApplied() | Unknown():
                    # Tried again in a third of the timeout, as long as the time of the last renewal lasts.
                    continue
        self._lost.set()

    async def _is_lost_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(min(seconds, self._remaining_s())):
                await self._lost.wait()
        except TimeoutError:
            return self.is_lost
        return True

    def _remaining_s(self) -> float:
        return (self._renewed_ms + self._timeout_ms - self._liveness.now_ms()) / 1_000
