from pathlib import Path

import pytest

from process.cost.prices import BUILT_IN, BUILT_IN_TABLE, prices_of, read_prices, store_named, store_of
from process.settings.errors import SettingsError
from process.settings.sections import CostSettings

GOOD = """\
version: 1
date: 2026-11-01
stores:
  s3-standard: {put_per_1000: 0.0055, verified: true}
  in-house:
    region: cellar
    put_per_1000: 0
    list_per_1000: 1e-3
    get_per_1000: 0
    storage_per_gib_month: 0.01
    billed: [2xx]
"""


def problems_of(tmp_path: Path, text: str | bytes) -> list[str]:
    file = tmp_path / "prices.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError) as refused:
        read_prices(file)
    return [problem.replace(str(file), "FILE") for problem in refused.value.problems]


def test_a_request_has_the_price_of_its_kind() -> None:
    prices = BUILT_IN["s3-standard"]

    assert {prices.of_request(one) for one in ("put", "list", "upload_begin", "upload_part", "upload_finish")} == {0.005 / 1000}
    assert {prices.of_request(one) for one in ("get", "ranged_get", "head")} == {0.0004 / 1000}
    assert {prices.of_request(one) for one in ("delete", "abort")} == {0.0}


def test_a_file_changes_a_built_in_store_and_adds_another(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(GOOD)

    table = read_prices(file)

    changed, added = table.stores["s3-standard"], table.stores["in-house"]
    assert (changed.put_per_1000, changed.get_per_1000, changed.verified, changed.region) == (0.0055, 0.0004, True, "us-east-1")
    assert (added.region, added.list_per_1000, added.delete_per_1000, added.billed) == ("cellar", 0.001, 0.0, ("2xx",))
    assert table.stores["r2"] == BUILT_IN["r2"]
    assert (table.date, table.origin) == ("2026-11-01", str(file))


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("memory://", "s3-standard"),
        ("file://./data", "s3-standard"),
        ("s3://bucket/log", "s3-standard"),
        ("s3://logs--use1-az4--x-s3/log", "s3-express"),
        ("s3://bucket/log?endpoint=https://0123.r2.cloudflarestorage.com", "r2"),
        ("s3://bucket/log?endpoint=https://storage.googleapis.com", "gcs-standard"),
        ("s3://bucket/log?endpoint=http://127.0.0.1:7070", "s3-standard"),
    ],
)
def test_the_url_of_a_store_says_whose_prices_count(url: str, store: str) -> None:
    assert store_of(url) == store
    assert prices_of(CostSettings(), storage_url=url)[0] == BUILT_IN[store]


def test_the_setting_goes_before_the_url(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(GOOD)

    found, table = prices_of(CostSettings(store="in-house", prices_file=str(file)), storage_url="s3://bucket/log")

    assert (found.name, table.origin) == ("in-house", str(file))


def test_a_store_that_nobody_knows_is_refused_with_what_was_meant() -> None:
    with pytest.raises(SettingsError, match=r'cost\.store "s3-standart": is not in the built-in prices.* Did you mean s3-standard\?'):
        prices_of(CostSettings(store="s3-standart"), storage_url="memory://")


def test_a_store_that_does_not_speak_s3_is_for_estimates_alone() -> None:
    assert store_named("azure-hot-lrs", BUILT_IN_TABLE, named="--store").speaks_s3 is False
    with pytest.raises(SettingsError, match="does not speak S3"):
        prices_of(CostSettings(store="azure-hot-lrs"), storage_url="memory://")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "FILE: has no version. Write version: 1 on a line of its own."),
        (GOOD.replace("version: 1", "version: 2"), 'FILE:1: version "2": is a version that this Forebay does not know. Write version: 1.'),
        (GOOD.replace("date: 2026-11-01", "date: autumn"), 'FILE:2: date "autumn": is not a date.'),
        (GOOD.replace("stores:", "store:"), "FILE:4: store.s3-standard.put_per_1000 is no key of a price file."),
        ("version: 1\ndate: 2026-11-01\n", "FILE: has no stores. Write stores: and below it a name and its prices."),
        ("version: 1\ndate: 2026-11-01\nstores: cheap\n", 'FILE:3: stores "cheap": has no prices.'),
        (GOOD.replace("get_per_1000: 0\n", "gets: 0\n"), "FILE:9: stores.in-house.gets is no key of a store's prices."),
        (GOOD.replace("    get_per_1000: 0\n", ""), "FILE: stores.in-house lacks get_per_1000. Write each with its price in dollars"),
        (GOOD.replace("0.01", "-0.01"), 'FILE:10: stores.in-house.storage_per_gib_month "-0.01": is not a price'),
        (GOOD.replace("0.01", ".nan"), 'FILE:10: stores.in-house.storage_per_gib_month ".nan": is not a price'),
        (GOOD.replace("0.01", ".inf"), 'FILE:10: stores.in-house.storage_per_gib_month ".inf": is not a price'),
        (GOOD.replace("0.01", "$0.01"), 'FILE:10: stores.in-house.storage_per_gib_month "$0.01": is not a price'),
        (GOOD.replace("0.01", "[1, 2]"), 'FILE:10: stores.in-house.storage_per_gib_month "1,2": is not a price'),
        (GOOD.replace("0.01", "2300"), 'FILE:10: stores.in-house.storage_per_gib_month "2300": is more than $1,000'),
        (GOOD.replace("[2xx]", "[200]"), 'FILE:11: stores.in-house.billed "200": must name answers that are charged for'),
        (GOOD.replace("cellar", "[a, [b]]"), "FILE:6: stores.in-house.region is a list of more than words."),
        (GOOD.replace("true", "perhaps"), 'FILE:4: stores.s3-standard.verified "perhaps": must be true or false.'),
        (GOOD.replace("in-house", "in house"), "FILE:6: stores.in house.region is below a name that is none"),
        (GOOD + "version: 1\n", "FILE:12: version was set before, in FILE:1. Keep one of the two."),
        ("- 1\n", "FILE:1: expected `section:` and settings below it."),
        ("{" * 20, "FILE:1: is not YAML"),
        ("[" * 5_000, "FILE: is nested too deeply."),
        (b"\xff\xfe\x00", "FILE: is not UTF-8 text."),
        ("stores: &a {b: *a}\n", "FILE:1: stores.b refers to itself."),
    ],
)
def test_nonsense_is_refused_with_file_line_key_and_fix(tmp_path: Path, text: str | bytes, problem: str) -> None:
    assert [one for one in problems_of(tmp_path, text) if one.startswith(problem)], problems_of(tmp_path, text)


def test_all_problems_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("version: 1", "versoin: 1").replace("0.01", "cheap").replace("[2xx]", "[]")

    assert len(problems_of(tmp_path, text)) == 4


def test_a_file_that_multiplies_itself_by_aliases_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    levels = "\n".join(f"  l{n}: &l{n} {{{', '.join(f'k{m}: *l{n - 1}' for m in range(10))}}}" for n in range(1, 9))

    assert [one for one in problems_of(tmp_path, f"stores:\n  l0: &l0 {{x: 1}}\n{levels}\n") if "has more than 10000 values" in one]


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_a_file_that_cannot_be_read_is_named_with_the_setting(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read \(.*\) as uid \d+\. Name another file with cost\.prices_file\."):
        read_prices(tmp_path / name)
