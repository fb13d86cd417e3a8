"""A compactor over the stores of a rig, and what is left behind by one."""

import contextlib
from collections.abc import AsyncIterator

from compactor.compaction import Compaction, CompactionResult, Round, only
from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.merge import Merging
from compactor.plan import CompactionPolicy, MergePolicy
from runtime.blocking import InlineBlocking
from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.formats.manifest import SegmentEntry, decode_segment
from storage.log.limits import DEFAULT_LIMITS as DEFAULT_LOG_LIMITS
from storage.log.limits import LogLimits
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import MetadataStore, children_of
from storage.objects.port import ObjectStore
from storage.vocabulary import PartitionId
from tests.unit.storage.log.rig import PARTITION

AT_ONCE = CompactionPolicy(entries_due=1)
"""All there is becomes a segment."""

PAIRS = MergePolicy(count_min=2, growth_min=1)
"""All that may be merged is."""


class OneByOne:
    """Rounds of one partition each."""

    def __init__(self, compaction: Compaction, objects: ObjectStore, *, limits: CompactorLimits = DEFAULT_LIMITS) -> None:
        self._compaction = compaction
        self._objects = objects
        self._limits = limits

    async def run(self, partition: PartitionId) -> CompactionResult:
        try:
            clock, limits = SystemClock(), self._limits
            one = Round(self._compaction, objects=self._objects, blocking=InlineBlocking(), clock=clock, limits=limits)
            return only(await one.run([partition]), partition)
        except BaseExceptionGroup as failures:  # of a test's own: a round keeps the errors of stores as values
            (failure,) = failures.exceptions
            raise failure from None


@contextlib.asynccontextmanager
async def opened(
    metadata: object,
    objects: object,
    *,
    policy: CompactionPolicy = AT_ONCE,
    limits: CompactorLimits = DEFAULT_LIMITS,
    log_limits: LogLimits = DEFAULT_LOG_LIMITS,
) -> AsyncIterator[Compaction]:
    """`metadata` and `objects` are stores, or stand before some."""
    store: MetadataStore = metadata  # type: ignore[assignment]
    blobs: ObjectStore = objects  # type: ignore[assignment]
    clock = SystemClock()
    session = await store.open_session(timeout_ms=10_000)
    try:
        yield Compaction(
            metadata=store,
            objects=blobs,
            session=session,
            ids=IdSource(clock=clock),
            clock=clock,
            policy=policy,
            limits=limits,
            log_limits=log_limits,
        )
    finally:
        await session.close()


@contextlib.asynccontextmanager
async def compacting(
    metadata: object,
    objects: object,
    *,
    policy: CompactionPolicy = AT_ONCE,
    limits: CompactorLimits = DEFAULT_LIMITS,
    log_limits: LogLimits = DEFAULT_LOG_LIMITS,
) -> AsyncIterator[OneByOne]:
    async with opened(metadata, objects, policy=policy, limits=limits, log_limits=log_limits) as compaction:
        yield OneByOne(compaction, objects, limits=limits)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def merging(
    metadata: object, objects: object, *, policy: MergePolicy = PAIRS, limits: CompactorLimits = DEFAULT_LIMITS
) -> AsyncIterator[Merging]:
    store: MetadataStore = metadata  # type: ignore[assignment]
    session = await store.open_session(timeout_ms=10_000)
    try:
        ids = IdSource(clock=SystemClock())
        blobs: ObjectStore = objects  # type: ignore[assignment]
        yield Merging(metadata=store, objects=blobs, session=session, ids=ids, policy=policy, limits=limits)
    finally:
        await session.close()


async def index_ends(metadata: MetadataStore, partition: PartitionId = PARTITION) -> list[int]:
    keys = PartitionKeys(partition)
    start, end = children_of(keys.index_prefix.removesuffix("/"))
    return [int(path.rsplit("/", 1)[1]) for path in await metadata.list(keys.index(0)._replace(path=start), end)]


async def listed_segments(metadata: MetadataStore, partition: PartitionId = PARTITION) -> list[SegmentEntry]:
    keys = PartitionKeys(partition)
    start, end = children_of(keys.segments_prefix.removesuffix("/"))
    return [decode_segment(one.value, path=one.path) async for one in metadata.range_scan(keys.segment(0)._replace(path=start), end)]


async def left_behind(metadata: MetadataStore, partition: PartitionId = PARTITION) -> list[str]:
    """The records of a compaction that should be gone when it has ended."""
    keys = PartitionKeys(partition)
    return [one.path for one in await metadata.get_many([keys.compaction, keys.compactor_claim]) if one is not None]
