from pathlib import Path

import pytest
from structlog.testing import capture_logs

from process.store_clocks import DIFFERENCE, Agreement, MetadataClock, ObjectClock, ReportedClocks, StoreClocks, Timed, difference_ms
from runtime.blocking import InlineBlocking
from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.errors import AlreadyExists, StorageError, Unavailable
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Applied, Key, Put
from storage.objects.disk import DiskObjectStore
from storage.objects.memory import MemoryObjectStore
from tests.unit.process.http.manual_clock import ManualClock

HOUR_MS = 3_600_000


class ShiftedClock(SystemClock):
    """This machine's, set wrongly."""

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "stamp_ms", "expected_ms"),
    [
        (10_000, 10_100, 10_000, 0),
        (10_900, 10_950, 10_000, 0),  # the stamp may be of 10.999
        (10_000, 15_000, 12_000, 0),  # a put that took long
        (20_000, 20_100, 10_000, 9_001),
        (10_000, 10_100, 20_000, -9_900),
        (20_100, 20_000, 10_000, 9_101),  # our clock went back meanwhile
    ],
)
def test_the_difference_is_the_least_that_is_possible(before_ms: int, after_ms: int, stamp_ms: int, expected_ms: int) -> None:
    assert difference_ms(before_ms=before_ms, after_ms=after_ms, stamp_ms=stamp_ms, resolution_ms=1_000) == expected_ms


@pytest.mark.parametrize("sign", [1, -1])
def test_a_difference_is_told_once_and_again_when_it_is_over(sign: int) -> None:
    agreement = Agreement()
    seen = [0, 4_999, 5_000, 60_000, 4_900, 5_100, 2_500, 2_499, 0, 5_000]

    told = [agreement.look(sign * ms) for ms in seen]

    assert told == [None, None, ReportedClocks.DIFFERS, None, None, None, None, ReportedClocks.AGREES, None, ReportedClocks.DIFFERS]


class Scripted:
    """Answers one after the other."""

    def __init__(self, *answers: int | StorageError | None) -> None:
        self.answers = list(answers)

    async def ahead_ms(self) -> int | None:
        answer = self.answers.pop(0)
        if isinstance(answer, StorageError):
            raise answer
        return answer


async def test_lines_and_gauge_say_which_store_and_how_far() -> None:
    telemetry = Telemetry()
    stores: dict[str, Timed] = {"object_store": Scripted(0, -7_040, Unavailable("away"), None, 1_000), "metadata": Scripted(*[0] * 5)}
    clocks = StoreClocks(stores, telemetry=telemetry)
    shown = []
    with capture_logs() as logs:
        for _ in range(5):
            await clocks.look()
            shown.append([telemetry.registry.get_sample_value(DIFFERENCE.name, {"store": name}) for name in ("object_store", "metadata")])

    assert shown == [[0, 0], [-7.04, 0], [-7.04, 0], [-7.04, 0], [1, 0]]
    assert [(line["event"], line["log_level"], line["store"], line["seconds"]) for line in logs] == [
        ("clock_differs", "warning", "object_store", -7.0),
        ("clock_agrees", "info", "object_store", 1.0),
    ]
    assert logs[0]["this_machine"] == "behind"
    assert "NTP" in logs[0]["fix"]


@pytest.mark.parametrize("ahead_ms", [0, HOUR_MS, -HOUR_MS])
async def test_the_clock_of_a_folder_is_that_of_its_files(tmp_path: Path, ahead_ms: int) -> None:
    objects = await DiskObjectStore.open(tmp_path, blocking=InlineBlocking(), clock=SystemClock())

    found_ms = await ObjectClock(objects, lambda: 7, ShiftedClock(ahead_ms)).ahead_ms()

    assert found_ms is not None
    assert abs(found_ms - ahead_ms) < 60_000
    assert [stat async for stat in objects.list("")] == []
    await objects.close()


async def test_an_object_that_a_killed_broker_left_says_nothing() -> None:
    clock = ManualClock()
    objects = MemoryObjectStore(clock=clock)
    await objects.put_if_absent(".probe/clock-0000000007", [b"x"])
    clock.advance(3_600)

    assert await ObjectClock(objects, lambda: 7, clock).ahead_ms() == 0


class Locked(MemoryObjectStore):
    """What is there stays there."""

    async def delete_many(self, keys: object) -> None:
        raise Unavailable("locked")


async def test_an_object_that_cannot_be_removed_fails_the_look_and_nothing_else() -> None:
    clock = ManualClock()

    with pytest.raises((Unavailable, AlreadyExists)):
        await ObjectClock(Locked(clock=clock), lambda: 7, clock).ahead_ms()


class Server(MemoryMetadataStore):
    """With a clock of its own."""

    clock_ms = 0
    is_probed = False

    async def put_ms(self, key: Key) -> int | None:
        (record,) = await self.get_many([key])
        return None if record is None or self.is_probed else self.clock_ms


async def test_the_clock_of_the_metadata_store_is_that_of_who_puts_its_records() -> None:
    clock = ManualClock()
    metadata = Server(clock=clock)
    metadata.clock_ms = clock.now_ms() + 9_000
    asked = MetadataClock(metadata, metadata, lambda: 7, clock)

    told = await asked.ahead_ms()
    metadata.is_probed = True
    meanwhile_probed = await asked.ahead_ms()

    assert (told, meanwhile_probed) == (-9_000, None)
    assert await metadata.get_many([keys.probe(7)]) == [None]
    assert isinstance(await metadata.write([Put(keys.probe(7), b"", None)]), Applied)
