import pytest

from forebay.kafka_client.options import parse_duration_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("250ms", 250),
        ("5s", 5_000),
        ("1.5h", 5_400_000),
        ("2d", 172_800_000),
        ("0", 0),
        ("-1s", -1_000),
        ("P1DT2H", 93_600_000),
        ("PT0.5S", 500),
        ("pt90m", 5_400_000),
    ],
)
def test_a_duration_is_read_in_both_notations(text: str, expected: int) -> None:
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "is not a duration"),
        ("soon", "is not a duration"),
        ("P", "is not a duration"),
        ("P1DT", "is not a duration"),
        ("５s", "is not a duration"),
        ("5", "needs a unit: write for example 5ms or 5s"),
        ("5y", "has an unknown unit 'y': use ms, s, m, h, d"),
        ("0.5ms", "is finer than a millisecond"),
        ("999999999999d", "is longer than any clock runs"),
    ],
)
def test_what_is_no_duration_is_refused_with_a_phrase(text: str, phrase: str) -> None:
    with pytest.raises(ValueError, match=f"^{phrase}"):
        parse_duration_ms(text)
