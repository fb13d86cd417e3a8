"""Which brokers are registered, read so that the answer cannot come from before the question.

A list from a deposed leader of the shard (docs/design/reading.md#reads-from-a-deposed-leader) lacks the brokers that registered since, and
whoever drops what they wrote takes living brokers for dead. So the reader first puts a witness, a key beside the brokers that nobody has
put before, and believes only a list that has it, and records that come with it from one server. What such a list does not have is gone for
ever: a registration that comes later has a higher version.
"""

from typing import Final

from storage.catalog.records import write_one
from storage.errors import Unavailable
from storage.metadata import keys
from storage.metadata.port import ABSENT, Delete, MetadataStore, OpResult, Put, Record, Session

_READ_KEYS_MAX: Final = 500
_VALUE: Final = b"{}"


async def read_live(metadata: MetadataStore, session: Session, *, number: int) -> list[Record]:
    """The records of the registered brokers, by id: whoever registered before the call and is not among them, under that version, is gone.

    `session` is the reader's own, and `number` one that it has not used before: the witness goes with the session if nobody can remove it.
    Raises `Unavailable`, also when the list is older than the call.
    """
    witness = keys.broker_witness(session.session_id, number)
    outcome = await write_one(metadata, Put(witness, _VALUE, ABSENT, session=session.session_id))
    try:
        start, end = keys.brokers_and_witnesses()
        paths = await metadata.list(start, end)
        # Whatever the put was answered: a list that has the key was made after it.
        if witness.path not in paths:
            why = outcome.status.value if isinstance(outcome, OpResult) else outcome.reason
            raise Unavailable(f"cannot read the live brokers for certain: witness={witness.path!r} put={why!r}")
        return await _read(metadata, witness.path, [path for path in paths if keys.is_broker(path)])
    finally:
        await write_one(metadata, Delete(witness))


async def _read(metadata: MetadataStore, witness: str, paths: list[str]) -> list[Record]:
    records: list[Record] = []
    for first in range(0, len(paths), _READ_KEYS_MAX):
        # One request to one server, and the witness first: what is read after it is no older.
        asked = [keys.beside_brokers(path) for path in (witness, *paths[first : first + _READ_KEYS_MAX])]
        seen, *found = await metadata.get_many(asked)
        if seen is None:
            raise Unavailable(f"cannot read the live brokers for certain: witness={witness!r} is not there")
        records += [record for record in found if record is not None]
    return records
