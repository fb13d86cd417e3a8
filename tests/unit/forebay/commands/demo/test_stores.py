from pathlib import Path

import pytest

from forebay.commands.demo.cluster import choose_stores, own_stores
from process.settings.errors import StartError
from process.settings.loading import load
from process.settings.reference import SETTINGS

DATA = Path("forebay-data")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_several_brokers_share_the_data_folder_unless_the_settings_name_stores() -> None:
    stores = choose_stores(DATA, brokers=3, environ={"FOREBAY_STORAGE__FLUSH_BYTES": "1MiB"})
    settings = load(environ={}, assignments=stores.assignments).settings

    assert (stores.metadata_url, stores.storage_url) == (own_stores(DATA).metadata_url, own_stores(DATA).storage_url)
    assert (stores.data, stores.is_own) == (DATA, True)
    assert (settings.metadata.url, settings.storage.flush_bytes) == (stores.metadata_url, 2**20)


@pytest.mark.parametrize(
    "environ", [{}, {"FOREBAY_METADATA__URL": "sqlite:////srv/meta.db", "FOREBAY_STORAGE__URL": "file:///srv/objects"}]
)
def test_what_is_priced_as_on_s3_is_flushed_as_often_as_there_unless_the_settings_say_how_often(environ: dict[str, str]) -> None:
    on_s3 = load(environ={"FOREBAY_STORAGE__URL": "s3://bucket", "FOREBAY_METADATA__URL": "oxia://host:6648/default"}).settings
    expected = SETTINGS["storage.flush_interval"].show(on_s3)

    assert own_stores(DATA).flush_interval == own_stores(None).flush_interval == expected
    assert choose_stores(DATA, brokers=3, environ=environ).flush_interval == expected
    given = choose_stores(DATA, brokers=3, environ={**environ, "FOREBAY_STORAGE__FLUSH_INTERVAL": "1s"})
    assert given.flush_interval == "1s"
    assert load(environ={}, assignments=given.assignments).settings.storage.flush_interval.total_seconds() == 1


def test_stores_of_the_environment_belong_to_others_too() -> None:
    environ = {"FOREBAY_METADATA__URL": "sqlite:////srv/meta.db", "FOREBAY_STORAGE__URL": "file:///srv/objects"}

    stores = choose_stores(DATA, brokers=3, environ=environ)
    settings = load(environ={}, assignments=stores.assignments).settings

    assert (stores.metadata_url, stores.storage_url) == ("sqlite:////srv/meta.db", "file:///srv/objects")
    assert (stores.data, stores.is_own) == (None, False)
    assert (settings.metadata.url, settings.storage.url) == ("sqlite:////srv/meta.db", "file:///srv/objects")


@pytest.mark.parametrize("name", ["forebay.yaml", "other.yaml"])
def test_stores_of_the_file_count_too(name: str) -> None:
    Path(name).write_text("metadata: {url: sqlite:////srv/meta.db}\nstorage: {url: file:///srv/objects}\n")

    stores = choose_stores(DATA, brokers=3, environ={"FOREBAY_CONFIG": name})

    assert (stores.metadata_url, stores.is_own) == ("sqlite:////srv/meta.db", False)


def test_memory_is_refused_for_several_and_what_helps_is_said() -> None:
    with pytest.raises(StartError, match=r"--brokers 3 .* `make services && \. \.services/env`") as without_settings:
        choose_stores(None, brokers=3, environ={})
    with pytest.raises(StartError, match=r"--brokers 3 .* metadata\.url=memory://") as with_settings:
        choose_stores(DATA, brokers=3, environ={"FOREBAY_METADATA__URL": "memory://", "FOREBAY_STORAGE__URL": "memory://"})

    assert (without_settings.value.exit_code, with_settings.value.exit_code) == (2, 2)


def test_on_stores_of_others_no_topic_is_made_by_asking_for_it(tmp_path: Path) -> None:
    environ = {"FOREBAY_METADATA__URL": f"sqlite:///{tmp_path}/meta.db", "FOREBAY_STORAGE__URL": f"file://{tmp_path}/objects"}

    settings = load(environ={}, assignments=choose_stores(None, brokers=2, environ=environ).assignments).settings

    assert not settings.kafka.auto_create_topics
