import io
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from forebay.commands.topic.formats import RecordLine
from forebay.commands.topic.producing import LINE_BYTES_MAX, QUEUED_MAX, Parsed, ProducedLines, Values, lines, produce
from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed

NOBODY: Any = None


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
    assert [line for block in lines(io.BytesIO(text)) for line in block] == expected


def test_a_line_that_no_record_can_hold_is_refused_before_it_is_read_to_its_end() -> None:
    stream = io.BytesIO(b"a\n" + b"x" * (LINE_BYTES_MAX + 10))

    with pytest.raises(ClientFailed, match="Line 2 is longer than 16 MiB") as failed:
        list(lines(stream))

    assert failed.value.exit_code == EXIT_USAGE
    assert stream.read() != b""


class Library:
    """What is used of confluent_kafka's producer: a queue of `room`, which a poll empties, and values that it does not take."""

    def __init__(self, *, room: int = 1_000, refused: bytes | None = None, failing: bytes | None = None) -> None:
        self._room = room
        self._refused = refused
        self._failing = failing
        self._queue: list[tuple[bytes, Any]] = []
        self.taken: list[bytes] = []
        self.calls = 0

    def __len__(self) -> int:
        return len(self._queue)

    def produce_batch(self, _topic: str, messages: list[dict[str, Any]], *, partition: int) -> int:
        assert partition == -1, "each line has its own"
        self.calls += 1
        taken = 0
        for message in messages:
            try:
                self._take(message["value"], message["callback"])
                taken += 1
            except (BufferError, KafkaException):
                message["_error"] = KafkaError(KafkaError._MSG_TIMED_OUT)
        return taken

    def produce(self, _topic: str, value: bytes, *, on_delivery: Any, **_: object) -> None:
        self.calls += 1
        self._take(value, on_delivery)

    def _take(self, value: bytes, report: Any) -> None:
        if len(self._queue) == self._room:
            raise BufferError
        if value == self._refused:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self._queue.append((value, report))
        self.taken.append(value)

    def poll(self, _timeout_s: float = 0) -> int:
        for value, report in self._queue:
            if value == self._failing:
                report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), NOBODY)
        self._queue.clear()
        return 0


def handed_over(library: Any, *blocks: Values | Parsed, queued_max: int = QUEUED_MAX) -> ProducedLines:
    produced = ProducedLines()
    produce(library, "t", iter(blocks), produced, moved=lambda _records, _size_bytes: None, queued_max=queued_max)
    return produced


def values(*given: bytes, headers: bool = False) -> Values:
    return Values(given, RecordLine(None, headers=(("a", b"b"),) if headers else ()))


@pytest.mark.parametrize("headers", [False, True])
def test_a_full_queue_is_waited_for_and_nothing_overtakes(headers: bool) -> None:
    library = Library(room=3)
    given = [b"%d" % number for number in range(20)]

    produced = handed_over(library, values(*given[:10], headers=headers), values(*given[10:], headers=headers), queued_max=3)

    assert library.taken == given
    assert (produced.stored(0), produced.refused) == (20, None)


@pytest.mark.parametrize("headers", [False, True])
def test_what_the_library_does_not_take_is_not_counted_and_is_named(headers: bool) -> None:
    library = Library(refused=b"c")

    produced = handed_over(library, values(b"a", b"b", headers=headers), values(b"c", b"d", headers=headers), values(b"e"))

    assert produced.refused is not None
    assert produced.refused[0] == 3
    assert produced.stored(0) == len(library.taken)
    assert b"e" not in library.taken


@pytest.mark.parametrize("headers", [False, True])
def test_what_failed_later_is_not_counted_and_is_named(headers: bool) -> None:
    produced = handed_over(Library(failing=b"b"), values(b"a", b"a", headers=headers), values(b"b", b"d", headers=headers))

    assert produced.refused is not None
    assert produced.refused[0] == 3
    assert (produced.failed, produced.stored(0)) == (1, 3)


def test_what_is_queued_is_not_stored_yet() -> None:
    produced = handed_over(Library(), values(b"a", b"b", b"c"))

    assert (produced.stored(2), produced.stored(3)) == (1, 0)


def test_lines_go_together_unless_one_has_what_only_single_ones_can() -> None:
    together, timed, large = Library(), Library(), Library()

    handed_over(together, values(b"a", b"b"), Parsed([RecordLine(b"c", b"k"), RecordLine(None)]))
    handed_over(timed, Parsed([RecordLine(b"c", timestamp_ms=1), RecordLine(b"d")]))
    handed_over(large, values(b"a", b"x" * 10_000))

    assert (together.calls, timed.calls, large.calls) == (2, 2, 2)


def test_lines_come_as_soon_as_they_are_there() -> None:
    class Pipe:
        def __init__(self, *parts: bytes) -> None:
            self._parts = list(parts)

        def read1(self, _size_bytes: int, /) -> bytes:
            return self._parts.pop(0) if self._parts else b""

    assert list(lines(Pipe(b"a\nb", b"c", b"d\n\n", b"e"))) == [[b"a"], [b"bcd", b""], [b"e"]]
