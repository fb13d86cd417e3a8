"""Manifests, chunks and producer states at rest."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.levels import undecodable
from storage.formats.manifest import (
    Early,
    Entry,
    IndexChunk,
    LogState,
    Manifest,
    PageRef,
    ProducerBatch,
    ProducerPage,
    ProducerState,
    SegmentEntry,
    WriterEntry,
    decode_chunk,
    decode_manifest,
    decode_page,
    encode,
    with_rewritten,
)
from storage.limits import (
    EARLY_SLICE_BYTES_MAX,
    MANIFEST_BYTES_TARGET,
    METADATA_VALUE_BYTES_MAX,
    PRODUCER_BATCHES_KEPT,
    PRODUCER_PAGES_MAX,
    PRODUCERS_HOT_BYTES_MAX,
    SEQUENCE_MAX,
)
from storage.log.limits import DEFAULT_LIMITS
from storage.log.producer_pages import PRODUCER_BATCH_BYTES, PRODUCER_BYTES
from storage.vocabulary import ObjectId

ID = ObjectId("01J00000000000000000000000")
numbers = st.integers(0, 2**62)
entries = st.builds(Entry, numbers, numbers, st.just(ID), st.tuples(st.tuples(numbers, numbers)), numbers, numbers)
states = st.builds(ProducerState, numbers, st.tuples(st.builds(ProducerBatch, numbers, numbers, numbers, numbers)), st.none() | numbers)
manifests = st.builds(
    Manifest,
    log_state=st.sampled_from(LogState),
    sequence_counter=st.just(2**62),
    log_start=numbers,
    compaction_cursor=numbers,
    segment=st.none() | st.builds(SegmentEntry, numbers, numbers, st.just(ID), numbers, numbers, numbers),
    pending=st.lists(entries, max_size=3).map(tuple),
    writers=st.dictionaries(numbers, st.builds(WriterEntry, numbers, numbers), max_size=3),
    producers=st.dictionaries(numbers, states, max_size=3),
    pages=st.lists(st.builds(PageRef, st.just("9-7-1-1-0"), numbers, numbers, numbers), max_size=3).map(tuple),
    max_timestamp=numbers,
)


@given(manifests)
def test_a_manifest_survives_the_round_trip(manifest: Manifest) -> None:
    assert decode_manifest(encode(manifest), path="test") == manifest


class EntryOfLevel1(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    base: int
    last: int
    object_id: ObjectId
    spans: tuple[tuple[int, int], ...]
    max_timestamp: int
    running_max_timestamp: int


class ControlOfLevel1(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As the releases before merges have it."""

    fmt: int = 1
    log_state: LogState
    fence_epoch: int
    sequence_counter: int
    log_start: int
    compaction_cursor: int
    segment: SegmentEntry | None
    pending: tuple[EntryOfLevel1, ...]
    writers: dict[int, WriterEntry]
    producers: dict[int, ProducerState]
    pages: tuple[PageRef, ...]
    revoked_floor: ObjectId
    bytes_total: int
    last_append_ms: int
    max_timestamp: int
    max_timestamp_offset: int


def of_level_1(manifest: Manifest) -> ControlOfLevel1:
    return ControlOfLevel1(**{name: getattr(manifest, name) for name in ControlOfLevel1.__struct_fields__})


def with_segment(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, segment=SegmentEntry(20, 29, ID, 1_000, 5, 5))


MERGED = SegmentEntry(0, 19, ID, 1_000, 5, 5)


@given(manifests)
def test_a_record_without_a_merge_is_the_same_bytes_as_before_there_were_merges(manifest: Manifest) -> None:
    old = msgspec.json.encode(of_level_1(manifest))

    assert encode(manifest) == old
    assert encode(with_rewritten(with_rewritten(manifest, MERGED), None)) == old
    assert decode_manifest(old, path="test") == manifest


@given(manifests.map(with_segment))
def test_a_record_with_a_merge_survives_and_is_refused_by_whoever_does_not_know_merges(manifest: Manifest) -> None:
    merging = with_rewritten(manifest, MERGED)
    data = encode(merging)

    assert decode_manifest(data, path="test") == merging
    assert (merging.fmt, merging.rewritten, manifest.rewritten) == (2, MERGED, None)
    with pytest.raises(msgspec.ValidationError, match="rewritten"):
        msgspec.json.decode(data, type=ControlOfLevel1)


@pytest.mark.parametrize(
    "manifest",
    [
        msgspec.structs.replace(with_segment(Manifest()), rewriting=MERGED),
        msgspec.structs.replace(with_segment(Manifest()), fmt=2),
        with_rewritten(Manifest(), MERGED),
        with_rewritten(with_segment(Manifest()), SegmentEntry(0, 20, ID, 1_000, 5, 5)),
        with_rewritten(with_segment(Manifest()), SegmentEntry(8, 7, ID, 1_000, 5, 5)),
    ],
    ids=["a merge in format 1", "format 2 without one", "no newest segment", "not below the newest", "empty"],
)
def test_a_merge_that_contradicts_its_record_is_corrupt(manifest: Manifest) -> None:
    with pytest.raises(Corrupt, match="test"):
        decode_manifest(msgspec.json.encode(manifest), path="test")


@given(st.lists(entries, min_size=1, max_size=5))
def test_a_chunk_survives_the_round_trip(found: list[Entry]) -> None:
    assert decode_chunk(encode(IndexChunk(entries=tuple(found))), path="test").entries == tuple(found)


@given(states)
def test_a_page_of_producers_survives_the_round_trip(state: ProducerState) -> None:
    assert decode_page(encode(ProducerPage(producers={5: state, 7: state})), path="test") == {5: state, 7: state}


def test_the_largest_states_fit_the_estimate_of_a_page_by_a_third() -> None:
    last = 2**63 - 1
    batches = tuple(ProducerBatch(SEQUENCE_MAX, SEQUENCE_MAX, last, 10**13) for _ in range(PRODUCER_BATCHES_KEPT))
    count = DEFAULT_LIMITS.producer_page_bytes_max // (PRODUCER_BYTES + PRODUCER_BATCH_BYTES * PRODUCER_BATCHES_KEPT)
    page = ProducerPage(producers={last - n: ProducerState(2**15 - 1, batches, last) for n in range(count)})

    assert len(encode(page)) <= METADATA_VALUE_BYTES_MAX


def test_a_usual_record_stays_below_its_target_size() -> None:
    pending = tuple(Entry(10**9 + n, 10**9 + n, ID, ((8_000_000, 1_000_000),), 1_700_000_000_000, 1_700_000_000_000) for n in range(8))
    batches = tuple(ProducerBatch(n, n, 10**9, 1_700_000_000_000) for n in range(5))
    manifest = Manifest(
        sequence_counter=10**10, pending=pending, writers={3: WriterEntry(10**6, 1)}, producers={10**6: ProducerState(0, batches)}
    )

    assert len(encode(manifest)) < MANIFEST_BYTES_TARGET


def test_a_full_ring_stays_far_below_the_cap() -> None:
    pending = tuple(Entry(2**62, 2**62, ID, ((2**40, 2**30),), 2**62, 2**62) for _ in range(DEFAULT_LIMITS.pending_entries_max))

    assert len(encode(Manifest(sequence_counter=2**62, pending=pending))) < DEFAULT_LIMITS.manifest_bytes_max // 3


def test_the_largest_record_has_room_for_the_entry_of_a_commit() -> None:
    """Else a batch could never be appended: when the ring is drained, nothing else can leave."""
    batch = ProducerBatch(2**31 - 1, 2**31 - 1, 10**12, 1_700_000_000_000)
    state, hot = ProducerState(2**15 - 1, (batch,) * PRODUCER_BATCHES_KEPT), dict[int, ProducerState]()
    while len(encode(ProducerPage(producers=hot))) < PRODUCERS_HOT_BYTES_MAX:
        hot[10**12 + len(hot)] = state
    segment = SegmentEntry(10**12, 10**12, ID, 10**9, 1_700_000_000_000, 1_700_000_000_000)
    largest = Manifest(
        sequence_counter=10**12 + 2,
        log_start=10**12,
        compaction_cursor=10**12 + 1,
        segment=segment,
        pending=(Entry(10**12 + 1, 10**12 + 1, ID, Early(10**7, ((10**7, 10**5),)), 1_700_000_000_000, 1_700_000_000_000),),
        writers={10**9 + n: WriterEntry(10**9, 99) for n in range(DEFAULT_LIMITS.writers_kept_max)},
        producers=hot,
        pages=tuple(PageRef(f"{10**9}-{10**9}-{10**9}-9-11", 10**12, 10**12, 1_700_000_000_000) for _ in range(PRODUCER_PAGES_MAX)),
        revoked_floor=ID,
        bytes_total=10**15,
        last_append_ms=1_700_000_000_000,
        max_timestamp=1_700_000_000_000,
        max_timestamp_offset=10**12,
        rewriting=segment,
    )

    assert len(encode(largest)) <= DEFAULT_LIMITS.manifest_bytes_max


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"fmt":1,"log_start":"x"}', b'{"fmt":1,"log_start":5,"sequence_counter":3}'])
def test_what_is_no_manifest_is_corrupt(damage: bytes) -> None:
    with pytest.raises(Corrupt, match="test"):
        decode_manifest(damage, path="test")


def test_a_floor_that_is_no_object_id_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="revoked_floor"):
        decode_manifest(encode(Manifest(revoked_floor=ObjectId("nonsense"))), path="test")


@pytest.mark.parametrize("value", [{"fmt": 5}, {"fmt": 5, "log_state": "SPLIT"}, {"fmt": 6, "pending": "elsewhere"}])
def test_a_newer_format_is_refused_by_its_number_whatever_else_it_holds(value: dict[str, object]) -> None:
    with pytest.raises(IncompatibleFormat, match="this program knows up to 4"):
        decode_manifest(msgspec.json.encode(value), path="test")


def test_an_empty_chunk_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="empty index chunk"):
        decode_chunk(b'{"fmt":1,"entries":[]}', path="test")


inline_entries = st.builds(
    lambda entry, batches: msgspec.structs.replace(entry, batches=batches), entries, st.binary(min_size=1, max_size=200)
)


@given(manifests, st.lists(inline_entries, min_size=1, max_size=3), st.booleans())
def test_a_record_with_inline_entries_survives_and_has_a_number_of_its_own(
    manifest: Manifest, carried: list[Entry], is_merging: bool
) -> None:
    manifest = msgspec.structs.replace(manifest, pending=(*manifest.pending, *carried))
    if is_merging:
        manifest = with_rewritten(with_segment(manifest), MERGED)
    found = decode_manifest(encode(manifest), path="test")

    assert found == msgspec.structs.replace(manifest, fmt=3)
    assert encode(msgspec.structs.replace(found, pending=())) == encode(msgspec.structs.replace(manifest, pending=()))


@given(st.lists(st.one_of(entries, inline_entries), min_size=1, max_size=5))
def test_a_chunk_with_inline_entries_survives_and_has_a_number_of_its_own(found: list[Entry]) -> None:
    chunk = decode_chunk(encode(IndexChunk(entries=tuple(found))), path="test")

    assert chunk.entries == tuple(found)
    assert chunk.fmt == (3 if any(entry.is_inline for entry in found) else 1)


@pytest.mark.parametrize("fmt", [1, 2])
def test_inline_entries_under_an_older_number_are_corrupt(fmt: int) -> None:
    carried = Entry(0, 0, ID, b"batch", 0, 0)

    with pytest.raises(Corrupt, match="expected=3"):
        decode_manifest(msgspec.json.encode(Manifest(fmt=fmt, sequence_counter=1, pending=(carried,))), path="test")
    with pytest.raises(Corrupt, match="contradict"):
        decode_chunk(msgspec.json.encode(IndexChunk(fmt=fmt, entries=(carried,))), path="test")


def test_a_release_that_knows_no_inline_entries_says_that_a_newer_one_wrote_them() -> None:
    data = encode(Manifest(sequence_counter=1, pending=(Entry(0, 0, ID, b"batch", 0, 0),)))

    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(data, type=ControlOfLevel1)
    assert isinstance(undecodable(refused.value, data, known=2, path="test"), IncompatibleFormat)


def early(entry: Entry, *, before: int = 0) -> Entry:
    """The same, in an object that is stored later: `before` bytes of others are in front of its first batch, in the same page."""
    spans = entry.spans or ((before, 88),)
    first = spans[0][0]
    if sum(spans[-1]) - first + before > EARLY_SLICE_BYTES_MAX:
        spans = ((first, 88),)
    return msgspec.structs.replace(entry, batches=Early(max(0, first - before), spans))


EARLY = Entry(7, 9, ID, Early(64, ((164, 88), (300, 10))), 1_000, 2_000)
EARLY_JSON = b'[7,9,"01J00000000000000000000000",{"start":64,"spans":[[164,88],[300,10]]},1000,2000]'
WITH_SPANS = Entry(5, 6, ID, ((164, 88),), 1_000, 2_000)
WITH_SPANS_JSON = b'[5,6,"01J00000000000000000000000",[[164,88]],1000,2000]'
CARRIED = Entry(0, 4, ID, b"batch", 1_000, 2_000)
CARRIED_JSON = b'[0,4,"01J00000000000000000000000","YmF0Y2g=",1000,2000]'


def test_a_manifest_with_an_early_entry_has_these_bytes() -> None:
    data = encode(Manifest(sequence_counter=10, pending=(WITH_SPANS, EARLY)))

    assert data.startswith(b'{"fmt":4,"log_state":"OPEN"')
    assert b'"pending":[' + WITH_SPANS_JSON + b"," + EARLY_JSON + b"]" in data


@pytest.mark.parametrize("pending", [(EARLY,), (WITH_SPANS, EARLY), (CARRIED, WITH_SPANS, EARLY), (CARRIED, EARLY)])
@pytest.mark.parametrize("is_merging", [False, True])
def test_an_early_entry_gives_its_record_the_highest_number_beside_whatever_else(pending: tuple[Entry, ...], is_merging: bool) -> None:
    manifest = Manifest(sequence_counter=30, pending=pending)
    if is_merging:
        manifest = with_rewritten(with_segment(manifest), MERGED)
    found = decode_manifest(encode(manifest), path="test")

    assert found == msgspec.structs.replace(manifest, fmt=4)
    assert (found.pending, found.rewritten) == (pending, MERGED if is_merging else None)
    assert msgspec.json.decode(encode(msgspec.structs.replace(found, pending=())))["fmt"] == (2 if is_merging else 1)


def test_a_chunk_with_an_early_entry_has_these_bytes() -> None:
    data = encode(IndexChunk(entries=(CARRIED, WITH_SPANS, EARLY)))

    assert data == b'{"fmt":4,"entries":[' + b",".join([CARRIED_JSON, WITH_SPANS_JSON, EARLY_JSON]) + b"]}"
    assert decode_chunk(data, path="test").entries == (CARRIED, WITH_SPANS, EARLY)


def test_records_without_early_entries_are_the_same_bytes_as_before_there_were_any() -> None:
    assert encode(IndexChunk(entries=(WITH_SPANS,))) == b'{"fmt":1,"entries":[' + WITH_SPANS_JSON + b"]}"
    assert encode(IndexChunk(entries=(CARRIED,))) == b'{"fmt":3,"entries":[' + CARRIED_JSON + b"]}"


@given(manifests, st.lists(st.one_of(entries, inline_entries, entries.map(early)), min_size=1, max_size=4), st.booleans())
def test_a_record_of_any_entries_survives_the_round_trip(manifest: Manifest, pending: list[Entry], is_merging: bool) -> None:
    manifest = msgspec.structs.replace(manifest, pending=tuple(pending))
    if is_merging:
        manifest = with_rewritten(with_segment(manifest), MERGED)
    found = decode_manifest(encode(manifest), path="test")
    chunk = decode_chunk(encode(IndexChunk(entries=tuple(pending))), path="test")

    assert found.pending == chunk.entries == tuple(pending)
    assert any(entry.is_early for entry in pending) == (found.fmt == 4) == (chunk.fmt == 4)


@pytest.mark.parametrize("fmt", [1, 2, 3])
def test_early_entries_under_an_older_number_are_corrupt(fmt: int) -> None:
    with pytest.raises(Corrupt, match="expected=4"):
        decode_manifest(msgspec.json.encode(Manifest(fmt=fmt, sequence_counter=10, pending=(EARLY,))), path="test")
    with pytest.raises(Corrupt, match="contradict"):
        decode_chunk(msgspec.json.encode(IndexChunk(fmt=fmt, entries=(EARLY,))), path="test")


@pytest.mark.parametrize("entry", [WITH_SPANS, CARRIED])
def test_the_number_of_early_entries_without_one_is_corrupt(entry: Entry) -> None:
    with pytest.raises(Corrupt, match="contradict"):
        decode_manifest(msgspec.json.encode(Manifest(fmt=4, sequence_counter=10, pending=(entry,))), path="test")
    with pytest.raises(Corrupt, match="contradict"):
        decode_chunk(msgspec.json.encode(IndexChunk(fmt=4, entries=(entry,))), path="test")


@pytest.mark.parametrize("known", [1, 2, 3])
def test_a_release_that_knows_no_early_entries_says_that_a_newer_one_wrote_them(known: int) -> None:
    data = encode(Manifest(sequence_counter=10, pending=(EARLY,)))

    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(data, type=ControlOfLevel1)
    assert isinstance(undecodable(refused.value, data, known=known, path="test"), IncompatibleFormat)


@pytest.mark.parametrize("batches", [{"start": 64}, {"spans": [[64, 88]]}, {"start": "64", "spans": []}, {"start": 64, "spans": [[64]]}])
def test_an_early_entry_that_lacks_something_is_corrupt(batches: dict[str, object]) -> None:
    chunk = {"fmt": 4, "entries": [[7, 9, ID, batches, 1_000, 2_000]]}

    with pytest.raises(Corrupt, match="test"):
        decode_chunk(msgspec.json.encode(chunk), path="test")


def test_an_entry_says_where_its_batches_are() -> None:
    assert (EARLY.spans, EARLY.extent, EARLY.size_bytes) == (((164, 88), (300, 10)), (164, 310), 98)
    assert (WITH_SPANS.spans, WITH_SPANS.extent, WITH_SPANS.size_bytes) == (((164, 88),), (164, 252), 88)
    assert (CARRIED.spans, CARRIED.size_bytes) == ((), 5)
    assert [(one.is_inline, one.is_early) for one in (EARLY, WITH_SPANS, CARRIED)] == [(False, True), (False, False), (True, False)]
