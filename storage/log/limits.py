"""Every bound of the log that a test or the simulation lowers, as one value that constructors take (I11)."""

from dataclasses import dataclass
from typing import Final

from storage.cache.eviction import HISTORY_SHARE_MAX
from storage.formats.segment import FOOTER_READ_BYTES
from storage.limits import (
    BLOCK_BYTES,
    EARLY_SLICE_BYTES_MAX,
    KIB,
    METADATA_VALUE_BYTES_MAX,
    MIB,
    PRODUCERS_HOT_BYTES_MAX,
    WRITE_REQUEST_BYTES_MAX,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Bounds of the log of one broker."""

    # The manifest: decide, commit
    pending_entries_max: int = 16
    manifest_bytes_max: int = 28 * KIB
    write_request_bytes_max: int = WRITE_REQUEST_BYTES_MAX
    """Bytes of one write of a commit: no more than every metadata store takes."""
    commit_write_timeout_s: float = 10.0
    unknown_producers_wait_s: float = 35.0
    """How long a producer that nobody knows must be refused before it may begin behind its first sequence: longer than any broker that is
    well goes on trying to commit what was sent before (`commit_timeout_s`, and a little)."""

    # Gathering and carrying: writer, flush
    commit_timeout_s: float = 30.0
    """From sealing on; the default request.timeout.ms of Java producers."""
    overdue_check_s: float = 1.0
    quiet_bytes_min: int = 512 * KIB
    """What is gathered when nothing has arrived for QUIET_S is worth a PUT."""
    early_commits_at_once_max: int = 32
    """Early commits that wait for others which arrive in the next turns of the loop."""
    queued_commits_max: int = 4
    """Commits of a partition up to which another begins for what the last one has no room for. What waits behind them all gathers."""

    # Uploads of WAL objects, in writer
    upload_try_timeout_s: float = 15.0
    upload_timeout_s: float = 25.0
    """Below `commit_timeout_s`. A store that takes ten seconds for everything is still written to; stores of S3 try again by themselves."""
    upload_pause_s: float = 0.1
    slow_upload_s: float = 1.0
    slow_uploads_max: int = 32
    """Beyond it a slow upload keeps its place."""

    # The tail cache, and batches that are read: partition, scan
    join_below_bytes: int = 16 * KIB
    """Mean batch size below which a copy is cheaper than an object and a socket buffer per batch."""

    # Producers: producer_pages, page_store
    producers_hot_max: int = 128
    producer_page_bytes_max: int = 48 * KIB
    """Estimated; an estimate is at least 3/4 of the bytes."""
    producer_pages_written_max: int = 12
    """Pages that one commit may touch; what needs more is committed in several."""
    producers_per_commit_max: int = 1_024
    producer_pages_cached_max: int = 128
    """Over all partitions; a full page takes about 200 KiB of memory."""
    producer_pages_timeout_s: float = 10.0
    producer_pages_sweep_every_s: float = 600.0

    # Partitions, and producers that they do not know: partition, producers
    partitions_kept_max: int = 100_000
    partitions_bytes_max: int = 256 * MIB
    """Estimated memory: enough for 30,000 to 60,000 partitions with full or half-full rings of entries, or 2,000 with the largest
    records."""
    lost_kept_max: int = 1_024
    """Producers of one partition whose batches were lost."""
    lost_of_all_kept_max: int = 32_768
    """Producers of all partitions, 400 bytes of memory each."""
    unknown_producers_max: int = 1_024
    """Per partition."""
    unknown_producers_of_all_max: int = 32_768
    """Over all partitions, 500 bytes of memory each."""

    # Fresh reads of manifests, and changes of them: fresh_reads, trim
    manifest_read_timeout_s: float = 10.0
    silent_after_s: float = 1.0
    """A shard whose read is unanswered for longer is known to be silent."""
    bounds_timeout_s: float = 3.0
    """How long `ManifestReads.read` waits for a shard before it answers without it: clients give up a request after 30 s, and ask again."""
    silent_timeout_s: float = 1.0
    """The same for a shard that is known to be silent."""
    waiting_for_silent_max: int = 1_000
    """Callers that may wait for a silent shard; others are refused at once."""
    read_barriers_at_once_max: int = 16
    """Per shard."""
    read_barrier_timeout_s: float = 3.0
    """For one, its wait for a place included."""
    read_barrier_every_s: float = 0.2
    trim_write_timeout_s: float = 10.0

    # Reads: reader, segments
    read_window_bytes_min: int = 256 * KIB
    """The least that is scanned at once: many small batches are passed over in one go."""
    read_places_kept_max: int = 16_384
    """Where reads ended, over all partitions; one takes 400 bytes of memory."""
    read_sources_max: int = 16
    """Entries that one read may find replaced, or to have no batch behind its offset."""
    unattended_max: int = 64
    """Reads that no fetch waits for any more."""
    unattended_bytes_max: int = 64 * MIB
    """The bytes that reads without a waiter may bring."""
    fetch_places_kept_max: int = 4_096
    """Offsets at which fetches ended, over all partitions, and as many at which they left a read; one takes 300 bytes of memory."""
    footers_bytes_max: int = 16 * MIB
    """Memory of the footers that are kept: those of some 1,400 segments of 64 MiB."""
    footer_read_bytes: int = FOOTER_READ_BYTES
    """Read from the end of a segment, for its footer."""
    whole_segment_bytes_max: int = BLOCK_BYTES
    """All of a segment up to this size comes with one GET, its footer too."""

    # What is fetched ahead of consumers in order: prefetch
    reads_ahead_max: int = 24
    """Under way at a time, over all partitions."""
    reading_ahead_bytes_max: int = 32 * MIB
    """Under way at a time: well below what storage/cache/blocks.py allows of all, so that reads find a place beside them."""
    front_share_min: float = 1 / 4
    """As a share of the block cache: what may lie in front of all consumers in order, or be on its way there, whatever is evicted for it.
    It is half of what history has for certain, and more where there are few consumers, or where the tail has little. The rest is for the
    pieces that they are in, so that nothing is evicted before it is read, and fetched again.
    """
    front_history_share: float = HISTORY_SHARE_MAX
    """The share of the block cache that history has for certain."""
    fronts_kept_max: int = 1_024
    """Segments, and partitions in WAL objects, in which consumers are in order."""
    read_ahead_timeout_s: float = 20.0
    """As a read has."""

    # The same in WAL objects: prefetch
    ahead_bytes: int = 2 * MIB
    """In front of a consumer, of each partition, where it waits for nothing: at 10 ms for a GET, 200 MB/s."""
    ahead_bytes_max: int = 16 * MIB
    said_objects_max: int = 32
    said_entries_max: int = 256
    """An early object has thousands of entries of a partition, of a batch each: half of these are fetched at a time."""
    ahead_objects_max: int = 16
    """Fetched from, of those in which something was said: the other slices of an object are said by then."""
    first_objects_max: int = 1
    """Fetched from when a consumer says something for the first time: the others that read the same objects have said nothing yet."""
    ahead_gets_per_follow_max: int = 4
    """Begun at a time for one consumer: what up to 1,024 others want beside it is asked for each, which takes a millisecond."""
    ahead_gap_bytes_max: int = 256 * KIB
    """What nobody wants, between two slices, is fetched rather than asked for twice."""
    ahead_get_bytes_max: int = 10 * MIB
    """A flush of the usual size, and the last request that came into it."""
    places_said_max: int = 1_024
    said_kept_s: float = 5.0
    """A consumer that has read nothing for longer gives its part to the others. What came for it goes when there is need, and if it reads
    on, it says it once more.
    """
    forgotten_at_once_max: int = 2
    """More than come at a time. What up to 1,024 others want beside their entries is looked at for each of these."""

    # Early objects: early_objects
    early_object_bytes: int = 8 * MIB
    """From which on an object gives no further place."""
    early_age_s: float = 60.0
    """How long the first slice of an object waits for it to be stored: at most a PUT a minute where little is written."""
    early_slices_max: int = 65_536
    early_waiting_bytes_max: int = 64 * MIB
    """In memory, while the object store does not answer. What comes beyond it is gathered for a flush, and fails as that does."""
    early_pause_s: float = 0.5
    """Between two tries to store an object, or to delete its pages; twice as long after each."""
    early_pause_s_max: float = 10.0
    early_delete_after_s: float = 0.5
    """From when an object was stored: requests that are under way by then may yet put pages."""
    early_pages_per_delete: int = 100
    early_bytes_per_delete: int = 256 * KIB
    """What a metadata store deletes at once holds up commits: a millisecond for each 64 KiB."""
    early_delete_pause_s: float = 0.02
    early_delete_tries: int = 5

    # Early pages that were read: early_pages
    early_kept_bytes_max: int = 8 * MIB
    """Over all partitions."""
    early_entries_per_read: int = 32
    """Entries whose pages are asked for with one read."""
    early_read_bytes_max: int = 1 * MIB
    """What one read brings of the entries that follow."""
    early_stored_kept_max: int = 4_096
    """Objects that are known to be stored."""

    # The index: index
    index_read_timeout_s: float = 10.0
    chunks_kept_max: int = 64
    """Per partition."""
    chunks_bytes_max: int = 16 * MIB
    """Memory over all partitions: 2,000 ordinary chunks."""
    segments_kept_max: int = 8
    """Per partition: readers in as many places of its history."""
    segment_partitions_kept_max: int = 4_096
    """Partitions with segments that are known."""

    # Offsets by time: time_search
    scan_s: float = 20.0
    """One question goes through entries for so long; the next one goes on where it ended."""
    trims_met_max: int = 5
    """Searches of a log that is trimmed or compacted meanwhile."""
    logs_timed_max: int = 256
    """Partitions whose times are known."""
    entries_timed_max: int = 256
    """Entries of each whose times are known."""
    time_answers_kept_max: int = 4_096
    records_walked_max: int = 200_000
    """Records of a batch that are looked at: a third of a second of a thread."""

    # Objects that are damaged: reader
    corrupt_reads_kept_max: int = 1_024

    # Scans of all entries: index
    chunks_per_turn: int = 16
    """Index chunks that are gone through in one turn of the loop: about 250 entries."""
    segments_per_turn: int = 250

    # The writers of a log: commit
    writers_kept_max: int = 16
    """Entries of `writers` above which a commit looks for dead brokers to drop."""
    dead_writers_look_every_s: float = 10.0
    dead_writers_kept_max: int = 4_096


DEFAULT_LIMITS: Final = LogLimits()

assert DEFAULT_LIMITS.manifest_bytes_max > PRODUCERS_HOT_BYTES_MAX
assert DEFAULT_LIMITS.pending_entries_max * 160 < DEFAULT_LIMITS.manifest_bytes_max, "a full ring of one-span entries fits the manifest"
assert (
    EARLY_SLICE_BYTES_MAX + 2 * (DEFAULT_LIMITS.manifest_bytes_max + DEFAULT_LIMITS.producer_page_bytes_max)
    <= DEFAULT_LIMITS.write_request_bytes_max
), "an early commit of one batch, with what it drains and the page of its producer, fits one request; larger ones are made smaller"
assert DEFAULT_LIMITS.manifest_bytes_max <= METADATA_VALUE_BYTES_MAX, "a manifest is a legal value"
assert DEFAULT_LIMITS.producer_page_bytes_max * 4 // 3 <= METADATA_VALUE_BYTES_MAX, "a page is a legal value"
assert (
    DEFAULT_LIMITS.manifest_bytes_max * 2
    + DEFAULT_LIMITS.producer_pages_written_max * DEFAULT_LIMITS.producer_page_bytes_max
    + DEFAULT_LIMITS.producers_per_commit_max * 300
) <= DEFAULT_LIMITS.write_request_bytes_max, (
    "a commit (chunk, pages and manifest) fits one request; where an estimate was too low, it is made smaller"
)
