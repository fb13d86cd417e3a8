"""What a compactor counts and says: a metric for each fact, a log line for each change of it."""

from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from compactor.collector import CollectionReport, UploadsReport
from compactor.compaction import CompactionResult, RoundReport
from compactor.discovery import Looks
from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.purge import PurgeResult
from runtime.clock import Clock
from runtime.telemetry import Metric, Telemetry
from storage.catalog.collections import WentBack
from storage.errors import Corrupt, IncompatibleFormat, NotFound, StorageError
from storage.metadata.version_watch import FIX as WENT_BACK_FIX
from storage.metadata.version_watch import WENT_BACK
from storage.vocabulary import PartitionId

COMPACTIONS: Final = Metric("forebay_compactor_runs_total", "Compactions of one partition, by how they ended", ("outcome",))
RECOVERIES: Final = Metric("forebay_compactor_recoveries_total", "Compactions that another had begun and this one finished")
CYCLES: Final = Metric(
    "forebay_compactor_cycles_total", "Looks at all partitions of this compactor, by whether the stores answered", ("ended",)
)
BYTES: Final = Metric(
    "forebay_compactor_bytes_total", "Bytes of WAL objects that were read, and of segments that were written", ("direction",)
)
GETS: Final = Metric("forebay_compactor_gets_total", "GETs of WAL objects")
ENTRIES: Final = Metric("forebay_compactor_entries_total", "Entries that became segments")
STAGE_SECONDS: Final = Metric(
    "forebay_compactor_stage_seconds",
    "How long a round of compactions planned, fetched and wrote",
    ("stage",),
    (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0),
)
REMOVED_OFFSETS: Final = Metric("forebay_retention_offsets_total", "Offsets that went by retention.ms and retention.bytes")
REMOVED_KEYS: Final = Metric(
    "forebay_retention_keys_total", "Keys of entries and segments that were removed because all they hold was deleted"
)
MERGES: Final = Metric("forebay_compactor_merges_total", "Segments that were made of several small ones of a quiet partition")
COLLECTED: Final = Metric(
    "forebay_gc_objects_total", "Objects that were looked at: deleted, live, or unsure because something could not be read", ("outcome",)
)
COLLECTED_BYTES: Final = Metric("forebay_gc_bytes_total", "Bytes of the objects that were deleted")
COLLECTED_PAGES: Final = Metric(
    "forebay_gc_early_pages_total",
    "Early pages that were looked at, of objects old enough: deleted, live, or unsure because something could not be read",
    ("outcome",),
)
MISSING: Final = Metric(
    "forebay_gc_missing_objects",
    "Objects that live entries name and that are not in the object store: while there are any nothing is deleted",
    aggregation="max",
)
UPLOADS: Final = Metric(
    "forebay_gc_uploads_total",
    "Unfinished multipart uploads that were looked at: aborted, or kept because they are young, not ours, or the store refused it",
    ("outcome",),
)
PURGED: Final = Metric(
    "forebay_purge_removed_total", "What deleted topics had left and was removed: keys, and objects of segments", ("what",)
)
PARTITIONS: Final = Metric("forebay_compactor_partitions", "Partitions that this compactor looks after", aggregation="sum")
FAILED: Final = Metric(
    "forebay_compactor_failed_partitions", "Partitions that could not be looked after in the last cycle", aggregation="sum"
)
WAITING_BYTES: Final = Metric(
    "forebay_compactor_waiting_bytes", "Record bytes that are in no segment yet, a segment's worth per partition at most", aggregation="sum"
)
WAITING_SECONDS: Final = Metric(
    "forebay_compactor_waiting_seconds", "Age of the oldest record that is in no segment yet", aggregation="max"
)
SEGMENT_AGE_SECONDS: Final = Metric(
    "forebay_compactor_segment_age_seconds", "Age at which a record is due to go into a segment: compactor.segment_age", aggregation="max"
)
SUCCESS_AGE_SECONDS: Final = Metric(
    "forebay_compactor_success_age_seconds", "Time since the last cycle in which the stores answered", aggregation="max"
)

SAID_AGAIN_S: Final = 600.0
"""A failure that goes on is said again after this long."""

_log = structlog.get_logger("compactor")


@dataclass(slots=True)
class CycleReport:
    """What one cycle did. `merges` made one each of `merged_segments` segments in all, `trimmed` partitions lost `removed_offsets` to
    retention. `failed`: partitions that could not be looked after, and why. `blocked`: why nothing was compacted, or empty.
    """

    partitions: int = 0
    segments: int = 0
    entries: int = 0
    gets: int = 0
    objects: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    merges: int = 0
    merged_segments: int = 0
    trimmed: int = 0
    removed_offsets: int = 0
    removed_keys: int = 0
    collection: CollectionReport = field(default_factory=CollectionReport)
    purge: PurgeResult | None = None
    took_s: float = 0.0
    blocked: str = ""
    went_back: WentBack | None = None
    failed: dict[PartitionId, StorageError] = field(default_factory=dict)

    def take(self, done: RoundReport) -> None:
        self.gets += done.gets
        self.objects += done.objects
        self.read_bytes += done.got_bytes
        for ended in done.ended.values():
            if isinstance(ended, CompactionResult) and ended.segment is not None and not ended.recovered:
                self.segments += 1
                self.entries += ended.entries
                self.written_bytes += ended.segment.size_bytes


class Measures:
    """Counts for one process."""

    def __init__(self, telemetry: Telemetry, clock: Clock, *, limits: CompactorLimits = DEFAULT_LIMITS) -> None:
        self._clock = clock
        self._failures_said_max = limits.failures_said_max
        self._compactions = telemetry.counter(COMPACTIONS)
        self._recoveries = telemetry.counter(RECOVERIES)
        self._cycles = telemetry.counter(CYCLES)
        self._bytes = telemetry.counter(BYTES)
        self._gets = telemetry.counter(GETS)
        self._entries = telemetry.counter(ENTRIES)
        self._stages = telemetry.histogram(STAGE_SECONDS)
        self._removed_offsets = telemetry.counter(REMOVED_OFFSETS)
        self._removed_keys = telemetry.counter(REMOVED_KEYS)
        self._merges = telemetry.counter(MERGES)
        self._collected = telemetry.counter(COLLECTED)
        self._collected_bytes = telemetry.counter(COLLECTED_BYTES)
        self._collected_pages = telemetry.counter(COLLECTED_PAGES)
        self._missing = telemetry.gauge(MISSING)
        self._went_back = telemetry.gauge(WENT_BACK)
        self._uploads = telemetry.counter(UPLOADS)
        self._purged = telemetry.counter(PURGED)
        self._partitions = telemetry.gauge(PARTITIONS)
        self._failed = telemetry.gauge(FAILED)
        self._waiting_bytes = telemetry.gauge(WAITING_BYTES)
        self._oldest_ms: int | None = None
        telemetry.gauge(WAITING_SECONDS).set_function(self._waiting_s)
        self._began_s = self._progressed_s = clock.monotonic_s()
        self.succeeded_at_s: float | None = None
        telemetry.gauge(SUCCESS_AGE_SECONDS).set_function(self.success_age_s)
        self._said_s: dict[object, float] = {}
        self._blocked = ""
        self._failing = 0
        self._uploads_fail = False

    def success_age_s(self) -> float:
        """Seconds since the stores answered last, or since the start."""
        return self._clock.monotonic_s() - (self._began_s if self.succeeded_at_s is None else self.succeeded_at_s)

    def standstill_s(self) -> float:
        """Seconds since the stores answered last, or a part of a cycle ended that is under way."""
        return min(self.success_age_s(), self._clock.monotonic_s() - self._progressed_s)

    def note_merge(self) -> None:
        self._progressed_s = self._clock.monotonic_s()

    def note_round(self, done: RoundReport) -> None:
        self._progressed_s = self._clock.monotonic_s()
        for stage, took_s in done.stage_s.items():
            self._stages.labels(stage).observe(took_s)
        self._gets.inc(done.gets)
        self._bytes.labels("read").inc(done.got_bytes)
        tally: Tally[str] = Tally()
        for ended in done.ended.values():
            if isinstance(ended, StorageError):
                tally[outcome_of(ended)] += 1
                continue
            tally[ended.ended.value] += 1
            self._recoveries.inc(ended.recovered)
            if ended.segment is not None and not ended.recovered:
                self._entries.inc(ended.entries)
                self._bytes.labels("written").inc(ended.segment.size_bytes)
        for outcome, count in tally.items():
            self._compactions.labels(outcome).inc(count)

    def note_cycle(self, report: CycleReport, looks: Looks) -> None:
        """The stores answered."""
        self.succeeded_at_s = self._clock.monotonic_s()
        self._cycles.labels("done").inc()
        self._partitions.set(report.partitions)
        self._failed.set(len(report.failed))
        self._waiting_bytes.set(looks.waiting_bytes)
        self._oldest_ms = looks.oldest_ms
        if self._failing:
            _log.info("compactor_recovered", failed_cycles=self._failing)
            self._failing = 0
        if report.blocked and report.blocked != self._blocked:
            if report.went_back is None:
                _log.warning("nothing_compacted", why=report.blocked)
            else:
                _log.error("metadata_went_back", evidence=report.went_back.evidence, effect=WENT_BACK_EFFECT, fix=WENT_BACK_FIX)
        self._blocked = report.blocked
        self._went_back.set(report.went_back is not None)
        for partition, error in report.failed.items():
            self._say(
                (partition, type(error)),
                "partition_not_compacted",
                partition=str(partition),
                outcome=outcome_of(error),
                cause=str(error),
                **({"fix": DAMAGE_FIX} if is_damage(error) else {}),
            )
        self._removed_offsets.inc(report.removed_offsets)
        self._removed_keys.inc(report.removed_keys)
        if report.trimmed:
            _log.info("retention", partitions=report.trimmed, offsets=report.removed_offsets, keys=report.removed_keys)
        self._merges.inc(report.merges)
        if report.merges:
            _log.info("merged", merges=report.merges, segments=report.merged_segments)
        self._note_collection(report.collection)
        if report.purge is not None:
            self._note_purge(report.purge)
        if report.segments:
            _log.info(
                "compacted",
                segments=report.segments,
                entries=report.entries,
                objects=report.objects,
                gets=report.gets,
                read_bytes=report.read_bytes,
                written_bytes=report.written_bytes,
                seconds=round(report.took_s, 3),
            )

    def _note_collection(self, done: CollectionReport) -> None:
        for outcome, count in (("deleted", done.deleted), ("live", done.live), ("unsure", done.unsure)):
            self._collected.labels(outcome).inc(count)
        self._collected_bytes.inc(done.deleted_bytes)
        for about, error in done.failed.items():
            self._say(("objects", about), "objects_kept", of=about, outcome=outcome_of(error), cause=str(error))
        pages = done.pages
        for outcome, count in (("deleted", pages.deleted), ("live", pages.live), ("unsure", pages.unsure)):
            self._collected_pages.labels(outcome).inc(count)
        for about, error in pages.failed.items():
            self._say(("pages", about), "early_pages_kept", of=about, outcome=outcome_of(error), cause=str(error), fix=PAGES_FIX)
        if pages.deleted:
            _log.info("early_pages_deleted", pages=pages.deleted, bytes=pages.deleted_bytes, live=pages.live, unsure=pages.unsure)
        if done.missing is not None:
            self._missing.set(len(done.missing))
        for one in done.missing or ():
            partition = f"{one.topic_id}/{one.partition}"
            self._say_as(_log.error, ("missing", one.key), "object_missing", key=one.key, partition=partition, fix=MISSING_FIX)
        if done.deleted:
            _log.info("objects_deleted", objects=done.deleted, bytes=done.deleted_bytes, live=done.live, unsure=done.unsure, kept=done.kept)
        if done.uploads is not None:
            self._note_uploads(done.uploads)

    def _note_uploads(self, done: UploadsReport) -> None:
        self._uploads.labels("aborted").inc(done.aborted)
        self._uploads.labels("kept").inc(done.looked_at - done.aborted)
        if done.aborted:
            _log.info("uploads_aborted", uploads=done.aborted, looked_at=done.looked_at)
        if done.failed is not None and not self._uploads_fail:
            # Once until it succeeds: a permission may be missing for years.
            _log.warning("uploads_not_aborted", cause=str(done.failed))
        self._uploads_fail = done.failed is not None

    def _note_purge(self, done: PurgeResult) -> None:
        self._purged.labels("keys").inc(done.keys)
        self._purged.labels("objects").inc(done.objects)
        for about, error in done.failed.items():
            self._say(("purge", about), "topic_not_purged", of=about, outcome=outcome_of(error), cause=str(error))
        if done.keys or done.objects:
            _log.info("topics_purged", keys=done.keys, objects=done.objects, bytes=done.object_bytes)

    def note_failed_cycle(self, error: StorageError) -> None:
        """The stores did not answer."""
        self._cycles.labels("failed").inc()
        self._failing += 1
        self._say(type(error), "compactor_failing", cause=str(error), failed_cycles=self._failing)

    def note_unreadable(self, path: str, error: StorageError) -> None:
        self._say(path, "topic_not_readable", key=path, cause=str(error))

    def note_unknown_brokers(self, error: StorageError) -> None:
        """Nobody could say which brokers are gone."""
        self._say("brokers", "dead_brokers_not_known", cause=str(error))

    def _say(self, about: object, event: str, **facts: object) -> None:
        self._say_as(_log.warning, about, event, **facts)

    def _say_as(self, log: Callable[..., object], about: object, event: str, **facts: object) -> None:
        now_s = self._clock.monotonic_s()
        said_s = self._said_s.get(about)
        if said_s is not None and now_s - said_s < SAID_AGAIN_S:
            return
        if len(self._said_s) >= self._failures_said_max:
            self._said_s = {key: at_s for key, at_s in self._said_s.items() if now_s - at_s < SAID_AGAIN_S}
        if said_s is not None or len(self._said_s) < self._failures_said_max:
            self._said_s[about] = now_s
            log(event, **facts)

    def _waiting_s(self) -> float:
        return 0.0 if self._oldest_ms is None else max(0.0, (self._clock.now_ms() - self._oldest_ms) / 1_000)


MISSING_FIX: Final = (
    "nothing is deleted anywhere until it is back: bring it back from a copy of the bucket, or, if it is lost for good, "
    "forebay storage accept-lost KEY"
)
PAGES_FIX: Final = (
    "they stay until they can be judged, which harms nobody: a record that Forebay has not put below llog/early may be removed, "
    "and what is damaged is named by: forebay storage verify"
)
WENT_BACK_EFFECT: Final = "nothing is compacted, and nothing is deleted"
DAMAGE_FIX: Final = (
    "nothing of this partition is compacted or deleted until the object is back: forebay storage verify names all there is to repair"
)


def is_damage(error: StorageError) -> bool:
    """Whether trying again is of no use."""
    return isinstance(error, Corrupt | IncompatibleFormat | NotFound)


def outcome_of(error: StorageError) -> str:
    """As a label."""
    return "damaged" if is_damage(error) else "unavailable"
