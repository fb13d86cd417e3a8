"""Which segments are merged: few are left, and a byte is rewritten a few times, whatever sizes there are."""

import math
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.plan import MergePolicy, MergeRefusal, begin_rewriting, choose, is_inside, merge_of
from storage.formats.manifest import LogState, Manifest, SegmentEntry
from storage.formats.segment import HEADER_BYTES, footer_bytes
from storage.limits import MIB
from storage.vocabulary import ObjectId

ID = ObjectId("01J00000000000000000000000")
OVERHEAD = HEADER_BYTES + footer_bytes(1)
POLICY = MergePolicy()
QUARTER = POLICY.segment_bytes // 4


def of_sizes(*sizes: int) -> list[SegmentEntry]:
    """Neighbours of these many bytes of batches, of ten offsets each."""
    return [SegmentEntry(10 * n, 10 * n + 9, ID, size + OVERHEAD, n, n) for n, size in enumerate(sizes)]


def chosen(*sizes: int, policy: MergePolicy = POLICY) -> tuple[int, int]:
    """The first that is merged, and how many."""
    found = choose(of_sizes(*sizes), policy)
    return (found[0].base // 10, len(found)) if found else (0, 0)


def test_eight_neighbours_of_a_size_are_due_and_seven_are_not() -> None:
    assert chosen(*[1_000] * 7) == (0, 0)
    assert chosen(*[1_000] * 8) == (0, 8)
    assert chosen(*[1_000] * 20) == (0, 20)


def test_a_segment_that_is_large_beside_its_neighbours_is_not_rewritten_for_them() -> None:
    assert chosen(10_000, *[1_000] * 8) == (1, 8)
    assert chosen(*[1_000] * 4, 10_000, *[1_000] * 4) == (0, 0)
    assert chosen(*[10_000] * 4, *[1_000] * 4) == (0, 8), "they come to more than four times the largest"


def test_a_segment_of_a_quarter_of_the_target_stays_as_it_is() -> None:
    small = QUARTER - OVERHEAD - 1

    assert chosen(*[small // 3] * 8) == (0, 8)
    assert chosen(*[small + 1] * 20) == (0, 0)
    assert chosen(*[1_000] * 8, small + 1, *[1_000] * 9) == (9, 9)


def test_a_merge_is_not_larger_than_the_target() -> None:
    policy = MergePolicy(segment_bytes=100_000)

    assert chosen(*[9_000] * 30, policy=policy) == (0, 10)


def test_a_merge_says_of_its_timestamps_what_its_sources_say() -> None:
    sources = [SegmentEntry(10, 19, ID, 500, 70, 90), SegmentEntry(20, 29, ID, 500, 80, 90), SegmentEntry(30, 39, ID, 500, 5, 90)]

    assert merge_of(sources, ID, size_bytes=900) == SegmentEntry(10, 39, ID, 900, 80, 90)


NEWEST = SegmentEntry(30, 39, ID, 1_000, 5, 5)
MANIFEST = Manifest(sequence_counter=50, compaction_cursor=40, segment=NEWEST)
MERGED = SegmentEntry(10, 29, ID, 1_000, 5, 5)


def test_a_merge_is_committed_beside_what_the_manifest_says() -> None:
    changed = begin_rewriting(MANIFEST, MERGED)

    assert isinstance(changed, Manifest)
    assert (changed.fmt, changed.rewritten, changed.segment, changed.compaction_cursor) == (2, MERGED, NEWEST, 40)


@pytest.mark.parametrize(
    ("manifest", "refusal"),
    [
        ({"log_state": LogState.DELETED}, MergeRefusal.GONE),
        ({"rewriting": SegmentEntry(0, 9, ID, 1_000, 5, 5)}, MergeRefusal.UNDER_WAY),
        ({"rewriting": MERGED}, MergeRefusal.UNDER_WAY),
        ({"revoked_floor": ID}, MergeRefusal.REVOKED),
        ({"segment": SegmentEntry(29, 39, ID, 1_000, 5, 5)}, MergeRefusal.NEWEST),
        ({"segment": None}, MergeRefusal.NEWEST),
    ],
)
def test_a_merge_is_refused(manifest: dict[str, object], refusal: MergeRefusal) -> None:
    """Model: F-rewritten-overwritten, F-rewritten-nofloor, F-merge-newest."""
    import msgspec

    assert begin_rewriting(msgspec.structs.replace(MANIFEST, **manifest), MERGED) is refusal


def test_a_merge_takes_the_place_of_its_sources_and_not_that_of_a_later_merge() -> None:
    def at(base: int, last: int) -> bool:
        return is_inside(SegmentEntry(base, last, ID, 1, 1, 1), MERGED)

    assert [at(10, 19), at(20, 29), at(10, 29)] == [True] * 3
    assert [at(0, 29), at(10, 39), at(0, 39), at(0, 9), at(5, 15)] == [False] * 5


class Partition:
    """Segments as they come and are merged, until none are due. `copies` counts how often the batches of each segment were rewritten."""

    def __init__(self, policy: MergePolicy) -> None:
        self._policy = policy
        self.segments: list[SegmentEntry] = []
        self.first_bytes = 0
        self.rewritten_bytes = 0
        self.copies: list[int] = []
        self.merges = 0

    def add(self, batch_bytes: int) -> None:
        at = len(self.copies)
        self.segments.append(SegmentEntry(at, at, ID, batch_bytes + OVERHEAD, at, at))
        self.copies.append(0)
        self.first_bytes += batch_bytes
        while sources := choose(self.segments[:-1], self._policy):
            begin = self.segments.index(sources[0])
            batches = sum(one.size_bytes - OVERHEAD for one in sources)
            merged = merge_of(sources, ID, size_bytes=batches + OVERHEAD)
            assert merged.size_bytes <= self._policy.segment_bytes
            self.segments[begin : begin + len(sources)] = [merged]
            for one in range(merged.base, merged.last + 1):
                self.copies[one] += 1
            self.rewritten_bytes += batches
            self.merges += 1


def grown(sizes: Iterable[int], policy: MergePolicy = POLICY) -> Partition:
    partition = Partition(policy)
    for size in sizes:
        partition.add(size)
    return partition


def test_a_year_with_a_record_an_hour_ends_in_a_few_segments() -> None:
    """8,760 segments of one batch of 80 bytes: 700 KB."""
    year = grown([80] * 24 * 365)

    assert len(year.segments) < 30
    assert year.rewritten_bytes < 5 * year.first_bytes
    assert max(year.copies) <= math.ceil(math.log(24 * 365, POLICY.growth_min))


def test_a_year_of_hours_with_much_and_little_is_rewritten_a_few_times() -> None:
    year = grown([20 * 1024 if hour % 24 in range(8, 18) else 80 for hour in range(24 * 365)])

    assert len(year.segments) < 30
    assert year.rewritten_bytes < 5 * year.first_bytes


def test_years_of_hours_with_a_megabyte_end_in_segments_of_an_eighth_of_the_target_or_more() -> None:
    years = grown([MIB] * 24 * 30)

    full = [one for one in years.segments if one.size_bytes >= POLICY.segment_bytes // 8]
    assert len(years.segments) - len(full) <= POLICY.count_min
    assert years.rewritten_bytes < 2 * years.first_bytes


def most_copies(smallest: int, policy: MergePolicy) -> int:
    """Each copy is in a segment that is `growth_min` times as large as the one it was copied from."""
    return 1 + math.ceil(math.log(max(1, policy.segment_bytes / smallest), policy.growth_min))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=300), st.sampled_from([2, 3, 8]))
def test_whatever_sizes_there_are_a_byte_is_rewritten_a_few_times_and_few_small_neighbours_are_left(
    sizes: Sequence[int], count_min: int
) -> None:
    policy = MergePolicy(segment_bytes=100_000, count_min=count_min)
    partition = grown(sizes, policy)

    for size, copies in zip(sizes, partition.copies, strict=True):
        assert copies <= most_copies(size, policy)
    assert [one.base for one in partition.segments[1:]] == [one.last + 1 for one in partition.segments[:-1]], "neighbours, none missing"
    assert not choose(partition.segments[:-1], policy)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 40_000), max_size=64), st.sampled_from([2, 3, 8]), st.sampled_from([1, 2, 4]))
def test_what_is_chosen_is_what_the_policy_allows(sizes: Sequence[int], count_min: int, growth_min: int) -> None:
    policy = MergePolicy(segment_bytes=100_000, count_min=count_min, growth_min=growth_min)
    found = choose(of_sizes(*sizes), policy)

    if found:
        batches = [one.size_bytes - OVERHEAD for one in found]
        assert len(found) >= count_min
        assert sum(one.size_bytes for one in found) <= policy.segment_bytes
        assert all(policy.is_small(one) for one in found)
        assert sum(batches) >= growth_min * max(batches)
        assert [one.base for one in found[1:]] == [one.last + 1 for one in found[:-1]]
