"""What leaves a manifest to which nobody appends: once, and nothing that anybody needs."""

from typing import Any

import msgspec
import pytest

from compactor.limits import DEFAULT_LIMITS
from compactor.plan import Tidied, TidyPolicy, questioned_writers, tidied
from storage.formats.manifest import (
    IndexChunk,
    LogState,
    Manifest,
    PageRef,
    ProducerBatch,
    ProducerState,
    SegmentEntry,
    WriterEntry,
    with_rewritten,
)
from storage.log.decide import FORGOTTEN_AFTER, drained
from storage.vocabulary import ObjectId
from tests.unit.compactor.test_retention_plan import DAY_MS, NOW_MS, entry

POLICY = TidyPolicy(idle_ms=1_000, producer_expiration_ms=DAY_MS // FORGOTTEN_AFTER)
DEAD_WRITERS_MAX = DEFAULT_LIMITS.dead_writers_max
IDLE_MS, BUSY_MS = NOW_MS - 1_001, NOW_MS - 1_000


def producer(at_ms: int) -> ProducerState:
    return ProducerState(0, (ProducerBatch(0, 0, 0, at_ms),))


def with_producers(**fields: Any) -> Manifest:
    old, new = NOW_MS - 2 * DAY_MS, NOW_MS - DAY_MS
    return Manifest(
        sequence_counter=9,
        producers={7: producer(old), 8: producer(new)},
        pages=(PageRef("1-1-1-1-0", 20, 29, old), PageRef("1-1-1-1-1", 30, 39, new)),
        **fields,
    )


def with_ring(**fields: Any) -> Manifest:
    return Manifest(**{"sequence_counter": 4, "pending": (entry(0), entry(2)), "last_append_ms": IDLE_MS, "bytes_total": 200} | fields)


def with_writers(*epochs: int, **fields: Any) -> Manifest:
    return Manifest(writers={epoch: WriterEntry(epoch, 1) for epoch in epochs}, last_append_ms=IDLE_MS, **fields)


def tidy(manifest: Manifest, log_start: int = 0, policy: TidyPolicy = POLICY, **given: Any) -> Tidied | None:
    return tidied(manifest, log_start, policy, now_ms=NOW_MS, dead_writers_max=DEAD_WRITERS_MAX, **given)


# Producers


@pytest.mark.parametrize(("last_append_ms", "log_start"), [(IDLE_MS, 0), (BUSY_MS, 3)])
def test_producers_that_have_expired_go_when_nobody_appends_or_with_the_move_of_log_start(last_append_ms: int, log_start: int) -> None:
    made = tidy(with_producers(last_append_ms=last_append_ms), log_start)

    assert made is not None
    assert (made.manifest.log_start, [*made.manifest.producers], [ref.first_pid for ref in made.manifest.pages]) == (log_start, [8], [30])
    assert made.chunk is None


@pytest.mark.parametrize("kind", ["producers", "pages"])
def test_producers_that_have_expired_go_where_only_hot_ones_or_only_pages_have(kind: str) -> None:
    expired = with_producers(last_append_ms=IDLE_MS)
    manifest = msgspec.structs.replace(expired, **({"pages": ()} if kind == "producers" else {"producers": {8: producer(NOW_MS)}}))
    made = tidy(manifest)

    assert made is not None
    assert ([*made.manifest.producers], [ref.first_pid for ref in made.manifest.pages]) == ([8], [] if kind == "producers" else [30])


def test_producers_stay_where_appends_forget_them_or_nobody_said_when_they_expire() -> None:
    assert tidy(with_producers(last_append_ms=BUSY_MS)) is None
    assert tidy(with_producers(last_append_ms=IDLE_MS), policy=TidyPolicy()) is None
    assert tidy(Manifest(producers={8: producer(NOW_MS)}, last_append_ms=IDLE_MS)) is None


def test_a_producer_in_a_transaction_stays() -> None:
    manifest = Manifest(producers={7: ProducerState(0, producer(0).batches, txn_first_offset=0)}, last_append_ms=IDLE_MS)

    assert tidy(manifest) is None


# The ring


@pytest.mark.parametrize("cursor", [0, 1, 2, 3])
def test_a_ring_to_which_nobody_appends_leaves_as_the_chunk_that_a_commit_would_make_of_it(cursor: int) -> None:
    manifest = with_ring(compaction_cursor=cursor)
    made = tidy(manifest)

    assert made is not None
    assert made.chunk == drained(manifest) == IndexChunk(entries=(entry(0), entry(2))), "the whole of it, also what is below the cursor"
    assert made.manifest == msgspec.structs.replace(manifest, pending=())
    assert tidy(made.manifest) is None, "once"


@pytest.mark.parametrize(
    ("fields", "log_start"),
    [({"compaction_cursor": 4}, 0), ({"log_start": 4}, 4), ({}, 4), ({"compaction_cursor": 2}, 4)],
)
def test_a_ring_of_which_nothing_is_needed_leaves_without_a_chunk(fields: dict[str, int], log_start: int) -> None:
    made = tidy(with_ring(**fields), log_start)

    assert made is not None
    assert (made.chunk, made.manifest.pending, made.manifest.sequence_counter) == (None, (), 4)


def test_a_ring_leaves_with_the_move_of_log_start_and_keeps_what_that_leaves() -> None:
    made = tidy(with_ring(), 2)

    assert made is not None
    assert made.manifest.log_start == 2
    assert made.chunk == IndexChunk(entries=(entry(0), entry(2)))


@pytest.mark.parametrize("log_start", [0, 2])
def test_a_ring_to_which_somebody_appends_is_left_to_commits(log_start: int) -> None:
    manifest = with_ring(last_append_ms=BUSY_MS)
    made = tidy(manifest, log_start)

    assert (made is not None) == (log_start > 0)
    assert made is None or (made.chunk, made.manifest.pending) == (None, manifest.pending)


def test_a_merge_that_is_under_way_stays_named_in_the_record_and_in_its_format() -> None:
    newest = SegmentEntry(0, 1, ObjectId("n"), 1, 0, 0)
    merging = with_rewritten(with_ring(segment=newest, compaction_cursor=2), newest)
    made = tidy(merging)

    assert made is not None
    assert (made.manifest.rewritten, made.manifest.fmt) == (newest, 2)
    assert made.manifest == msgspec.structs.replace(merging, pending=())


# Writers


def test_entries_of_brokers_that_are_gone_leave_with_any_other_change_and_those_of_others_stay() -> None:
    drains = tidy(with_writers(1, 2, 3, sequence_counter=4, pending=(entry(0), entry(2))), gone={1, 3, 9})
    moves = tidy(msgspec.structs.replace(with_writers(1, 2, sequence_counter=4), last_append_ms=BUSY_MS), 2, gone={1})

    assert drains is not None
    assert moves is not None
    assert (drains.manifest.writers, moves.manifest.writers) == ({2: WriterEntry(2, 1)}, {2: WriterEntry(2, 1)})


def test_a_few_entries_of_brokers_that_are_gone_are_not_worth_a_write_and_more_are_if_nobody_appends() -> None:
    few, more = range(1, DEAD_WRITERS_MAX + 1), range(1, DEAD_WRITERS_MAX + 2)
    made = tidy(with_writers(*more, 50), gone=more)

    assert tidy(with_writers(*few, 50, 51, 52), gone=few) is None
    assert made is not None
    assert [*made.manifest.writers] == [50]
    assert tidy(made.manifest, gone=more) is None
    assert tidy(msgspec.structs.replace(with_writers(*more), last_append_ms=BUSY_MS), gone=more) is None
    assert tidy(with_writers(*more)) is None, "nobody is known to be gone"


def test_it_matters_who_is_gone_where_a_record_changes_anyway_or_names_many_and_nobody_appends() -> None:
    few, many = range(1, DEAD_WRITERS_MAX + 1), range(1, DEAD_WRITERS_MAX + 2)

    def questioned(manifest: Manifest) -> list[int]:
        return sorted(questioned_writers(manifest, POLICY, now_ms=NOW_MS, dead_writers_max=DEAD_WRITERS_MAX))

    assert questioned(with_writers(*few)) == []
    assert questioned(with_writers(*many)) == [*many]
    assert questioned(with_writers(1, sequence_counter=4, pending=(entry(0), entry(2)))) == [1]
    assert questioned(msgspec.structs.replace(with_writers(*many), last_append_ms=BUSY_MS)) == []
    assert questioned(with_writers(*many, log_state=LogState.DELETED)) == []


# Nothing


@pytest.mark.parametrize("state", [LogState.FENCED, LogState.DELETED])
def test_a_log_that_takes_no_changes_is_left_alone(state: LogState) -> None:
    assert tidy(with_producers(last_append_ms=IDLE_MS, log_state=state), 3) is None
    assert tidy(with_ring(log_state=state)) is None
    assert tidy(with_writers(*range(9), log_state=state), gone=range(9)) is None


def test_log_start_never_goes_back_nor_beyond_the_end() -> None:
    manifest = Manifest(sequence_counter=9, log_start=5, last_append_ms=BUSY_MS)

    assert tidy(manifest, 4) is None
    assert tidy(manifest, 5) is None
    assert tidy(manifest, 10) is None
    assert (made := tidy(manifest, 9)) is not None
    assert made.manifest.log_start == 9
