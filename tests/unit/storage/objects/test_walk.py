import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.objects.disk import walk

SEGMENTS = st.text(alphabet="-.0/A_a", min_size=1, max_size=3).filter(lambda text: "/" not in text and text not in {".", ".."})
KEYS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)


def without_nesting(keys: set[str]) -> list[str]:
    """Keys of which none is a path prefix of another, as the port demands."""
    return [key for key in keys if not any(other.startswith(f"{key}/") for other in keys)]


@settings(max_examples=300)
@given(
    keys=st.sets(KEYS, max_size=12).map(without_nesting), prefix=st.text(alphabet="-.0/A_a", max_size=4), after=st.one_of(st.just(""), KEYS)
)
def test_a_walk_is_the_sorted_filtered_list_of_all_keys(keys: list[str], prefix: str, after: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for key in keys:
            path = Path(folder, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(key.encode())

        found = list(walk(folder, prefix=prefix, start_after=after))
        assert [stat.key for stat in found] == sorted((key for key in keys if key.startswith(prefix) and key > after), key=str.encode)
        assert all(stat.size_bytes == len(stat.key) for stat in found)


def test_a_walk_reads_a_folder_when_it_comes_to_it(tmp_path: Path) -> None:
    for key in ("a/1", "b/1"):
        (tmp_path / key).parent.mkdir()
        (tmp_path / key).touch()
    found = walk(str(tmp_path), prefix="", start_after="")
    first = next(found).key
    (tmp_path / "b" / "0").touch()

    assert [first, *(stat.key for stat in found)] == ["a/1", "b/0", "b/1"]


def test_what_vanishes_during_a_walk_is_left_out(tmp_path: Path) -> None:
    for key in ("a/1", "a/2", "b/1", "c"):
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).touch()
    found = walk(str(tmp_path), prefix="", start_after="")
    first = next(found).key
    (tmp_path / "a" / "2").unlink()
    (tmp_path / "b" / "1").unlink()
    (tmp_path / "b").rmdir()

    assert [first, *(stat.key for stat in found)] == ["a/1", "c"]


@pytest.mark.parametrize(
    ("prefix", "start_after", "found", "folders"),
    [
        ("b/i", "b/in/2", ["b/in/deep/1"], ["b", "b/in", "b/in/deep"]),
        ("", "b/in/2", ["b/in/deep/1", "b/out/1", "c/1"], [".", "b", "b/in", "b/in/deep", "b/out", "c"]),
        ("", "b/out/1", ["c/1"], [".", "b", "b/out", "c"]),
        ("c", "", ["c/1"], [".", "c"]),
    ],
)
def test_folders_that_cannot_match_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, start_after: str, found: list[str], folders: list[str]
) -> None:
    for key in ("a/1", "b/in/1", "b/in/deep/1", "b/out/1", "c/1"):
        (tmp_path / key).parent.mkdir(parents=True)
        (tmp_path / key).touch()
    read: list[str] = []
    real = os.scandir

    def scandir(path: str) -> object:
        read.append(os.path.relpath(path, tmp_path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)

    assert [stat.key for stat in walk(str(tmp_path), prefix=prefix, start_after=start_after)] == found
    assert read == folders


def test_files_that_are_being_written_are_not_listed(tmp_path: Path) -> None:
    for key in (".tmp/1", ".probe/1", "a/.tmp/1"):
        (tmp_path / key).parent.mkdir(parents=True)
        (tmp_path / key).touch()

    assert [stat.key for stat in walk(str(tmp_path), prefix="", start_after="")] == [".probe/1", "a/.tmp/1"]
    assert [stat.key for stat in walk(str(tmp_path), prefix=".t", start_after="")] == []


@pytest.mark.parametrize("prefix", ["../", "/", "b/../", "./", "b//", ".tmp/"])
def test_a_prefix_that_no_key_has_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    monkeypatch.setattr(os, "scandir", None)

    assert list(walk(str(tmp_path), prefix=prefix, start_after="")) == []
