from datetime import timedelta

import pytest

from process.settings.model import InvalidSettings, Settings, derived_defaults
from process.settings.notation import HttpAddress, Listener
from process.settings.sections import KafkaSettings, StorageSettings


def test_the_defaults_are_those_of_embedded_mode() -> None:
    settings = Settings()

    assert settings.kafka.listeners == settings.kafka.advertised_listeners == (Listener("PLAINTEXT", "127.0.0.1", 9092),)
    assert (settings.kafka.auto_create_topics, settings.kafka.default_partitions) == (True, 1)
    assert settings.kafka.max_request_bytes == 100 * 2**20
    assert settings.kafka.idle_timeout == timedelta(minutes=10)
    assert settings.storage.url == "file://./forebay-data/objects"
    assert settings.storage.flush_interval == timedelta(milliseconds=5)
    assert (settings.storage.flush_bytes, settings.storage.max_buffer_bytes, settings.storage.cache_bytes) == (2**23, 2**28, 2**28)
    assert settings.metadata.url == "sqlite:///./forebay-data/meta.db"
    assert settings.http.listen == HttpAddress("127.0.0.1", 8070)
    assert (settings.shutdown.drain, settings.shutdown.deadline) == (timedelta(seconds=1), timedelta(seconds=60))


def test_nothing_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA", '{"default_partitions": 7}')
    monkeypatch.setenv("LOG", "x")

    assert Settings().kafka.default_partitions == 1


def test_a_store_on_another_machine_changes_defaults() -> None:
    derived = derived_defaults(storage_url="s3://bucket", listeners="PLAINTEXT://h:1")

    assert derived == {
        "kafka.auto_create_topics": False,
        "storage.flush_interval": timedelta(milliseconds=250),
        "groups.initial_rebalance_delay": timedelta(seconds=3),
        "shutdown.drain": timedelta(seconds=10),
        "kafka.advertised_listeners": (Listener("PLAINTEXT", "h", 1),),
    }
    assert derived_defaults(storage_url="memory://", listeners="nonsense") == {}


def test_a_wildcard_listener_is_advertised_by_the_name_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")

    settings = Settings(kafka=KafkaSettings(listeners=(Listener("PLAINTEXT", "0.0.0.0", 9092),)))

    assert settings.kafka.advertised_listeners == (Listener("PLAINTEXT", "box", 9092),)


def test_sections_may_be_values_or_mappings() -> None:
    settings = Settings.model_validate({"storage": StorageSettings(flush_bytes=2**20), "kafka": {"listeners": "A://h:0", "leader": "self"}})

    assert settings.storage.flush_bytes == 2**20
    assert settings.kafka.advertised_listeners == (Listener("A", "h", 0),)
    assert settings.kafka.leader == "self"


def test_settings_do_not_change() -> None:
    settings = Settings()

    with pytest.raises(AttributeError):
        settings.log = settings.log  # type: ignore[misc]
    with pytest.raises(AttributeError):
        settings.log.level = "debug"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"kafka": {"advertised_listeners": "B://h:1,PLAINTEXT://h:2"}}, "names B, which is not in kafka.listeners. Use PLAINTEXT"),
        ({"kafka": {"listeners": "A://h:1,B://h:2", "advertised_listeners": "A://h:1"}}, "says nothing about B. Add B://HOST:2"),
        ({"kafka": {"advertised_listeners": "PLAINTEXT://h:0"}}, "has port 0 for PLAINTEXT, whose own port is 9092"),
        ({"http": {"listen": "0.0.0.0:8070"}}, "without a login. Listen on 127.0.0.1, or set http.insecure: true"),
        ({"storage": {"url": "memory://"}}, "Use memory:// for both or for neither"),
        ({"metadata": {"url": "memory://"}}, "Use memory:// for both or for neither"),
        (
            {"storage": {"max_buffer_bytes": "133MiB"}},
            "Set storage.max_buffer_bytes to 134MiB or more, or lower kafka.max_request_bytes",
        ),
        (
            {"storage": {"max_buffer_bytes": "8MiB", "flush_bytes": "9MiB"}, "kafka": {"max_request_bytes": "1MiB"}},
            "is less than storage.flush_bytes",
        ),
        ({"groups": {"session_timeout_min": "10s", "session_timeout_max": "9s"}}, "is shorter than groups.session_timeout_min"),
        ({"groups": {"offsets_retention": "90s"}}, "is not a whole number of minutes"),
        ({"groups": {"offset_metadata_max_size": "9KiB"}}, "must be between 0B and 8KiB"),
        ({"groups": {"max_size": 0}}, "must be between 1 and 10000"),
        ({"shutdown": {"drain": "2m"}}, "is shorter than shutdown.drain"),
        (
            {"storage": {"url": "memory://", "cache_dir": "/c"}, "metadata": {"url": "memory://"}},
            "is of no use where storage.url is memory://",
        ),
        (
            {"storage": {"url": "file:///d/objects", "cache_dir": "/d/objects/cache"}},
            "lies in the folder of storage.url (file:///d/objects)",
        ),
        ({"storage": {"zone_cache": True}}, "storage.zone_cache needs to know which brokers are of one zone. Set broker.rack"),
        (
            {"storage": {"zone_cache": True}, "broker": {"rack": "a"}, "http": {"listen": "127.0.0.1:0"}},
            "http.listen is 127.0.0.1:0. Set a port",
        ),
        (
            {"storage": {"zone_cache": True}, "broker": {"rack": "a"}, "kafka": {"listeners": "PLAINTEXT://10.0.0.1:9092"}},
            "theirs for this broker would be 127.0.0.1:8070. Set http.listen (and http.insecure) or http.advertised",
        ),
        (
            {"storage": {"url": "memory://", "zone_cache": True}, "metadata": {"url": "memory://"}, "broker": {"rack": "a"}},
            "is of no use where storage.url is memory://: no other broker",
        ),
        ({"storage": {"cache_dir": "s3://bucket/cache"}}, "is not the path of a folder: write for example /var/cache/forebay"),
        ({"storage": {"cache_dir": "/c\0"}}, "is not the path of a folder"),
        ({"storage": {"cache_dir": "/c", "cache_dir_bytes": "63MiB"}}, "must be between 64MiB and 256GiB"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError) as refused:
        Settings.model_validate(given)

    assert complaint in str(refused.value)


def test_what_is_wrong_by_itself_is_found_all_at_once_and_so_is_what_is_wrong_together() -> None:
    with pytest.raises(InvalidSettings) as refused:
        Settings.model_validate(
            {"kafka": {"leader": "me", "default_partitions": "0"}, "log": {"lvl": "x"}, "logs": {}, "shutdown": {"drain": "2m"}}
        )

    assert [key for key, _ in refused.value.found] == ["logs", "kafka.leader", "kafka.default_partitions", "log.lvl"]
    assert [conflict.key for conflict in refused.value.conflicts] == ["shutdown.deadline"]


@pytest.mark.parametrize(
    "given",
    [
        {"storage": {"flush_bytes": "much", "max_buffer_bytes": "100MiB"}, "kafka": {"max_request_bytes": "big"}},
        {"storage": {"url": "memorie://"}, "metadata": {"url": "memory://"}},
        {"storage": {"url": "s4://bucket"}, "shutdown": {"deadline": "5s"}},
        {"kafka": {"listeners": "nonsense", "advertised_listeners": "INTERNAL://h:1"}},
        {"http": {"listen": "0.0.0.0:8070", "insecure": "maybe"}},
        {"groups": {"session_timeout_min": "soon", "session_timeout_max": "1s"}},
    ],
    ids=lambda given: " and ".join(f"{section}.{name}" for section, values in given.items() for name in values),
)
def test_nothing_is_said_to_contradict_a_value_that_is_wrong_by_itself_or_its_default(given: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings) as refused:
        Settings.model_validate(given)

    assert refused.value.conflicts == ()


def test_what_was_set_contradicts_although_its_default_would_depend_on_what_is_wrong() -> None:
    with pytest.raises(InvalidSettings) as refused:
        Settings.model_validate({"storage": {"url": "s4://bucket"}, "shutdown": {"drain": "10s", "deadline": "5s"}})

    assert [conflict.key for conflict in refused.value.conflicts] == ["shutdown.deadline"]


def test_http_beyond_this_machine_is_allowed_when_asked_for() -> None:
    assert Settings.model_validate({"http": {"listen": "0.0.0.0:8070", "insecure": "true"}}).http.listen.host == "0.0.0.0"


def test_a_port_that_the_system_assigns_may_be_advertised_as_such() -> None:
    kafka = {"listeners": "PLAINTEXT://0.0.0.0:0", "advertised_listeners": "PLAINTEXT://broker-1:0"}

    assert Settings.model_validate({"kafka": kafka}).kafka.advertised_listeners == (Listener("PLAINTEXT", "broker-1", 0),)


def test_a_zone_cache_is_off_and_takes_a_rack_and_an_http_address_that_the_zone_reaches() -> None:
    assert Settings().storage.zone_cache is False
    reached = {"http": {"listen": "127.0.0.1:8070", "advertised": "broker-1:8070"}, "kafka": {"listeners": "PLAINTEXT://10.0.0.1:9092"}}
    for address in (reached, {}):
        assert Settings.model_validate({"storage": {"zone_cache": "true"}, "broker": {"rack": "a"}, **address}).storage.zone_cache


def test_a_shared_cache_is_off_and_may_lie_beside_the_objects() -> None:
    assert Settings().storage.cache_dir is None
    given = {"storage": {"url": "file:///d/objects", "cache_dir": "/d/objects-cache"}}
    assert Settings.model_validate(given).storage.cache_dir == "/d/objects-cache"
