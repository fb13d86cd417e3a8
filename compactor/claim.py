"""The claim of a partition: of two compactors one does the work. It protects nothing: both may do it (docs/design/upkeep.md)."""

from compactor.records import Records
from storage.errors import Unavailable
from storage.metadata.port import ABSENT, Applied, Key, Put, Session, Status


class PartitionClaim:
    """An ephemeral record under `key` that says `name`, which no other process uses, and in this one nobody at the same time."""

    def __init__(self, records: Records, key: Key, *, name: bytes, session: Session) -> None:
        self._records = records
        self._key = key
        self._name = name
        self._session = session
        self._version: int | None = None

    async def take(self) -> bool:
        """False if another has it. Raises `Unavailable`."""
        outcome = await self._records.write([Put(self._key, self._name, ABSENT, session=self._session.session_id)])
        if not isinstance(outcome, Applied):
            raise Unavailable(f"the partition was not claimed: key={self._key.path!r} cause={outcome.reason!r}")
        (result,) = outcome.results
        if result.status is Status.OK:
            self._version = result.version
            return True
        if result.status is Status.SESSION_DOES_NOT_EXIST:
            raise Unavailable(f"the partition was not claimed, the session is over: key={self._key.path!r}")
        (record,) = await self._records.get(self._key)
        if record is None or record.value != self._name:
            return False
        # Its own, put by a write whose answer was lost.
        self._version = record.version
        return True

    async def release(self) -> None:
        """If that fails it goes with the session."""
        if self._version is not None:
            await self._records.delete(self._key, self._version)
