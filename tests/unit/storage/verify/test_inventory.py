"""Objects are counted by kind, and those that no entry names are told from the others."""

from collections.abc import AsyncIterator

import pytest

from storage.formats.wal import object_key
from storage.verify.findings import FindingKind
from storage.verify.inventory import Inventory, StoreTotals, kind_of_object, unreferenced_findings
from storage.verify.reading import DEFAULT_LIMITS, StoreReading, VerifyLimits
from storage.vocabulary import ObjectId
from tests.kit.stepping_clock import SteppingClock
from tests.unit.storage.log.rig import PARTITION, Rig, rig
from tests.unit.storage.verify.stores import KEYS, NAME, fill, fill_both, make_topic, objects_of, put, three_segments

STRANGER = object_key(ObjectId("01JGFJJZ005591T038X855YAFS"))


@pytest.fixture
async def broker() -> AsyncIterator[Rig]:
    async with rig() as made:
        await make_topic(made.shared)
        yield made


async def totals_of(broker: Rig, *, later_s: float = 0.0, limits: VerifyLimits = DEFAULT_LIMITS) -> StoreTotals:
    clock = SteppingClock()
    clock.advance(later_s)
    return await Inventory(StoreReading(broker.shared, objects_of(broker), concurrency=2, limits=limits), clock).run()


async def test_live_and_unreferenced_objects_of_each_kind(broker: Rig) -> None:
    segments = await three_segments(broker)
    totals = await totals_of(broker)

    assert totals.kinds["wal"].objects == 80
    assert totals.live["wal"].objects == 20, "the others were compacted"
    assert totals.unreferenced["wal"].objects == 60
    assert (totals.kinds["segments"].objects, totals.live["segments"].objects) == (3, 3)
    (topic,) = totals.topics
    assert (topic.topic, topic.partitions, topic.records, topic.entries, topic.segments) == (NAME, 2, 160, 20, 3)
    assert topic.segment_bytes == sum(segment.size_bytes for segment in segments) == totals.kinds["segments"].size_bytes


async def test_all_objects_are_found_however_few_are_in_memory(broker: Rig) -> None:
    await three_segments(broker)
    await fill_both(broker, 30)
    whole = await totals_of(broker)

    assert await totals_of(broker, limits=VerifyLimits(window_objects=7, objects_per_list=3)) == whole


async def test_what_was_trimmed_or_is_in_no_partition_is_unreferenced(broker: Rig) -> None:
    segments = await three_segments(broker)
    await broker.parts.trimmer.trim(PARTITION, 50)
    await objects_of(broker).put_if_absent(STRANGER, [b"12345"])
    await objects_of(broker).put_if_absent("notes.txt", [b"1"])
    totals = await totals_of(broker)

    assert (totals.unreferenced["segments"].objects, totals.unreferenced["segments"].size_bytes) == (1, segments[0].size_bytes)
    assert totals.unreferenced["wal"].objects == 61
    assert totals.kinds["other"].objects == 1


@pytest.mark.parametrize(("later_s", "age"), [(0, "less than 15 minutes"), (1_000, "15 minutes to a day"), (100_000, "more than a day")])
async def test_findings_say_how_old_they_are(broker: Rig, later_s: int, age: str) -> None:
    await objects_of(broker).put_if_absent(STRANGER, [b"12345"])
    totals = await totals_of(broker, later_s=later_s)

    (only,) = unreferenced_findings(totals)
    assert only.kind is FindingKind.UNREFERENCED
    assert only.found == f"objects=1 bytes=5, stored {age} ago"


async def test_nothing_is_called_unreferenced_where_entries_cannot_be_read(broker: Rig) -> None:
    await fill(broker)
    await put(broker.shared, KEYS.manifest, b"")
    totals = await totals_of(broker)

    assert totals.unreadable == 1
    assert unreferenced_findings(totals) == []


def test_kinds_are_told_by_their_keys() -> None:
    assert kind_of_object(STRANGER) == ("wal", "01JGFJJZ005591T038X855YAFS")
    assert kind_of_object("wal/x/01JGFJJZ005591T038X855YAFS") == ("other", None)
    assert kind_of_object("forebay-cluster.json") == ("other", None)
    assert kind_of_object(".probe/01JGFJJZ005591T038X855YAFS") == ("other", None)
