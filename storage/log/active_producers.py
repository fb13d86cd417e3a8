"""The producers a partition remembers, for those who look after it: what the control record holds, and the pages it names."""

import asyncio
from typing import Final, NamedTuple, Protocol

from runtime.clock import Clock
from storage.errors import Unavailable
from storage.formats.control import ProducerState, decode_page
from storage.log.control_reads import ControlReads
from storage.log.partition import Partitions
from storage.log.producer_pages import is_expired
from storage.log.trim import existing
from storage.metadata.port import Key, MetadataStore
from storage.vocabulary import PartitionId

READ_TIMEOUT_S: Final = 10.0


class ActiveProducer(NamedTuple):
    """`last_append_ms` is when its last batch was appended; -1 for what is not there."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_append_ms: int
    txn_first_offset: int


class ActiveProducers(Protocol):
    """`expiration_ms`: how long a producer that appends nothing is remembered."""

    @property
    def expiration_ms(self) -> int: ...

    async def of(self, partition: PartitionId) -> list[ActiveProducer]:
        """The producers that have not expired, by producer id, as of a read issued after the call.

        Raises `NotFound`, `Corrupt`, `IncompatibleFormat`, `Unavailable`."""
        ...


class ProducerReads:
    """As the port `ActiveProducers` says."""

    def __init__(
        self, *, metadata: MetadataStore, partitions: Partitions, control_reads: ControlReads, clock: Clock, expiration_ms: int
    ) -> None:
        self._expiration_ms = expiration_ms
        self._clock = clock
        self._metadata = metadata
        self._partitions = partitions
        self._control_reads = control_reads

    @property
    def expiration_ms(self) -> int:
        return self._expiration_ms

    async def of(self, partition: PartitionId) -> list[ActiveProducer]:
        log = self._partitions.get(partition)
        await self._control_reads.refresh([log])
        control = existing(log)
        states: dict[int, ProducerState] = {}
        for ref in control.pages:
            states |= await self._read(log.keys.producer_page(ref.name))
        states |= control.producers  # the newer ones
        before_ms = self._clock.now_ms() - self._expiration_ms
        return [
            _active(producer_id, states[producer_id])
            for producer_id in sorted(states)
            if not is_expired(states[producer_id], before_ms=before_ms)
        ]

    async def _read(self, key: Key) -> dict[int, ProducerState]:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                (record,) = await self._metadata.get_many([key])
        except TimeoutError:
            raise Unavailable(f"metadata did not answer: op=get_many after_s={READ_TIMEOUT_S}") from None
        if record is None:
            raise Unavailable(f"the producers of the partition changed meanwhile: key={key.path!r}")
        return decode_page(record.value, path=record.path)


def _active(producer_id: int, state: ProducerState) -> ActiveProducer:
    last = state.batches[-1] if state.batches else None
    return ActiveProducer(
        producer_id,
        state.epoch,
        -1 if last is None else last.last_seq,
        -1 if last is None else last.at_ms,
        -1 if state.txn_first_offset is None else state.txn_first_offset,
    )
