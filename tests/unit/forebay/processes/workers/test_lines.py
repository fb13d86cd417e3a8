import json

from hypothesis import given
from hypothesis import strategies as st

from forebay.processes.worker import LineCutter, attribute_line


@given(st.lists(st.binary(max_size=20)))
def test_however_the_bytes_are_cut_the_lines_are_the_same(parts: list[bytes]) -> None:
    cutter = LineCutter()

    lines = [line for part in parts for line in cutter.feed(part)] + cutter.rest()

    whole = b"".join(parts).split(b"\n")
    expected = whole if whole[-1] else whole[:-1]
    assert lines == [line.decode(errors="replace") for line in expected]


def test_a_line_without_an_end_is_passed_on_in_parts() -> None:
    cutter = LineCutter(bytes_max=4)

    assert cutter.feed(b"abcdefghij") == ["abcd", "efgh"]
    assert cutter.feed(b"kl\nm") == ["ijkl"]
    assert cutter.rest() == ["m"]
    assert cutter.rest() == []


def test_an_event_in_json_gets_the_worker_as_a_field_and_other_words_become_one() -> None:
    event = attribute_line('{"event": "ready", "seconds": 1}', worker=2, log_format="json")
    words = attribute_line('Traceback "here"', worker=2, log_format="json")

    assert json.loads(event) == {"worker": 2, "event": "ready", "seconds": 1}
    assert json.loads(words) == {"worker": 2, "event": "worker_said", "line": 'Traceback "here"'}


def test_on_a_console_the_worker_is_a_prefix() -> None:
    assert attribute_line("ready", worker=1, log_format="console") == "worker 1  ready"
