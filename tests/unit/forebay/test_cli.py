import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from forebay.cli import application
from process.settings.reference import SETTINGS
from runtime.version import forebay_version


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(application, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_the_version_is_the_packages() -> None:
    assert run("--version") == run("version") == (0, f"forebay {forebay_version()}\n", "")


@pytest.mark.parametrize(
    "command", [(), ("serve",), ("topic",), ("topic", "consume"), ("bench", "e2e"), ("group", "reset-offsets"), ("config", "show")]
)
def test_help_is_also_h(command: tuple[str, ...]) -> None:
    code, words, talk = run(*command, "-h")

    assert (code, words, talk) == run(*command, "--help")
    assert code == 0
    assert words.lstrip().startswith("Usage: ")


def commands(path: tuple[str, ...] = (), command: Any = None) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group of them, by the words that call it."""
    command = typer.main.get_command(application) if command is None else command
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands((*path, name), below)


def test_no_summary_of_a_command_is_cut_short_on_80_columns() -> None:
    for path, command in commands():
        if not hasattr(command, "commands"):
            continue
        words = CliRunner().invoke(application, [*path, "--help"], env={"COLUMNS": "80"}).stdout
        summaries = words.partition("Commands:\n")[2].splitlines()

        assert summaries, path
        assert [line for line in summaries if line.rstrip().endswith(("...", "…"))] == [], path


def test_help_fits_80_columns() -> None:
    for path, _ in commands():
        words = CliRunner().invoke(application, [*path, "--help"], env={"COLUMNS": "80"}).stdout

        assert [line for line in words.splitlines() if len(line) > 80] == [], path


def test_help_names_the_variable_of_each_option_of_serve() -> None:
    _, words, _ = run("serve", "--help")

    for variable in ("FOREBAY_CONFIG", "FOREBAY_SECTION__NAME", "FOREBAY_LOG__FORMAT", "FOREBAY_LOG__LEVEL"):
        assert variable in words


def test_the_table_shows_every_setting_and_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_LOG__LEVEL", "debug")

    code, words, _ = run("config", "show", "--origin", "--set", "storage.flush_bytes=1MiB")

    rows = {line.split()[0]: line.split()[1:] for line in words.splitlines()}
    assert code == 0
    assert rows.keys() == SETTINGS.keys()
    assert rows["log.level"] == ["debug", "FOREBAY_LOG__LEVEL"]
    assert rows["storage.flush_bytes"] == ["1MiB", "--set"]
    assert rows["broker.id"] == ["-", "default"]


def test_json_is_for_programs() -> None:
    plain = json.loads(run("config", "show", "-o", "json")[1])
    with_origin = json.loads(run("config", "show", "-o", "json", "--origin", "--set", "broker.id=7")[1])

    assert plain.keys() == SETTINGS.keys()
    assert (plain["storage.flush_interval"], plain["broker.rack"]) == ("5ms", None)
    assert with_origin["broker.id"] == {"value": "7", "origin": "--set"}
    assert with_origin["kafka.advertised_listeners"]["origin"] == "derived from kafka.listeners"


def test_advice_goes_beside_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LISTENERS", "x")

    _, data, talk = run("config", "show", "-o", "json")

    assert json.loads(data)
    assert talk.startswith("KAFKA_LISTENERS is set but not read by forebay.")


def test_wrong_settings_are_an_event_where_the_log_is_json() -> None:
    Path("forebay.yaml").write_text("log:\n  format: json\n  level: loud\nkafka:\n  listenerz: 1\n")

    code, data, talk = run("serve")

    assert (code, data) == (2, "")
    (line,) = talk.splitlines()
    said = json.loads(line)
    assert (said["event"], said["level"], said["exit_code"]) == ("cannot_serve", "error", 2)
    assert said["message"].splitlines() == [
        "forebay.yaml:5: kafka.listenerz is not a setting. Did you mean kafka.listeners?",
        'forebay.yaml:3: log.level "loud": must be one of debug, info, warning, error (default info).',
    ]


@pytest.mark.parametrize(
    ("given", "is_json"),
    [
        ((), True),
        (("--set", "log.format=console"), False),
        (("--set", "log.format=console", "--log-format", "json"), True),
        (("--set", "log.format=console", "--log-format", "xml"), False),
    ],
)
def test_the_log_format_is_the_last_that_can_be_read(given: tuple[str, ...], is_json: bool) -> None:
    _, _, talk = run("serve", *given, "--set", "broker.id=-1")

    assert talk.startswith("{") == is_json


@pytest.mark.parametrize("command", [("config", "show"), ("serve", "--log-format", "console")])
def test_wrong_settings_end_a_command_with_all_problems_and_2(command: tuple[str, ...]) -> None:
    Path("forebay.yaml").write_text("kafka:\n  listenerz: 1\n")

    code, data, talk = run(*command, "--set", "log.level=loud")

    assert (code, data) == (2, "")
    assert talk.splitlines() == [
        "forebay.yaml:2: kafka.listenerz is not a setting. Did you mean kafka.listeners?",
        "--set log.level=loud: must be one of debug, info, warning, error (default info).",
    ]


def test_single_options_are_settings_too() -> None:
    code, _, talk = run("serve", "--log-format", "xml", "--set", "log.format=console")

    assert (code, talk) == (2, "--log-format xml: must be one of auto, console, json (default auto).\n")


def test_an_unknown_output_format_is_a_usage_error() -> None:
    assert run("config", "show", "-o", "xml")[0] == 2


def test_a_file_is_validated_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_NONSENSE", "1")
    Path("good.yaml").write_text("log: {level: debug}\n")
    Path("bad.yaml").write_text("log: {level: loud}\n")

    assert run("config", "validate", "good.yaml") == (0, "good.yaml is valid\n", "")
    assert run("config", "validate", "bad.yaml") == (
        2,
        "",
        'bad.yaml:1: log.level "loud": must be one of debug, info, warning, error (default info).\n',
    )


def test_everything_that_is_wrong_in_a_file_is_told_at_once() -> None:
    Path("bad.yaml").write_text(
        "log: {level: loud, format: !json x}\n"
        "kafka:\n"
        "  default_partitions: 2001-99-99\n"
        "  leeder: self\n"
        "http.listen: 0.0.0.0:8070\n"
        "shutdown: {drain: 2m, deadline: 1m}\n"
        "metadata.url: memory://\n"
    )

    code, data, talk = run("config", "validate", "bad.yaml")

    assert (code, data) == (2, "")
    assert talk.splitlines() == [
        "bad.yaml:1: log.format cannot be read. Write it without YAML tags, and text in quotes.",
        "bad.yaml:4: kafka.leeder is not a setting. Did you mean kafka.leader?",
        'bad.yaml:3: kafka.default_partitions "2001-99-99": must be a whole number.',
        'bad.yaml:1: log.level "loud": must be one of debug, info, warning, error (default info).',
        'bad.yaml:1: log.format "x": must be one of auto, console, json (default auto).',
        (
            'bad.yaml:5: http.listen "0.0.0.0:8070": would show metrics and health to everybody who can reach it, without a login. '
            "Listen on 127.0.0.1, or set http.insecure: true."
        ),
        (
            'storage.url "file://./forebay-data/objects": is kept while metadata.url memory:// is forgotten at the end. '
            "Use memory:// for both or for neither."
        ),
        'bad.yaml:6: shutdown.deadline "1m": is shorter than shutdown.drain: the drain could never end.',
    ]


def test_the_template_changes_nothing_until_a_line_is_uncommented() -> None:
    _, template, _ = run("config", "init")
    uncommented = "\n".join(
        line.replace("  # ", "  ") if f"{line.strip('# ').partition(':')[0]}" in {key.partition(".")[2] for key in SETTINGS} else line
        for line in template.splitlines()
    )
    Path("template.yaml").write_text(template)
    Path("uncommented.yaml").write_text(uncommented)

    assert run("config", "show", "-c", "template.yaml") == run("config", "show")
    assert run("config", "show", "-c", "uncommented.yaml") == run("config", "show")
    assert "default_partitions: 1" in uncommented


def test_the_demo_wants_a_number_of_flights_there_is() -> None:
    assert run("demo", "--records", "0")[0] == 2
    assert run("demo", "--records", "336777")[0] == 2


def test_there_is_at_least_one_worker_and_one_broker_of_the_demo() -> None:
    assert run("serve", "--workers", "0")[0] == 2
    assert run("demo", "--brokers", "0")[0] == 2


def test_workers_over_memory_are_refused_with_what_to_do() -> None:
    code, _, talk = run("serve", "--workers", "2", "--set", "storage.url=memory://", "--set", "metadata.url=memory://")

    assert code == 2
    assert "Use oxia:// with s3://, or sqlite:/// with file://" in talk
