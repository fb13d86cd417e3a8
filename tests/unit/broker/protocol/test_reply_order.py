import pytest

from broker.connection import ReplyOrder


def test_a_reply_leaves_at_once_when_nothing_came_before() -> None:
    order = ReplyOrder()
    number = order.begin()

    ready = order.reply(number, [b"header", b"", b"records"])

    assert b"".join(ready) == b"\x00\x00\x00\x0dheaderrecords"
    assert order.pending_count == 0


def test_a_reply_waits_for_those_before_it() -> None:
    order = ReplyOrder()
    first, second, third = (order.begin() for _ in range(3))

    assert order.reply(third, [b"3"]) == []
    assert order.reply(second, [b"2"]) == []
    assert order.pending_count == 3
    assert b"".join(order.reply(first, [b"1"])) == b"\x00\x00\x00\x011\x00\x00\x00\x012\x00\x00\x00\x013"
    assert order.pending_count == 0


def test_a_request_without_a_reply_holds_back_the_ones_behind_it_all_the_same() -> None:
    order = ReplyOrder()
    silent, answered = order.begin(), order.begin()

    assert order.reply(answered, [b"x"]) == []
    assert b"".join(order.reply(silent, None)) == b"\x00\x00\x00\x01x"


def test_an_empty_reply_is_a_frame_all_the_same() -> None:
    order = ReplyOrder()

    assert b"".join(order.reply(order.begin(), [])) == b"\x00\x00\x00\x00"


def test_record_bytes_are_passed_on_as_they_are() -> None:
    order = ReplyOrder()
    records = memoryview(bytearray(1000))

    ready = order.reply(order.begin(), [records])

    assert ready[1] is records


def test_answering_twice_is_a_bug_also_when_the_reply_has_left() -> None:
    order = ReplyOrder()
    left, waiting = order.begin(), order.begin()
    order.begin()
    order.reply(left, [b""])

    with pytest.raises(AssertionError, match="not a request that is waited for: 0"):
        order.reply(left, [b""])
    with pytest.raises(AssertionError, match="not a request that is waited for: 3"):
        order.reply(3, [b""])

    blocked = ReplyOrder()
    blocked.begin()
    waiting = blocked.begin()
    blocked.reply(waiting, [b""])
    with pytest.raises(AssertionError, match="answered twice: request 1"):
        blocked.reply(waiting, [b""])
