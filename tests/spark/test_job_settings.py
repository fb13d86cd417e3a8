"""AnySettings of a job: where they come from, which are stronger, and what is said about those that are wrong, all at once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from spark.settings import AnySettings, Duration, WrongSettings, load, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class CountSettings(AnySettings):
    topic: str = setting(help="Count this topic.")
    format: Literal["delta", "parquet"] = setting(help="Write this.", default="delta")
    batches: int = setting(help="Write this many.", default=3)
    interval: Duration | None = setting(help="Wait this long.", default=None)
    columns: tuple[str, ...] = setting(help="Of these columns.", default=())
    is_dry: bool = setting(help="Write nothing.", default=False)
    kafka: Mapping[str, str] = setting(help="Set this.", default={})

    def complaints(self) -> Iterator[str]:
        if self.batches < 1:
            yield f"--batches={self.batches}: expected 1 or more"


def loaded(*arguments: str, **environ: str) -> CountSettings:
    return load(CountSettings, "count", arguments, environ)


def complaints(*arguments: str, **environ: str) -> list[str]:
    with pytest.raises(WrongSettings) as raised:
        loaded(*arguments, **environ)
    return str(raised.value).splitlines()


def test_flags_are_read_as_what_they_are_declared_to_be() -> None:
    found = loaded("--topic", "flights", "--batches", "7", "--interval", "1.5m", "--columns", "a, b", "--is-dry", "--format", "parquet")

    assert found == CountSettings(
        topic="flights", batches=7, interval=Duration(90.0), columns=("a", "b"), is_dry=True, format="parquet", kafka={}
    )


@pytest.mark.parametrize(("written", "for_spark"), [("500ms", "500 milliseconds"), ("2h", "7200000 milliseconds")])
def test_a_duration_is_written_for_spark_in_milliseconds(written: str, for_spark: str) -> None:
    interval = loaded("--topic", "flights", "--interval", written).interval

    assert interval is not None
    assert interval.for_spark == for_spark


@pytest.mark.parametrize(("seconds", "written"), [(31_536_000.0, "365d"), (90.0, "90s"), (5_400.0, "90m"), (0.5, "500ms"), (0.0, "0d")])
def test_a_duration_is_shown_as_somebody_would_write_it(seconds: float, written: str) -> None:
    assert Duration(seconds).as_written == written


def test_flags_are_stronger_than_the_environment_which_is_stronger_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text('topic = "a"\nbatches = 1\nis_dry = true\n[kafka]\n"client.id" = "file"\nretries = 3\n[count]\nformat = "parquet"\n')

    found = loaded(
        "--config", str(file), "--kafka", "client.id=flag", "--batches", "9", FOREBAY_SPARK_TOPIC="b", FOREBAY_SPARK_KAFKA="acks=all"
    )

    assert (found.topic, found.batches, found.is_dry, found.format) == ("b", 9, True, "parquet")
    assert found.kafka == {"client.id": "flag", "retries": "3", "acks": "all"}


def test_a_table_of_the_file_is_for_its_own_job_and_stronger_than_what_all_have(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text('topic = "all"\nsomething_of_another_job = 1\n[count]\ntopic = "own"\n[other]\ntopic = "other"\n')

    assert loaded(FOREBAY_SPARK_CONFIG=str(file)).topic == "own"


def test_client_settings_of_all_jobs_and_of_one_add_up_and_need_no_quotes(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text('topic = "a"\n[kafka]\nsecurity.protocol = "SSL"\nretries = 3\n[count.kafka]\nretries = 5\nssl.key.type = "PEM"\n')

    assert loaded("--config", str(file)).kafka == {"security.protocol": "SSL", "retries": "5", "ssl.key.type": "PEM"}


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text("[count]\nbatch = 4\n")

    assert complaints("--config", str(file), "--interval", "5", "--columns", "a", "--kafka", "retries", FOREBAY_SPARK_BATCHES="few") == [
        f"{file}: count has no setting 'batch' (did you mean batches?)",
        "--topic is missing: Count this topic.",
        "FOREBAY_SPARK_BATCHES='few': expected a whole number",
        "--interval='5': expected a number and a unit, as in 500ms, 30s, 15m, 36h or 7d",
        "--kafka='retries': expected NAME=VALUE",
    ]


def test_values_that_are_well_formed_and_wrong_are_said_by_the_job() -> None:
    assert complaints("--topic", "flights", "--batches", "0") == ["--batches=0: expected 1 or more"]


def test_a_choice_names_what_there_is_to_choose_from() -> None:
    assert complaints("--topic", "flights", "--format", "orc") == ["--format='orc': expected delta or parquet"]


def test_a_truth_is_true_or_false() -> None:
    assert complaints("--topic", "flights", "--is-dry", "maybe") == ["--is-dry='maybe': expected true or false"]


def test_an_unknown_option_is_named_with_the_one_that_was_meant() -> None:
    assert complaints("--topik", "flights") == ["count has no option --topik (did you mean --topic?)", "count has no option flights"]


def test_a_file_that_is_not_there_is_named() -> None:
    assert complaints("--config", "/nowhere/jobs.toml", "--topic", "a") == [
        "the settings file /nowhere/jobs.toml cannot be read: No such file or directory"
    ]


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text("topic: flights\n")

    (said,) = complaints("--config", str(file), "--topic", "a")

    assert said.startswith(f"{file} is no TOML: ")


def test_help_says_what_a_setting_is_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        loaded("--help")

    printed = " ".join(capsys.readouterr().out.split())
    assert "--batches N Write this many. [default: 3]" in printed
    assert "--topic VALUE Count this topic. [required]" in printed
    assert "--format delta|parquet" in printed
    assert "--interval TIME" in printed
