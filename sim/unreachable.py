"""Branches that no seed can take, each with the reason and what takes it instead.

`python -m sim coverage` says which names are outdated.
"""
# ruff: noqa: E501 - names are as the report prints them

from collections.abc import Mapping
from typing import Final

_BROKEN: Final = "nobody writes records that cannot be read: test_read.py, test_an_undecodable_control_record_…"
_FENCED: Final = "nothing fences a log yet: test_decide.py, test_trim.py"
_STOP: Final = "a broker of the simulation is killed, never stopped in order: test_commit.py, test_draining_… and test_a_stopped_appender_…"
_LOST: Final = "no store of the simulation is lost for good: test_refusing.py, test_lost_metadata.py"
_FULL: Final = "takes as many pages as a partition may have: test_producer_pages.py, test_a_partition_that_is_full_…"
_GUARD: Final = "says that code and format agree: "
_LARGE: Final = "what a drain does not mend takes more pages and batches than a run has: test_commit.py, test_lost_batches.py"

_DENSE: Final = "no offset is missing before there are compacted topics: test_reading_segments.py"
_NARROW: Final = "a run has fewer partitions than a turn: test_long_requests.py"
_CURSOR: Final = _GUARD + "a cursor above 0 comes with the segment that ends there"

UNREACHABLE: Final[Mapping[str, str]] = {
    "control_reads ControlReads.refresh_each: if number % ITEMS_DEFAULT == 0 → then": _NARROW,
    "control_reads ControlReads.refresh_each: if number % ITEMS_DEFAULT == 0 → then #2": _NARROW,
    "control_reads ControlReads._read: if number % DECODED_AT_ONCE == 0 → then": _NARROW,
    "index EntryIndex._known_segment: offset <= newest.last ? → else": _CURSOR,
    "tail BatchRun.from_offset: if self.has_gaps and (first < 0 or self._last_of(first) < offset) → then": _DENSE,
    "tail BatchRun.from_offset: if not at_least_one → else": "no fetch of a run is smaller than the first batch: test_tail.py",
    "tail BatchRun.from_offset: if after == len(positions) → then": "no fetch of a run ends within the last batch of several: test_tail.py",
    "tail TailCache._take_over: if frame.account is self → then": "no two batches of a run keep one frame: test_tail.py",
    "tail TailCache._drop_oldest: if not frame.runs → else": "as before",
    "trim decide_trim: if not 0 <= before <= control.sequence_counter → then": "takes a trim that a deposed leader answers, in fewer than one seed of 1,000: "
    "test_trim.py",
    "compactor.retention Retention.run: if changed is None → then": "a log is deleted between two reads of one run: test_retention.py, test_tidying.py",
    "compactor.retention Retention._change.decide: control.log_state is LogState.OPEN and log_start <= control.log_start ? → else": "as before",
    "compactor.tidy_plan tidied: if control.log_state is not LogState.OPEN or log_start > control.sequence_counter → then": "as before",
    "read Reader._stored_at: if isinstance(run, Gap) → then": _DENSE,
    "read Reader._stored_at: if run is not None and at > offset → then": _DENSE,
    "segments SegmentReader.read: if stretch is None → then": _DENSE,
    "segments _stretch: if first is None → then": _DENSE,
    "segments SegmentReader._run_of: if not found.starts or found.starts[0] < entry.base or found.end_offset > entry.last + 1… → then": _GUARD
    + "blocks are checked before",
    "segments SegmentReader._read_footer: if missing_bytes → then": "segments of a run are small: test_reading_segments.py",
    "entry_scan _segment_pages: newest is None ? → then": _CURSOR,
    "entry_scan _segment_pages: if offset < listed_end → then #2": "keys of segments never go before there is retention",
    "entry_scan _segment_pages: if newest is not None and offset <= newest.last → else": _CURSOR,
    "compactor.compaction Compaction._begin: if control_record is None → then": "compactors of a run know which partitions there are: test_compaction.py",
    "compactor.compaction Compaction._write_segment: except AlreadyExists": _GUARD + "ids are new",
    "compactor.compaction Compaction._move_cursor: if ended is None → then": "control records never go",
    "compactor.compaction Compaction.is_current: if record is None → then": "control records never go",
    "segments SegmentReader._read_footer: if (footer.base, footer.last) != (entry.base, entry.last) → then": _BROKEN,
    "compactor.collector Collector._of_kind: if not dry_run → else": "only a person asks what would go: test_collector.py",
    "compactor.collector Collector._of_kind: if not dry_run → else #2": "as before",
    "compactor.collector Collector._next: if object_id is None → then": "nobody else puts objects there: test_collector.py",
    "compactor.collector Collector._candidates.judge: if slices > SLICES_MAX → then": "objects of a run have few slices: test_collector.py",
    "compactor.collector Collector._of_wal: if stat.key != object_key(header.object_id) → then": _BROKEN,
    "compactor.collector Collector._header: if len(first) == stat.size_bytes → else": "objects of a run are small: test_collector.py",
    "compactor.collector _of_segment: if named is None → then": "nobody else puts objects there: test_collector.py",
    "compactor.records Records.change_control: if record is None → then": "control records never go",
    "compactor.references References._revoke: if there is None → then": "control records never go",
    "compactor.references References._revoke: if await self.is_gone(partition) → then": "control records never go",
    "compactor.references References._revoke: if await self.is_gone(partition) → else": "control records never go",
    "compactor.references read_control: record is None ? → then": "control records never go",
    "compactor.purge Purge._deleted: except (Corrupt, IncompatibleFormat)": _BROKEN,
    "compactor.purge Purge._purge: if self._is_enough(tally) → then": "topics that are deleted have one partition: test_purge.py",
    "compactor.purge Purge._segments: if parse_segment_key(one.key) is not None → else": "nobody else puts objects there: test_purge.py",
    "compactor.round only: if isinstance(result, StorageError) → then": "nothing fails once the faults are over: test_round.py",
    "compactor.merge Merging._due: if segment.last != end - 1 → then": "a merge that has an old control record and new segments: test_merge.py",
    "compactor.merge Merging._write_segment: except AlreadyExists": _GUARD + "ids are new",
    "compactor.merge Merging._copy: if (footer.base, footer.last) != (segment.base, segment.last) → then": _BROKEN,
    "compactor.merge Merging._commit: if ended is None → then": "control records never go",
    "compactor.merge Merging._finish.decide: if control.log_state is LogState.DELETED → then": "a topic is deleted while its segments are merged: test_merge.py",
    "compactor.merge Merging._finish: if ended is None → then": "control records never go",
    "compactor.merge_plan begin_rewriting: if control.log_state is LogState.DELETED → then": "as before",
    "compactor.merge_plan begin_rewriting: if control.segment is None or merged.last >= control.segment.base → then": _GUARD
    + "what is merged is below the newest segment",
    "compactor.plan in_runs: if begin < len(entries) → else": _GUARD + "a task has entries",
    "compactor.retention Retention.keep_only: for partition in [one for one in self._looks if one not in partitions]": "compactors of a run share nothing out: test_retention.py",
    "compactor.retention_plan limits_of: if 'delete' not in value_of(configs, 'cleanup.policy').split(',') → then": "limits of a run are drawn: test_retention_plan.py",
    "compactor.retention_plan limits_of: if 'delete' not in value_of(configs, 'cleanup.policy').split(',') → else": "limits of a run are drawn: test_retention_plan.py",
    "compactor.retention_plan source_ms: 0 <= source.max_timestamp <= written_ms + ahead_ms ? → else": "records of a run are old: test_retention_plan.py",
    "compactor.retention_plan RetentionPlan.add: item.base >= self._end or not self._kept ? → else": "segments do not overlap before they are merged",
    "compactor.retention_plan _together: if joined is not None → else": _GUARD + "there are some",
    "compactor.tidy_plan tidied: if policy.producer_expiration_ms is not None → else": "a run always says it: test_tidy_plan.py",
    "control_reads ControlReads._read: if begin → then": "more partitions are asked for at once than a run has: test_long_requests.py",
    "control_reads ControlReads.refresh_each: if shard.waiting < WAITING_FOR_SILENT_MAX → else": "a thousand callers wait for one shard: test_control_reads.py, test_a_shard_that_is_known_to_be_silent_…",
    "control_reads ControlReads._read: except (Corrupt, IncompatibleFormat)": _BROKEN,
    "control_reads bounds_of: if seen.broken is not None → then": _BROKEN,
    "seen SeenControl.high_watermark: self.control is None ? → then": _GUARD + "callers look at control first",
    "partition PartitionLog.observe_absent: if self.seen.observe_absent() → then": "handlers look up the topic first, which is gone before the record is: test_recreated_topics.py",
    "partition Partitions._forget_gone: for log in [log for log in self._logs.values() if log.seen.is_gone and log.is_idle]": "logs of deleted topics are looked for once in many partitions: test_forgotten_logs.py",
    "batch Append.settle: if self.remaining == 0 → else": "requests of the simulation have one partition: test_produce.py",
    "proofs Proofs._prove_wanted: if self._next.get(log) is asked → then": "takes more proofs at a time than a run has partitions: test_proofs.py",
    "producer_pages pages_needed: if not refs → then": _GUARD + "callers have looked",
    "producer_pages forget_expired: if not _is_covered(kept_refs, producer_id) → else": "a producer that expired while hot, in the range of a page that did not: test_producer_pages.py",
    "producer_pages make_room: state.batches ? → else": _GUARD + "a state has batches until transactions are there",
    "producer_pages _parts: if part → else": _GUARD + "callers have looked",
    "producer_pages _forget_oldest: while len(refs) > PRODUCER_PAGES_MAX": _FULL,
    "producer_pages _forget_oldest: if oldest is None or oldest.newest_ms >= now_ms - PRODUCER_KEPT_MS_MIN → then": _FULL,
    "producer_pages _forget_oldest: if oldest is None or oldest.newest_ms >= now_ms - PRODUCER_KEPT_MS_MIN → else": _FULL,
    "trim existing: if log.seen.control is None and log.seen.broken is None and (not log.seen.is_behind)… → then": _BROKEN,
    "trim _open: if control.log_state is LogState.FENCED → then": _FENCED,
    "index readable: if seen.broken is not None → then": _BROKEN,
    "read Reader.stored_within: except TimeoutError": "nobody asks for it but the time search: test_read.py",
    "read _stamp: if end_offset - 1 > entry.last → then": _GUARD + "test_read.py",
    "read _cause: isinstance(error, EndsEarly) ? → then": "objects of the simulation are damaged or missing, never short: test_read.py, test_what_a_get_gives_wrongly_…",
    "read _confirmed: isinstance(error, NotFound) ? → else": "objects of the simulation are damaged or missing, never short: test_read.py",
    "append Appender.drain: if self._open.batches → then": _STOP,
    "append Appender.drain: if self._open.batches → else": _STOP,
    "append Appender.submit: if self._refused is not None → then": _LOST,
    "append Appender._carry: if self._is_stopped or not self._may_write_inline() → then": "all brokers are at the newest level: test_inline.py",
    "append Appender._run_carrying: if not self._is_stopped → else": _STOP,
    "read Reader.stored_here: except Corrupt": "what a record carries is what was written: test_inline.py",
    "read read_inline: if not found.starts → then": "what a record carries is what was written: test_inline.py",
    "append Appender.refuse: if self._is_stopped → then": _LOST,
    "append Appender.refuse: if self._is_stopped → else": _LOST,
    "append Appender.refuse: if self._open.batches → then": _LOST,
    "append Appender.refuse: if self._open.batches → else": _LOST,
    "append Appender.refuse: for commit in self._in_flight.overdue(float('inf'))": _LOST,
    "append Appender.stop: for timer in (self._timer, self._overdue_check)": _STOP,
    "append Appender.stop: if timer is not None → then": _STOP,
    "append Appender.stop: if timer is not None → else": _STOP,
    "append Appender._arm: if self._is_stopped → then": _STOP,
    "append Appender._give_up_overdue: if commit in self._in_flight → else": "one timer gives all up, and each leaves by itself",
    "writers BrokerEpoch.gone: except StorageError": "no part of the log asks: test_registration.py",
    "commit Committer._prepare: if (broken := (seen.broken or commit.unreadable)) is not None → then": _BROKEN,
    "commit Committer._prepare: if commit.unknown is not None → then": "takes a record that is gone while a commit of it is unknown: test_commit.py",
    "commit Committer._write_all: if len(requests) == 1 → else": "a commit of several requests takes more bytes than the small logs of a run: test_commit.py",
    "commit Committer._answer: control is not None ? → else": _GUARD + "verdicts come from a record",
    "commit Committer._reupload: control is not None ? → else": _GUARD + "the floor comes from a record",
    "decide decide: control.log_state is LogState.FENCED ? → then": _FENCED,
    "decide decide: if known is None and control.pages and has_no_room(control.pages, now_ms=now_ms) → then": _FULL,
    "page_store PageStore.load: except StorageError": "pages are read right after their record, by the same connection: test_page_store.py",
    "refusals refusal: case Outcome.NO_ROOM": _FULL,
    "refusals refusal: case Outcome.FENCED": _FENCED,
    "refusals refusal: case Outcome.APPENDED | Outcome.DUPLICATE": _GUARD + "no refusal",
    "commit Committer._decide: if decision.pages and send.size_bytes > WRITE_REQUEST_BYTES_MAX → then": _LARGE,
    "commit Committer._make_smaller: if commit.unknown is not None → then": _LARGE,
    "commit Committer._make_smaller: if len(commit.batches) > 1 → else": _LARGE,
}

SELDOM: Final[Mapping[str, str]] = {
    "index EntryIndex._look_for_segment: if not segment.base <= offset <= segment.last → then": "keys of segments went while a reader held an older control record: test_reading_segments.py",
    "upload_places UploadPlaces.take: except BaseException": "a broker ends while an upload waits for a place: test_upload_places.py",
    "compactor.compaction Compaction._waiting: except EntriesMoved": "another compaction deletes index keys while they are read: test_compaction.py",
    "partition Partitions._hear: if log.seen.control is not None → else": "a log that was forgotten hears of a record that is gone: test_forgotten_logs.py",
    "trim Trimmer.trim: if (failure := failure_of(proof, log)) is not None → else": "somebody trims beyond the end, and the proof succeeds: test_trim.py",
    "trim Trimmer.trim: if (failure := failure_of(proof, log)) is not None → then": "as before, and the proof fails: test_trim.py",
    "trim Trimmer.trim: except OffsetOutOfRange": "as before",
    "proofs Proofs._prove_wanted: if (left := self._next.pop(log, None)) is not None → then": "a broker ends while a proof is under way and the next is wanted, by the order in which its tasks are cancelled: test_proofs.py",
    "proofs Proofs._prove_wanted: except BaseException": "a broker ends while a proof is under way: test_proofs.py",
    "proofs Proofs._prove: if control is None or control.log_state is LogState.DELETED or log.seen.broken is not None… → then": "a topic is deleted while a proof is under way: test_proofs.py",
    "entry_scan _segment_pages: if merged is not None and merged.base <= offset <= merged.last → then #2": (
        "entries are gone through from before a merge that is under way: test_reading_segments.py"
    ),
    "compactor.purge Purge._purge_partition: if control is None or decode_control(control.value, path=control.path).log_state is not Lo… → then": "a deposed leader shows a partition of a deleted topic as it was: test_purge.py",
    "compactor.merge Merging._put_under_all_keys: if not is_inside(shown, merged) → then": "a merger without its claim is overtaken by another: test_merge.py",
    "broker.fetching.gathering Gathering._must_read: if self._runs_left <= 0 → then": "a response has 64 runs: test_gathering_segments.py",
    "compactor.merge Merging._run: if await self._touch(keys, sources) and (not await self._is_trimmed(keys, sources)) → else": "a source is trimmed and collected while it is read: test_merge.py",
}
"""Branches that fewer than one seed in a few hundred takes: which, changes with every turn of the loop that the code takes."""
