"""Producer ids: unique in the cluster, handed out from blocks that a broker takes by CAS. A crash wastes a block, never reuses one."""

import os
from typing import Final

import msgspec

from runtime.ids import Entropy
from storage.catalog.records import ATTEMPTS_MAX, SharedReads, decode, encode, given_up, pause, write_one
from storage.metadata.keys import PRODUCER_IDS
from storage.metadata.port import ABSENT, MetadataStore, NotApplied, Put, Record, Status, Unknown

FMT: Final = 1
BLOCK_IDS: Final = 1_000


class NextBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value of producer-ids: ids from `next_producer_id` on belong to nobody yet."""

    fmt: int = FMT
    next_producer_id: int


_decoder = msgspec.json.Decoder(NextBlock)


def decode_next_block(record: Record) -> NextBlock:
    return decode(_decoder, record.value, known=FMT, path=record.path)


class ProducerIds:
    """Callers that find the block used up share one allocation."""

    def __init__(self, metadata: MetadataStore, *, entropy: Entropy = os.urandom) -> None:
        self._metadata = metadata
        self._entropy = entropy
        self._next = 0
        self._end = 0
        self._allocations = SharedReads(self._allocate)

    async def next(self) -> int:
        """An id that nobody was or will be given. Raises `Unavailable` or `OutcomeUnknown`: no id is lost by asking again."""
        while self._next == self._end:
            await self._allocations.ask([None])
        taken = self._next
        self._next += 1
        return taken

    async def _allocate(self, _: list[None]) -> dict[None, None]:
        unknown: Unknown | None = None
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
            if self._next < self._end:
                break
            (record,) = await self._metadata.get_many([PRODUCER_IDS])
            start, version = 0, ABSENT
            if record is not None:
                start = decode_next_block(record).next_producer_id
                version = record.version
            block = NextBlock(next_producer_id=start + BLOCK_IDS)
            outcome = await write_one(self._metadata, Put(PRODUCER_IDS, encode(block), version))
            if isinstance(outcome, Unknown):
                # If it was applied, the next read starts above this block, which is then wasted. If not, the next CAS at the
                # same version and this one exclude each other.
                unknown = outcome
                reason = outcome.reason
            elif isinstance(outcome, NotApplied):
                reason = outcome.reason
            elif outcome.status is Status.OK:
                self._next, self._end = start, start + BLOCK_IDS
                break
            else:
                reason = "another broker was first each time"
            await pause(attempt, self._entropy)
        else:
            raise given_up("allocate producer ids", unknown=unknown, reason=reason)
        return {None: None}
