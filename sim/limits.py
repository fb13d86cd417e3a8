"""Bounds that are lowered so that a short run reaches what a large log reaches in days."""

from dataclasses import replace
from typing import Final

from broker.fetching.limits import FetchLimits
from compactor.limits import CompactorLimits
from storage.log.limits import LogLimits

SMALL_FETCHES: Final = FetchLimits(looked_at_per_step=1, reads_at_once=1, reads_under_way_max=2, partitions_per_step=1)
"""A fetch of two partitions is wide."""


def small_log(limits: LogLimits) -> LogLimits:
    """The ring, the hot producers, the writers and the memories of a reader overflow within seconds."""
    return replace(
        limits,
        pending_entries_max=3,
        inline_pending_bytes_max=350,
        quiet_bytes_min=300,
        carried_at_once_max=1,
        larger_commit_bytes_max=400,
        larger_commit_every_s=0.3,
        larger_commits_per_s=2.0,
        larger_commits_kept_max=2,
        lane_commits_max=2,
        slow_uploads_max=1,
        join_below_bytes=100,
        producers_hot_max=2,
        producer_page_bytes_max=600,
        producer_pages_written_max=2,
        producers_per_commit_max=6,
        producer_pages_sweep_every_s=1.0,
        read_places_kept_max=2,
        unattended_max=1,
        fetch_places_kept_max=8,
        footers_bytes_max=3_000,
        whole_segment_bytes_max=500,
        fronts_kept_max=1,
        ahead_bytes=100,
        ahead_bytes_max=200,
        said_entries_max=4,
        ahead_entries_max=2,
        ahead_get_bytes_max=300,
        places_said_max=1,
        chunks_kept_max=2,
        chunks_bytes_max=6_000,
        segments_kept_max=1,
        segment_partitions_kept_max=1,
        chunks_per_turn=1,
        segments_per_turn=1,
        writers_kept_max=1,
        dead_writers_look_every_s=0.2,
        dead_writers_kept_max=1,
    )


def tight_log(limits: LogLimits) -> LogLimits:
    """For eleven producers at most, and the largest slice that a commit carries: a control record with a long ring fits only after that was
    drained, and then always.
    """
    return replace(limits, pending_entries_max=9, control_bytes_max=1_700)


def forgetful_log(limits: LogLimits) -> LogLimits:
    """A broker forgets logs and pages of producers that it has touched, and who waits."""
    return replace(
        limits,
        producer_pages_cached_max=2,
        partitions_kept_max=3,
        partitions_bytes_max=8_000,
        lost_kept_max=1,
        lost_of_all_kept_max=2,
        strangers_kept_max=2,
        strangers_of_all_kept_max=3,
    )


def impatient_log(limits: LogLimits) -> LogLimits:
    """A request without an answer is soon one whose outcome is unknown, and a commit is tried again for long after that."""
    return replace(limits, commit_write_timeout_s=0.5, control_read_timeout_s=0.5, trim_write_timeout_s=0.5, index_read_timeout_s=0.5)


def short_deadlines_log(limits: LogLimits) -> LogLimits:
    """Short beside the outages and pauses of a run, so that commits are given up, abandoned and buried. A stranger waits for longer than a
    commit and the longest pause of a broker together: what comes before it is then not on its way any more.
    """
    return replace(
        impatient_log(limits),
        commit_timeout_s=1.5,
        strangers_wait_s=10.0,
        upload_try_timeout_s=0.5,
        upload_timeout_s=1.0,
        producer_pages_timeout_s=0.5,
    )


def shortest_wait_log(limits: LogLimits) -> LogLimits:
    """For runs in which no request is late and no broker pauses: longer than a commit is all that a stranger has to wait."""
    return replace(short_deadlines_log(limits), strangers_wait_s=2.0)


def small_compactor(limits: CompactorLimits) -> CompactorLimits:
    """Its memories overflow within seconds, and its requests are split."""
    return replace(
        limits,
        keys_per_delete=1,
        inline_bytes_many=200,
        segment_entries_max=5,
        slice_read_bytes_max=300,
        gap_bytes_max=100,
        get_bytes_max=700,
        spool_chunk_bytes=400,
        begun_together_max=2,
        finished_together_max=1,
        merge_keys_per_put=1,
        merge_segments_read_max=6,
        chunks_per_turn=1,
        purge_records_per_run=2,
        purge_objects_per_delete=1,
        purged_topics_kept_max=1,
        retention_looks_kept_max=1,
        retention_sizes_kept_max=8,
        dead_writers_max=0,
        noted_brokers_max=3,
        gone_brokers_kept_max=3,
        broker_alive_for_s=2.0,
    )


def short_deadlines_compactor(limits: CompactorLimits) -> CompactorLimits:
    """Short beside the outages and pauses of a run."""
    return replace(limits, call_timeout_s=0.5)
