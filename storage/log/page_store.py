"""Pages of producer states: read when a decision needs them, kept, and removed when no manifest can name them any more (ADR 13).

A page named by the manifest at version v was written by the CAS that made v, or an earlier one. One that cannot be read although it
is named is either replaced since, or the read was answered by a deposed leader: the manifest is read again, nothing is concluded.
`ProducerReads` lists the producers that a partition remembers: those in the manifest and those in its pages.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from runtime.clock import Clock
from runtime.lru import LruCache
from runtime.telemetry import Metric, Telemetry
from storage.errors import StorageError, Unavailable
from storage.formats.manifest import Manifest, ProducerState, decode_page
from storage.limits import WRITE_REQUEST_OPS_MAX
from storage.log.fresh_reads import ManifestReads
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import Commit, PartitionLog, Partitions
from storage.log.producer_pages import NewPage, is_expired, pages_needed, prepared_for
from storage.log.trim import existing
from storage.metadata.port import Delete, Key, MetadataStore
from storage.vocabulary import PartitionId

WRITTEN: Final = Metric("forebay_producer_pages_written_total", "Pages of producer states written with commits")
READ: Final = Metric("forebay_producer_pages_read_total", "Pages of producer states read")
SWEPT: Final = Metric("forebay_producer_pages_swept_total", "Pages removed that no manifest can name any more")
READ_TIMEOUT_S: Final = 10.0


class PageStore:
    def __init__(self, *, metadata: MetadataStore, clock: Clock, telemetry: Telemetry, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._timeout_s = limits.producer_pages_timeout_s
        self._metadata = metadata
        self._clock = clock
        self._cached: LruCache[str, Mapping[int, ProducerState]] = LruCache(limits.producer_pages_cached_max)
        self._written = telemetry.counter(WRITTEN)
        self._read = telemetry.counter(READ)
        self._swept = telemetry.counter(SWEPT)

    def missing(self, commit: Commit) -> list[str]:
        """Names of pages that deciding `commit` needs and that `commit.pages` does not hold after this."""
        manifest = commit.log.seen.manifest
        if manifest is None or not manifest.pages:
            return []
        had = commit.pages
        found: dict[str, Mapping[int, ProducerState]] = {}
        missing: list[str] = []
        for name in pages_needed(manifest, commit.batches, self._limits):
            path = commit.log.keys.producer_page(name).path
            page = had.get(name) or self._cached.peek(path)
            if page is None:
                missing.append(name)
            else:
                found[name] = page
                self._cached.put(path, page)
        commit.pages = found
        return missing

    async def load(self, commits: Sequence[Commit]) -> None:
        """Read what is `missing`, in one read. A page that is not there stays missing. Raises `Unavailable`; a page that cannot be decoded
        makes those `unreadable` that need it: it is no concern of other producers, and of nobody who reads."""
        for commit in commits:
            commit.unreadable = None
        wanted = [(commit, name) for commit in commits for name in self.missing(commit)]
        if not wanted:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                records = await self._metadata.get_many([commit.log.keys.producer_page(name) for commit, name in wanted])
        except TimeoutError:
            raise Unavailable(f"metadata did not answer: op=get_many keys={len(wanted)} after_s={self._timeout_s}") from None
        self._read.inc(len(wanted))
        for (commit, name), record in zip(wanted, records, strict=True):
            if record is None:
                continue
            try:
                page = decode_page(record.value, path=record.path)
            except StorageError as error:
                commit.unreadable = error
                continue
            commit.pages = {**commit.pages, name: page}
            self._cached.put(record.path, page)

    def note_written(self, log: PartitionLog, pages: Sequence[NewPage]) -> None:
        """They are named by a manifest that was applied."""
        self._written.inc(len(pages))
        for new in pages:
            self._cached.put(log.keys.producer_page(new.name).path, new.page.producers)

    def is_sweep_due(self, log: PartitionLog) -> bool:
        """True once at intervals: then the caller runs `sweep`."""
        return log.producers.is_sweep_due(self._clock.monotonic_s(), every_s=self._limits.producer_pages_sweep_every_s)

    async def sweep(self, log: PartitionLog, manifest: Manifest, version: int) -> None:
        """Remove pages that no manifest can name any more: `manifest`, which was the record at `version`, does not, and they were
        prepared for a CAS at an older version, which has applied by then or never will. Whether the listing is new does not matter.
        """
        start, end = log.keys.producer_pages()
        prefix = log.keys.producers_prefix
        named = {ref.name for ref in manifest.pages}
        try:
            async with asyncio.timeout(self._timeout_s):
                names = [path.removeprefix(prefix) for path in await self._metadata.list(start, end)]
                garbage = [name for name in names if name not in named and prepared_for(name) < version]
                for begin in range(0, len(garbage), WRITE_REQUEST_OPS_MAX):
                    part = garbage[begin : begin + WRITE_REQUEST_OPS_MAX]
                    await self._metadata.write([Delete(log.keys.producer_page(name)) for name in part])
                    self._swept.inc(len(part))
        except (Unavailable, TimeoutError):
            return  # garbage harms nobody: the next sweep finds it


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
        self, *, metadata: MetadataStore, partitions: Partitions, manifest_reads: ManifestReads, clock: Clock, expiration_ms: int
    ) -> None:
        self._expiration_ms = expiration_ms
        self._clock = clock
        self._metadata = metadata
        self._partitions = partitions
        self._manifest_reads = manifest_reads

    @property
    def expiration_ms(self) -> int:
        return self._expiration_ms

    async def of(self, partition: PartitionId) -> list[ActiveProducer]:
        log = self._partitions.get(partition)
        await self._manifest_reads.refresh([log])
        manifest = existing(log)
        states: dict[int, ProducerState] = {}
        for ref in manifest.pages:
            states |= await self._read(log.keys.producer_page(ref.name))
        states |= manifest.producers  # the newer ones
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
