import io

import pytest

from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from forebay.topic.producing import LINE_BYTES_MAX, lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"\xff\r\n", [b"\xff\r"]),
    ],
)
def test_a_line_is_a_value_as_the_bytes_it_is(text: bytes, expected: list[bytes]) -> None:
    assert list(lines(io.BytesIO(text))) == expected


def test_a_line_that_no_record_can_hold_is_refused_before_it_is_read_to_its_end() -> None:
    stream = io.BytesIO(b"a\n" + b"x" * (LINE_BYTES_MAX + 10))

    with pytest.raises(ClientFailed, match="Line 2 is longer than 16 MiB") as failed:
        list(lines(stream))

    assert failed.value.exit_code == EXIT_USAGE
    assert stream.read() != b""
