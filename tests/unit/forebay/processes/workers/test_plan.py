import pytest

from forebay.processes import plan
from process.settings.errors import StartError
from process.settings.loading import Loaded, load

LISTENERS = "kafka.listeners=INTERNAL://127.0.0.1:9092,EXTERNAL://0.0.0.0:19092"


def loaded(*assignments: str, environ: dict[str, str] | None = None) -> Loaded:
    return load(environ=environ or {}, assignments=assignments)


def worker(given: Loaded, number: int) -> Loaded:
    """The settings worker `number` ends up with."""
    return load(environ={}, assignments=plan.of_worker(given, number, log_format="json"))


def test_every_port_is_shifted_by_the_number() -> None:
    given = loaded(LISTENERS, "kafka.advertised_listeners=INTERNAL://a:9092,EXTERNAL://b:443", "http.listen=127.0.0.1:8070", "broker.id=10")

    settings = worker(given, 2).settings

    assert [str(one) for one in settings.kafka.listeners] == ["INTERNAL://127.0.0.1:9094", "EXTERNAL://0.0.0.0:19094"]
    assert [str(one) for one in settings.kafka.advertised_listeners] == ["INTERNAL://a:9094", "EXTERNAL://b:445"]
    assert settings.http.listen.port == 8072
    assert settings.broker.id == 12
    assert settings.log.format == "json"


def test_the_first_worker_has_the_settings_as_they_are() -> None:
    given = loaded(LISTENERS, "broker.rack=a", "storage.flush_bytes=1MiB", "log.format=json")

    assert worker(given, 0).settings == given.settings


def test_port_0_stays_0_and_an_id_nobody_set_is_assigned() -> None:
    settings = worker(loaded("kafka.listeners=PLAINTEXT://127.0.0.1:0", "http.listen=127.0.0.1:0"), 3).settings

    assert (settings.kafka.listeners[0].port, settings.kafka.advertised_listeners[0].port, settings.http.listen.port) == (0, 0, 0)
    assert settings.broker.id is None


def test_advertised_listeners_nobody_set_follow_the_listeners() -> None:
    settings = worker(loaded(), 1).settings

    assert (settings.kafka.listeners[0].port, settings.kafka.advertised_listeners[0].port) == (9093, 9093)


def test_settings_of_any_source_reach_the_worker_and_an_empty_one_is_not_given() -> None:
    given = loaded("broker.rack=", environ={"FOREBAY_STORAGE__CACHE_BYTES": "64MiB"})

    assert worker(given, 1).settings.storage.cache_bytes == 64 * 2**20
    assert not [one for one in plan.assignments(given, {}) if one.startswith("broker.rack")]


def test_the_environment_of_a_worker_holds_no_settings_but_the_credentials() -> None:
    assert plan.environment({"FOREBAY_LOG__LEVEL": "debug", "AWS_ACCESS_KEY_ID": "k", "PATH": "/bin"}) == {
        "AWS_ACCESS_KEY_ID": "k",
        "PATH": "/bin",
    }


def test_stores_in_memory_are_not_shareable() -> None:
    given = loaded("storage.url=memory://", "metadata.url=memory://")

    with pytest.raises(StartError) as refused:
        plan.check(given.settings, workers=2)

    assert str(refused.value).startswith(
        "--workers 2 needs stores that several processes can share, and not metadata.url=memory:// and storage.url=memory://. "
    )
    assert refused.value.exit_code == 2


def test_stores_on_this_machine_are_shareable() -> None:
    plan.check(loaded().settings, workers=8)


@pytest.mark.parametrize(
    ("listeners", "words"),
    [
        (
            "A://127.0.0.1:9092,B://127.0.0.1:9093",
            r"listen on 127\.0\.0\.1:9093 for kafka\.listeners \(A\), which kafka\.listeners \(B\) of wo",
        ),
        ("A://0.0.0.0:8070", r"worker 0 would listen on 127\.0\.0\.1:8070 for http\.listen, which kafka\.listeners \(A\) of worker 0 has"),
        (
            "A://127.0.0.1:8071",
            r"worker 1 would listen on 127\.0\.0\.1:8071 for http\.listen, which kafka\.listeners \(A\) of worker 0 has",
        ),
        ("A://127.0.0.1:65535", r"worker 1 would need port 65536 for kafka\.listeners \(A\), and there is none above 65535"),
    ],
)
def test_ports_that_meet_are_refused(listeners: str, words: str) -> None:
    with pytest.raises(StartError, match=words) as refused:
        plan.check(loaded(f"kafka.listeners={listeners}").settings, workers=2)

    assert refused.value.exit_code == 2


def test_equal_ports_on_different_addresses_do_not_meet() -> None:
    plan.check(loaded("kafka.listeners=A://127.0.0.1:9092,B://127.0.0.2:9093").settings, workers=2)
