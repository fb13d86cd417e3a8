from pathlib import Path

import pytest

from process.preflight import check, check_memory, check_store_folder, memory_limit_bytes
from process.settings.errors import EXIT_USAGE, StartError
from process.settings.model import Settings

MIB = 2**20


def test_the_data_folders_are_made_and_left_empty(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"storage": {"url": f"file://{tmp_path}/a/objects"}, "metadata": {"url": f"sqlite:///{tmp_path}/b/meta.db"}}
    )

    check(settings)

    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["a", "a/objects", "b"]


@pytest.mark.parametrize(
    ("storage", "metadata"),
    [("memory://", "memory://"), ("s3://bucket/prefix?endpoint=http://127.0.0.1:8333", "oxia://127.0.0.1:6648/default")],
)
def test_stores_elsewhere_and_in_memory_need_no_folder(
    storage: str, metadata: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    check(Settings.model_validate({"storage": {"url": storage}, "metadata": {"url": metadata}}))

    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(
        StartError, match=r"cannot write to .*/file/objects \(Not a directory\) as uid \d+\. Make it writable, or"
    ) as refused:
        check_store_folder(tmp_path / "file" / "objects", key="storage.url", url="file://x")

    assert refused.value.exit_code == 3
    assert str(refused.value).startswith('storage.url "file://x": ')


def test_bounds_that_exceed_the_memory_of_the_process_are_refused() -> None:
    check_memory(Settings(), limit_bytes=769 * MIB)

    with pytest.raises(
        StartError, match=r"storage\.cache_bytes \(256MiB\) and groups\.memory_bytes \(256MiB\) do not fit into the 768MiB"
    ) as refused:
        check_memory(Settings(), limit_bytes=768 * MIB)
    assert refused.value.exit_code == 2


def test_the_limit_is_the_containers_where_there_is_one(tmp_path: Path) -> None:
    limited, unlimited = tmp_path / "memory.max", tmp_path / "other"
    limited.write_text("1048576\n")
    unlimited.write_text("max\n")

    assert memory_limit_bytes(limits=(unlimited, limited)) == MIB
    assert memory_limit_bytes(limits=(unlimited, tmp_path / "none")) == memory_limit_bytes(limits=())


def test_prices_that_cannot_be_read_stop_a_start(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("version: 1\n")
    settings = Settings(storage={"url": "memory://"}, metadata={"url": "memory://"}, cost={"prices_file": str(tmp_path / "prices.yaml")})

    with pytest.raises(StartError, match=r"prices\.yaml: has no date\. Write date: .*\n.*has no stores\.") as refused:
        check(settings)

    assert refused.value.exit_code == EXIT_USAGE
