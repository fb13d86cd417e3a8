from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from process.settings.notation import (
    ASSIGNED_OR_COUNT,
    FLAG,
    LABELS,
    TEXT_OR_NONE,
    Notation,
    OutOfRangeError,
    count,
    duration,
    one_of,
    parse_duration,
    parse_size,
    show_duration,
    show_size,
    size,
    some_of,
)

MIB = 1024 * 1024
NOTATIONS = (
    duration(minimum="1ms", maximum="60s"),
    size(minimum="1B", maximum="1GiB"),
    count(minimum=1, maximum=10),
    FLAG,
    one_of("a", "b"),
    some_of("a", "b"),
)


def phrase_of(notation: Notation, value: object) -> str:
    try:
        notation.parse(value)
    except ValueError as error:
        return str(error)
    return ""


@given(st.integers(min_value=0, max_value=10**15).map(lambda microseconds: timedelta(microseconds=microseconds)))
def test_a_duration_that_is_shown_is_read_back(value: timedelta) -> None:
    assert parse_duration(show_duration(value)) == value


@given(st.integers(min_value=0, max_value=2**50))
def test_a_size_that_is_shown_is_read_back(value: int) -> None:
    assert parse_size(show_size(value)) == value


@given(st.one_of(st.text(), st.booleans(), st.floats(), st.none(), st.lists(st.integers())))
def test_whatever_is_written_is_either_read_or_refused_with_a_phrase(value: object) -> None:
    phrases = [phrase_of(notation, value) for notation in NOTATIONS]

    assert {phrase.split()[0] for phrase in phrases if phrase} <= {"is", "has", "must", "needs"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("5s", timedelta(seconds=5)),
        ("10m", timedelta(minutes=10)),
        ("1.5h", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        (" 5 s ", timedelta(seconds=5)),
        ("0", timedelta(0)),
        (0, timedelta(0)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_durations_as_people_write_them(text: object, value: timedelta) -> None:
    assert parse_duration(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(0), "0ms"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(microseconds=1500), "1.5ms"),
        (timedelta(seconds=90), "90s"),
        (timedelta(minutes=10), "10m"),
        (timedelta(days=7), "7d"),
    ],
)
def test_durations_are_shown_in_the_largest_unit_that_needs_no_fraction(value: timedelta, text: str) -> None:
    assert show_duration(value) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("250", "needs a unit: write for example 250ms or 250s"),
        (5, "needs a unit"),
        ("5 weeks", "has an unknown unit 'weeks'"),
        ("soon", "is not a duration"),
        ("0.0001ms", "is finer than a microsecond"),
        ("999999999999999d", "is longer than any clock runs"),
        (True, "is not a duration"),
        ("", "is not a duration"),
    ],
)
def test_durations_that_mean_nothing_are_refused(text: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8MiB", 8 * MIB),
        ("64KiB", 65_536),
        ("1GiB", 2**30),
        ("1.5MiB", MIB + MIB // 2),
        ("100kB", 100_000),
        ("1MB", 1_000_000),
        ("2GB", 2_000_000_000),
        ("512B", 512),
        ("512", 512),
        (512, 512),
    ],
)
def test_sizes_as_people_write_them(text: object, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("8Mib", "has an unknown unit 'Mib': use B, kB, MB, GB, KiB, MiB, GiB"),
        ("much", "is not a size"),
        ("0.5B", "is not a whole number of bytes"),
        (True, "is not a size"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(text: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_size(text)


@pytest.mark.parametrize(
    ("notation", "value", "bounds"),
    [
        (duration(minimum="10ms", maximum="60s"), "-5", "must be between 10ms and 60s"),
        (duration(minimum="10ms", maximum="60s"), "61s", "must be between 10ms and 60s"),
        (size(minimum="64KiB", maximum="128MiB"), "1B", "must be between 64KiB and 128MiB"),
        (count(minimum=1, maximum=10), 0, "must be between 1 and 10"),
        (ASSIGNED_OR_COUNT, -1, "must be between 0 and 2147483647"),
    ],
)
def test_a_value_outside_the_bounds_is_refused_with_them(notation: Notation, value: object, bounds: str) -> None:
    with pytest.raises(OutOfRangeError, match=bounds):
        notation.parse(value)


def test_what_may_be_left_out_is_shown_as_nothing() -> None:
    assert (ASSIGNED_OR_COUNT.parse(None), ASSIGNED_OR_COUNT.show(None)) == (None, "")
    assert (TEXT_OR_NONE.parse(" "), TEXT_OR_NONE.show(None)) == (None, "")
    assert ASSIGNED_OR_COUNT.parse("7") == 7
    assert TEXT_OR_NONE.parse(" zone-a ") == "zone-a"


def test_flags_are_words() -> None:
    assert [FLAG.parse(value) for value in (True, "yes", "On", 1)] == [True] * 4
    assert [FLAG.parse(value) for value in (False, "no", "OFF", 0)] == [False] * 4
    with pytest.raises(ValueError, match="must be true or false"):
        FLAG.parse("maybe")


def test_a_choice_is_one_of_its_words() -> None:
    assert one_of("self", "client").parse("client") == "client"
    with pytest.raises(OutOfRangeError, match="must be one of self, client"):
        one_of("self", "client").parse("selfs")


def test_labels_are_pairs_and_are_shown_as_they_are_written() -> None:
    labels = LABELS.parse(" team=payments, scenario = a=b,")

    assert labels == (("team", "payments"), ("scenario", "a=b"))
    assert LABELS.parse(LABELS.show(labels)) == LABELS.parse(["team=payments", "scenario=a=b"]) == LABELS.parse(labels) == labels
    assert LABELS.parse("") == ()


@pytest.mark.parametrize(
    ("value", "phrase"),
    [
        ("team", "must be name=value pairs"),
        ("1team=a", "must be name=value pairs"),
        ("__name__=a", "must be name=value pairs"),
        (7, "must be name=value pairs"),
        ("a=1,a=2", "names the label a twice"),
        ("a=" + "x" * 129, "at most 128 printable characters"),
        ("a=x\ny", "at most 128 printable characters"),
        (",".join(f"a{number}=x" for number in range(17)), "at most 16 labels"),
    ],
)
def test_a_label_that_prometheus_would_not_take_is_refused(value: object, phrase: str) -> None:
    assert phrase in phrase_of(LABELS, value)


def test_several_words_come_in_their_order_once_each() -> None:
    notation = some_of("a", "b", "c")

    assert [notation.parse(written) for written in ("c, a", ["b", "b"], ("a",), "a,b,c")] == [("a", "c"), ("b",), ("a",), ("a", "b", "c")]
    assert notation.show(("a", "c")) == "a,c"
    for written, message in (
        ("", "must name one or more of a, b, c"),
        (None, "must name one or more"),
        ("a,d", "has 'd', which is none of"),
    ):
        with pytest.raises(ValueError, match=message):
            notation.parse(written)
