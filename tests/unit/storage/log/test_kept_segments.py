from storage.formats.manifest import SegmentEntry
from storage.log.index import KeptSegments
from storage.log.limits import DEFAULT_LIMITS
from storage.vocabulary import ObjectId, PartitionId, TopicId

TOPIC = TopicId("00000000-0000-4000-8000-000000000001")
PARTITION = PartitionId(TOPIC, 0)


def segment(number: int) -> SegmentEntry:
    return SegmentEntry(10 * number, 10 * number + 9, ObjectId(f"{number:026}"), 1_000, 5, 5)


def test_a_segment_is_found_by_each_of_its_offsets_and_by_no_other() -> None:
    kept = KeptSegments()
    kept.add(PARTITION, segment(1))

    assert [kept.find(PARTITION, offset) for offset in (9, 10, 19, 20)] == [None, segment(1), segment(1), None]
    assert kept.find(PARTITION._replace(partition=1), 10) is None


def test_of_the_segments_of_a_partition_the_last_ones_are_known() -> None:
    kept = KeptSegments()
    for number in range(DEFAULT_LIMITS.segments_kept_max + 3):
        kept.add(PARTITION, segment(number))

    assert [kept.find(PARTITION, 10 * number) is not None for number in range(DEFAULT_LIMITS.segments_kept_max + 3)] == [False] * 3 + [
        True
    ] * DEFAULT_LIMITS.segments_kept_max


def test_a_merge_takes_the_place_of_its_sources() -> None:
    kept = KeptSegments()
    merged = SegmentEntry(10, 29, ObjectId(f"{9:026}"), 2_000, 5, 5)
    for one in (segment(0), segment(1), segment(2), segment(3), merged, merged):
        kept.add(PARTITION, one)

    assert [kept.find(PARTITION, offset) for offset in (9, 10, 29, 30)] == [segment(0), merged, merged, segment(3)]
    for number in range(10, 10 + DEFAULT_LIMITS.segments_kept_max):
        kept.add(PARTITION, segment(number))
    assert kept.find(PARTITION, 10) is None, "its sources are not behind it"


def test_partitions_whose_segments_are_known_are_bounded() -> None:
    kept = KeptSegments()
    for number in range(DEFAULT_LIMITS.segment_partitions_kept_max + 5):
        kept.add(PARTITION._replace(partition=number), segment(0))

    assert len(kept) == DEFAULT_LIMITS.segment_partitions_kept_max
    assert kept.find(PARTITION._replace(partition=4), 0) is None
    assert kept.find(PARTITION._replace(partition=5), 0) == segment(0)


def test_segments_that_were_dropped_are_looked_for_again() -> None:
    kept = KeptSegments()
    kept.add(PARTITION, segment(0))
    kept.drop(PARTITION)
    kept.drop(PARTITION)

    assert kept.find(PARTITION, 0) is None
