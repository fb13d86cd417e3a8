import pytest
import typer

from forebay.kafka_client.options import Output, Terminal, pairs, seconds
from forebay.kafka_client.text import align, facts


@pytest.mark.parametrize(("text", "expected"), [("60s", 60.0), ("250ms", 0.25), ("1m", 60.0)])
def test_a_timeout_is_a_duration(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0s", "-1s", "5", "soon", "99999999d"])
def test_what_is_no_timeout_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--timeout"):
        seconds(text)


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    assert pairs(["a=b=c", "d="], option="-c", example="k=v") == {"a": "b=c", "d": ""}
    assert pairs(None, option="-c", example="k=v") == {}


@pytest.mark.parametrize("given", [["a"], ["=b"], ["a=1", "a=2"], ["a=\udcff"]])
def test_what_is_no_pair_or_given_twice_is_refused(given: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match="-c"):
        pairs(given, option="-c", example="k=v")


def test_quiet_silences_the_talk_and_not_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(Output.JSON, quiet=True)
    terminal.say("talk")
    terminal.show({"a": 1}, "table")

    assert capsys.readouterr() == ('{\n  "a": 1\n}\n', "")


def test_columns_are_as_wide_as_they_need_to_be() -> None:
    assert align(("NAME", "N"), [("a", 1), ("bcdef", 100)]) == "NAME     N\na        1\nbcdef  100"
    assert facts([("a", 1), ("bcd", "")]) == "a    1\nbcd"


def test_a_number_that_is_missing_leaves_its_column_one_of_numbers() -> None:
    assert align(("A", "LAG", "HOST"), [("x", 7, "-"), ("y", "-", "-"), ("z", 100, "-")]) == (
        "A  LAG  HOST\nx    7  -\ny    -  -\nz  100  -"
    )


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (24, "NAME            N  HOST\nabcdefghijklmn  1  h\no               2  h"),
        (19, "NAME        N  HOST\nabcdefghi…  1  h\no           2  h"),
        (17, "NAME      N  HOST\nabcdefg…  1  h\no         2  h"),
        (5, "NAME      N  HOST\nabcdefg…  1  h\no         2  h"),
    ],
)
def test_a_terminal_that_is_too_narrow_has_the_longest_name_cut_and_no_number(columns: int, expected: str) -> None:
    assert align(("NAME", "N", "HOST"), [("abcdefghijklmn", 1, "h"), ("o", 2, "h")], columns=columns) == expected
    assert align(("NUMBER",), [(12_345_678_901,)], columns=5) == "     NUMBER\n12345678901"


def test_several_long_names_give_way_together() -> None:
    table = align(("A", "B"), [("a" * 30, "b" * 20)], columns=30)

    assert table.splitlines()[1] == f"{'a' * 13}…  {'b' * 13}…"


def test_a_name_that_would_steer_a_terminal_is_shown_instead_and_keeps_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().say('Deleted group "a\x1b[2J\nb".')

    assert align(("NAME", "N"), [("a\x1b[31m\nb", 1), ("c", 2)]) == "NAME          N\na\\x1b[31m\\nb  1\nc             2"
    assert facts([("name", "a\rb")]) == "name  a\\rb"
    assert capsys.readouterr().err == 'Deleted group "a\\x1b[2J\\nb".\n'
