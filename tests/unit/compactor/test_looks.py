"""What a compactor remembers and says has a bound."""

from structlog.testing import capture_logs

from compactor.discovery import FoundPartition, LastLook, Looks
from compactor.limits import CompactorLimits
from compactor.measures import CycleReport, Measures
from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.errors import Unavailable
from storage.formats.manifest import LogState, Manifest
from storage.vocabulary import PartitionId, TopicId


def found(number: int, *, manifest: Manifest | None = None, version: int = 1, is_begun: bool = False) -> FoundPartition:
    return FoundPartition(PartitionId(TopicId("t"), number), manifest or Manifest(sequence_counter=5), version, is_begun)


def test_a_partition_is_due_when_it_is_new_changed_aged_or_left_undone() -> None:
    seen = Looks()
    one = found(0)
    new = seen.is_due(one, now_ms=0)
    seen.note(one.partition, LastLook(1, 100, 7, 0))

    assert new
    assert not seen.is_due(one, now_ms=99)
    assert seen.is_due(one, now_ms=100)
    assert seen.is_due(found(0, version=2), now_ms=0)
    assert seen.is_due(found(0, is_begun=True), now_ms=0)
    assert not seen.is_due(found(0, manifest=Manifest(sequence_counter=5, log_start=5)), now_ms=100)
    assert not seen.is_due(found(0, manifest=Manifest(sequence_counter=5, compaction_cursor=5)), now_ms=100)
    assert not seen.is_due(found(0, manifest=Manifest(sequence_counter=5, log_state=LogState.DELETED)), now_ms=100)


def test_a_partition_that_failed_is_left_alone_until_its_time_whatever_changes() -> None:
    seen = Looks()
    seen.note(found(0).partition, LastLook(1, 100, 0, None, failed=True))

    assert not seen.is_due(found(0, version=2, is_begun=True), now_ms=99)
    assert seen.is_due(found(0), now_ms=100)


def test_so_many_looks_are_remembered_and_a_partition_beyond_them_is_always_due() -> None:
    seen = Looks(limits=CompactorLimits(looks_kept_max=2))
    for number in range(3):
        seen.note(found(number).partition, LastLook(1, 100, 7, number))

    assert [seen.is_due(found(number), now_ms=0) for number in range(3)] == [False, False, True]
    assert (seen.waiting_bytes, seen.oldest_ms) == (14, 0)

    seen.keep_only({found(1).partition})

    assert (seen.waiting_bytes, seen.oldest_ms) == (7, 1)


def test_so_many_failures_are_said_and_all_are_counted() -> None:
    telemetry = Telemetry()
    counting = Measures(telemetry, SystemClock(), limits=CompactorLimits(failures_said_max=3))
    report = CycleReport(failed={found(number).partition: Unavailable("no answer") for number in range(9)})
    with capture_logs() as logged:
        counting.note_cycle(report, Looks())
        counting.note_cycle(report, Looks())

    assert len([line for line in logged if line["event"] == "partition_not_compacted"]) == 3
    assert telemetry.registry.get_sample_value("forebay_compactor_failed_partitions") == 9
