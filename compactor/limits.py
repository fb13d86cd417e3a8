"""Bounds of a compactor that tests and the simulation lower, given to the constructors of its parts."""

from dataclasses import dataclass
from typing import Final

from storage.limits import EARLY_PAGE_BYTES_MAX, KIB, MIB, WRITE_REQUEST_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorLimits:
    """Bounds of one compactor: what it reads, keeps in memory and sends at a time. Settings and policies say what is due, and when."""

    # Calls of the metadata store

    call_timeout_s: float = 10.0
    keys_per_delete: int = 1_000
    """Keys of an index, of segments or of pages that one request deletes."""
    manifests_per_read: int = 250
    """Partitions whose manifests one request reads."""

    # Compaction

    segment_entries_max: int = 20_000
    """Entries of one segment: what is planned at a time takes about 10 MiB."""
    inline_bytes_read_max: int = 1 * MIB
    """Inline batches of one segment, and a page more. They stay in memory until the segment is made; no spool takes them."""
    slice_read_bytes_max: int = 8 * MIB
    """Slices that are read from the spool at a time, beside the segment that is made of them."""

    # Rounds

    begun_together_max: int = 16
    finished_together_max: int = 16
    gap_bytes_max: int = 1 * MIB
    """Read for nothing between two spans rather than asking twice: a GET costs as much as 1 to 2 MiB of its bytes."""
    get_bytes_max: int = 16 * MIB
    """A range is not joined to another beyond this. A longer span is read alone, whole."""
    early_pages_per_read: int = 17
    """Early pages that one read of the metadata brings: no more than 1 MiB, however large each is."""
    spool_chunk_bytes: int = 16 * MIB
    """Bytes that are gathered in memory before they go into a file. Fewer than this never do."""
    spool_unbuffered_from_bytes: int = 32 * KIB
    """Shorter spans are read through the page cache: several lie in one page."""

    # Merges

    merge_segments_read_max: int = 64
    """Segments that one plan looks at, from the newest back."""
    merge_large_passed_max: int = 4
    """Segments that are not small, behind which a plan does not look."""
    merge_keys_per_put: int = 500
    merged_partitions_max: int = 1_000
    """Partitions in which segments are merged in one cycle; those beyond are merged in the next one."""
    taken_over_partitions_max: int = 100
    """Partitions in which a cycle looks for merges that others left undone: each is up to 64 reads, one after the other."""
    unmerged_partitions_max: int = 10_000
    """Partitions that wait for a later cycle with their merges; those beyond are merged when they have got another segment."""

    # Retention

    retention_looks_kept_max: int = 200_000
    """The last look at each takes 250 bytes. Beyond them a partition is looked at whenever somebody asks."""
    retention_sizes_kept_max: int = 4_096
    """Items that are counted one by one. Of more, small neighbours go together: up to a thousandth of `retention.bytes` stays too long."""
    dead_writers_max: int = 4
    """Entries of brokers that are gone, as many as these, are not worth a write of their own: they leave with the next one."""
    noted_brokers_max: int = 4_096
    """Epochs that one list of brokers is asked about."""
    gone_brokers_kept_max: int = 4_096
    """Epochs known to be gone. Of more, those that were found first are asked for again when they are met."""
    broker_alive_for_s: float = 600.0
    """An epoch that a list has is not asked for again for so long."""

    # Purge

    purge_records_per_run: int = 10_000
    purge_partitions_together: int = 16
    purge_objects_per_delete: int = 1_000
    purge_failed_max: int = 100
    """A run ends when this many partitions could not be purged; the next one goes on behind them."""
    purged_topics_kept_max: int = 100_000
    """Topics of which the last look is remembered: 30 MiB. The others are looked at in each round."""

    # Garbage collection

    collected_slices_max: int = 500_000
    """Partitions of the objects of one batch, counted for each object."""
    objects_per_delete: int = 500
    early_pages_read_bytes_max: int = 16 * MIB
    """Values of early pages in memory at a time, and a page more."""
    early_pages_cycle_bytes_max: int = 64 * MIB
    """Values of early pages that one cycle reads, and what one look brings more."""
    early_pages_per_delete: int = 100
    early_page_bytes_per_delete: int = 256 * KIB
    """One request deletes no more: a store that writes pages of a file holds up commits while it does."""
    early_pages_named_max: int = 100
    """Pages that cannot be judged, of those that one report names."""
    chunks_per_turn: int = 64
    """Chunks of an index, or records of segments, that a look reads before others have a turn."""

    # What a compactor remembers and says

    looks_kept_max: int = 200_000
    """Partitions remembered: 50 MiB. A further one is looked at in each cycle."""
    failures_said_max: int = 1_000
    """Partitions and kinds of failures that the log names within ten minutes."""


DEFAULT_LIMITS: Final = CompactorLimits()

assert DEFAULT_LIMITS.early_pages_per_read * EARLY_PAGE_BYTES_MAX <= WRITE_REQUEST_BYTES_MAX, "a read brings no more than a write takes"
