"""Metadata that went back: a put whose version is not above its shard's last (docs/internals/design/upkeep.md#metadata-that-went-back).

Versions of a shard grow with every put and are never used twice (port.py). So a put that was sent when version 90 was known, and got
version 61, went to a store that was put back to an older state:

    put → 90  …  the store is put back to a copy that ends at 60  …  put → 61

A read proves nothing by itself: a deposed leader answers from the past. One that shows a sentinel, put after the question, does.
`ManifestReads` (storage/log/fresh_reads.py) asks for such a read when a manifest came back older than it was.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

import structlog

from runtime.ids import IdSource
from runtime.telemetry import Metric, Telemetry
from storage.errors import StorageError, Unavailable
from storage.metadata.keys import MANIFEST_SUFFIX, age_sentinel
from storage.metadata.port import (
    ABSENT,
    Applied,
    DeleteRange,
    Key,
    MetadataStore,
    NotApplied,
    Put,
    Record,
    Session,
    Subscription,
    Unknown,
    WriteOp,
    WriteOutcome,
)

WENT_BACK: Final = Metric(
    "forebay_metadata_went_back",
    "1 from when the metadata were seen to be older than they were before: this process answers nothing from them any more",
    aggregation="max",
)
EFFECT: Final = "nothing is taken, acknowledged or answered from metadata any more"
FIX: Final = (
    "stop all brokers and compactors, put the newest metadata back, and start again; if these are the newest there are, "
    "start with: forebay serve --accept-older-metadata"
)
SENTINEL_SESSION_MS: Final = 5_000

_log = structlog.get_logger("stores")


class PutManifest(NamedTuple):
    """A manifest that was put, and the version that the put got."""

    key: Key
    version: int


class CertainRead(NamedTuple):
    """Records as of a moment after the call. `version`: what the shard gave to a put made for it, after the call as well."""

    version: int
    records: list[Record | None]


async def read_certainly(metadata: MetadataStore, keys: Sequence[Key], *, name: str) -> CertainRead:
    """Read `keys`, of one partition key, so that no deposed leader can answer. `name` is one that nobody has used.

    Costs a session and a put. Raises `Unavailable`, also if the answer may be older than the call.
    """
    session = await metadata.open_session(timeout_ms=SENTINEL_SESSION_MS)
    try:
        sentinel = age_sentinel(name, keys[0].partition_key)
        outcome = await metadata.write([Put(sentinel, b"{}", ABSENT, session=session.session_id)])
        version = outcome.results[0].version if isinstance(outcome, Applied) else None
        if version is None:
            raise Unavailable(f"cannot read metadata for certain: key={keys[0].path!r} put={outcome}")
        seen, *records = await metadata.get_many([sentinel, *keys])
        if seen is None:
            raise Unavailable(f"metadata answered from the past: key={keys[0].path!r} sentinel={sentinel.path!r}")
        return CertainRead(version, records)
    finally:
        with contextlib.suppress(StorageError):
            await session.close()


class VersionWatch:
    """A `MetadataStore` that refuses everything once the metadata were seen to have gone back: reads raise `Unavailable`.

    `commits` has the last manifest that was put, by shard: what marks name (storage/catalog/collections.py).
    """

    def __init__(self, inner: MetadataStore, *, ids: IdSource, telemetry: Telemetry, on_lost: Callable[[str], None]) -> None:
        """`on_lost` is called once, with the cause."""
        self._inner = inner
        self._ids = ids
        self._on_lost = on_lost
        self._newest: dict[int, int] = {}
        self._gauge = telemetry.gauge(WENT_BACK)
        self.commits: dict[int, PutManifest] = {}
        self.lost: str | None = None
        """Why nothing is answered any more."""

    def note_older(self, evidence: str) -> None:
        """The metadata certainly went back."""
        if self.lost is None:
            self.lost = f"the metadata are older than they were: {evidence}. {FIX[0].upper()}{FIX[1:]}"
            self._gauge.set(1)
            _log.error("metadata_went_back", evidence=evidence, effect=EFFECT, fix=FIX)
            self._on_lost(self.lost)

    async def doubt(self, key: Key, known: int) -> None:
        """A read has shown `key` older than version `known`, or not at all: find out whether the metadata went back.

        Raises `Unavailable` if nobody can say. A record that is gone says nothing: topics are purged.
        """
        version, (record,) = await read_certainly(self, [key], name=self._ids.next_ulid())
        if record is not None and record.version < known:
            self.note_older(f"{key.path} has version {record.version}, and had {known} before; its shard is at {version}")

    def shard_of(self, partition_key: str) -> int:
        return self._inner.shard_of(partition_key)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if self.lost is not None:
            return NotApplied(self.lost)
        first = ops[0]
        shard = self._inner.shard_of((first.start if isinstance(first, DeleteRange) else first.key).partition_key)
        # What is known when the request is sent: answers of requests that are under way together come in any order.
        known = self._newest.get(shard, -1)
        outcome = await self._inner.write(ops)
        if isinstance(outcome, Applied):
            for op, (_, version) in zip(ops, outcome.results, strict=True):
                if version is None:
                    continue
                if version <= known:
                    self.note_older(f"{op.key.path if isinstance(op, Put) else shard} was put as version {version}, behind {known}")
                    return Unknown(self.lost or "")
                if version > self._newest.get(shard, -1):
                    self._newest[shard] = version
                    if isinstance(op, Put) and op.key.path.endswith(MANIFEST_SUFFIX):
                        self.commits[shard] = PutManifest(op.key, version)
        return outcome

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        self._check()
        return await self._inner.get_many(keys)

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        self._check()
        return await self._inner.get_ceiling(key, within=within)

    def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        self._check()
        return self._inner.range_scan(start, end)

    async def list(self, start: Key, end: str) -> list[str]:
        self._check()
        return await self._inner.list(start, end)

    async def open_session(self, *, timeout_ms: int) -> Session:
        self._check()
        return await self._inner.open_session(timeout_ms=timeout_ms)

    def subscribe(self, callback: Callable[[str, int | None], None], *, prefix: str = "") -> Subscription:
        return self._inner.subscribe(callback, prefix=prefix)

    async def probe(self) -> None:
        self._check()
        await self._inner.probe()

    async def close(self) -> None:
        await self._inner.close()

    def _check(self) -> None:
        if self.lost is not None:
            raise Unavailable(self.lost)
