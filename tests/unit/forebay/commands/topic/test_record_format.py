import json

import pytest

from forebay.commands.topic.formats import DEFAULT_FORMAT, ConsumedRecord, record_format
from forebay.kafka_client.text import printable_record

RECORD = ConsumedRecord("orders", 3, 42, 1_795_250_358_763, b"k", b"\xff\x00v", (("a", b"b"), ("c", None)))
NOTHING = ConsumedRecord("orders", 0, 0, -1, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEFAULT_FORMAT, b"\xff\x00v\n"),
        (r"%t/%p@%o\t%k", b"orders/3@42\tk"),
        ("%d %d{utc}", b"1795250358763 2026-11-21T08:39:18.763Z"),
        ("%v{hex} %v{base64} %k{hex}", b"ff0076 /wB2 6b"),
        ("%h %H %K %V", b"a=b,c= 2 1 3"),
        (r"100%% \\ \x41\0\r", b"100% \\ A\0\r"),
        ("%%{hex}", b"%{hex}"),
        ("{é}", "{é}".encode()),
        ("raw", b"\xff\x00v"),
        (r"%t [%p] at offset %o: key %k: %s (%S) %T\n", b"orders [3] at offset 42: key k: \xff\x00v (3) 1795250358763\n"),
        ("%s{hex}", b"ff0076"),
    ],
)
def test_a_record_is_written_as_the_format_says(text: str, expected: bytes) -> None:
    assert record_format(text)(RECORD) == expected


def test_a_null_is_written_as_nothing_and_its_length_as_minus_one() -> None:
    assert record_format("[%k][%v{hex}] %K %V %d{utc}")(NOTHING) == b"[][] -1 -1 1969-12-31T23:59:59.999Z"
    assert record_format("raw")(NOTHING) == b""


def test_json_is_one_line_and_keeps_bytes_that_are_no_text() -> None:
    line = record_format("json")(RECORD)

    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1_795_250_358_763,
        "key": "k",
        "value": {"base64": "/wB2"},
        "headers": [{"key": "a", "value": "b"}, {"key": "c", "value": None}],
    }
    assert json.loads(record_format("json")(NOTHING))["value"] is None


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "is empty"),
        ("%z", "has %z, which is no field: %t %p %o %d %k %v %h %K %V %H and %% are"),
        ("%", "has %, which is no field"),
        ("%{hex}", "which is no field"),
        ("%v{rot13}", "has %v{rot13}: there is %v{hex} %v{base64}"),
        ("%o{hex}", "has %o{hex}: %o is written in one way only"),
        (r"\q", r"has \q, which means nothing"),
        ("\\", "has \\, which means nothing"),
        (r"\xg", r"has \x, which means nothing"),
    ],
)
def test_a_format_that_cannot_be_meant_is_refused(text: str, phrase: str) -> None:
    with pytest.raises(ValueError) as refused:
        record_format(text)

    assert phrase in str(refused.value)


def test_a_terminal_is_shown_what_others_wrote_and_obeys_the_format_alone() -> None:
    hostile = ConsumedRecord("t", 0, 0, 0, b"k\x1b]0;owned\x07", b"v\r\xff\tx\n", (("h\x1b[2J", b"\x00"),))

    assert record_format(r"\x1b[1m%k %v %h", shown=printable_record)(hostile) == (
        b"\x1b[1mk\\x1b]0;owned\\x07 v\\r\\xff\tx\n h\\x1b[2J=\\x00"
    )
    assert record_format("raw", shown=printable_record)(hostile) == hostile.value


def test_json_has_no_character_that_a_terminal_obeys() -> None:
    line = record_format("json")(ConsumedRecord("t", 0, 0, 0, None, "\x9b31m\x7f\u202e".encode()))

    assert line.isascii()
    assert json.loads(line)["value"] == "\x9b31m\x7f\u202e"


def test_a_format_has_the_bytes_that_were_typed() -> None:
    assert record_format("\udcff%k")(RECORD) == b"\xffk"
