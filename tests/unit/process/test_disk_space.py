from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from process.disk_space import SAY_EVERY_S, DiskSpace, FileSystem, Fullness, ReportedSpace, Space, folders_of, measure_folders
from process.settings.model import Settings
from runtime.blocking import InlineBlocking
from tests.unit.process.http.manual_clock import ManualClock

GIB = 2**30
HOUR_S = 3_600.0


@pytest.mark.parametrize(("total_gib", "low_gib"), [(1, 1.0), (20, 1.0), (100, 5.0), (1_000, 50.0)])
def test_low_is_a_gibibyte_or_a_twentieth_of_the_disk_whichever_is_more(total_gib: int, low_gib: float) -> None:
    assert Space(0, total_gib * GIB).low_bytes == low_gib * GIB


def test_a_disk_that_fills_up_is_told_once_an_hour_and_when_there_is_room_again() -> None:
    fullness = Fullness()
    low, room = Space(4 * GIB, 100 * GIB), Space(40 * GIB, 100 * GIB)
    looks = [
        (room, 0.0),
        (low, 30.0),
        (low, 60.0),
        (low, 29.0 + HOUR_S),
        (low, 30.0 + HOUR_S),
        (room, 60.0 + HOUR_S),
        (room, 90.0 + HOUR_S),
    ]

    assert [fullness.look(space, now_s=now_s) for space, now_s in looks] == [
        None,
        ReportedSpace.LOW,
        None,
        None,
        ReportedSpace.LOW,
        ReportedSpace.ROOM,
        None,
    ]
    assert fullness.look(low, now_s=120.0 + HOUR_S) is ReportedSpace.LOW


def test_a_disk_whose_free_space_goes_up_and_down_a_little_is_told_once() -> None:
    fullness = Fullness()
    told = [fullness.look(Space(free * GIB // 10, 100 * GIB), now_s=float(number)) for number, free in enumerate([49, 51, 49, 54, 49])]

    assert told == [ReportedSpace.LOW, None, None, None, None]
    assert fullness.look(Space(55 * GIB // 10, 100 * GIB), now_s=10.0) is ReportedSpace.ROOM


async def test_the_lines_say_which_folders_how_much_is_left_what_it_means_and_what_to_do() -> None:
    clock = ManualClock()
    free = [2 * GIB, 2 * GIB, 90 * GIB]

    def measure() -> Sequence[FileSystem]:
        return [
            FileSystem(1, (Path("/data/objects"), Path("/data")), Space(free.pop(0), 100 * GIB)),
            FileSystem(2, (Path("/other"),), Space(80 * GIB, 100 * GIB)),
        ]

    looking = DiskSpace(measure, blocking=InlineBlocking(), clock=clock)
    with capture_logs() as logs:
        for _ in range(3):
            await looking.look()
            clock.advance(SAY_EVERY_S / 2)

    facts = {"folders": "/data/objects, /data", "total_bytes": 100 * GIB}
    assert [log["event"] for log in logs] == ["disk_nearly_full", "disk_has_room"]
    assert logs[0].items() >= {**facts, "free_bytes": 2 * GIB, "low_bytes": 5 * GIB, "log_level": "warning"}.items()
    assert "free some space" in logs[0]["fix"]
    assert logs[1].items() >= {**facts, "free_bytes": 90 * GIB, "log_level": "info"}.items()


def test_folders_of_one_disk_are_one_file_system_and_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    [found] = measure_folders([tmp_path / "objects", tmp_path, tmp_path / "absent"])

    assert found.folders == (tmp_path / "objects", tmp_path)
    assert 0 <= found.space.free_bytes <= found.space.total_bytes


@pytest.mark.parametrize(
    ("storage", "metadata", "folders"),
    [
        ("file:///data/objects", "sqlite:////meta/meta.db", ["/data/objects", "/meta"]),
        ("s3://bucket/prefix", "sqlite:////meta/meta.db", ["/meta"]),
        ("memory://", "memory://", []),
        ("s3://bucket/prefix", "oxia://127.0.0.1:6648/default", []),
    ],
)
def test_the_folders_of_a_broker_are_those_of_its_urls(storage: str, metadata: str, folders: list[str]) -> None:
    settings = Settings.model_validate({"storage": {"url": storage}, "metadata": {"url": metadata}})

    assert folders_of(settings) == [Path(folder) for folder in folders]
