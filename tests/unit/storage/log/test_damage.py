from structlog.testing import capture_logs

from runtime.telemetry import Telemetry
from storage.errors import Corrupt
from storage.log.reader import LINES_MAX, LINES_PER_S, TELL_AGAIN_S, Cause, CorruptReads
from storage.vocabulary import PartitionId, TopicId
from tests.kit.faulty_metadata import ManualClock


def partition(number: int) -> PartitionId:
    return PartitionId(TopicId("t"), number)


class Seen:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.corrupt_reads = CorruptReads(clock=self.clock, telemetry=Telemetry())

    def confirm(self, number: int, cause: Cause = "missing") -> None:
        self.corrupt_reads.confirm(partition(number), 5, key="wal/x", cause=cause, what="gone")


def test_what_is_missing_is_told_apart_from_what_is_damaged() -> None:
    seen = Seen()
    with capture_logs() as logs:
        for number, cause in enumerate(("missing", "short", "corrupt")):
            seen.confirm(number, cause)
        seen.corrupt_reads.recovered(partition(9), 5, key="wal/x", first=Corrupt("first"))

    assert [line["event"] for line in logs] == ["data_missing", "data_damaged", "data_damaged", "read_recovered"]
    assert {name: logs[0][name] for name in ("log_level", "object", "partition", "offset", "cause")} == {
        "log_level": "error",
        "object": "wal/x",
        "partition": str(partition(0)),
        "offset": 5,
        "cause": "gone",
    }
    assert "storage.url" in logs[0]["fix"]


def test_a_partition_of_an_object_is_told_every_five_minutes() -> None:
    seen = Seen()
    with capture_logs() as logs:
        for _ in range(3):
            seen.confirm(0)
        seen.clock.seconds += TELL_AGAIN_S
        seen.confirm(0)

    assert len(logs) == 2


def test_a_store_that_lost_everything_is_told_in_ten_lines_a_minute_and_a_count() -> None:
    seen = Seen()
    with capture_logs() as logs:
        for number in range(500):
            seen.confirm(number)
        first = len(logs)
        seen.clock.seconds += LINES_PER_S
        seen.confirm(499)
        seen.confirm(498)

    assert first == LINES_MAX
    assert [line.get("untold") for line in logs] == [None] * LINES_MAX + [500 - LINES_MAX, None]
