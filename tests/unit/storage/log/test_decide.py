"""`decide` against Kafka's rules, and against a direct port of them on arbitrary inputs."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.formats.manifest import Entry, LogState, Manifest, ProducerBatch, ProducerState, WriterEntry, decode_manifest, encode
from storage.limits import SEQUENCE_MAX
from storage.log.decide import Decision, Outcome, Writer, advance_sequence, decide
from storage.log.limits import DEFAULT_LIMITS
from storage.log.producers import PermittedStart
from storage.vocabulary import ObjectId

OBJECT = ObjectId("01J00000000000000000000000")
WRITER = Writer(epoch=7, commit_seq=1, attempt=1)


@dataclass
class Batch:
    producer_id: int = -1
    producer_epoch: int = -1
    first_seq: int = -1
    record_count: int = 1
    max_timestamp: int = 1_000
    position: int = 0
    size_bytes: int = 100


def run(manifest: Manifest, *batches: Batch, **options: object) -> Decision:
    position = 0
    for batch in batches:
        batch.position = position
        position += batch.size_bytes
    return decide(manifest, batches, object_id=OBJECT, writer=WRITER, now_ms=5_000, limits=DEFAULT_LIMITS, **options)  # type: ignore[arg-type]


def outcomes(decision: Decision) -> list[Outcome]:
    return [verdict.outcome for verdict in decision.verdicts]


def with_producer(*batches: ProducerBatch, epoch: int = 0, next_offset: int = 100) -> Manifest:
    return Manifest(sequence_counter=next_offset, producers={9: ProducerState(epoch, batches)})


def test_batches_get_dense_offsets_in_order() -> None:
    decision = run(Manifest(sequence_counter=10), Batch(record_count=3), Batch(record_count=2))

    assert [verdict.base_offset for verdict in decision.verdicts] == [10, 13]
    assert decision.manifest is not None
    assert decision.manifest.sequence_counter == 15
    assert decision.manifest.pending == (Entry(10, 14, OBJECT, ((0, 200),), 1_000, 1_000),)
    assert decision.manifest.writers == {7: WriterEntry(1, 1)}


def test_a_repeated_batch_is_answered_with_its_first_offset_and_not_appended() -> None:
    manifest = with_producer(ProducerBatch(0, 4, 40, 0))

    decision = run(manifest, Batch(9, 0, 0, 5))

    assert decision.verdicts[0] == (Outcome.DUPLICATE, 40)
    assert decision.manifest is None


def test_a_batch_repeated_within_one_slice_is_appended_once() -> None:
    decision = run(Manifest(), Batch(9, 0, 0, 5), Batch(9, 0, 0, 5), Batch(9, 0, 5, 1))

    assert outcomes(decision) == [Outcome.APPENDED, Outcome.DUPLICATE, Outcome.APPENDED]
    assert decision.manifest is not None
    assert decision.manifest.pending[-1].batches == ((0, 100), (200, 100)), "the repeated bytes are skipped"
    assert decision.manifest.sequence_counter == 6


def test_only_the_last_five_batches_are_remembered() -> None:
    batches = tuple(ProducerBatch(n, n, n, 0) for n in range(5))
    manifest = with_producer(*batches)

    decision = run(manifest, Batch(9, 0, 5, 1))

    assert decision.manifest is not None
    assert [batch.first_seq for batch in decision.manifest.producers[9].batches] == [1, 2, 3, 4, 5]
    assert outcomes(run(decision.manifest, Batch(9, 0, 0, 1))) == [Outcome.OUT_OF_ORDER_SEQUENCE]


def test_a_gap_is_out_of_order() -> None:
    assert outcomes(run(with_producer(ProducerBatch(0, 4, 40, 0)), Batch(9, 0, 6, 1))) == [Outcome.OUT_OF_ORDER_SEQUENCE]


def test_what_follows_a_refused_batch_is_refused_too() -> None:
    decision = run(with_producer(ProducerBatch(0, 4, 40, 0)), Batch(9, 0, 6, 1), Batch(9, 0, 7, 1))

    assert outcomes(decision) == [Outcome.OUT_OF_ORDER_SEQUENCE] * 2
    assert decision.manifest is None


def test_an_unknown_producer_begins_at_zero() -> None:
    assert outcomes(run(Manifest(), Batch(9, 3, 0, 1), Batch(9, 3, 1, 1))) == [Outcome.APPENDED] * 2
    assert outcomes(run(Manifest(), Batch(9, 3, 77, 1))) == [Outcome.NO_PREDECESSOR]
    assert outcomes(run(Manifest(), Batch(9, 3, 1, 1), Batch(9, 3, 0, 1))) == [Outcome.NO_PREDECESSOR, Outcome.APPENDED]


def test_an_unknown_producer_that_was_waited_for_may_begin_up_to_the_sequence_that_it_was_refused() -> None:
    permitted_starts = {9: PermittedStart(3, 77)}

    assert outcomes(run(Manifest(), Batch(9, 3, 77, 1), permitted_starts=permitted_starts)) == [Outcome.APPENDED]
    assert outcomes(run(Manifest(), Batch(9, 3, 76, 1), Batch(9, 3, 77, 1), permitted_starts=permitted_starts)) == [Outcome.APPENDED] * 2
    assert outcomes(run(Manifest(), Batch(9, 3, 78, 1), Batch(9, 3, 77, 1), permitted_starts=permitted_starts)) == [
        Outcome.NO_PREDECESSOR,
        Outcome.APPENDED,
    ]
    assert outcomes(run(Manifest(), Batch(9, 3, 77, 1), permitted_starts=permitted_starts, lost={9: 70})) == [Outcome.OUT_OF_ORDER_SEQUENCE]
    for other_epoch in (2, 4):
        assert outcomes(run(Manifest(), Batch(9, other_epoch, 77, 1), permitted_starts=permitted_starts)) == [Outcome.NO_PREDECESSOR]


@pytest.mark.parametrize(
    ("batch", "outcome"),
    [
        pytest.param(Batch(9, 3, 6, 1), Outcome.APPENDED, id="the next one"),
        pytest.param(Batch(9, 3, 5, 1), Outcome.DUPLICATE, id="the last one again: forgetting it would append it twice"),
        pytest.param(Batch(9, 3, 7, 1), Outcome.NO_PREDECESSOR, id="one is missing"),
        pytest.param(Batch(9, 3, 1, 1), Outcome.NO_PREDECESSOR, id="one of before"),
        pytest.param(Batch(9, 3, 0, 1), Outcome.APPENDED, id="the first one"),
        pytest.param(Batch(9, 2, 0, 1), Outcome.APPENDED, id="an epoch that is forgotten"),
        pytest.param(Batch(9, 2, 6, 1), Outcome.NO_PREDECESSOR, id="the next one, under another epoch"),
    ],
)
def test_a_producer_that_has_expired_goes_on_and_is_unknown_otherwise(batch: Batch, outcome: Outcome) -> None:
    manifest = with_producer(ProducerBatch(5, 5, 40, 1_000), epoch=3)

    assert outcomes(run(manifest, batch, expiration_ms=1_000)) == [outcome]


def test_an_expired_producer_is_forgotten_after_twice_the_time() -> None:
    manifest = with_producer(ProducerBatch(5, 5, 40, 1_000), epoch=3)
    kept, gone = (run(manifest, Batch(8, 0, 0, 1), expiration_ms=expiration_ms).manifest for expiration_ms in (2_000, 1_999))

    assert kept is not None
    assert gone is not None
    assert set(kept.producers) == {8, 9}
    assert set(gone.producers) == {8}


def test_an_older_epoch_is_refused() -> None:
    assert outcomes(run(with_producer(ProducerBatch(0, 0, 0, 0), epoch=2), Batch(9, 1, 1, 1))) == [Outcome.INVALID_PRODUCER_EPOCH]


def test_a_newer_epoch_must_begin_at_zero_and_forgets_the_old_batches() -> None:
    manifest = with_producer(ProducerBatch(0, 4, 40, 0))

    assert outcomes(run(manifest, Batch(9, 1, 5, 1))) == [Outcome.OUT_OF_ORDER_SEQUENCE]
    decision = run(manifest, Batch(9, 1, 0, 1))
    assert outcomes(decision) == [Outcome.APPENDED]
    assert decision.manifest is not None
    assert decision.manifest.producers[9] == ProducerState(1, (ProducerBatch(0, 0, 100, 5_000),))


def test_sequences_wrap_from_the_greatest_int32_to_zero() -> None:
    manifest = with_producer(ProducerBatch(SEQUENCE_MAX - 1, SEQUENCE_MAX, 98, 0))

    decision = run(manifest, Batch(9, 0, 0, 3))

    assert outcomes(decision) == [Outcome.APPENDED]
    assert advance_sequence(SEQUENCE_MAX, 1) == 0


def test_a_batch_whose_sequences_wrap_inside_is_recognised_again() -> None:
    manifest = with_producer(ProducerBatch(SEQUENCE_MAX - 3, SEQUENCE_MAX - 2, 0, 0))
    first = run(manifest, Batch(9, 0, SEQUENCE_MAX - 1, 4))
    assert first.manifest is not None

    again = run(first.manifest, Batch(9, 0, SEQUENCE_MAX - 1, 4))

    assert again.verdicts[0] == (Outcome.DUPLICATE, 100)
    assert outcomes(run(first.manifest, Batch(9, 0, 2, 1))) == [Outcome.APPENDED]


def test_a_fenced_or_deleted_partition_takes_nothing() -> None:
    assert outcomes(run(Manifest(log_state=LogState.FENCED), Batch())) == [Outcome.PARTITION_FENCED]
    assert outcomes(run(Manifest(log_state=LogState.DELETED), Batch())) == [Outcome.DELETED]


def test_a_full_ring_leaves_as_one_chunk_without_the_new_entry() -> None:
    pending = tuple(Entry(n, n, OBJECT, ((0, 1),), 0, 0) for n in range(DEFAULT_LIMITS.pending_entries_max))
    manifest = Manifest(sequence_counter=DEFAULT_LIMITS.pending_entries_max, pending=pending)

    decision = run(manifest, Batch())

    assert decision.chunk is not None
    assert decision.chunk.entries == pending
    assert decision.manifest is not None
    assert [entry.base for entry in decision.manifest.pending] == [DEFAULT_LIMITS.pending_entries_max]


def test_a_ring_with_room_keeps_its_entries() -> None:
    decision = run(Manifest(sequence_counter=1, pending=(Entry(0, 0, OBJECT, ((0, 1),), 0, 0),)), Batch())

    assert decision.chunk is None
    assert decision.manifest is not None
    assert len(decision.manifest.pending) == 2


def test_only_dead_writers_are_dropped() -> None:
    manifest = Manifest(writers={1: WriterEntry(3, 1), 2: WriterEntry(5, 1)})

    decision = run(manifest, Batch(), dead_writers={1})

    assert decision.manifest is not None
    assert set(decision.manifest.writers) == {2, 7}


def test_the_greatest_timestamp_is_remembered_with_its_batch() -> None:
    manifest = Manifest(sequence_counter=5, max_timestamp=2_000, max_timestamp_offset=3)

    later = run(manifest, Batch(max_timestamp=1_000), Batch(max_timestamp=3_000))
    earlier = run(manifest, Batch(max_timestamp=1_000))

    assert later.manifest is not None
    assert (later.manifest.max_timestamp, later.manifest.max_timestamp_offset) == (3_000, 6)
    assert earlier.manifest is not None
    assert (earlier.manifest.max_timestamp, earlier.manifest.max_timestamp_offset) == (2_000, 3)
    assert earlier.manifest.pending[-1].running_max_timestamp == 2_000


class Reference:
    """Kafka's ProducerStateManager and ProducerAppendInfo, as directly as they can be written: one log, one record of what was taken.

    But for producers that the log does not know: they may begin up to the sequence in `permitted_starts`, where in Kafka they may with any.
    """

    def __init__(self, permitted_starts: dict[int, PermittedStart]) -> None:
        self.permitted_starts = permitted_starts
        self.offset = 0
        self.epochs: dict[int, int] = {}
        self.batches: dict[int, list[tuple[int, int, int]]] = {}

    def append(self, producer_id: int, epoch: int, first: int, count: int) -> tuple[Outcome, int]:
        last = (first + count - 1) % (SEQUENCE_MAX + 1)
        if producer_id >= 0 and producer_id in self.epochs:
            kept = self.batches[producer_id]
            if epoch < self.epochs[producer_id]:
                return Outcome.INVALID_PRODUCER_EPOCH, -1
            if epoch > self.epochs[producer_id]:
                if first != 0:
                    return Outcome.OUT_OF_ORDER_SEQUENCE, -1
                kept.clear()
            else:
                for known_first, known_last, offset in kept:
                    if (known_first, known_last) == (first, last):
                        return Outcome.DUPLICATE, offset
                expected = 0 if kept[-1][1] == SEQUENCE_MAX else kept[-1][1] + 1
                if first != expected:
                    return Outcome.OUT_OF_ORDER_SEQUENCE, -1
        elif producer_id >= 0 and first > (self.permitted_starts[producer_id].first_seq if self._has_waited(producer_id, epoch) else 0):
            return Outcome.NO_PREDECESSOR, -1
        offset = self.offset
        self.offset += count
        if producer_id >= 0:
            self.epochs[producer_id] = epoch
            kept = self.batches.setdefault(producer_id, [])
            kept.append((first, last, offset))
            del kept[:-5]
        return Outcome.APPENDED, offset

    def _has_waited(self, producer_id: int, epoch: int) -> bool:
        return producer_id in self.permitted_starts and self.permitted_starts[producer_id].producer_epoch == epoch


produced = st.builds(
    Batch,
    producer_id=st.sampled_from([-1, 1, 2]),
    producer_epoch=st.integers(0, 2),
    first_seq=st.one_of(st.integers(0, 12), st.sampled_from([SEQUENCE_MAX, SEQUENCE_MAX - 1, SEQUENCE_MAX - 2])),
    record_count=st.integers(1, 4),
)


@given(
    commits=st.lists(st.lists(produced, min_size=1, max_size=5), max_size=20),
    permitted_starts=st.dictionaries(
        st.sampled_from([1, 2]), st.builds(PermittedStart, st.integers(0, 2), st.one_of(st.integers(1, 12), st.just(SEQUENCE_MAX)))
    ),
)
def test_any_sequence_of_commits_decides_as_kafka_does_but_for_unknown_producers(
    commits: list[list[Batch]], permitted_starts: dict[int, PermittedStart]
) -> None:
    manifest, reference = Manifest(), Reference(permitted_starts)
    for batches in commits:
        decision = run(manifest, *batches, permitted_starts=permitted_starts)
        expected = [reference.append(b.producer_id, b.producer_epoch, b.first_seq, b.record_count) for b in batches]

        assert [tuple(verdict) for verdict in decision.verdicts] == expected
        if decision.manifest is not None:
            manifest = decode_manifest(encode(decision.manifest), path="test")
        assert manifest.sequence_counter == reference.offset


@given(commits=st.lists(st.lists(produced, min_size=1, max_size=5), max_size=20))
def test_every_offset_is_held_by_exactly_one_entry(commits: list[list[Batch]]) -> None:
    """I2: chunks and pending together cover 0 to the end, without gaps."""
    manifest = Manifest()
    entries: list[Entry] = []
    for batches in commits:
        decision = run(manifest, *batches)
        if decision.chunk is not None:
            entries += decision.chunk.entries
        manifest = decision.manifest or manifest
    entries += manifest.pending

    covered = [offset for entry in entries for offset in range(entry.base, entry.last + 1)]
    assert covered == list(range(manifest.sequence_counter))
