"""Fresh reads of control records, shared: a caller gets one that was issued after it asked, and callers of one moment share one.

This is what promise 5 rests on: "at least as new as every ack given by any broker" needs a read issued after the question arrived.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from runtime.supervision import Nursery
from storage.errors import Corrupt, IncompatibleFormat, NotFound, StorageError, Unavailable
from storage.formats.control import LogState, decode_control
from storage.log.bounds import LogBounds
from storage.log.partition import PartitionLog, Partitions
from storage.metadata.port import MetadataStore
from storage.vocabulary import PartitionId

READ_KEYS_MAX: Final = 1_000
READ_TIMEOUT_S: Final = 10.0


class ControlReads:
    """Brings `PartitionLog.control` up to date."""

    def __init__(self, *, metadata: MetadataStore, partitions: Partitions, nursery: Nursery) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._nursery = nursery
        self._wanted: set[PartitionLog] = set()
        self._next: asyncio.Future[None] | None = None
        self._is_reading = False

    async def refresh(self, logs: Iterable[PartitionLog]) -> None:
        """Return when every log's `control` is at least as new as at the moment of the call. Raises `Unavailable`.

        A record that is there but unreadable is told by `PartitionLog.broken`.
        """
        self._wanted.update(logs)
        if not self._wanted:
            return
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        waited = self._next
        if not self._is_reading:
            self._is_reading = True
            self._nursery.spawn(self._read_wanted(), name="control-reads")
        await asyncio.shield(waited)

    async def read(self, partitions: Sequence[PartitionId]) -> list[LogBounds | StorageError]:
        """As the port `Bounds` says."""
        logs = [self._partitions.get(partition) for partition in partitions]
        try:
            await self.refresh(logs)
        except StorageError as error:
            return [error] * len(logs)
        return [bounds_of(log) for log in logs]

    async def _read_wanted(self) -> None:
        try:
            while self._wanted:
                logs, self._wanted = tuple(self._wanted), set()
                done, self._next = self._next, None
                assert done is not None
                try:
                    await self._read(logs)
                except StorageError as error:
                    done.set_exception(error)
                    done.exception()  # marks it retrieved: all who asked may be gone
                except BaseException:
                    done.cancel()
                    raise
                else:
                    done.set_result(None)
        finally:
            self._is_reading = False

    async def _read(self, logs: Sequence[PartitionLog]) -> None:
        for begin in range(0, len(logs), READ_KEYS_MAX):
            part = logs[begin : begin + READ_KEYS_MAX]
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    records = await self._metadata.get_many([log.keys.control for log in part])
            except TimeoutError:
                raise Unavailable(f"metadata did not answer: op=get_many keys={len(part)} after_s={READ_TIMEOUT_S}") from None
            for log, record in zip(part, records, strict=True):
                log.unexplained_hints = 0
                if record is None:
                    log.observe_absent()
                elif record.version >= log.version:
                    try:
                        log.observe(decode_control(record.value, path=record.path), record.version)
                    except (Corrupt, IncompatibleFormat) as error:
                        log.broken = error  # the other partitions of this read are not concerned


def bounds_of(log: PartitionLog) -> LogBounds | StorageError:
    control = log.control
    if log.broken is not None:
        return log.broken
    if control is None or control.log_state is LogState.DELETED:
        return NotFound(f"no such partition: {log.partition}")
    return LogBounds(log_start=control.log_start, high_watermark=control.sequence_counter, bytes_total=control.bytes_total)
