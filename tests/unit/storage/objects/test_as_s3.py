"""A disk or memory counts what S3 would have been sent."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.errors import StorageError
from storage.objects.memory import MemoryObjectStore
from storage.objects.port import ObjectStore
from storage.objects.requests import CAUSE, CountedAsS3, RequestMeter, attempted, caused_by
from tests.kit.objects_contract import ObjectStoreContract


def counted_store(telemetry: Telemetry) -> CountedAsS3:
    return CountedAsS3(MemoryObjectStore(clock=SystemClock()), RequestMeter(telemetry))


def requests(telemetry: Telemetry, *labels: str) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for family in telemetry.registry.collect():
        for sample in family.samples:
            if sample.name == "forebay_s3_requests_total":
                found[tuple(sample.labels[label] for label in labels)] += int(sample.value)
    return found


class TestCountedAsS3(ObjectStoreContract):
    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[ObjectStore]:
        store = counted_store(Telemetry())
        yield store
        await store.close()


async def outcome(call: Awaitable[object]) -> None:
    try:
        await call
    except StorageError:
        return


async def test_each_call_is_what_s3_would_have_been_sent() -> None:
    telemetry = Telemetry()
    store = counted_store(telemetry)

    await store.put_if_absent("wal/1", [b"ab", b"c"])
    await outcome(store.put_if_absent("wal/1", [b"x"]))
    await store.get_range("wal/1", 0, 3)
    await store.get_range("wal/1", 1, 1)
    await outcome(store.get_parts("wal/2", 0, 3, part_bytes=10))
    await outcome(store.get_range("wal/1", 0, 9))
    await outcome(store.stat("wal/2"))
    await store.stat("wal/1")
    await store.delete_many(["wal/1"])
    await store.delete_many([])
    await store.abort_upload("segments/1", "0")

    assert requests(telemetry, "request", "key", "answer") == {
        ("put", "wal", "2xx"): 1,
        ("put", "wal", "4xx"): 1,
        ("ranged_get", "wal", "2xx"): 2,
        ("ranged_get", "wal", "4xx"): 2,
        ("head", "wal", "2xx"): 2,
        ("head", "wal", "4xx"): 1,
        ("delete", "other", "2xx"): 1,
        ("abort", "segment", "2xx"): 1,
    }
    assert telemetry.registry.get_sample_value("forebay_s3_bytes_total", {"direction": "in", "cause": "check"}) == 3
    assert telemetry.registry.get_sample_value("forebay_s3_bytes_total", {"direction": "out", "cause": "check"}) == 3


@pytest.mark.parametrize(("objects", "pages"), [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (2_500, 3)])
async def test_a_listing_is_a_request_for_each_thousand_and_so_is_a_deletion(objects: int, pages: int) -> None:
    telemetry = Telemetry()
    store = counted_store(telemetry)
    for number in range(objects):
        await store.put_if_absent(f"wal/{number:05}", [b""])

    assert len([one async for one in store.list("wal/")]) == objects
    await store.delete_many([f"wal/{number:05}" for number in range(objects)])

    assert requests(telemetry, "request")["list",] == pages
    assert requests(telemetry, "request")["delete",] == (pages if objects else 0)


@pytest.mark.parametrize(("mib", "parts"), [(16, 0), (17, 2), (64, 4)])
async def test_a_large_object_goes_up_in_parts(mib: int, parts: int) -> None:
    telemetry = Telemetry()

    await counted_store(telemetry).put_if_absent("segments/1", [bytes(1 << 20)] * mib)

    expected = {("upload_begin",): 1, ("upload_part",): parts, ("upload_finish",): 1} if parts else {("put",): 1}
    assert requests(telemetry, "request") == expected


async def test_requests_have_the_cause_of_the_work_that_sends_them() -> None:
    telemetry = Telemetry()
    store = counted_store(telemetry)

    with caused_by("compaction"):
        await store.put_if_absent("segments/1", [b"x"])
        with caused_by("marker"), attempted("retry"):
            await store.stat("segments/1")
        await store.stat("segments/1")

    assert CAUSE.get() == "check"
    assert requests(telemetry, "cause", "request", "attempt") == {
        ("compaction", "put", "first"): 1,
        ("marker", "head", "retry"): 1,
        ("compaction", "head", "first"): 1,
    }


def test_keys_are_told_apart_below_the_prefix_of_the_store() -> None:
    meter = RequestMeter(Telemetry(), root="wal/a/")

    names = ("wal/a/wal/1", "wal/a/segments/1", "wal/a/.probe/x", "wal/a/forebay-marks/1", "wal/a/x", "")
    assert [meter.key_class(name) for name in names] == ["wal", "segment", "probe", "marker", "other", "other"]
