"""Uploads that nobody will finish are aborted, and nothing else is, whatever the clocks say and the store refuses."""

from collections.abc import AsyncIterator

import pytest

from compactor import uploads as sweeping
from compactor.collector import UploadsReport
from compactor.uploads import UploadSweep
from runtime.clock import SystemClock
from runtime.ulid import encode_ulid
from storage.errors import Unavailable
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.objects.memory import MemoryObjectStore
from storage.objects.port import UnfinishedUpload
from storage.vocabulary import ObjectId, PartitionId, TopicId

NOW_MS = 1_795_244_400_000
GRACE_MS = 900_000
OLD_MS, YOUNG_MS = NOW_MS - GRACE_MS - 1, NOW_MS - GRACE_MS
PARTITION = PartitionId(TopicId("00000000-0000-4000-8000-000000000001"), 7)


class FixedClock(SystemClock):
    def now_ms(self) -> int:
        return NOW_MS


class Uploading(MemoryObjectStore):
    """A store with unfinished uploads. Whatever is in `refused`, the keys of aborts and the prefixes of listings, is refused."""

    def __init__(self, *uploads: tuple[str, int]) -> None:
        """Keys, and when the store says that they were begun."""
        super().__init__(clock=SystemClock())
        self.uploads = [UnfinishedUpload(key, str(number), begun_ms) for number, (key, begun_ms) in enumerate(uploads)]
        self.refused: set[str] = set()
        self.asked: list[str] = []

    async def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:
        for upload in sorted(self.uploads):
            if upload.key.startswith(prefix) and upload.key > start_after:
                yield upload
        if prefix in self.refused:
            raise Unavailable(f"denied: {prefix}")

    async def abort_upload(self, key: str, upload_id: str) -> None:
        self.asked.append(key)
        if key in self.refused:
            raise Unavailable(f"denied: {key}")
        self.uploads = [upload for upload in self.uploads if (upload.key, upload.upload_id) != (key, upload_id)]

    def keys(self) -> list[str]:
        return sorted(upload.key for upload in self.uploads)


def object_id(made_ms: int, number: int = 0) -> ObjectId:
    return ObjectId(encode_ulid((made_ms << 80) + number))


def wal(made_ms: int, number: int = 0) -> str:
    return object_key(object_id(made_ms, number))


def segment(made_ms: int, number: int = 0) -> str:
    return segment_key(PARTITION, object_id(made_ms, number))


def sweep(store: Uploading, uploads_max: int = 1_000) -> UploadSweep:
    return UploadSweep(objects=store, clock=FixedClock(), grace_ms=GRACE_MS, uploads_max=uploads_max)


async def test_an_upload_goes_once_its_id_and_the_store_say_that_it_is_old() -> None:
    kept = [(segment(YOUNG_MS), OLD_MS), (wal(YOUNG_MS), OLD_MS), (segment(OLD_MS, 1), YOUNG_MS), (wal(OLD_MS, 1), YOUNG_MS)]
    store = Uploading(*kept, (segment(OLD_MS), OLD_MS), (wal(OLD_MS), OLD_MS), (wal(OLD_MS), OLD_MS))
    is_end = await sweep(store).run(report := UploadsReport())

    assert (report, is_end) == (UploadsReport(looked_at=7, aborted=3), True)
    assert store.keys() == sorted(key for key, _ in kept)


async def test_an_upload_of_a_key_that_is_not_ours_stays() -> None:
    lower, elsewhere = object_id(OLD_MS).lower(), object_id(OLD_MS)
    foreign = ["wal/readme", f"wal/{elsewhere}", f"wal/AAAA/{elsewhere}", f"wal/{lower[:7]}/{lower}", f"segments/x/00000/{elsewhere}"]
    store = Uploading(*[(key, OLD_MS) for key in foreign], (".probe/x", OLD_MS), ("backup/wal/x", OLD_MS))
    await sweep(store).run(report := UploadsReport())

    assert report == UploadsReport(looked_at=len(foreign))
    assert len(store.keys()) == len(foreign) + 2


async def test_a_dry_run_counts_and_aborts_nothing() -> None:
    store = Uploading((wal(OLD_MS), OLD_MS), (wal(YOUNG_MS), YOUNG_MS))
    await sweep(store).run(report := UploadsReport(), dry_run=True)

    assert report == UploadsReport(looked_at=2, aborted=1)
    assert (store.asked, len(store.uploads)) == ([], 2)


async def test_a_run_looks_at_a_bounded_number_of_uploads_and_the_next_goes_on_behind_them() -> None:
    store = Uploading(*[(key(made_ms, number), OLD_MS) for number in range(3) for key in (wal, segment) for made_ms in (OLD_MS, YOUNG_MS)])
    one = sweep(store, uploads_max=5)
    reports = []
    ends = []
    for _ in range(4):
        ends.append(await one.run(report := UploadsReport()))
        reports.append((report.looked_at, report.aborted))

    assert sweeping.UPLOADS_MAX == 1_000
    assert (reports, ends) == ([(5, 3), (5, 3), (2, 0), (5, 0)], [False, False, True, False])


async def test_uploads_of_the_key_behind_which_a_run_goes_on_are_found_when_it_begins_anew() -> None:
    store = Uploading(*[(wal(OLD_MS), OLD_MS)] * 5)
    one = sweep(store, uploads_max=2)
    for _ in range(6):
        await one.run(report := UploadsReport())

    assert store.keys() == []
    assert report == UploadsReport()


@pytest.mark.parametrize("prefix", ["segments/", "wal/"])
async def test_what_was_listed_before_the_store_refused_to_go_on_is_aborted(prefix: str) -> None:
    store = Uploading((segment(OLD_MS), OLD_MS), (wal(OLD_MS), OLD_MS))
    store.refused = {prefix}
    is_end = await sweep(store).run(report := UploadsReport())

    assert (is_end, str(report.failed)) == (True, f"denied: {prefix}")
    assert store.keys() == ([] if prefix == "wal/" else [wal(OLD_MS)])


async def test_a_refused_abort_ends_the_run_and_the_next_one_goes_on_behind_it() -> None:
    keys = [wal(OLD_MS, number) for number in range(100)]
    store = Uploading(*[(key, OLD_MS) for key in keys])
    store.refused = set(keys[:50])
    one = sweep(store, uploads_max=50)
    await one.run(first := UploadsReport())
    asked = len(store.asked)
    await one.run(second := UploadsReport())

    assert (first.aborted, str(first.failed)) == (0, f"denied: {keys[asked - 1]}")
    assert asked <= sweeping.ABORTED_TOGETHER
    assert (second.aborted, second.failed) == (50, None)
    assert store.keys() == keys[:50]
