"""Fresh reads of manifests, shared: a caller gets one that was issued after it asked, and callers of one moment share one.

Promise 5 rests on this: "at least as new as every ack given by any broker" needs a read issued after the question arrived. Each shard of
the metadata store is read by itself, one read at a time: a silent one holds up only those that ask for its partitions.
`ReadBarriers` is for final answers: a read may come from a deposed leader, a write does not.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from runtime.supervision import Nursery
from runtime.turns import ITEMS_DEFAULT, Turns
from storage.errors import Corrupt, IncompatibleFormat, NotFound, StorageError, Unavailable
from storage.formats.manifest import LogState, decode_manifest, encode
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog, Partitions
from storage.metadata.port import Applied, Key, MetadataStore, Put, Record, Status
from storage.vocabulary import PartitionId

ATTEMPTS_MAX: Final = 4
PAUSE_S: Final = 0.02
READ_KEYS_MAX: Final = 1_000
DECODED_AT_ONCE: Final = 100
"""Manifests between two turns of other tasks: a record is as long as its partition has writers and producers."""
DOUBT_EVERY_S: Final = 1.0
"""A shard is asked no more often whether it went back: each time costs a session and a put."""


class ReadBarriers:
    """Writes that show a manifest to be the newest, before a final answer.

    docs/internals/design/reading.md#reads-from-a-deposed-leader says why.

    A read may be answered by a deposed leader of the shard, from an older state: an offset behind an old end is out of range there, and a
    consumer that gets that answer begins again somewhere else. Only a write is judged by the leader of the day. So the record is put once
    more, under the condition that it is still there; nothing but its version changes.

    The barriers of a log are shared, one at a time and no more often than every `read_barrier_every_s`, whatever its readers ask for.
    Each shard of the metadata store has permits of its own, and a request that gets none in time is refused: a silent shard holds up only
    requests for its partitions, and these no longer when there are many.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        refresh: Callable[[Iterable[PartitionLog]], Awaitable[None]],
        nursery: Nursery,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._timeout_s = limits.read_barrier_timeout_s
        self._metadata = metadata
        self._refresh = refresh
        self._nursery = nursery
        self._next: dict[PartitionLog, asyncio.Future[None]] = {}
        self._under_way: set[PartitionLog] = set()
        self._places: dict[int, asyncio.Semaphore] = {}

    def ask(self, log: PartitionLog) -> asyncio.Future[None]:
        """What is done when `log.seen.manifest` was the newest record at some moment from now on (or there is none), or fails with
        `Unavailable`. It is shared: never cancel it.
        """
        asked = self._next.get(log)
        if asked is None:
            asked = self._next[log] = asyncio.get_running_loop().create_future()
            if log not in self._under_way:
                self._under_way.add(log)
                self._nursery.spawn(self._pass_wanted(log), name="read-barrier")
        return asked

    async def _pass_wanted(self, log: PartitionLog) -> None:
        places = self._places_of(log)
        try:
            while (asked := self._next.get(log)) is not None:
                try:
                    async with asyncio.timeout(self._timeout_s), places:
                        del self._next[log]  # who asks from here on was not there when it began
                        await self._pass(log)
                except TimeoutError:
                    if self._next.get(log) is asked:  # it had no place
                        del self._next[log]
                    _refuse(asked, Unavailable(f"metadata did not answer: op=read_barrier after_s={self._timeout_s}"))
                except StorageError as error:
                    _refuse(asked, error)
                except BaseException:
                    asked.cancel()
                    raise
                else:
                    asked.set_result(None)
                await asyncio.sleep(self._limits.read_barrier_every_s)
        finally:
            self._under_way.discard(log)
            if (left := self._next.pop(log, None)) is not None:
                left.cancel()  # nobody will ask for it any more

    def _places_of(self, log: PartitionLog) -> asyncio.Semaphore:
        shard = self._metadata.shard_of(log.keys.partition_key)
        if shard not in self._places:
            self._places[shard] = asyncio.Semaphore(self._limits.read_barriers_at_once_max)
        return self._places[shard]

    async def _pass(self, log: PartitionLog) -> None:
        for attempt in range(ATTEMPTS_MAX):
            await self._refresh([log])
            manifest, version = log.seen.manifest, log.seen.version
            if manifest is None or manifest.log_state is LogState.DELETED or log.seen.broken is not None:
                return
            asked_s = asyncio.get_running_loop().time()
            outcome = await self._metadata.write([Put(log.keys.manifest, encode(manifest), version)])
            if isinstance(outcome, Applied) and outcome.results[0].status is Status.OK:
                log.note_put_again(version, outcome.results[0].version, asked_s)
                return
            await asyncio.sleep(PAUSE_S * 2**attempt)
        raise Unavailable(f"the newest manifest was not found: partition={log.partition} attempts={ATTEMPTS_MAX}")


def _refuse(asked: asyncio.Future[None], error: StorageError) -> None:
    asked.set_exception(error)
    asked.exception()  # marks it retrieved: all who asked may be gone


@dataclass(frozen=True, slots=True)
class LogBounds:
    log_start: int
    high_watermark: int
    bytes_total: int


class Bounds(Protocol):
    async def read(self, partitions: Sequence[PartitionId]) -> list[LogBounds | StorageError]:
        """In the order asked for; `NotFound` for a partition that does not exist (or is deleted), `Unavailable` when unreadable."""
        ...


class _Shard:
    """`next` is the read that has not begun: new requests get that one. `began_s` is when the one under way did; None: there is none.

    `has_failed`: the last one that ended had no answer.
    """

    __slots__ = ("began_s", "has_failed", "next", "waiting", "wanted")

    def __init__(self) -> None:
        self.wanted: dict[PartitionLog, None] = {}
        self.next: asyncio.Future[None] | None = None
        self.began_s: float | None = None
        self.has_failed = False
        self.waiting = 0


Doubt = Callable[[Key, int], Awaitable[None]]
"""Told of a record that was read older than the version that is known: `VersionWatch.doubt`."""


class ManifestReads:
    """Brings `PartitionLog.seen` up to date."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        partitions: Partitions,
        nursery: Nursery,
        doubt: Doubt | None = None,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._read_timeout_s = limits.manifest_read_timeout_s
        self._silent_after_s = limits.silent_after_s
        self._doubt = doubt
        self._doubted: set[int] = set()
        """Shards that are asked whether they went back."""
        self._metadata = metadata
        self._partitions = partitions
        self._nursery = nursery
        self._shards: dict[int, _Shard] = {}
        self._read_barriers = ReadBarriers(metadata=metadata, refresh=self.refresh, nursery=nursery, limits=limits)

    def read_barrier(self, log: PartitionLog) -> asyncio.Future[None]:
        """As `ask`, and `log.seen.manifest` certainly was the newest record at some moment from now on: costs a write."""
        return self._read_barriers.ask(log)

    def ask(self, log: PartitionLog) -> asyncio.Future[None]:
        """A task that ends when `log.seen.manifest` is at least as new as now, or fails with `Unavailable`. It is shared: never cancel it.

        `log.seen.broken` reports a record that is there but unreadable.
        """
        return self._ask(self._shard_of(log), log)

    def is_silent(self, log: PartitionLog) -> bool:
        """Whether a read of the shard of `log` has been unanswered for `silent_after_s`, or follows one that was never answered."""
        return self._is_silent(self._shard_of(log))

    async def refresh(self, logs: Iterable[PartitionLog]) -> None:
        """Return when every log's `manifest` is at least as new as at the moment of the call. Raises `Unavailable` if one is not."""
        failed = await self.refresh_each(logs)
        for error in failed.values():
            raise error

    async def refresh_each(
        self, logs: Iterable[PartitionLog], *, timeout_s: float | None = None, silent_timeout_s: float | None = None
    ) -> dict[PartitionLog, StorageError]:
        """As `refresh`, but return which logs could not be read, and why; the others are as new as asked for.

        Returns after `timeout_s` at the latest (None: each read has its deadline), after `silent_timeout_s` if all that is left to wait
        for are shards that were known to be silent. The reads go on: they are shared.
        """
        loop = asyncio.get_running_loop()
        failed: dict[PartitionLog, StorageError] = {}
        asked: dict[PartitionLog, asyncio.Future[None]] = {}
        reads: dict[asyncio.Future[None], _Shard] = {}
        silent: dict[asyncio.Future[None], _Shard] = {}
        for number, log in enumerate(logs, 1):
            if number % ITEMS_DEFAULT == 0:
                await asyncio.sleep(0)
            shard = self._shard_of(log)
            if not self._is_silent(shard):
                reads[self._ask(shard, log)] = shard
            elif shard.waiting < self._limits.waiting_for_silent_max:
                silent[self._ask(shard, log)] = shard
            else:
                failed[log] = Unavailable(f"metadata does not answer, and many wait for it: partition={log.partition}")
                continue
            assert shard.next is not None
            asked[log] = shard.next
        began_s = loop.time()
        if reads:
            await _ended(reads, timeout_s)
        if silent:
            for shard in silent.values():
                shard.waiting += 1
            try:
                await _ended(silent, None if silent_timeout_s is None else max(0.0, silent_timeout_s - (loop.time() - began_s)))
            finally:
                for shard in silent.values():
                    shard.waiting -= 1
        for number, (log, read) in enumerate(asked.items(), 1):
            if (error := failure_of(read, log)) is not None:
                failed[log] = error
            if number % ITEMS_DEFAULT == 0:
                await asyncio.sleep(0)
        return failed

    async def read(self, partitions: Sequence[PartitionId]) -> list[LogBounds | StorageError]:
        """As the port `Bounds` says."""
        turns = Turns()
        logs = await turns.each(self._partitions.get, partitions)
        limits = self._limits
        failed = await self.refresh_each(logs, timeout_s=limits.bounds_timeout_s, silent_timeout_s=limits.silent_timeout_s)
        return await turns.each(lambda log: failed.get(log) or bounds_of(log), logs)

    def _shard_of(self, log: PartitionLog) -> _Shard:
        number = self._metadata.shard_of(log.keys.partition_key)
        shard = self._shards.get(number)
        if shard is None:
            shard = self._shards[number] = _Shard()
        return shard

    def _is_silent(self, shard: _Shard) -> bool:
        began_s = shard.began_s
        return began_s is not None and (shard.has_failed or asyncio.get_running_loop().time() - began_s > self._silent_after_s)

    def _ask(self, shard: _Shard, log: PartitionLog) -> asyncio.Future[None]:
        shard.wanted[log] = None
        if shard.next is None:
            shard.next = asyncio.get_running_loop().create_future()
            if shard.began_s is None:
                shard.began_s = asyncio.get_running_loop().time()
                self._nursery.spawn(self._read_wanted(shard), name="manifest-reads")
        return shard.next

    async def _read_wanted(self, shard: _Shard) -> None:
        try:
            while shard.wanted:
                logs, shard.wanted = tuple(shard.wanted), {}
                done, shard.next = shard.next, None
                assert done is not None
                try:
                    await self._read(logs)
                except StorageError as error:
                    shard.has_failed = True
                    done.set_exception(error)
                    done.exception()  # marks it retrieved: all who asked may be gone
                except BaseException:
                    done.cancel()
                    raise
                else:
                    shard.has_failed = False
                    done.set_result(None)
                shard.began_s = asyncio.get_running_loop().time()
        finally:
            shard.began_s = None
            if shard.next is not None:  # nobody will read for these any more
                shard.next.cancel()
                shard.next = None

    def _doubt_shard_of(self, log: PartitionLog) -> None:
        """Find out why a record was older than known: a deposed leader has answered, or the metadata went back. One question at a time."""
        shard = self._metadata.shard_of(log.keys.partition_key)
        if self._doubt is not None and shard not in self._doubted:
            self._doubted.add(shard)
            self._nursery.spawn(self._ask_shard(self._doubt, shard, log.keys.manifest, log.seen.version), name="metadata-doubted")

    async def _ask_shard(self, doubt: Doubt, shard: int, key: Key, known: int) -> None:
        try:
            with contextlib.suppress(StorageError, TimeoutError):  # the next read that is older asks again
                async with asyncio.timeout(self._read_timeout_s):
                    await doubt(key, known)
            await asyncio.sleep(DOUBT_EVERY_S)
        finally:
            self._doubted.discard(shard)

    async def _read(self, logs: Sequence[PartitionLog]) -> None:
        for begin in range(0, len(logs), READ_KEYS_MAX):
            if begin:
                await asyncio.sleep(0)
            part = logs[begin : begin + READ_KEYS_MAX]
            asked_s = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(self._read_timeout_s):
                    records = await self._metadata.get_many([log.keys.manifest for log in part])
            except TimeoutError:
                raise Unavailable(f"metadata did not answer: op=get_many keys={len(part)} after_s={self._read_timeout_s}") from None
            news: list[tuple[PartitionLog, Record]] = []
            # All of it before others have their turn: what they hear from now on is newer than these records.
            for log, record in zip(part, records, strict=True):
                if record is None:
                    log.observe_absent()
                elif log.seen.is_news(record.version):
                    news.append((log, record))
                else:
                    if record.version < log.seen.version:
                        self._doubt_shard_of(log)
                    log.seen.confirm(record.version, asked_s)
            for number, (log, record) in enumerate(news, 1):
                # Hints are explained when the record is taken over: until then a reader has to ask, or would be served what was deleted.
                if log.seen.is_news(record.version):
                    try:
                        log.observe(decode_manifest(record.value, path=record.path), record.version, asked_s)
                    except (Corrupt, IncompatibleFormat) as error:
                        log.seen.observe_broken(error)  # the other partitions of this read are not concerned
                if number % DECODED_AT_ONCE == 0:
                    await asyncio.sleep(0)


def failure_of(read: asyncio.Future[None], log: PartitionLog) -> StorageError | None:
    """Why a read that `ManifestReads.ask` gave has not brought `log` up to date; None if it has."""
    if not read.done():
        return Unavailable(f"metadata has not answered yet: partition={log.partition}")
    error = read.exception()
    # One of its own for each: whoever raises an error gives it frames, and these hold what they hold.
    return None if error is None else Unavailable(str(error))


def bounds_of(log: PartitionLog) -> LogBounds | StorageError:
    seen = log.seen
    manifest = seen.manifest
    if seen.broken is not None:
        return seen.broken
    if seen.is_behind:
        return Unavailable(f"metadata answered from the past: partition={log.partition} known_version={seen.version}")
    if manifest is None or manifest.log_state is LogState.DELETED:
        return NotFound(f"no such partition: {log.partition}")
    return LogBounds(log_start=manifest.log_start, high_watermark=manifest.sequence_counter, bytes_total=manifest.bytes_total)


async def _ended(reads: Collection[asyncio.Future[None]], timeout_s: float | None) -> None:
    """Return when all have ended, or after `timeout_s`. As `asyncio.wait`, at a third of its price: every request for offsets pays it."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    left = len(reads)

    def end() -> None:
        if not turn.done():
            turn.set_result(None)

    def note(_read: asyncio.Future[None]) -> None:
        nonlocal left
        left -= 1
        if not left:
            end()

    for read in reads:
        read.add_done_callback(note)
    timer = None if timeout_s is None else loop.call_later(timeout_s, end)
    try:
        await turn
    finally:
        if timer is not None:
            timer.cancel()
        for read in reads:
            read.remove_done_callback(note)
