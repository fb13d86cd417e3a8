import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.objects.disk import Folders, make_durably


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inode numbers of the folders that were synced, in order."""
    inodes: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        inodes.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return inodes


def inodes_of(*paths: Path) -> list[int]:
    return [path.stat().st_ino for path in paths]


def descriptors_open() -> int:
    return len(os.listdir("/dev/fd"))


def test_the_way_down_to_a_new_folder_is_synced_before_it_is_handed_out(tmp_path: Path, synced: list[int]) -> None:
    folders = Folders(str(tmp_path), held_max=8)
    os.close(folders.open("a/b/c"))
    folders.close()

    assert synced == inodes_of(tmp_path, tmp_path / "a", tmp_path / "a" / "b")


def test_a_folder_that_stands_there_is_synced_once_as_its_maker_may_not_have_come_to_it(tmp_path: Path, synced: list[int]) -> None:
    (tmp_path / "a").mkdir()
    folders = Folders(str(tmp_path), held_max=8)
    for _ in range(3):
        os.close(folders.open("a"))
    folders.close()

    assert synced == inodes_of(tmp_path)


def test_a_name_in_a_folder_that_was_removed_and_made_again_is_not_taken_for_durable(tmp_path: Path, synced: list[int]) -> None:
    folders = Folders(str(tmp_path), held_max=8)
    (tmp_path / "file").touch()
    os.close(folders.open("a"))
    (tmp_path / "a").rmdir()
    (tmp_path / "a").mkdir()

    removed = folders.open("a")
    with pytest.raises(FileNotFoundError):
        os.link(tmp_path / "file", "name", dst_dir_fd=removed)
    folders.forget("a")
    synced.clear()
    again = folders.open("a")
    os.link(tmp_path / "file", "name", dst_dir_fd=again)

    assert synced == inodes_of(tmp_path)
    assert (tmp_path / "a" / "name").exists()
    os.close(removed)
    os.close(again)
    folders.close()


def test_when_a_folder_above_was_removed_forgetting_and_trying_again_makes_the_way_anew(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path), held_max=8)
    os.close(folders.open("a/b/c"))
    for folder in ("a/b/c", "a/b", "a"):
        (tmp_path / folder).rmdir()

    with pytest.raises(FileNotFoundError):
        os.close(folders.open("a/b/d"))
    folders.forget("a/b/d")
    os.close(folders.open("a/b/d"))
    folders.close()
    assert (tmp_path / "a" / "b" / "d").is_dir()


def test_no_more_folders_are_held_open_than_allowed_and_none_after_closing(tmp_path: Path) -> None:
    before = descriptors_open()
    folders = Folders(str(tmp_path), held_max=4)
    for number in range(20):
        os.close(folders.open(f"{number}/x"))

    assert descriptors_open() - before <= 4
    folders.close()
    os.close(folders.open("late"))
    assert descriptors_open() == before


def test_many_threads_may_open_and_forget_the_same_folders(tmp_path: Path) -> None:
    before = descriptors_open()
    folders = Folders(str(tmp_path), held_max=3)

    def work(number: int) -> None:
        folder = f"{number % 5}/{number % 3}"
        descriptor = folders.open(folder)
        assert os.path.samestat(os.fstat(descriptor), os.stat(tmp_path / folder))
        os.close(descriptor)
        if number % 7 == 0:
            folders.forget(folder)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(2_000)))

    folders.close()
    assert descriptors_open() == before


def test_a_root_is_made_with_all_that_is_missing_above_it(tmp_path: Path, synced: list[int]) -> None:
    make_durably(str(tmp_path / "a" / "b"))
    make_durably(str(tmp_path / "a" / "b"))

    assert (tmp_path / "a" / "b").is_dir()
    assert synced == inodes_of(tmp_path, tmp_path / "a")
