"""The connection of our own to a node of Oxia, against a peer that is played frame by frame. (Against gRPC's: tests/integration/oxia.)"""

import asyncio
from typing import cast

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.oxia.http2 import (
    ACK,
    END_HEADERS,
    END_STREAM,
    INTERNAL,
    PADDED,
    PERMISSION_DENIED,
    PRIORITY,
    REQUEST_BYTES_MAX,
    RESPONSE_BYTES_MAX,
    STREAM_MAX,
    UNAVAILABLE,
    UNKNOWN,
    CallReply,
    ConnectionBroken,
    FrameType,
    Http2Connection,
    SettingName,
    framed,
    literals,
)

HEADERS = literals({":method": "POST", ":path": "/s/Read", "content-type": "application/grpc"})
GREETING = framed(FrameType.SETTINGS, 0, 0, b"")
REFUSED_STREAM = 7


class Wire:
    """What a connection writes to."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_closed = False
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Type, flags, stream, payload of what was written since the last time."""
        data, self.sent = self.sent.removeprefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), b""
        found = []
        while data:
            size = int.from_bytes(data[:3], "big")
            found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
            data = data[9 + size :]
        return found


def connected(*, greeting: bytes = GREETING, stream_max: int = STREAM_MAX) -> tuple[Http2Connection, Wire]:
    connection, wire = Http2Connection(stream_max=stream_max), Wire()
    connection.connection_made(cast("asyncio.Transport", wire))
    if greeting:
        connection.data_received(greeting)
        wire.frames()
    return connection, wire


def setting(name: int, value: int) -> bytes:
    return framed(FrameType.SETTINGS, 0, 0, name.to_bytes(2, "big") + value.to_bytes(4, "big"))


def block(**headers: str) -> bytes:
    return literals({name.replace("_", "-").replace("http", ":"): value for name, value in headers.items()})


def messages(*texts: bytes) -> bytes:
    return b"".join(b"\x00" + len(text).to_bytes(4, "big") + text for text in texts)


def answer(stream: int, *texts: bytes, trailers: bytes = block(grpc_status="0")) -> bytes:
    body = messages(*texts)
    return b"".join(
        (
            framed(FrameType.HEADERS, END_HEADERS, stream, block(httpstatus="200", content_type="application/grpc")),
            *(framed(FrameType.DATA, 0, stream, body[first : first + 16_384]) for first in range(0, len(body), 16_384)),
            framed(FrameType.HEADERS, END_HEADERS | END_STREAM, stream, trailers),
        )
    )


async def test_it_says_at_first_that_it_keeps_no_headers_takes_no_pushes_and_has_room_for_answers() -> None:
    _, wire = connected(greeting=b"")

    settings, update = wire.frames()

    assert settings == (
        FrameType.SETTINGS,
        0,
        0,
        b"".join(n.to_bytes(2, "big") + v.to_bytes(4, "big") for n, v in ((1, 0), (2, 0), (4, RESPONSE_BYTES_MAX))),
    )
    assert update == (FrameType.WINDOW_UPDATE, 0, 0, (2**31 - 1 - 65_535).to_bytes(4, "big"))


async def test_a_request_is_headers_that_need_no_table_and_one_message_that_ends_it() -> None:
    connection, wire = connected()
    secret = "t" * 300

    connection.send(HEADERS + literals({"authorization": secret}, is_secret=True), b"question")

    (kind, flags, stream, headers), data = wire.frames()
    assert (kind, flags, stream) == (FrameType.HEADERS, END_HEADERS, 1)
    assert hpack.Decoder().decode(headers) == [
        (":method", "POST"),
        (":path", "/s/Read"),
        ("content-type", "application/grpc"),
        ("authorization", secret),
    ]
    assert data == (FrameType.DATA, END_STREAM, 1, messages(b"question"))


async def test_what_is_longer_than_a_frame_goes_in_several() -> None:
    connection, wire = connected()
    question = bytes(40_000)

    connection.send(HEADERS, question)

    _, *data = wire.frames()
    assert [(kind, flags, len(payload)) for kind, flags, _, payload in data] == [(0, 0, 16_384), (0, 0, 16_384), (0, END_STREAM, 7_237)]
    assert b"".join(payload for *_, payload in data) == messages(question)


@given(cuts=st.lists(st.integers(1, 400), max_size=30), texts=st.lists(st.binary(max_size=90), max_size=4))
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(cuts: list[int], texts: list[bytes]) -> None:
    async def play() -> None:
        connection, _ = connected()
        replies = [connection.send(HEADERS, b"?")[1] for _ in range(2)]
        data = answer(3, *texts) + answer(1, b"first")
        for cut in cuts:
            if data:
                connection.data_received(data[:cut])
            data = data[cut:]
        if data:
            connection.data_received(data)

        assert [await reply for reply in replies] == [CallReply(0, "", (b"first",)), CallReply(0, "", tuple(texts))]

    asyncio.run(play())


async def test_an_answer_of_many_frames_is_put_together_and_its_bytes_are_reported_as_read() -> None:
    connection, wire = connected()
    _, reply = connection.send(HEADERS, b"?")
    wire.frames()
    text = bytes(2 * 1024 * 1024)

    connection.data_received(answer(1, text))

    assert (await reply).messages == (text,)
    assert wire.frames() == [(FrameType.WINDOW_UPDATE, 0, 0, (len(text) + 5).to_bytes(4, "big"))]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (
            framed(
                FrameType.HEADERS,
                END_HEADERS | END_STREAM,
                1,
                block(httpstatus="200", grpc_status="14", grpc_message="node is not leader %e2%82%ac"),
            ),
            CallReply(14, "node is not leader €", ()),
        ),
        (framed(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, block(httpstatus="503")), CallReply(UNAVAILABLE, "HTTP status 503", ())),
        (
            framed(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, block(httpstatus="403")),
            CallReply(PERMISSION_DENIED, "HTTP status 403", ()),
        ),
        (framed(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, block(httpstatus="418")), CallReply(UNKNOWN, "HTTP status 418", ())),
        (framed(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, block(httpstatus="9" * 5_000)), CallReply(UNKNOWN, "HTTP status -1", ())),
        (
            framed(FrameType.HEADERS, END_HEADERS, 1, block(httpstatus="502")) + framed(FrameType.DATA, END_STREAM, 1, b"<html>"),
            CallReply(UNAVAILABLE, "HTTP status 502", ()),
        ),
        (
            framed(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, block(httpstatus="404", grpc_status="9")),
            CallReply(9, "", ()),
        ),
        (answer(1, b"x", trailers=block(grpc_status="9" * 5_000)), CallReply(UNKNOWN, "the answer has no status", ())),
        (answer(1, b"x", trailers=block(other="1")), CallReply(UNKNOWN, "the answer has no status", ())),
        (framed(FrameType.DATA, END_STREAM, 1, messages(b"x")), CallReply(UNKNOWN, "the answer has no status", ())),
        (
            framed(FrameType.DATA, 0, 1, messages(b"cut")[:-1]) + answer(1),
            CallReply(INTERNAL, "the answer is compressed or cut short", ()),
        ),
        (
            framed(FrameType.DATA, 0, 1, b"\x01\x00\x00\x00\x01x") + answer(1),
            CallReply(INTERNAL, "the answer is compressed or cut short", ()),
        ),
        (
            framed(FrameType.RST_STREAM, 0, 1, REFUSED_STREAM.to_bytes(4, "big")),
            CallReply(UNAVAILABLE, "the server ended the request with HTTP/2's code 7", ()),
        ),
        (
            framed(FrameType.RST_STREAM, 0, 1, (2).to_bytes(4, "big")),
            CallReply(INTERNAL, "the server ended the request with HTTP/2's code 2", ()),
        ),
    ],
)
async def test_an_answer_that_is_none_says_so(sent: bytes, expected: CallReply) -> None:
    connection, wire = connected()
    _, reply = connection.send(HEADERS, b"?")
    _, other = connection.send(HEADERS, b"?")

    connection.data_received(sent)
    connection.data_received(answer(3, b"others are not concerned"))

    assert await reply == expected
    assert (await other).messages == (b"others are not concerned",)
    assert not wire.is_closed


async def test_padding_priorities_and_continuations_are_taken_off() -> None:
    connection, _ = connected()
    _, reply = connection.send(HEADERS, b"?")
    trailers = block(grpc_status="0")
    padding = bytes(7)

    connection.data_received(
        b"".join(
            (
                framed(
                    FrameType.HEADERS,
                    END_HEADERS | PADDED | PRIORITY,
                    1,
                    bytes((len(padding),)) + bytes(5) + block(httpstatus="200") + padding,
                ),
                framed(FrameType.DATA, PADDED, 1, bytes((len(padding),)) + messages(b"text") + padding),
                framed(FrameType.HEADERS, END_STREAM, 1, trailers[:3]),
                framed(FrameType.CONTINUATION, 0, 1, trailers[3:5]),
                framed(FrameType.CONTINUATION, END_HEADERS, 1, trailers[5:]),
            )
        )
    )

    assert await reply == CallReply(0, "", (b"text",))


async def test_settings_and_pings_are_answered_and_what_it_does_not_know_is_passed_over() -> None:
    connection, wire = connected()

    connection.data_received(
        framed(FrameType.PING, 0, 0, b"12345678") + framed(FrameType.PING, ACK, 0, b"12345678") + framed(99, 0xFF, 7, b"?") + setting(77, 1)
    )
    connection.data_received(framed(FrameType.SETTINGS, ACK, 0, b""))

    assert wire.frames() == [(FrameType.PING, ACK, 0, b"12345678"), (FrameType.SETTINGS, ACK, 0, b"")]


async def test_a_request_has_room_only_within_the_windows_of_the_peer() -> None:
    connection, _ = connected()
    assert connection.has_room_for(60_000)
    assert not connection.has_room_for(REQUEST_BYTES_MAX)

    connection.send(HEADERS, bytes(60_000))
    assert connection.has_room_for(5_000)
    assert not connection.has_room_for(6_000)
    connection.data_received(framed(FrameType.WINDOW_UPDATE, 0, 1, (2**30).to_bytes(4, "big")))  # the stream's alone
    assert not connection.has_room_for(6_000)
    connection.data_received(framed(FrameType.WINDOW_UPDATE, 0, 0, (60_000).to_bytes(4, "big")))
    assert connection.has_room_for(6_000)

    connection.data_received(setting(SettingName.INITIAL_WINDOW_SIZE, 1_000))
    assert connection.has_room_for(995)
    assert not connection.has_room_for(996)


async def test_what_a_request_takes_of_the_window_is_all_of_its_data() -> None:
    connection, _ = connected()
    connection.send(HEADERS, bytes(60_000))
    assert connection.has_room_for(5_525)
    assert not connection.has_room_for(5_526)


@pytest.mark.parametrize("size", [126, 127, 128, 254, 255, 256])
async def test_a_header_of_any_length_is_read_as_it_was_written(size: int) -> None:
    assert hpack.Decoder().decode(literals({"name": "v" * size})) == [("name", "v" * size)]


async def test_a_request_has_room_only_among_as_many_as_the_peer_takes() -> None:
    connection, _ = connected(greeting=setting(SettingName.MAX_CONCURRENT_STREAMS, 2))
    connection.send(HEADERS, b"?")
    assert connection.has_room_for(1)

    connection.send(HEADERS, b"?")
    assert not connection.has_room_for(1)
    connection.data_received(answer(3, b"!"))
    assert connection.has_room_for(1)


async def test_a_peer_that_does_not_read_gets_no_more_requests_until_it_does() -> None:
    connection, _ = connected()

    connection.pause_writing()
    assert not connection.has_room_for(1)
    connection.resume_writing()
    assert connection.has_room_for(1)


async def test_a_connection_whose_numbers_run_out_is_closed_after_its_last_answer() -> None:
    connection, wire = connected(stream_max=3)
    connection.send(HEADERS, b"?")
    assert connection.has_room_for(1)
    _, last = connection.send(HEADERS, b"?")
    assert not connection.has_room_for(1)

    connection.data_received(answer(1, b"!"))
    assert not wire.is_closed
    connection.data_received(answer(3, b"!"))

    assert (await last).status == 0
    assert wire.is_closed


async def test_when_the_peer_goes_away_what_it_took_is_answered_and_the_rest_is_not_waited_for() -> None:
    connection, wire = connected()
    _, taken = connection.send(HEADERS, b"?")
    _, late = connection.send(HEADERS, b"?")

    connection.data_received(framed(FrameType.GOAWAY, 0, 0, (1).to_bytes(4, "big") + bytes(4)))

    assert await late == CallReply(UNAVAILABLE, "the server goes away", ())
    assert not connection.has_room_for(1)
    assert not wire.is_closed
    connection.data_received(answer(1, b"!"))
    assert (await taken).messages == (b"!",)
    assert wire.is_closed


async def test_of_an_answer_that_nobody_waits_for_any_more_the_peer_hears_and_what_comes_of_it_is_dropped() -> None:
    connection, wire = connected()
    number, _ = connection.send(HEADERS, b"?")
    _, other = connection.send(HEADERS, b"?")
    wire.frames()

    connection.give_up(number)
    connection.data_received(answer(number, b"late"))
    connection.data_received(answer(3, b"!"))
    connection.give_up(3)  # it has come

    assert (await other).messages == (b"!",)
    assert wire.frames() == [(FrameType.RST_STREAM, 0, number, (8).to_bytes(4, "big"))]


async def test_bytes_of_an_answer_that_nobody_waits_for_are_reported_as_read() -> None:
    connection, wire = connected()
    number, _ = connection.send(HEADERS, b"?")
    connection.give_up(number)
    wire.frames()
    text = bytes(2 * 1024 * 1024)

    connection.data_received(answer(number, text))

    assert wire.frames() == [(FrameType.WINDOW_UPDATE, 0, 0, (len(text) + 5).to_bytes(4, "big"))]


VIOLATIONS = {
    "a frame that is too long": (16_385).to_bytes(3, "big") + bytes(6),
    "settings of odd length": framed(FrameType.SETTINGS, 0, 0, b"12345"),
    "a push": framed(FrameType.PUSH_PROMISE, END_HEADERS, 1, bytes(8)),
    "a continuation of nothing": framed(FrameType.CONTINUATION, END_HEADERS, 1, b""),
    "another frame within headers": framed(FrameType.HEADERS, 0, 1, b"") + framed(FrameType.PING, 0, 0, bytes(8)),
    "headers of another stream within headers": framed(FrameType.HEADERS, 0, 1, b"") + framed(FrameType.CONTINUATION, END_HEADERS, 3, b""),
    "more padding than there is": framed(FrameType.DATA, PADDED, 1, b"\x03ab"),
    "padding of nothing": framed(FrameType.DATA, PADDED, 1, b""),
    "a header from a table that was ruled out": framed(FrameType.HEADERS, END_HEADERS, 1, b"\xbe"),
    "headers that are none": framed(FrameType.HEADERS, END_HEADERS, 1, b"\x00\x7f\xff"),
    "endless headers": framed(FrameType.HEADERS, 0, 1, bytes(16_384)) + 4 * framed(FrameType.CONTINUATION, 0, 1, bytes(16_384)),
}


@pytest.mark.parametrize("sent", VIOLATIONS.values(), ids=VIOLATIONS.keys())
async def test_what_is_no_http_2_ends_the_connection_and_all_that_is_under_way(sent: bytes) -> None:
    connection, wire = connected()
    replies = [connection.send(HEADERS, b"?")[1] for _ in range(2)]

    connection.data_received(sent)

    for reply in replies:
        with pytest.raises(ConnectionBroken, match="no answer in HTTP/2"):
            await reply
    assert wire.is_aborted
    assert not connection.has_room_for(1)


async def test_an_answer_that_is_too_long_ends_the_connection() -> None:
    connection, wire = connected()
    _, reply = connection.send(HEADERS, b"?")
    frame = framed(FrameType.DATA, 0, 1, bytes(16_384))

    for _ in range(RESPONSE_BYTES_MAX // 16_384):
        connection.data_received(frame)
    assert not reply.done()
    connection.data_received(frame)

    with pytest.raises(ConnectionBroken, match=f"more than {RESPONSE_BYTES_MAX} bytes"):
        await reply
    assert wire.is_aborted


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", framed(FrameType.PING, 0, 0, bytes(8))])
async def test_a_peer_that_begins_otherwise_is_never_ready(greeting: bytes) -> None:
    connection, wire = connected(greeting=greeting)

    with pytest.raises(ConnectionBroken):
        await connection.ready
    assert wire.is_aborted


async def test_a_connection_that_is_lost_says_so_to_all_who_wait_and_to_whoever_waits_for_it() -> None:
    connection, _ = connected(greeting=b"")
    connection.connection_lost(ConnectionResetError("reset"))
    with pytest.raises(ConnectionBroken, match="reset"):
        await connection.ready

    connection, _ = connected()
    _, reply = connection.send(HEADERS, b"?")
    connection.connection_lost(None)
    with pytest.raises(ConnectionBroken, match="connection closed"):
        await reply
    assert connection.is_over


PIECES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        framed,
        st.integers(0, 10),
        st.integers(0, 255),
        st.integers(0, 7),
        st.one_of(st.binary(max_size=40), st.builds(block, grpc_status=st.text(max_size=4)), st.builds(messages, st.binary(max_size=9))),
    ),
)


@given(pieces=st.lists(PIECES, max_size=12))
def test_whatever_comes_ends_in_replies_or_a_broken_connection(pieces: list[bytes]) -> None:
    async def play() -> None:
        connection, wire = connected()
        replies = [connection.send(HEADERS, b"?")[1] for _ in range(3)]
        for piece in pieces:
            if not wire.is_aborted:
                connection.data_received(piece)

        if wire.is_aborted:
            assert all(reply.done() for reply in replies)
            assert not connection.has_room_for(1)
        connection.abort("the end")
        for reply in replies:
            assert reply.done()

    asyncio.run(play())
