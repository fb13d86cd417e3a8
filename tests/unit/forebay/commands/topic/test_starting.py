import pytest

from forebay.commands.topic.starting import (
    AtEnd,
    AtOffset,
    AtStart,
    AtTime,
    BeforeEnd,
    OffsetBounds,
    StartingPoint,
    Stop,
    offsets,
    parse_start,
    parse_stop,
    stops,
)
from forebay.kafka_client.failures import EXIT_NOT_FOUND, ClientFailed

NOW_MS = 1_795_250_400_000
BOUNDS = {0: OffsetBounds(0, 10), 1: OffsetBounds(5, 100)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", AtStart()),
        ("end", AtEnd()),
        ("0", AtOffset(0)),
        ("42", AtOffset(42)),
        ("-5", BeforeEnd(5)),
        ("@1795250358763", AtTime(1_795_250_358_763)),
        ("@-10m", AtTime(NOW_MS - 600_000)),
        ("@-99999d", AtTime(0)),
        ("@2026-11-21T08:39:18.763Z", AtTime(1_795_250_358_763)),
        ("@2026-11-21T09:39:18.763+01:00", AtTime(1_795_250_358_763)),
        ("@2026-11-21T08:39:18.763", AtTime(1_795_250_358_763)),
        ("@2026-11-21", AtTime(1_795_219_200_000)),
        ("@1960-01-01", AtTime(0)),
    ],
)
def test_a_place_to_start_is_understood(text: str, expected: StartingPoint) -> None:
    assert parse_start(text, now_ms=NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "begin", "1.5", "--5", "١", "9223372036854775808", "@", "@noon", "@-5", "@-5y", "@2026-13-01"])
def test_what_is_no_place_to_start_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is no (place to start|time): "):
        parse_start(text, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (AtStart(), {0: 0, 1: 5}),
        (AtEnd(), {0: 10, 1: 100}),
        (BeforeEnd(20), {0: 0, 1: 80}),
        (AtOffset(5), {0: 5, 1: 5}),
        (AtOffset(10), {0: 10, 1: 10}),
        (AtTime(1), {0: 10, 1: 77}),
    ],
)
def test_each_partition_is_read_from_where_it_says(start: StartingPoint, expected: dict[int, int]) -> None:
    assert offsets(start, "orders", BOUNDS, at_time={0: -1, 1: 77}) == expected


@pytest.mark.parametrize(("offset", "where"), [(4, "orders/1, which starts at 5 and ends before 100"), (11, "orders/0, which starts at 0")])
def test_an_offset_that_a_partition_does_not_have_is_an_error_that_names_it(offset: int, where: str) -> None:
    with pytest.raises(ClientFailed) as failed:
        offsets(AtOffset(offset), "orders", BOUNDS, at_time={})

    assert failed.value.exit_code == EXIT_NOT_FOUND
    assert where in str(failed.value)
    assert "Choose one partition with -p." in str(failed.value)


@pytest.mark.parametrize(
    ("text", "expected"), [("end", AtEnd()), ("7", AtOffset(7)), ("-5", BeforeEnd(5)), ("@-10m", AtTime(NOW_MS - 600_000))]
)
def test_a_place_to_end_is_understood(text: str, expected: Stop) -> None:
    assert parse_stop(text, now_ms=NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "start", "now", "1.5", "@noon"])
def test_what_is_no_place_to_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is no (place to end: expected end|time: )"):
        parse_stop(text, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (AtEnd(), {0: 10, 1: 100}),
        (BeforeEnd(20), {0: 0, 1: 80}),
        (AtOffset(50), {0: 50, 1: 50}),
        (AtTime(1), {0: 10, 1: 77}),
    ],
)
def test_each_partition_is_read_to_where_it_says(stop: Stop, expected: dict[int, int]) -> None:
    assert stops(stop, BOUNDS, at_time={0: -1, 1: 77}) == expected
