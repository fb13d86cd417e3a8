import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import pytest

from broker.http.line_stream import LINES_PER_TURN, UNANSWERED_BYTES_MAX
from storage.limits import MIB
from tests.kit.clustering import running_cluster
from tests.kit.http_asking import Http, http_of

NDJSON = {"content-type": "application/x-ndjson"}
LINES = {"Accept": "application/x-ndjson"}


def line(value: object, topic: str = "t", partition: int = 0, **more: object) -> dict[str, object]:
    return {"topic": topic, "partition": partition, "value": value} | more


async def sent(http: Http, lines: Sequence[object], *, end: bytes = b"\n") -> tuple[int, list[dict[str, Any]]]:
    """Send lines, `""` for a blank one, as a chunk each. The status, and the lines of the answer."""

    async def chunks() -> AsyncIterator[bytes]:
        for one in lines:
            yield (b"" if one == "" else one if isinstance(one, bytes) else json.dumps(one).encode()) + end
            await asyncio.sleep(0)

    async with http.session.post("/produce", data=chunks(), headers=NDJSON) as response:
        answer = await response.read()
        return response.status, [json.loads(text) for text in answer.splitlines()]


async def read_lines(http: Http, document: dict[str, Any]) -> list[dict[str, Any]]:
    async with http.session.post("/consume", json=document, headers=LINES) as response:
        assert response.status == 200
        assert response.content_type == "application/x-ndjson"
        return [json.loads(text) for text in (await response.read()).splitlines() if text]


def spans(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["lines"] for answer in answers]


async def test_lines_become_batches_that_end_where_the_client_says(http: Http) -> None:
    status, answers = await sent(http, [{"batch_records": 3, "linger_ms": 60_000}, *map(line, "abcd"), "", line("e")])

    assert status == 200
    assert spans(answers) == [[2, 4], [5, 5], [7, 7]]
    assert [(answer["start_offset"], answer["end_offset"]) for answer in answers] == [(0, 2), (3, 3), (4, 4)]
    assert await http.values("t", 0) == list("abcde")


async def test_a_stream_needs_no_head_and_its_last_line_no_end(http: Http) -> None:
    status, answers = await sent(http, [b'{"topic":"t","partition":0,"value":"a"}\n{"topic":"t","partition":0,"base64":"/w=="}'], end=b"")

    assert (status, spans(answers)) == (200, [[1, 2]])
    assert await http.values("t", 0) == ["a", {"base64": "/w=="}]


async def test_a_batch_ends_by_time_where_there_is_no_producer(http: Http) -> None:
    is_answered = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield json.dumps({"linger_ms": 1}).encode() + b"\n" + json.dumps(line("a")).encode() + b"\n"
        await is_answered.wait()

    async with http.session.post("/produce", data=chunks(), headers=NDJSON) as response:
        first = json.loads(await response.content.readline())
        assert first["lines"] == [2, 2]
        is_answered.set()
        assert await response.read() == b""


async def test_a_stream_that_is_sent_again_to_another_broker_is_there_once() -> None:
    async with running_cluster() as cluster:
        one, other = await cluster.join(), await cluster.join()
        async with http_of(one) as here, http_of(other) as there:
            _, given = await here.post("/producers", b"", content_type="")
            head = {"producer": {"id": given["id"], "epoch": 0}, "batch_records": 2, "sequences": {"t/0": 0}}
            lines = [head, *map(line, "abcde")]

            for http, duplicate in ((here, False), (there, True)):
                status, answers = await sent(http, lines)
                assert status == 200
                assert [(answer["start_offset"], answer["duplicate"]) for answer in answers] == [(at, duplicate) for at in (0, 2, 4)]
            assert await there.values("t", 0) == list("abcde")


async def test_an_error_ends_its_partition_and_no_other(http: Http) -> None:
    large = "x" * 1_100_000
    lines: list[object] = [line("a"), "", line(large), "", line("b"), line("c", partition=9), line("d", topic="u"), ""]
    _, answers = await sent(http, [{"linger_ms": 60_000}, *lines])

    assert [(answer["topic"], answer["partition"], answer.get("error_type")) for answer in answers] == [
        ("t", 0, None),
        ("t", 0, "MessageTooLarge"),
        ("t", 9, "UnknownTopicOrPartition"),
        ("u", 0, None),
        ("t", 0, "MessageTooLarge"),
    ]
    assert "this stream writes no more to the partition" in answers[-1]["error"]
    assert await http.values("t", 0) == ["a"]
    assert await http.values("u", 0) == ["d"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([b"{"], "line 1: not JSON"),
        ([{"producer": 3}], "line 1: producer: Expected `object"),
        ([{"batch_records": 0}], "line 1: batch_records"),
        ([{"sequences": {"t/0": 1}}], "line 1: sequences: a producer writes them"),
        ([line(3)], "line 1: value"),
        ([{"topic": "t", "partition": 0}], "line 1: a record has"),
        ([{"linger_ms": 60_000}, line("a"), {"value": "b"}], "line 3: Object missing required field `topic`"),
        ([b"x" * 5_000_000], "line 1: longer than 4194304 bytes"),
        ([line("a", topic="x" * 250)], "line 1: topic: Expected `str` of length <= 249"),
        ([{"producer": {"id": 1, "epoch": 0}, "sequences": {"t/" + "9" * 5_000: 0}}], "line 1: sequences"),
        ([{"batch_records": 2_000}, *(line("a", partition=at) for at in range(1_001))], "a stream writes to at most 1000 partitions"),
    ],
)
async def test_a_line_that_is_wrong_is_refused_by_its_number_before_anything_of_its_batch(
    http: Http, lines: list[object], message: str
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for one in lines:
            yield (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n"

    async with http.session.post("/produce", data=chunks(), headers=NDJSON) as response:
        answer = json.loads(await response.read())
        assert response.status == 400
    assert message in answer["error"]
    assert (await http.get("/api/v1/topics"))[1]["topics"] == []


async def test_a_line_that_is_wrong_after_answers_is_the_last_answer(http: Http) -> None:
    status, answers = await sent(http, [line("a"), "", b"{", line("b")])

    assert status == 200
    assert [answer["ok"] for answer in answers] == [True, False]
    assert answers[1]["lines"] == [3, 3]
    assert await http.values("t", 0) == ["a"]


async def test_a_million_bytes_in_lines_come_back_as_lines_and_memory_with_them(http: Http) -> None:
    values = [f"{number} " + "x" * 1_000 for number in range(3_000)]
    _, answers = await sent(http, [b"\n".join(json.dumps(line(value)).encode() for value in values)])
    assert sum(answer["count"] for answer in answers) == len(values)

    lines = await read_lines(http, {"topic_partitions": [{"topic": "t", "partition": 0, "fetch_offset": "start"}], "until": "end"})

    assert [one["value"] for one in lines] == values
    assert [one["offset"] for one in lines] == list(range(len(values)))
    assert {(one["topic"], one["partition"]) for one in lines} == {("t", 0)}
    parts = http.member.broker.http
    assert parts.responses.held_bytes == 0
    assert parts.address_of("127.0.0.1").claimed_bytes == 0


async def test_a_stream_of_lines_ends_after_as_many_records_as_were_asked_for(http: Http) -> None:
    await http.produced("t", 0, list("abcdef"))

    named = [{"topic": "t", "partition": 0, "fetch_offset": 1}]
    assert [one["value"] for one in await read_lines(http, {"topic_partitions": named, "max_records": 3})] == ["b", "c", "d"]


async def test_a_partition_that_is_not_there_ends_with_a_line_and_the_others_go_on(http: Http) -> None:
    await http.produced("t", 0, ["a"])
    named = [{"topic": name, "partition": at, "fetch_offset": 0} for name, at in (("t", 0), ("t", 5), ("none", 0))]

    lines = await read_lines(http, {"topic_partitions": named, "until": "end"})

    assert sorted(str(one.get("error_type")) for one in lines) == ["None", "UnknownTopicOrPartition", "UnknownTopicOrPartition"]


class Events:
    """The events of a tail, one by one."""

    def __init__(self, http: Http, path: str, last_event_id: str | None = None) -> None:
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        self._opening = http.session.get(path, headers=headers)

    async def __aenter__(self) -> Self:
        self._response = await self._opening.__aenter__()
        assert (self._response.status, self._response.content_type) == (200, "text/event-stream")
        begun = dict(text.split(": ", 1) for text in (await self._response.content.readuntil(b"\n\n")).decode().split("\n") if text)
        assert begun["retry"] == "2000"
        self.first_id = begun["id"]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._response.close()

    async def next(self) -> tuple[str, str, Any]:
        """Kind, id and data."""
        fields = dict(text.split(": ", 1) for text in (await self._response.content.readuntil(b"\n\n")).decode().splitlines() if text)
        return fields["event"], fields.get("id", ""), json.loads(fields["data"])


async def test_a_tail_gets_what_comes_and_goes_on_where_it_was_at_any_broker() -> None:
    async with running_cluster() as cluster:
        one, other = await cluster.join(), await cluster.join()
        async with http_of(one) as here, http_of(other) as there:
            await here.produced("t", 0, ["a", "b"])
            async with Events(here, "/tail/t?from=start") as events:
                assert await events.next() == ("record", "0:1", {"topic": "t", "partition": 0, **record(0, "a")})
                kind, last_id, data = await events.next()
                assert (kind, last_id, data["value"]) == ("record", "0:2", "b")
                await there.produced("t", 0, ["c"])
                assert (await events.next())[2]["value"] == "c"

            async with Events(there, "/tail/t?from=start", last_id) as events:
                assert (await events.next())[2]["value"] == "c"
            async with Events(there, "/tail/t?from=start", "not of this server") as events:
                assert (await events.next())[2]["value"] == "a"
            async with Events(there, "/tail/t") as events:
                await here.produced("t", 0, ["d"])
                assert (await events.next())[2]["value"] == "d", "from the end, if nothing else is said"
            async with asyncio.timeout(25):
                while there.member.requests("forebay_http_streams"):  # noqa: ASYNC110 - a metric tells of no change
                    await asyncio.sleep(0.01)


def record(offset: int, value: str) -> dict[str, Any]:
    return {"offset": offset, "timestamp": ANY, "key": None, "value": value, "headers": []}


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ANY = _Any()


async def test_a_tail_of_what_is_not_there_is_refused(http: Http) -> None:
    await http.produced("t", 0, ["a"])
    for path, status in (
        ("/tail/none", 404),
        ("/tail/t?partition=1", 400),
        ("/tail/t?partition=x", 400),
        ("/tail/t?partition=99999999999999", 400),
        ("/tail/t?from=middle", 400),
        ("/tail/t?from=-1", 400),
        ("/tail/t?" + "&".join(["partition=0"] * 101), 400),
    ):
        assert (await http.get(path))[0] == status, path


async def test_a_log_that_was_trimmed_below_a_tail_ends_it_with_an_error(http: Http) -> None:
    await http.produced("t", 0, ["a"])
    async with Events(http, "/tail/t?from=7") as events:
        kind, _, data = await events.next()
    assert (kind, data["error_type"], data["high_watermark"]) == ("error", "OffsetOutOfRange", 1)


async def test_there_is_room_for_so_many_streams() -> None:
    async with running_cluster() as cluster:
        member = await cluster.join()
        async with http_of(member, max_connections=33) as http:
            await http.produced("t", 0, ["a"])
            async with Events(http, "/tail/t?from=start"), http.session.get("/tail/t") as response:
                assert (response.status, response.headers["Retry-After"]) == (429, "5")


async def test_streams_end_when_the_broker_leaves(http: Http) -> None:
    await http.produced("t", 0, ["a"])
    async with Events(http, "/tail/t?from=start") as events:
        await events.next()
        http.member.broker.http.controlled_shutdown.ask()
        await http.produced("t", 0, ["b"])
        assert (await events.next())[0] == "record"
        assert (await events.next())[2]["error_type"] == "BackPressureRejected"


async def test_what_a_client_does_not_read_holds_as_much_as_its_bound(http: Http) -> None:
    await http.produced("t", 0, ["a"])
    reader, writer = await asyncio.open_connection(http.address.host, http.address.port, limit=1)
    writer.write(b"POST /produce HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
    lines = b"".join(json.dumps(line("", partition=at)).encode() + b"\n" for at in range(900))
    head = b'{"batch_records":1}\n'
    writer.write(b"%x\r\n%b\r\n" % (len(head + lines), head + lines))
    address = http.member.broker.http.address_of("127.0.0.1")
    most = 0
    for _ in range(200):
        await asyncio.sleep(0.005)
        most = max(most, address.claimed_bytes)
    writer.transport.abort()

    assert most <= 3 * UNANSWERED_BYTES_MAX
    async with asyncio.timeout(25):
        while address.claimed_bytes:  # noqa: ASYNC110 - an account tells of no change
            await asyncio.sleep(0.01)
    del reader


async def test_blank_lines_without_end_leave_others_their_turns(http: Http) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        counting = group.create_task(count())
        async with http.session.post("/produce", data=io.BytesIO(b"\n" * 1_000_000), headers=NDJSON) as response:
            assert response.status == 200
        counting.cancel()
    assert turns > 1_000_000 / LINES_PER_TURN


async def test_records_that_compress_well_are_read_piece_by_piece(http: Http) -> None:
    values = ["\0" * 100_000] * 90
    for begin in range(0, 90, 15):
        await http.produced("t", 0, values[begin : begin + 15], compression="zstd")
    responses, most = http.member.broker.http.responses, 0

    named = [{"topic": "t", "partition": 0, "fetch_offset": "start"}]
    document = {"topic_partitions": named, "until": "end"}
    async with http.session.post("/consume", json=document, headers=LINES) as response:
        lines = 0
        async for chunk in response.content.iter_any():
            most = max(most, responses.held_bytes)
            lines += chunk.count(b'"offset"')

    assert lines == 90
    assert most < 8 * MIB, "100,000 NULs are 600,000 bytes in JSON, and the log has 9 MB of them"
    answered = await http.consumed("t", 0, max_bytes=1_000_000)
    assert 1 <= answered["count"] <= 5, "JSON is bounded, too"


async def test_ids_keep_partitions_that_have_ended_and_come_before_the_first_record() -> None:
    async with running_cluster() as cluster:
        member = await cluster.join()
        async with http_of(member) as http:
            await http.produced("t", 0, ["a"])
            async with Events(http, "/tail/t") as events:
                assert events.first_id == "0:1", "of an end at which nothing has come"
            await http.produced("t", 0, ["b"])
            async with Events(http, "/tail/t", "0:1") as events:
                assert (await events.next())[1:] == ("0:2", {"topic": "t", "partition": 0, **record(1, "b")})


async def test_records_of_streams_are_counted(http: Http) -> None:
    await http.produced("t", 0, list("abc"))
    await read_lines(http, {"topic_partitions": [{"topic": "t", "partition": 0, "fetch_offset": 0}], "until": "end"})
    assert http.member.requests("forebay_http_records_total", direction="out") == 3


async def test_a_place_beyond_the_end_is_an_error_though_the_stream_ends_there(http: Http) -> None:
    await http.produced("t", 0, ["a"])
    (answer,) = await read_lines(http, {"topic_partitions": [{"topic": "t", "partition": 0, "fetch_offset": 9}], "until": "end"})
    assert answer["error_type"] == "OffsetOutOfRange"
