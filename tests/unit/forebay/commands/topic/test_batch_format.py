import pytest
from confluent_kafka import Message

from forebay.commands.topic.formats import ConsumedRecord, after_values, batch_format, keyed, record_format, record_of
from forebay.kafka_client.text import printable_record

MESSAGES = [
    Message(topic="t", partition=1, offset=7, key=b"k", value=b"\xffv", timestamp=(1, 99), headers=[("h", b"x"), ("n", None)]),
    Message(topic="t", partition=0, offset=0, key=None, value=None, timestamp=(0, -1)),
    Message(topic="t", partition=0, offset=1, key=b"", value=b"", timestamp=(1, 1)),
]


@pytest.mark.parametrize(
    "text", [r"%v\n", "%v", r"%v\r\n--%%\x00", "raw", "json", r"%t/%p@%o %k=%v (%h) %d\n", "%k", r"<%v>\n", "%v%v", "%v{hex}"]
)
def test_many_records_are_written_as_each_of_them_would_be(text: str) -> None:
    one = record_format(text)

    assert batch_format(text)(MESSAGES) == b"".join(one(record_of(message)) for message in MESSAGES)
    assert batch_format(text)([]) == b""


def test_a_message_is_a_record_with_all_its_parts() -> None:
    assert record_of(MESSAGES[0]) == ConsumedRecord("t", 1, 7, 99, b"k", b"\xffv", (("h", b"x"), ("n", None)))
    assert record_of(MESSAGES[1]) == ConsumedRecord("t", 0, 0, -1, None, None)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (r"%v\n", b"\n"),
        (r"%s\n", b"\n"),
        ("raw", b""),
        ("%v", b""),
        ("%v%%", b"%"),
        ("%k", None),
        ("%v{hex}", None),
        ("x%v", None),
        ("json", None),
    ],
)
def test_a_format_of_values_alone_is_known_by_what_ends_them(text: str, end: bytes | None) -> None:
    assert after_values(text) == end


def test_what_others_wrote_is_shown_to_a_terminal_also_if_there_are_values_alone() -> None:
    hostile = [Message(topic="t", partition=0, offset=0, value=b"a\x1b[2J")]

    assert batch_format(r"%v\n", shown=printable_record)(hostile) == b"a\\x1b[2J\n"


@pytest.mark.parametrize(("delimiter", "line"), [(":", b"k:\xffv\n"), (r"\t", b"k\t\xffv\n"), ("%k", b"k%k\xffv\n")])
def test_keys_are_written_before_their_delimiter(delimiter: str, line: bytes) -> None:
    assert batch_format(keyed(delimiter))(MESSAGES[:1]) == line
