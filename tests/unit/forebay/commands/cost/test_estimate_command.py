import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from forebay.cli import application


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> Result:
    return CliRunner().invoke(application, ["cost", "estimate", *words], env={"FOREBAY_CONFIG": None})


def test_the_table_shows_both_systems_and_how_far_to_trust_the_prices() -> None:
    ended = run("50MiB", "--set", "cost.budget_per_month=900")

    assert ended.exit_code == 0
    assert [line.split()[-1] for line in ended.stdout.splitlines() if "PUT of WAL objects" in line] == ["157.68"]
    assert "cost.budget_per_month is $900.00: $84.82 above it" in ended.stdout
    assert "12.0 objects a second of 4.17 MiB" in ended.stdout
    assert "prices: s3-standard us-east-1, 2026-11-28, not verified where the provider publishes them" in ended.stdout


def test_json_has_every_figure_unrounded() -> None:
    found = json.loads(run("50MiB", "-o", "json", "--store", "r2", "--retention", "1d").stdout)

    assert found["prices"]["store"] == "r2"
    assert found["forebay"]["dollars_per_month"] == pytest.approx(sum(one["dollars"] for one in found["forebay"]["items"]))
    assert found["load"]["retention_s"] == 86_400
    assert found["budget_per_month"] is None


def test_a_file_of_prices_is_named_by_option_or_setting() -> None:
    Path("p.yaml").write_text("version: 1\ndate: 2026-11-01\nstores: {s3-standard: {put_per_1000: 0}}\n")

    for words in (("--prices", "p.yaml"), ("--set", "cost.prices_file=p.yaml")):
        found = json.loads(run("50MiB", "-o", "json", *words).stdout)
        assert found["forebay"]["items"][0]["dollars"] == 0
        assert found["prices"]["date"] == "2026-11-01"


def test_a_small_load_goes_early_and_the_table_says_so() -> None:
    assert "3.0 objects a minute: batches are committed before their object is stored" in run("10kB", "--batches", "50").stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("fast",), 2, 'BYTES "fast" is not a size'),
        (("0",), 2, 'BYTES "0" is too little'),
        (("1MiB", "--retention", "7"), 2, '--retention "7" needs a unit'),
        (("1MiB", "--flush-interval", "0"), 2, '--flush-interval "0" is too little'),
        (("1MiB", "--store", "s4"), 2, '--store "s4": is not in the built-in prices'),
        (("1MiB", "--prices", "absent.yaml"), 2, "absent.yaml: cannot be read"),
        (("1MiB", "--set", "cost.store=s4"), 2, 'cost.store "s4"'),
    ],
)
def test_what_cannot_be_estimated_is_said(words: tuple[str, ...], code: int, said: str) -> None:
    ended = run(*words)

    assert (ended.exit_code, said in " ".join(ended.output.replace("│", " ").split())) == (code, True), ended.output
