import pytest

from broker.protocol.session import Session


def test_a_reply_leaves_at_once_when_nothing_came_before() -> None:
    session = Session()
    number = session.begin()

    ready = session.reply(number, [b"header", b"", b"records"])

    assert b"".join(ready) == b"\x00\x00\x00\x0dheaderrecords"
    assert session.pending_count == 0


def test_a_reply_waits_for_those_before_it() -> None:
    session = Session()
    first, second, third = (session.begin() for _ in range(3))

    assert session.reply(third, [b"3"]) == []
    assert session.reply(second, [b"2"]) == []
    assert session.pending_count == 3
    assert b"".join(session.reply(first, [b"1"])) == b"\x00\x00\x00\x011\x00\x00\x00\x012\x00\x00\x00\x013"
    assert session.pending_count == 0


def test_a_request_without_a_reply_holds_back_the_ones_behind_it_all_the_same() -> None:
    session = Session()
    silent, answered = session.begin(), session.begin()

    assert session.reply(answered, [b"x"]) == []
    assert b"".join(session.reply(silent, None)) == b"\x00\x00\x00\x01x"


def test_an_empty_reply_is_a_frame_all_the_same() -> None:
    session = Session()

    assert b"".join(session.reply(session.begin(), [])) == b"\x00\x00\x00\x00"


def test_record_bytes_are_passed_on_as_they_are() -> None:
    session = Session()
    records = memoryview(bytearray(1000))

    ready = session.reply(session.begin(), [records])

    assert ready[1] is records


def test_answering_twice_is_a_bug_also_when_the_reply_has_left() -> None:
    session = Session()
    left, waiting = session.begin(), session.begin()
    session.begin()
    session.reply(left, [b""])

    with pytest.raises(AssertionError, match="not a request that is waited for: 0"):
        session.reply(left, [b""])
    with pytest.raises(AssertionError, match="not a request that is waited for: 3"):
        session.reply(3, [b""])

    blocked = Session()
    blocked.begin()
    waiting = blocked.begin()
    blocked.reply(waiting, [b""])
    with pytest.raises(AssertionError, match="answered twice: request 1"):
        blocked.reply(waiting, [b""])
