"""What one broker remembers about partitions, and which of them it forgets to make room. All of it can be lost.

A `PartitionLog` has parts, each with one writer: the manifest as last seen (`CachedManifest`), the commits on their way (`CommitQueue`),
the tail, which holds what this broker committed last (`TailCache`), and the producers (storage/log/producers.py).
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from runtime.frames import Account, Frame
from runtime.telemetry import Metric, Telemetry
from storage.errors import StorageError
from storage.formats.manifest import LogState, Manifest, manifest_bytes
from storage.log.batch import Batch
from storage.log.decide import UnknownAttempts
from storage.log.early_pages import EarlyPlace
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.producer_pages import Pages
from storage.log.producers import AllWaitingProducers, LostBatches, PermittedStart, ProducerMemory
from storage.log.scan import BatchRun
from storage.log.traffic import TopicTraffic, Traffic
from storage.metadata.keys import PartitionKeys
from storage.objects.shared_blocks import CommittedObject
from storage.recordbatch import restamp
from storage.vocabulary import ObjectId, PartitionId

NEVER_S: Final = float("-inf")
AGE_S_MAX: Final = 1.0
"""How old the last question about a manifest may be where an answer below the known end rests on it (promise 5)."""
TAIL_BYTES: Final = Metric(
    "forebay_tail_cache_bytes",
    "Bytes of this broker's own last commits, with the whole of the requests that they came in",
    aggregation="sum",
)

FRAME_SHARE_MIN: Final = 16
"""A batch that is less than a sixteenth of its frame is copied: the rest of the frame may have been refused."""
DROPPED_KEPT_MAX: Final = 64
"""Slots of dropped runs that may stand before a list is shortened: keeps dropping cheap on average."""
RUN_OVERHEAD_BYTES: Final = 512
"""Counted on top of a run's bytes for the objects that describe it."""
LOSSES_KEPT_MAX: Final = 1_000
"""A batch that arrived before as many losses is refused: nobody knows whether one of them was ahead of it."""

Sources = frozenset[int]
"""Connections, by identity."""
LOG_BYTES: Final = 2_048
"""A log that knows nothing yet, with the dictionary entries that lead to it."""
PAGE_NAME_BYTES: Final = 100
COUNTED_EVERY: Final = 4
"""Entries that a record with few producers gains before its memory is counted again: up to three entries of FEW spans go uncounted."""
FEW: Final = 4
FORGOTTEN_BYTES: Final = 320
"""The version that outlives a forgotten log."""
LOOKED_AT_MAX: Final = 8
"""Logs examined, in search of one to forget, when a caller asks for another."""
GONE_LOOKED_FOR_EVERY: Final = 1_000
"""Partitions created between two searches for deleted ones."""

REMEMBERED: Final = Metric(
    "forebay_partition_cache_entries",
    "Partitions that this broker remembers",
    aggregation="sum",
    former_name="forebay_partitions_remembered",
)
REMEMBERED_BYTES: Final = Metric(
    "forebay_partition_cache_bytes",
    "Estimated memory of what is remembered of partitions; above 256 MiB those not in use are forgotten",
    aggregation="sum",
    former_name="forebay_partitions_remembered_bytes",
)
FORGOTTEN: Final = Metric("forebay_partitions_forgotten_total", "Partitions that were forgotten to make room, to be read again")
WAITING: Final = Metric(
    "forebay_producers_waiting",
    "Producers that a partition does not know and that wait for what comes before their batches",
    aggregation="sum",
)


class CachedManifest:
    """Written by its methods alone (tests/architecture/test_one_writer.py); read where each call would cost, so it has plain attributes.

    `manifest` is None until read, or after the partition was seen gone. `version` outlives it: it is the newest that was ever seen.
    `broken` says why the record, though there, could not be read (`Corrupt`, `IncompatibleFormat`).
    `foreign_version` is the version of the last record that was read rather than committed here.
    `asked_s` is when the last read or commit began that found `manifest` to be the newest record, by the clock of the loop.
    `hinted_version` is the newest version that a hint named. `_hinted_s` is when the last hint came that named none, and that no later
    read has explained.
    """

    __slots__ = ("_hinted_s", "_was_absent", "asked_s", "broken", "foreign_version", "hinted_version", "manifest", "version")

    def __init__(self, version: int = -1) -> None:
        self.manifest: Manifest | None = None
        self.version = version
        self.broken: StorageError | None = None
        self.foreign_version = -1
        self.asked_s = NEVER_S
        self.hinted_version = -1
        self._hinted_s: float | None = None
        self._was_absent = False

    @property
    def is_gone(self) -> bool:
        """The partition was there, as far as anybody asked, and is not any more."""
        manifest = self.manifest
        return manifest.log_state is LogState.DELETED if manifest is not None else self._was_absent

    @property
    def is_behind(self) -> bool:
        """Nothing as new as what was known before the log was forgotten has been read yet."""
        return self.manifest is None and self.version >= 0 and not self._was_absent

    @property
    def high_watermark(self) -> int:
        """As last seen; -1 if never."""
        return -1 if self.manifest is None else self.manifest.sequence_counter

    @property
    def is_hinted(self) -> bool:
        """A hint tells of a change that is not known: another broker's, or one of this broker whose answer is on its way."""
        return self.hinted_version > self.version or self._hinted_s is not None

    def may_be_old(self, now_s: float) -> bool:
        """Whether others may have changed the record, and been answered, more than AGE_S_MAX ago, or are said to have changed it."""
        return now_s - self.asked_s > AGE_S_MAX or self.is_hinted

    def advance(self, manifest: Manifest, version: int, asked_s: float = NEVER_S) -> None:
        """Take over a record that this broker has just committed, by a write that began at `asked_s`."""
        assert version > self.version, f"manifest went back: {self.version} -> {version}"
        self.manifest, self.version = manifest, version
        self.confirm(version, asked_s)

    def is_news(self, version: int) -> bool:
        """Whether `observe` would take over a record of this version: most reads find what is known, and need not decode it.

        One that is older than what is known is ignored, so that reads never go back (promise 5). The same version is news after
        `observe_absent`: a deposed leader of the shard may have answered that, from before the creation.
        """
        return version > self.version or (version == self.version and self.manifest is None)

    def confirm(self, version: int, asked_s: float) -> None:
        """A read or commit that began at `asked_s` found, or made, a record of this version. An older one than is known says nothing: a
        deposed leader gave it.
        """
        if version == self.version and self.manifest is not None:
            self.asked_s = max(self.asked_s, asked_s)
            if self._hinted_s is not None and asked_s > self._hinted_s:
                self._hinted_s = None

    def observe(self, manifest: Manifest, version: int, asked_s: float = NEVER_S) -> bool:
        """Take over a record that a read found which began at `asked_s`, if it is news, and say whether it was."""
        is_news = self.is_news(version)
        if is_news:
            self.manifest, self.version, self.broken = manifest, version, None
            self.foreign_version = version
        self.confirm(version, asked_s)
        return is_news

    def observe_broken(self, error: StorageError) -> None:
        """The record is there and cannot be read."""
        self.broken = error

    def observe_absent(self) -> bool:
        """The record does not exist, or did not when a deposed leader of its shard last heard. True if one was known."""
        self._was_absent = True
        was_known, self.manifest = self.manifest is not None, None
        return was_known

    def note_hint(self, version: int | None, now_s: float) -> None:
        """The manifest is said to have changed to that version; None: to one that the hint does not name, or to none at all."""
        if version is None:
            self._hinted_s = now_s
        else:
            self.hinted_version = max(self.hinted_version, version)


class Tail:
    """The cached runs of one partition, oldest first; not necessarily contiguous, as other brokers commit in between."""

    __slots__ = ("_bases", "_head", "_runs")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._runs: list[BatchRun | None] = []
        self._head = 0

    def find(self, offset: int) -> BatchRun | None:
        """The run that holds `offset`."""
        index = bisect_right(self._bases, offset, self._head) - 1
        run = self._runs[index] if index >= self._head else None
        return run if run is not None and offset <= run.last else None

    def append(self, run: BatchRun) -> None:
        self._bases.append(run.base)
        self._runs.append(run)

    def drop_oldest(self) -> None:
        self._runs[self._head] = None
        self._head += 1
        if self._head == len(self._runs) or (self._head >= DROPPED_KEPT_MAX and self._head * 2 >= len(self._runs)):
            del self._bases[: self._head], self._runs[: self._head]
            self._head = 0


class TailCache(Account):
    """Batches that this broker committed last, bytes ready to be sent (I8: filled only after the CAS). Readers wait here for more.

    One FIFO over all partitions, bounded by bytes. A run pins the frame it came in, so small batches are joined into a buffer of their own,
    and a batch that is a small part of its frame gets one; others are kept where the socket put them. The whole of a frame counts once,
    however many parts of it are kept. A frame that is dropped while others hold it counts with `readers`.
    """

    def __init__(self, *, bytes_max: int, telemetry: Telemetry, readers: Account, limits: LogLimits = DEFAULT_LIMITS) -> None:
        super().__init__()
        self._join_below_bytes = limits.join_below_bytes
        self._bytes_max = bytes_max
        self._readers = readers
        self._order: deque[tuple[Tail, int, Frame | None]] = deque()
        telemetry.gauge(TAIL_BYTES).set_function(lambda: self.held_bytes)

    @property
    def size_bytes(self) -> int:
        return self.held_bytes

    def add(self, tail: Tail, appended: Sequence[tuple[Batch, int]]) -> None:
        """Take the batches of one commit with their base offsets, stamp them, and make room."""
        if not appended:
            return
        for run in _runs_of(appended, self._join_below_bytes):
            frame = run.views[0].obj
            cost = RUN_OVERHEAD_BYTES
            if isinstance(frame, Frame):
                self._take_over(frame)
                self._order.append((tail, cost, frame))
            else:
                cost += run.size_bytes
                self._order.append((tail, cost, None))
            tail.append(run)
            self.held_bytes += cost
        while self.held_bytes > self._bytes_max:
            self._drop_oldest()

    def _take_over(self, frame: Frame) -> None:
        if frame.account is self:
            frame.runs += 1
        else:
            frame.runs = 1
            frame.move_to(self)

    def _drop_oldest(self) -> None:
        oldest, cost, frame = self._order.popleft()
        self.held_bytes -= cost
        if frame is not None:
            frame.runs -= 1
            if not frame.runs:
                # It dies here, unless somebody holds it.
                frame.move_to(self._readers)
        oldest.drop_oldest()


def _runs_of(appended: Sequence[tuple[Batch, int]], join_below_bytes: int) -> list[BatchRun]:
    if len(appended) > 1 and sum([batch.size_bytes for batch, _ in appended]) < join_below_bytes * len(appended):
        joined = bytearray().join([batch.view for batch, _ in appended])
        positions = []
        position = 0
        for batch, base_offset in appended:
            restamp(joined, position, base_offset)
            positions.append(position)
            position += batch.size_bytes
        last = base_offset + batch.record_count - 1
        view = memoryview(joined).toreadonly()
        return [BatchRun(appended[0][1], last, (view,), tuple([base for _, base in appended]), tuple(positions))]
    runs = []
    for batch, base_offset in appended:
        kept = batch.view
        if batch.size_bytes < join_below_bytes or batch.size_bytes * FRAME_SHARE_MIN < memoryview(kept.obj).nbytes:
            kept = memoryview(bytearray(kept))
        restamp(kept, 0, base_offset)
        runs.append(BatchRun(base_offset, base_offset + batch.record_count - 1, (kept.toreadonly(),), (base_offset,), (0,)))
    return runs


class Readers:
    """`tail` is filled and emptied by the `TailCache` of all partitions. `wakers` are entered and removed by who waits
    (broker/delayed_fetch.py), woken in the order in which they came.
    """

    __slots__ = ("tail", "wakers")

    def __init__(self) -> None:
        self.tail = Tail()
        self.wakers: dict[Callable[[], None], None] = {}

    def wake(self) -> None:
        for waker in tuple(self.wakers):
            waker()


class BrokerEpoch:
    """`current` is what new commits begin under.

    `live` reads which epochs are registered, as of a moment after it is called: one that was read in a manifest before, and is not
    among them, is gone forever. It raises `Unavailable` when that cannot be shown.
    """

    def __init__(self, epoch: int, *, registered_epoch: Callable[[], int | None], live: Callable[[], Awaitable[frozenset[int]]]) -> None:
        """`registered_epoch`: the epoch whose registration certainly exists; None if none does."""
        self.current = epoch
        self.registered_epoch = registered_epoch
        self.live = live
        self._commit_seq = 0

    def is_registered(self, epoch: int) -> bool:
        """True if the registration of `epoch` certainly exists, so that nobody may have dropped what that epoch wrote into `writers`."""
        return self.registered_epoch() == epoch

    async def gone(self, epochs: Collection[int]) -> frozenset[int]:
        """The members of `epochs`, read before the call, whose registration is certainly over; none while that cannot be shown."""
        try:
            live = await self.live()
        except StorageError:
            return frozenset()
        return frozenset(epochs) - live - {self.current}

    def next_commit_seq(self) -> int:
        """A number that no other commit of this process has, in whatever partition and under whatever epoch."""
        self._commit_seq += 1
        return self._commit_seq

    def renew(self, epoch: int) -> None:
        """The broker registered again. Commits that were begun under the old epoch keep it."""
        assert epoch != self.current, "an epoch is never handed out twice"
        self.current = epoch


class CommitQueue:
    """One partition's commits, in the order in which they were sealed. Written by the functions below, but for `gathered`.

    `is_busy`: the first of `commits` is open. `committed_epoch` is the last broker epoch under which one of them was applied.
    `gathered` are the batches that wait to be sealed: written by storage/log/writer.py. `conflict_share` of the last commits, the newest
    counting most, lost their first CAS to another broker. `gathers_until_s`: until when batches are gathered because the budget for early
    ones had no room, and `gathers_s`, for how long (storage/log/flush.py). `full_s`: when the manifest last had no room for one of them.
    """

    __slots__ = ("commits", "committed_epoch", "conflict_share", "full_s", "gathered", "gathers_s", "gathers_until_s", "is_busy")

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.is_busy = False
        self.committed_epoch = -1
        self.gathered: list[Batch] = []
        self.conflict_share = 0.0
        self.gathers_s = 0.0
        self.gathers_until_s = float("-inf")
        self.full_s = float("-inf")

    @property
    def is_empty(self) -> bool:
        return not (self.gathered or self.commits or self.is_busy)


class InFlight:
    """The commits of this broker that have no outcome yet, oldest first, and the bytes of their batches."""

    def __init__(self) -> None:
        self._commits: dict[Commit, None] = {}
        self.size_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, commit: "Commit") -> None:
        if not self._commits:
            self._idle.clear()
        self._commits[commit] = None
        self.size_bytes += commit.size_bytes

    def grow(self, commit: "Commit", size_bytes: int) -> None:
        """`commit` has more batches."""
        commit.size_bytes += size_bytes
        self.size_bytes += size_bytes

    def split(self, commit: "Commit", rest: "Commit") -> None:
        """Some of the batches of `commit` went to `rest`."""
        commit.size_bytes -= rest.size_bytes
        self._commits[rest] = None

    def remove(self, commit: "Commit") -> None:
        del self._commits[commit]
        self.size_bytes -= commit.size_bytes
        if not self._commits:
            self._idle.set()

    def __contains__(self, commit: "Commit") -> bool:
        return commit in self._commits

    def __len__(self) -> int:
        return len(self._commits)

    def overdue(self, now_s: float) -> Iterator["Commit"]:
        """The commits past their deadline, except an early one, which is found once the commits sealed before it have gone."""
        for commit in tuple(self._commits):
            if commit.deadline_s > now_s:
                return
            yield commit

    async def wait_idle(self) -> None:
        await self._idle.wait()


@dataclass(slots=True, eq=False)
class Commit:
    """The slice of one flush for one partition on its way into the log.

    All attempts carry the same batches under one `commit_seq`, unless every attempt before is known to have failed. `unknown`: attempts had
    no answer, so every later read of the manifest is asked for our number first, until one shows that none can apply any more
    (storage/log/decide.py). `is_sent`: an attempt is on its way. `is_given_up`: the clients were answered; what is left is to make sure
    that no attempt can still land.
    """

    log: "PartitionLog"
    batches: list[Batch]
    object_id: ObjectId
    deadline_s: float
    in_flight: InFlight
    size_bytes: int = 0
    """What it counts in `in_flight`."""
    is_early: bool = False
    """It takes a `place` for its batches when it begins: their object is stored later."""
    place: EarlyPlace | None = None
    is_uploaded: bool = False
    epoch: int = -1
    commit_seq: int = -1
    attempt: int = 0
    is_sent: bool = False
    unknown: UnknownAttempts | None = None
    is_given_up: bool = False
    must_drain: bool = False
    cause: str = ""
    """What kept the last attempt from its outcome, in words."""
    pages: Pages = field(default_factory=dict)
    unreadable: StorageError | None = None
    """Why a page that it needs could not be read, though it was there."""
    unknown_producers: tuple[Batch, ...] = ()
    """Batches that may not be appended unless it is proved that nothing of their producers is on its way."""
    permitted_starts: Mapping[int, PermittedStart] | None = None
    """By producer, with which sequence it may begin by such a proof; None while none was looked for."""
    committing: CommittedObject | None = None
    """Its object, where others of the machine are to find it once it is applied."""

    @property
    def has_begun(self) -> bool:
        return self.commit_seq >= 0

    @property
    def is_awaited(self) -> bool:
        """Somebody has no answer yet."""
        return any(not batch.is_settled for batch in self.batches)

    @property
    def is_open(self) -> bool:
        queue = self.log.commit_queue
        return queue.is_busy and queue.commits[0] is self

    def begin(self, epoch: BrokerEpoch) -> None:
        """Take a number, once. The number stays, whatever epoch the broker has later."""
        if not self.has_begun:
            self.epoch = epoch.current
            self.commit_seq = epoch.next_commit_seq()
        self.attempt += 1

    def settle_all(self, error: StorageError, now_s: float) -> Sources:
        """Answer those that wait. Returns whose batches these were: what they sent behind them is for `refuse_behind`.

        Not those that were answered before: what is behind them by now is, or comes after, their retry.
        """
        waiting = [batch for batch in self.batches if not batch.is_settled]
        for batch in waiting:
            if batch.has_sequence:
                self.log.producers.lose(batch.producer_id, batch.first_seq, now_s)
            batch.settle(error)
        return frozenset([id(batch.append.source) for batch in waiting])


class Losses:
    """The losses of this broker, numbered. A batch may have arrived behind a lost one without being in its commit queue: its topic was
    looked up, or it was read or recompressed in a thread. `refuse_behind` does not find it there; by the number that it arrived under it is
    known.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last: deque[tuple[int, PartitionId, Sources]] = deque(maxlen=LOSSES_KEPT_MAX)

    def note(self, partition: PartitionId, sources: Sources) -> None:
        """Batches of these sources were lost."""
        if sources:
            self.count += 1
            self._last.append((self.count, partition, sources))

    def are_ahead(self, arrived: int, partition: PartitionId, source: object) -> bool:
        """Whether a batch of that source and partition was lost since `arrived`, which is a `count`. True as well where too many were."""
        if arrived == self.count:
            return False
        if self._last[0][0] > arrived + 1:
            return True
        return any(number > arrived and lost == partition and id(source) in sources for number, lost, sources in self._last)


class Remembered:
    """State that the logs of one broker share. `heard` is called with a forgotten log that has just read a newer record."""

    __slots__ = ("heard", "lost", "size_bytes", "waiting")

    def __init__(self, heard: "Callable[[PartitionLog], None] | None" = None, *, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self.heard = heard or (lambda _log: None)
        self.size_bytes = 0
        self.lost = LostBatches(limits=limits)
        self.waiting = AllWaitingProducers(limits=limits)


class PartitionLog:
    """One partition in one broker: four independent parts, each with one writer, and the steps that concern all of them.

    `seen` is the manifest as last seen, `commit_queue` the order of commits, `readers` the tail and the wake-ups, `producers` the producer
    memory beside the manifest, `traffic` the figures of its topic. Records are taken over here, since readers wake and memory is
    counted when `seen` changes.
    `was_used` is set by each use and cleared by the search for logs to forget. `is_forgotten`: a caller that asks for the partition now
    gets another log.
    """

    __slots__ = (
        "__weakref__",
        "_counted_bytes",
        "_remembered",
        "commit_queue",
        "is_forgotten",
        "keys",
        "partition",
        "producers",
        "readers",
        "seen",
        "traffic",
        "was_used",
    )

    def __init__(
        self, partition: PartitionId, *, version: int = -1, remembered: Remembered | None = None, traffic: Traffic | None = None
    ) -> None:
        self.partition = partition
        self.keys = PartitionKeys(partition)
        self.seen = CachedManifest(version)
        self.commit_queue = CommitQueue()
        self.readers = Readers()
        self.traffic = traffic or Traffic()
        self._remembered = remembered or Remembered()
        self.producers = ProducerMemory(self._remembered.lost, self._remembered.waiting.of(partition))
        self._counted_bytes = 0
        self.is_forgotten = False
        self.was_used = False
        self._count()

    @property
    def is_idle(self) -> bool:
        """It may be forgotten: none of its batches is gathered, queued or undecided, and no reader waits."""
        return self.commit_queue.is_empty and not self.readers.wakers

    def advance(self, manifest: Manifest, version: int, asked_s: float = NEVER_S) -> None:
        """Take over the record that this broker has just committed, by a write that began at `asked_s` (as in `CachedManifest`)."""
        self.seen.advance(manifest, version, asked_s)
        pending = manifest.pending
        # Counting takes longer than the rest of this method, and a small record grows little from one commit to the next.
        if len(pending) % COUNTED_EVERY == 1 or len(manifest.producers) > FEW or (pending and len(pending[-1].spans) > FEW):
            self._count()
        self.readers.wake()

    def observe(self, manifest: Manifest, version: int, asked_s: float = NEVER_S) -> None:
        """Take over a record that a read found which began at `asked_s`, if it is news."""
        if not self.seen.observe(manifest, version, asked_s):
            return
        self._count()
        if self.is_forgotten:
            self._remembered.heard(self)
        self.readers.wake()

    def observe_absent(self) -> None:
        """The record does not exist, or did not when a deposed leader of its shard last heard."""
        if self.seen.observe_absent():
            self._count()
            self.readers.wake()

    def note_put_again(self, before: int, after: int | None, asked_s: float) -> None:
        """This broker put the record of version `before` once more, as it was, by a write that began at `asked_s`."""
        seen = self.seen
        if after is not None and seen.version == before and seen.manifest is not None:
            self.advance(seen.manifest, after, asked_s)

    def forget(self) -> None:
        """Stop counting its memory, even if a caller still holds it."""
        self.is_forgotten = True
        self.producers.forget_lost()
        self._remembered.size_bytes -= self._counted_bytes
        self._counted_bytes = 0

    def _count(self) -> None:
        if self.is_forgotten:
            return
        size_bytes = LOG_BYTES + manifest_bytes(self.seen.manifest) + PAGE_NAME_BYTES * len(self.producers.page_garbage)
        self._remembered.size_bytes += size_bytes - self._counted_bytes
        self._counted_bytes = size_bytes


class Partitions:
    """The partitions this broker has touched, bounded in number and in memory. Those not used lately are forgotten.

    A log with work is never forgotten: a second log of the partition would be a second commit queue (I6). Neither is one that a reader
    waits for.
    """

    def __init__(
        self,
        *,
        telemetry: Telemetry | None = None,
        traffic: TopicTraffic | None = None,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self.refused: str | None = None
        """Why nothing may be answered from what is remembered; None while it may."""
        self._traffic = traffic or TopicTraffic()
        self._kept_max = limits.partitions_kept_max
        self._bytes_max = limits.partitions_bytes_max
        self._remembered = Remembered(self._hear, limits=limits)
        self._logs: OrderedDict[PartitionId, PartitionLog] = OrderedDict()
        self._by_manifest_path: dict[str, PartitionLog] = {}
        self._created = 0
        self._forgotten_versions: OrderedDict[PartitionId, int] = OrderedDict()
        telemetry = telemetry or Telemetry()
        self._forgotten = telemetry.counter(FORGOTTEN)
        telemetry.gauge(REMEMBERED).set_function(lambda: len(self._logs))
        telemetry.gauge(WAITING).set_function(lambda: len(self._remembered.waiting))
        telemetry.gauge(REMEMBERED_BYTES).set_function(lambda: self.size_bytes)

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        return self._remembered.size_bytes + FORGOTTEN_BYTES * len(self._forgotten_versions)

    @property
    def is_crowded(self) -> bool:
        """Logs that cannot be forgotten take twice the memory meant for all: no fetch should wait for more partitions."""
        return self._remembered.size_bytes > 2 * self._bytes_max

    def get(self, partition: PartitionId) -> PartitionLog:
        if self._remembered.size_bytes > self._bytes_max:
            self._make_room()
        log = self._logs.get(partition)
        if log is not None:
            log.was_used = True
            if log.traffic.asks_again:
                log.traffic = self._traffic.of(partition.topic_id)
            return log
        self._created += 1
        if self._created % GONE_LOOKED_FOR_EVERY == 0:
            self._forget_gone()
        if len(self._logs) >= self._kept_max:
            self._make_room(1)
        version = self._forgotten_versions.pop(partition, -1)
        traffic = self._traffic.of(partition.topic_id)
        log = self._logs[partition] = PartitionLog(partition, version=version, remembered=self._remembered, traffic=traffic)
        self._by_manifest_path[log.keys.manifest.path] = log
        return log

    def by_manifest_path(self, path: str) -> PartitionLog | None:
        return self._by_manifest_path.get(path)

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(self._logs.values())

    def __len__(self) -> int:
        return len(self._logs)

    def _make_room(self, coming: int = 0) -> None:
        """Forget idle logs that were not used since the last look. One call looks at a few; the next call goes on from there."""
        for _ in range(min(LOOKED_AT_MAX, len(self._logs))):
            if len(self._logs) + coming <= self._kept_max and self._remembered.size_bytes <= self._bytes_max:
                return
            log = next(iter(self._logs.values()))
            if log.is_idle and (log.seen.is_gone or not log.was_used):
                self._forget(log)
                self._forgotten.inc()
            else:
                log.was_used = False
                self._logs.move_to_end(log.partition)

    def _forget_gone(self) -> None:
        for log in [log for log in self._logs.values() if log.seen.is_gone and log.is_idle]:
            self._forget(log)

    def _forget(self, log: PartitionLog) -> None:
        """Keep its version, so that a deposed leader cannot take back an answer. Tombstones need none: no client asks for them."""
        del self._logs[log.partition]
        del self._by_manifest_path[log.keys.manifest.path]
        log.forget()
        self._keep_version(log)

    def _hear(self, log: PartitionLog) -> None:
        """A caller that still holds a forgotten log has read a newer record through it, and may answer from that record."""
        known = self._logs.get(log.partition)
        if known is None:
            self._keep_version(log)
        elif log.seen.manifest is not None:
            known.observe(log.seen.manifest, log.seen.version, log.seen.asked_s)

    def _keep_version(self, log: PartitionLog) -> None:
        if log.seen.version < 0 or (log.seen.manifest is not None and log.seen.manifest.log_state is LogState.DELETED):
            return
        self._forgotten_versions[log.partition] = max(log.seen.version, self._forgotten_versions.get(log.partition, -1))
        while len(self._forgotten_versions) > self._kept_max:
            self._forgotten_versions.popitem(last=False)
