import fcntl
import os
from pathlib import Path

import pytest

from storage.objects.files import Temporaries, discard


def test_each_file_is_new_and_stays_while_its_writer_lives(tmp_path: Path) -> None:
    one, other = Temporaries(str(tmp_path), owner="one"), Temporaries(str(tmp_path), owner="other")
    first, second, third = one.create(), one.create(), other.create()
    other.sweep()

    assert sorted(os.listdir(tmp_path)) == ["one-0", "one-1", "other-0"]
    for descriptor, path in (first, second, third):
        discard(descriptor, path)
    assert os.listdir(tmp_path) == []


def test_a_file_whose_writer_is_gone_is_swept(tmp_path: Path) -> None:
    temporaries = Temporaries(str(tmp_path), owner="one")
    descriptor, _ = temporaries.create()
    os.close(descriptor)
    temporaries.sweep()

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", ["before the lock", "during the lock"])
def test_a_sweep_between_creation_and_lock_costs_a_new_name_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    real = fcntl.flock
    other: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        # The first lock is taken by a sweeper, who either is done by then or still holds it.
        if not other:
            path = tmp_path / "one-0"
            other.append(os.open(path, os.O_RDWR))
            real(other[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            if moment == "before the lock":
                os.close(other[0])
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    descriptor, path = Temporaries(str(tmp_path), owner="one").create()

    assert os.listdir(tmp_path) == ["one-1"]
    assert path == str(tmp_path / "one-1")
    discard(descriptor, path)
    if moment == "during the lock":
        os.close(other[0])


def test_a_file_system_without_locks_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)

    with pytest.raises(OSError, match="No locks"):
        Temporaries(str(tmp_path), owner="one").create()
    assert os.listdir(tmp_path) == []


def test_a_writer_whose_files_are_always_swept_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        for name in os.listdir(tmp_path):
            (tmp_path / name).unlink()

    monkeypatch.setattr(fcntl, "flock", flock)

    with pytest.raises(BlockingIOError, match="no temporary file"):
        Temporaries(str(tmp_path), owner="one").create()
