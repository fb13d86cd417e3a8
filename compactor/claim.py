"""Claims of partitions: of two compactors one does the work. They protect nothing: both may do it (docs/design/upkeep.md)."""

from collections.abc import Sequence

from compactor.records import Records
from storage.errors import Unavailable
from storage.metadata.port import ABSENT, Applied, Delete, Key, Put, Session, Status, Unknown, WriteOp


class Claims:
    """Ephemeral records of `session` that say `name`, which no other process uses. Here nobody claims a partition twice at a time."""

    def __init__(self, records: Records, *, name: bytes, session: Session) -> None:
        self._records = records
        self._name = name
        self._session = session
        self.may_be_left = False
        """A claim that nobody holds may be there, and keep other compactors out until the session ends."""

    async def take(self, key: Key) -> int | None:
        """The version of the claim; None if another has it. Raises `Unavailable`."""
        outcome = await self._records.write([Put(key, self._name, ABSENT, session=self._session.session_id)])
        if not isinstance(outcome, Applied):
            self.may_be_left |= isinstance(outcome, Unknown)
            raise Unavailable(f"the partition was not claimed: key={key.path!r} cause={outcome.reason!r}")
        (result,) = outcome.results
        if result.status is Status.OK:
            return result.version
        if result.status is Status.SESSION_DOES_NOT_EXIST:
            raise Unavailable(f"the partition was not claimed, the session is over: key={key.path!r}")
        (record,) = await self._records.get(key)
        # It may be its own, put by a write whose answer was lost, or left when a release failed.
        return None if record is None or record.value != self._name else record.version

    async def release(self, key: Key, version: int, *, beside: Sequence[WriteOp] = ()) -> None:
        """`beside`: writes that travel with it, and may fail as it may."""
        if not isinstance(await self._records.write([*beside, Delete(key, version)]), Applied):
            self.may_be_left = True
