from pathlib import Path

import pytest

from forebay.commands.doctor.finding import FindingStatus
from forebay.commands.doctor.run import machine_versions, of_cache_dir, of_disk, of_memory, of_open_files
from process.descriptors import DescriptorLimits
from process.disk_space import FileSystem, Space
from process.settings.errors import StartError
from process.settings.model import Settings

GIB = 2**30


def test_versions_are_told() -> None:
    assert "forebay 0." in machine_versions().detail
    assert "Python 3." in machine_versions().detail


@pytest.mark.parametrize(("limit", "verdict"), [(2_096, FindingStatus.OK), (2_095, FindingStatus.WARNING), (97, FindingStatus.WARNING)])
def test_open_files_are_compared_with_connections(limit: int, verdict: FindingStatus) -> None:
    found = of_open_files(DescriptorLimits(limit, 96, 2_000))

    assert found.verdict is verdict
    if verdict is FindingStatus.WARNING:
        assert f"no more than {limit - 96} connections are open at a time" in found.detail
        assert "raise the limit of open files to 2096" in found.detail


@pytest.mark.parametrize(("limit_mib", "verdict"), [(1_157, FindingStatus.OK), (1_156, FindingStatus.WARNING)])
def test_budgets_are_compared_with_memory(limit_mib: int, verdict: FindingStatus) -> None:
    assert of_memory(Settings(), limit_bytes=limit_mib * 2**20).verdict is verdict


def test_budgets_that_do_not_fit_are_refused_as_serve_refuses_them() -> None:
    with pytest.raises(StartError, match="do not fit into the 768MiB"):
        of_memory(Settings(), limit_bytes=768 * 2**20)


@pytest.mark.parametrize(("free_gib", "verdict"), [(6, FindingStatus.OK), (4, FindingStatus.WARNING)])
def test_a_disk_with_less_than_a_twentieth_free_is_a_warning(free_gib: int, verdict: FindingStatus) -> None:
    found = of_disk(FileSystem(1, (Path("/data"),), Space(free_gib * GIB, 100 * GIB)))

    assert found.verdict is verdict
    assert f"/data: {free_gib * 1024} MiB of 102400 MiB free" in found.detail


def test_a_folder_for_the_shared_cache_is_looked_at_and_not_made(tmp_path: Path) -> None:
    for folder, state in ((tmp_path / "a" / "cache", "is not there yet and would be made"), (tmp_path, "can be written to")):
        found = of_cache_dir(str(folder), bytes_max=1)
        assert found.verdict is FindingStatus.OK
        assert f"{folder} {state}; 0 MiB are in it" in found.detail
    assert list(tmp_path.iterdir()) == []


def test_a_shared_cache_that_is_of_no_use_is_a_warning_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    none, small = of_cache_dir(f"{tmp_path}/file", bytes_max=1), of_cache_dir(str(tmp_path), bytes_max=2**60)

    assert (none.verdict, small.verdict) == (FindingStatus.WARNING, FindingStatus.WARNING)
    assert f'storage.cache_dir "{tmp_path}/file": cannot write to {tmp_path}/file' in none.detail
    assert "reads from the object store" in none.detail
    assert "less than storage.cache_dir_bytes (1073741824GiB)" in small.detail


def test_a_folder_that_may_not_be_written_to_is_a_warning() -> None:
    found = of_cache_dir("/proc/forebay", bytes_max=1)

    assert found.verdict is FindingStatus.WARNING
    assert "cannot write to" in found.detail
