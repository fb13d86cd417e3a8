"""WAL objects whose places are given before they are stored (docs/internals/design/commit.md#early-slices).

    take: a slice gets a place in the open object … its commit puts early pages beside its CAS … the object is full, or old: sealed
          → one PUT for all its partitions → its pages go, by ranges

A place is given once, and the bytes at it never change (E1). Only the broker that gave the places of an object stores it, with all of
them, and gives none after it was sealed (E3). Its pages go once it is known to be stored (E4). So an object that is there is whole, and a
page says what the object will say. A broker that is killed leaves pages: readers and compaction go on reading them.

While the object store is away sealed objects wait, and their pages stay. `is_full` says when they are as many as may wait.
"""

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

import structlog

from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.lru import LruCache
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from storage.errors import StorageError
from storage.formats.manifest import Early, Entry
from storage.formats.wal import HEAD_BYTES, Slice, encode_early, object_key, packed
from storage.limits import EARLY_PAGE_BYTES_MAX, EARLY_SLICE_BYTES_MAX
from storage.log.early_pages import EarlyPlace, EarlySlice
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import BrokerEpoch, PartitionLog
from storage.log.uploads import Uploader
from storage.metadata import keys
from storage.metadata.port import Applied, DeleteRange, MetadataStore
from storage.objects.requests import CAUSE
from storage.vocabulary import ObjectId

EARLY_BYTES: Final = Metric("forebay_early_bytes_total", "Bytes of slices that were committed before their object was stored")
EARLY_PAGES: Final = Metric(
    "forebay_early_pages",
    "Early pages of this broker in the metadata store, those that are on their way there among them",
    aggregation="sum",
)
EARLY_WAITING_BYTES: Final = Metric(
    "forebay_early_waiting_bytes",
    "Bytes of early objects in memory: the open one, and those that wait for the object store",
    aggregation="sum",
)
EARLY_WAITING_OBJECTS: Final = Metric(
    "forebay_early_waiting_objects", "Early objects that are sealed and not stored yet", aggregation="sum"
)
EARLY_AGE_SECONDS: Final = Metric(
    "forebay_early_age_seconds", "Age of the oldest slice whose object is not stored yet; 0 where there is none", aggregation="max"
)
EARLY_OBJECTS: Final = Metric("forebay_early_objects_total", "Early objects stored, by what made them due", ("trigger",))
SLICE_COST_BYTES: Final = 300
"""The memory of a slice and its place, beside its bytes."""
LATE_AFTER_S: Final = 300.0
"""An object that waits for the object store for longer is logged."""

_log: Final = structlog.get_logger()


class _Page(NamedTuple):
    """A page that may be in the metadata store."""

    partition_key: str
    position: int
    size_bytes: int


class EarlyObject:
    """One object while it is in memory. `slices` are the bytes by where they begin, in that order; `directory` names their partitions.

    All that grows with their number grows with each of them: nothing is left to do for all at once.
    """

    __slots__ = ("began_s", "directory", "object_id", "pages", "size_bytes", "slices", "timer")

    def __init__(self, object_id: ObjectId, began_s: float) -> None:
        self.object_id = object_id
        self.began_s = began_s
        self.slices: dict[int, bytes] = {}
        self.directory = bytearray()
        self.pages: dict[int, list[_Page]] = {}
        """By shard, in the order of their positions."""
        self.size_bytes = HEAD_BYTES
        self.timer: asyncio.TimerHandle | None = None

    def add(self, log: PartitionLog, data: bytes, *, shard: int) -> EarlyPlace:
        place = EarlyPlace(self.object_id, self.size_bytes, log.partition, data)
        self.slices[place.start] = data
        self.directory += packed(Slice(log.partition, place.start, len(data)))
        pages, partition_key = self.pages.setdefault(shard, []), log.keys.partition_key
        for at in range(0, len(data), EARLY_PAGE_BYTES_MAX):
            pages.append(_Page(partition_key, place.start + at, min(EARLY_PAGE_BYTES_MAX, len(data) - at)))
        self.size_bytes += len(data)
        return place


class EarlyObjects:
    """The early objects of one broker. Synchronous but for what it spawns: the order of places is the order of commits."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        uploader: Uploader,
        ids: IdSource,
        epoch: BrokerEpoch,
        clock: Clock,
        nursery: Nursery,
        telemetry: Telemetry,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._metadata = metadata
        self._uploader = uploader
        self._ids = ids
        self._epoch = epoch
        self._clock = clock
        self._nursery = nursery
        self._limits = limits
        self._floor = ""
        self._open: EarlyObject | None = None
        self._held: dict[ObjectId, EarlyObject] = {}
        """In memory: the open one, and those that are not stored yet."""
        self._held_bytes = 0
        self._sealed: set[ObjectId] = set()
        self._stored: LruCache[ObjectId, None] = LruCache(limits.early_stored_kept_max)
        self._undeleted: set[asyncio.Task[None]] = set()
        self._undeleted_bytes = 0
        self._pages = 0
        self._storing = asyncio.Lock()
        """One after the other: side by side, over a slow way to the store, none of them would end in time."""
        self._deleting: dict[int, asyncio.Lock] = {}
        """By shard: one that does not answer holds up its own pages."""
        self._is_stopped = False
        self._bytes = telemetry.counter(EARLY_BYTES)
        self._objects = telemetry.counter(EARLY_OBJECTS)
        telemetry.gauge(EARLY_PAGES).set_function(lambda: self._pages)
        telemetry.gauge(EARLY_WAITING_BYTES).set_function(lambda: self._held_bytes)
        telemetry.gauge(EARLY_WAITING_OBJECTS).set_function(lambda: len(self._sealed))
        telemetry.gauge(EARLY_AGE_SECONDS).set_function(self.oldest_s)

    @property
    def is_full(self) -> bool:
        """As many bytes wait for the object store as may, or pages of stored objects for their deletion."""
        return max(self._held_bytes, self._undeleted_bytes) >= self._limits.early_waiting_bytes_max

    def oldest_s(self) -> float:
        """Seconds since the oldest place was given whose object is not stored yet."""
        held = list(self._held.values())  # the thread that makes the page asks
        return max((self._clock.monotonic_s() - one.began_s for one in held), default=0.0)

    def take(self, log: PartitionLog, data: bytes, *, floor: str) -> EarlyPlace:
        """A place for a slice, in an object whose id is above `floor` and all floors that were met before (E7)."""
        assert 0 < len(data) <= EARLY_SLICE_BYTES_MAX, f"a slice of {len(data)} bytes"
        self._floor = max(self._floor, floor)
        if self._open is not None and (self._open.object_id <= self._floor or len(self._open.slices) >= self._limits.early_slices_max):
            self._seal(self._open, "floor" if self._open.object_id <= self._floor else "slices")
        if self._open is None:
            opened = self._open = EarlyObject(ObjectId(self._ids.next_ulid(above=self._floor)), self._clock.monotonic_s())
            self._held[opened.object_id] = opened
            opened.timer = asyncio.get_running_loop().call_later(self._limits.early_age_s, self._on_age, opened)
        current = self._open
        place = current.add(log, data, shard=self._metadata.shard_of(log.keys.partition_key))
        self._held_bytes += len(data) + SLICE_COST_BYTES
        self._bytes.inc(len(data))
        self._pages += -(-len(data) // EARLY_PAGE_BYTES_MAX)
        if current.size_bytes >= self._limits.early_object_bytes:
            self._seal(current, "bytes")
        return place

    def is_stored(self, object_id: ObjectId) -> bool:
        """Whether an object in which this broker gave places is known to be stored."""
        return object_id in self._stored

    def find(self, entry: Entry) -> EarlySlice | None:
        """The bytes of an entry of this broker, while they are in memory."""
        held, early = self._held.get(entry.object_id), entry.batches
        assert isinstance(early, Early)
        found = None if held is None else held.slices.get(early.start)
        return None if found is None else EarlySlice(early.start, memoryview(found))

    async def leave(self) -> None:
        """Store what is in memory, and return when its pages are gone. Cancelled: they stay, and nothing is lost."""
        if self._open is not None:
            self._seal(self._open, "drain")
        while self._undeleted and not self._is_stopped:
            await asyncio.wait(self._undeleted)

    def stop(self) -> None:
        """Store and delete nothing any more: pages stay where they are."""
        self._is_stopped = True
        if self._open is not None and self._open.timer is not None:
            self._open.timer.cancel()

    def _on_age(self, opened: EarlyObject) -> None:
        """While another waits for the object store it goes on giving places: the number of those that wait is bounded by their bytes."""
        if self._sealed:
            opened.timer = asyncio.get_running_loop().call_later(self._limits.early_age_s, self._on_age, opened)
        else:
            self._seal(opened, "time")

    def _seal(self, sealed: EarlyObject, trigger: str) -> None:
        """It gives no place any more. Its commits that are under way have their bytes in it."""
        assert sealed is self._open, "sealed once"
        self._open = None
        assert sealed.timer is not None
        sealed.timer.cancel()
        self._sealed.add(sealed.object_id)
        if self._is_stopped or self._nursery.is_left:
            return
        task = self._nursery.spawn(self._store(sealed, trigger), name="store-early")
        self._undeleted.add(task)
        task.add_done_callback(self._undeleted.discard)

    async def _store(self, sealed: EarlyObject, trigger: str) -> None:
        CAUSE.set("early")
        object_id, key = sealed.object_id, object_key(sealed.object_id)
        head, directory = encode_early(object_id, self._epoch.current, sealed.directory, end=sealed.size_bytes)
        parts = [head, *sealed.slices.values(), directory]
        pause_s, was_said = self._limits.early_pause_s, False
        while not self._is_stopped:
            try:
                async with self._storing:
                    await self._uploader.upload(key, parts, is_awaited=lambda: not self._is_stopped)
                break
            except StorageError as error:
                # Its pages have its bytes: they are read, and the next try is as good as this one.
                waited_s = self._clock.monotonic_s() - sealed.began_s
                if waited_s >= LATE_AFTER_S and not was_said:
                    was_said = True
                    _log.warning(
                        "early_object_not_stored",
                        object=key,
                        cause=str(error),
                        waited_s=round(waited_s),
                        effect="what was acknowledged lies in the metadata store meanwhile, and is read there",
                        fix="bring the object store back: it is tried until it answers",
                    )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._limits.early_pause_s_max)
        else:
            return
        del self._held[object_id]
        self._sealed.discard(object_id)
        self._held_bytes -= sealed.size_bytes - HEAD_BYTES + SLICE_COST_BYTES * len(sealed.slices)
        self._undeleted_bytes += sealed.size_bytes
        # Its bytes go now: what follows needs the places of its pages alone.
        pages, undeleted_bytes = sealed.pages, sealed.size_bytes
        parts.clear()
        del sealed, head, directory, parts
        self._stored.put(object_id, None)
        self._objects.labels(trigger).inc()
        if was_said:
            _log.info("early_object_stored", object=key)
        # Attempts that are under way may yet put pages: from now on none carries any.
        await asyncio.sleep(self._limits.early_delete_after_s)
        try:
            async with asyncio.TaskGroup() as group:
                for shard, of_shard in pages.items():
                    group.create_task(self._delete(object_id, shard, of_shard))
        finally:
            self._undeleted_bytes -= undeleted_bytes

    async def _delete(self, object_id: ObjectId, shard: int, pages: list[_Page]) -> None:
        """Little at a time: a store that deletes much at once answers commits late. Where one fails the rest is left to the collector."""
        runs = _in_runs(pages, pages_max=self._limits.early_pages_per_delete, bytes_max=self._limits.early_bytes_per_delete)
        left = len(pages)
        async with self._deleting.setdefault(shard, asyncio.Lock()):
            for together in runs:
                first, last = together[0], together[-1]
                start = keys.early_page(object_id, first.position, first.partition_key)
                end = keys.early_page(object_id, last.position + 1, first.partition_key).path
                if self._is_stopped or not await self._delete_range(DeleteRange(start, end)):
                    break
                self._pages -= len(together)
                left -= len(together)
                if self._undeleted_bytes <= 2 * self._limits.early_object_bytes:
                    await asyncio.sleep(self._limits.early_delete_pause_s)
        self._pages -= left

    async def _delete_range(self, range_: DeleteRange) -> bool:
        for _ in range(self._limits.early_delete_tries):
            try:
                async with asyncio.timeout(self._limits.commit_write_timeout_s):
                    if isinstance(await self._metadata.write([range_]), Applied):
                        return True
            except TimeoutError:
                pass  # as without an answer: it is asked again
            await asyncio.sleep(self._limits.early_pause_s)
        _log.warning(
            "early_pages_not_deleted",
            key=range_.start.path,
            tries=self._limits.early_delete_tries,
            effect="they and those behind them stay in the metadata store until a collector deletes them",
        )
        return False


def _in_runs(pages: list[_Page], *, pages_max: int, bytes_max: int) -> Iterator[list[_Page]]:
    run: list[_Page] = []
    run_bytes = 0
    for page in pages:
        if run and (len(run) >= pages_max or run_bytes + page.size_bytes > bytes_max):
            yield run
            run, run_bytes = [], 0
        run.append(page)
        run_bytes += page.size_bytes
    if run:
        yield run
