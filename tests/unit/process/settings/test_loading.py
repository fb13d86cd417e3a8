import os
from datetime import timedelta
from pathlib import Path

import pytest

from process.settings.errors import SettingsError
from process.settings.loading import Loaded, load, load_file


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def problems_of(text: str = "", *, environ: dict[str, str] | None = None, assignments: tuple[str, ...] = ()) -> list[str]:
    Path("forebay.yaml").write_text(text)
    with pytest.raises(SettingsError) as refused:
        load(environ=environ or {}, assignments=assignments)
    assert refused.value.exit_code == 2
    return str(refused.value).split("\n")


def test_without_sources_everything_is_default() -> None:
    loaded = load(environ={})

    assert loaded.given == frozenset()
    assert loaded.advice == ()
    assert loaded.origins["kafka.listeners"] == "default"
    assert loaded.origins["kafka.advertised_listeners"] == "derived from kafka.listeners"


def test_the_last_source_wins_and_its_origin_is_known() -> None:
    Path("forebay.yaml").write_text("log:\n  level: error\n  format: json\nkafka:\n  default_partitions: 2\n  leader: self\n")

    loaded = load(
        environ={"FOREBAY_LOG__LEVEL": "warning", "FOREBAY_KAFKA__DEFAULT_PARTITIONS": "3"},
        assignments=["kafka.default_partitions=4", "kafka.default_partitions=5"],
        options={"log.format": ("--log-format", "console")},
    )

    assert (loaded.settings.kafka.leader, loaded.origins["kafka.leader"]) == ("self", "forebay.yaml:6")
    assert (loaded.settings.log.level, loaded.origins["log.level"]) == ("warning", "FOREBAY_LOG__LEVEL")
    assert (loaded.settings.kafka.default_partitions, loaded.origins["kafka.default_partitions"]) == (5, "--set")
    assert (loaded.settings.log.format, loaded.origins["log.format"]) == ("console", "--log-format")
    assert loaded.given == {"kafka.leader", "log.level", "kafka.default_partitions", "log.format"}


def test_one_source_never_makes_another_forget_its_neighbours() -> None:
    Path("forebay.yaml").write_text("storage:\n  flush_bytes: 1MiB\n")

    storage = load(environ={"FOREBAY_STORAGE__FLUSH_INTERVAL": "7ms"}).settings.storage

    assert (storage.flush_bytes, storage.flush_interval) == (2**20, timedelta(milliseconds=7))


def test_a_named_file_takes_the_place_of_the_one_in_the_folder() -> None:
    Path("forebay.yaml").write_text("log: {level: error}\n")
    Path("other.yaml").write_text("log.format: json\nbroker:\n  id:\nhttp:\n")

    loaded = load(file=Path("other.yaml"), environ={})

    assert (loaded.settings.log.level, loaded.settings.log.format, loaded.settings.broker.id) == ("info", "json", None)


@pytest.mark.parametrize(("written", "bytes_per_s"), [("0B", 0), ("1B", 1), ("8KiB", 8 << 10), ("1GiB", 1 << 30)])
def test_the_budget_of_early_batches_is_any_size_up_to_a_gibibyte_a_second(written: str, bytes_per_s: int) -> None:
    storage = load(environ={}, assignments=[f"storage.early_bytes_per_second={written}"]).settings.storage

    assert storage.early_bytes_per_second == bytes_per_s


def test_a_budget_of_early_batches_beyond_a_gibibyte_a_second_is_refused() -> None:
    (problem, *_) = problems_of(assignments=("storage.early_bytes_per_second=1025MiB",))

    assert "storage.early_bytes_per_second" in problem
    assert "1GiB" in problem


def test_lists_and_numbers_may_be_written_as_yaml_has_them() -> None:
    Path("forebay.yaml").write_text(
        "kafka:\n  listeners:\n    - A://h:1\n    - B://h:2\nstorage:\n  flush_bytes: 1048576\nhttp:\n  insecure: yes\n"
    )

    settings = load(environ={}).settings

    assert [listener.name for listener in settings.kafka.listeners] == ["A", "B"]
    assert settings.storage.flush_bytes == 2**20
    assert settings.http.insecure


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kafka:\n  listenerz: x\n", "forebay.yaml:2: kafka.listenerz is not a setting. Did you mean kafka.listeners?"),
        (
            "storage:\n  inline_bytes: 1KiB\n",
            (
                "forebay.yaml:2: storage.inline_bytes is not a setting any more. Write storage.early_bytes_per_second: how much is "
                "committed in a second before its object is stored; 0B for all in objects. Without it the metadata store says how much."
            ),
        ),
        ("zzz:\n  a: 1\n", "forebay.yaml:2: zzz.a is not a setting. `forebay config init` shows them all."),
        ("kafka: 5\n", "forebay.yaml:1: kafka is a section, not a setting. Its settings go below it, e.g. kafka.listeners."),
        (
            "storage:\n  url: s3//my-bucket\n",
            'forebay.yaml:2: storage.url "s3//my-bucket": missing "://". Expected s3://bucket/prefix, file:///path or memory://.',
        ),
        (
            "storage:\n  url: s3://my-bucket/x?regoin=eu-west-1\n",
            (
                'forebay.yaml:2: storage.url "s3://my-bucket/x?regoin=eu-west-1": '
                "'regoin' is not a parameter of an s3:// URL: did you mean region?"
            ),
        ),
        (
            "kafka:\n  advertised_listeners: PLAINTEXT://0.0.0.0:9092\n",
            (
                'forebay.yaml:2: kafka.advertised_listeners "PLAINTEXT://0.0.0.0:9092": has host 0.0.0.0: clients cannot connect to that. '
                "Set a name clients can resolve, e.g. PLAINTEXT://broker-1:9092."
            ),
        ),
        (
            "kafka:\n  listeners: [SASL_SSL://h:1]\n",
            (
                'forebay.yaml:2: kafka.listeners "SASL_SSL://h:1": names SASL_SSL: not supported. '
                "This release speaks plaintext only, and says so rather than pretend."
            ),
        ),
        (
            "http:\n  listen: 0.0.0.0:8070\n",
            (
                'forebay.yaml:2: http.listen "0.0.0.0:8070": would show metrics and health to everybody who can reach it, without a login. '
                "Listen on 127.0.0.1, or set http.insecure: true."
            ),
        ),
        ("log: [a\n", "forebay.yaml:2: is not YAML (expected ',' or ']', but got '<stream end>')."),
        ("- a\n", "forebay.yaml:1: expected `section:` and settings below it."),
        ("log:\n  level: info\nlog.level: debug\n", "forebay.yaml:3: log.level was set before, in forebay.yaml:2. Keep one of the two."),
        ("log:\n  level: !loud info\n", "forebay.yaml:2: log.level cannot be read. Write it without YAML tags, and text in quotes."),
        (
            "kafka:\n  listeners: [2001-99-99]\n",
            "forebay.yaml:2: kafka.listeners cannot be read. Write it without YAML tags, and text in quotes.",
        ),
        ("broker:\n  id: 2001-99-99\n", 'forebay.yaml:2: broker.id "2001-99-99": must be a whole number.'),
        ("broker:\n  id: !!bool maybe\n", 'forebay.yaml:2: broker.id "maybe": must be a whole number.'),
        ("broker:\n  id: !!timestamp soon\n", 'forebay.yaml:2: broker.id "soon": must be a whole number.'),
        ("? [a]\n: 1\n", "forebay.yaml:1: ? is not a setting. `forebay config init` shows them all."),
    ],
)
def test_problems_of_a_file_name_its_line(text: str, problem: str) -> None:
    assert problems_of(text) == [problem]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (
            "FOREBAY_STORAGE__FLUSH_INTERVAL",
            "-5",
            "FOREBAY_STORAGE__FLUSH_INTERVAL=-5: must be between 1ms and 60s (default 5ms).",
        ),
        (
            "FOREBAY_KAFKA__LISTENERZ",
            "x",
            "FOREBAY_KAFKA__LISTENERZ is not a setting. Did you mean FOREBAY_KAFKA__LISTENERS?",
        ),
        ("FOREBAY_STORAGE_URL", "x", "FOREBAY_STORAGE_URL is not a setting. Did you mean FOREBAY_STORAGE__URL?"),
        (
            "FOREBAY_METADATA__URL",
            "oxai://oxia:6648/default",
            (
                "FOREBAY_METADATA__URL=oxai://oxia:6648/default: unknown scheme oxai://. "
                "Expected oxia://host:6648/namespace, sqlite:////path or memory://."
            ),
        ),
        ("FOREBAY_LOG__LEVEL", "loud", "FOREBAY_LOG__LEVEL=loud: must be one of debug, info, warning, error (default info)."),
    ],
)
def test_problems_of_the_environment_name_the_variable(name: str, value: str, problem: str) -> None:
    assert problems_of(environ={name: value}) == [problem]


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("kafka.listenerz=1", "--set kafka.listenerz is not a setting. Did you mean kafka.listeners?"),
        ("kafka.listeners", "--set kafka.listeners: has no value. Write --set section.name=value."),
        ("broker.id=-1", "--set broker.id=-1: must be between 0 and 2147483647."),
    ],
)
def test_problems_of_the_command_line_name_the_flag(assignment: str, problem: str) -> None:
    assert problems_of(assignments=(assignment,)) == [problem]


@pytest.mark.parametrize(
    ("key", "url"),
    [
        ("metadata.url", "oxia://a/ns?tls=true&token=tell-nobody&x=1"),
        ("metadata.url", "oxia://user:tell-nobody@a/ns"),
        ("storage.url", "s3://key:tell-nobody@bucket/prefix"),
    ],
)
def test_a_secret_that_does_not_belong_into_a_url_is_not_shown(key: str, url: str) -> None:
    section, name = key.split(".")
    shown = problems_of(f"{section}:\n  {name}: {url}\n") + problems_of(assignments=[f"{key}={url}"])
    shown += problems_of(environ={f"FOREBAY_{section}__{name}".upper(): url})

    assert len(shown) == 3
    assert "tell-nobody" not in "".join(shown)
    assert all("***" in problem for problem in shown)


def test_all_problems_are_told_at_once() -> None:
    problems = problems_of(
        "kafka:\n  listenerz: x\nstorage:\n  url: s3//x\n", environ={"FOREBAY_X": "1"}, assignments=("log.level=loud", "y")
    )

    assert len(problems) == 5


def test_what_contradicts_each_other_is_told_beside_what_is_wrong_by_itself() -> None:
    assert problems_of("log: {level: loud}\nshutdown: {drain: 10s, deadline: 5s}\n") == [
        'forebay.yaml:1: log.level "loud": must be one of debug, info, warning, error (default info).',
        'forebay.yaml:2: shutdown.deadline "5s": is shorter than shutdown.drain: the drain could never end.',
    ]


def test_a_contradiction_between_defaults_and_what_was_given_quotes_the_one_at_fault() -> None:
    assert problems_of(environ={"FOREBAY_METADATA__URL": "memory://"}) == [
        (
            'storage.url "file://./forebay-data/objects": is kept while metadata.url memory:// is forgotten at the end. '
            "Use memory:// for both or for neither."
        )
    ]


def test_a_file_that_cannot_be_read_is_a_problem() -> None:
    Path("latin.yaml").write_bytes(b"log: \xff\n")
    Path("control.yaml").write_text("a: \x00\n")

    for name, problem in (
        (
            "missing.yaml",
            f"missing.yaml: cannot be read (No such file or directory) as uid {os.geteuid()}. Name another file with --config.",
        ),
        ("latin.yaml", "latin.yaml: is not UTF-8 text."),
    ):
        with pytest.raises(SettingsError) as refused:
            load_file(Path(name))
        assert str(refused.value) == problem
    with pytest.raises(SettingsError, match=r"control\.yaml: is not YAML"):
        load_file(Path("control.yaml"))


def test_the_file_that_nobody_named_may_be_absent_but_not_lead_nowhere() -> None:
    assert load(environ={}).given == frozenset()

    Path("forebay.yaml").symlink_to("not-mounted.yaml")
    with pytest.raises(SettingsError, match=r"forebay\.yaml: cannot be read \(No such file or directory\)"):
        load(environ={})


def test_a_file_alone_is_checked_without_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_NONSENSE", "1")
    Path("good.yaml").write_text("")

    assert isinstance(load_file(Path("good.yaml")), Loaded)


def test_variables_that_are_not_meant_for_settings_are_passed_over() -> None:
    development = {"FOREBAY_CACHE": "cache", "FOREBAY_TEST_SERVICES": "native", "FOREBAY_SERVICES_S3_PORT": "8333"}
    kubernetes = {
        "FOREBAY_PORT": "tcp://10.0.0.1:9092",
        "FOREBAY_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "FOREBAY_PORT_9092_TCP_ADDR": "10.0.0.1",
        "FOREBAY_SERVICE_HOST": "10.0.0.1",
        "FOREBAY_SERVICE_PORT": "9092",
        "FOREBAY_SERVICE_PORT_KAFKA": "9092",
        "FOREBAY_BOOTSTRAP_SERVICE_HOST": "10.0.0.1",
        "FOREBAY_BOOTSTRAP_PORT_9092_TCP_PROTO": "tcp",
    }

    assert (
        load(environ=kubernetes | development | {"FOREBAY_CONFIG": "x.yaml", "FOREBAY_BOOTSTRAP": "h:9092", "PATH": "/bin"}).given
        == frozenset()
    )


def test_variables_of_the_kafka_image_are_answered_with_ours() -> None:
    advice = load(environ={"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://h:9092", "KAFKA_NODE_ID": "1", "FOREBAY_BROKER__ID": "1"}).advice

    assert len(advice) == 1
    assert advice[0].startswith("KAFKA_ADVERTISED_LISTENERS is set but not read by forebay. Set FOREBAY_KAFKA__ADVERTISED_LISTENERS ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kafka: &all\n  groups: *all\n", "forebay.yaml:2: kafka.groups refers to itself. Write its settings out."),
        ("&all\nkafka: *all\n", "forebay.yaml:2: kafka refers to itself. Write its settings out."),
    ],
)
def test_a_section_that_refers_to_itself_is_told(text: str, problem: str) -> None:
    assert problems_of(text) == [problem]


def test_a_secret_in_a_url_is_not_told_by_what_contradicts_it() -> None:
    told = "\n".join(problems_of("storage: {url: 'memory://'}\nmetadata: {url: 'oxia://user:pass@host/n?token=abc'}\n"))

    assert "pass" not in told
    assert "abc" not in told
