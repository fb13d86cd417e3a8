import asyncio
import base64
from typing import Any

import pytest

from broker.http.produce import EXPLAINED_MAX, next_sequence
from tests.kit.clustering import running_cluster
from tests.kit.http_asking import Http, http_of

BINARY = base64.b64encode(bytes(range(128, 256))).decode()


async def test_records_of_every_kind_are_read_as_they_were_written(http: Http) -> None:
    written: list[Any] = [
        "text",
        "",
        "an é and a \N{SNOWMAN}",
        {"base64": BINARY},
        {"value": "v", "key": "k", "headers": [["h", "1"], ["h", None], ["b", {"base64": BINARY}]], "timestamp": 1_760_000_000_000},
        {"value": None, "key": {"base64": BINARY}},
    ]
    result = await http.produced("t", 0, written)
    assert (result["start_offset"], result["end_offset"], result["count"]) == (0, 5, 6)
    assert (result["timestamp"], result["duplicate"], result["next_sequence"]) == (None, False, None)

    found = await http.consumed("t", 0)

    assert (found["start_offset"], found["end_offset"], found["next_fetch_offset"], found["high_watermark"]) == (0, 5, 6, 6)
    assert [record["offset"] for record in found["records"]] == list(range(6))
    assert [record["value"] for record in found["records"]] == ["text", "", "an é and a \N{SNOWMAN}", {"base64": BINARY}, "v", None]
    assert [record["key"] for record in found["records"]] == [None, None, None, None, "k", {"base64": BINARY}]
    assert found["records"][4]["headers"] == [["h", "1"], ["h", None], ["b", {"base64": BINARY}]]
    assert found["records"][4]["timestamp"] == 1_760_000_000_000
    now_ms = found["records"][0]["timestamp"]
    assert found["records"][5]["timestamp"] == now_ms > 1_760_000_000_000


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_batches_are_read_whole(http: Http, codec: str) -> None:
    few, many = ["short"] * 3, [f"record {number} " + "x" * 100 for number in range(3_000)]
    await http.produced("t", 0, few, compression=codec)
    await http.produced("t", 0, many, compression=codec)

    assert await http.values("t", 0) == few + many
    assert await http.values("t", 0, 1_000, max_records=2) == many[997:999]


async def test_a_reader_gets_what_it_asks_for_and_where_to_go_on(http: Http) -> None:
    for number in range(5):
        await http.produced("t", 0, [f"{number}-{place}" for place in range(10)])

    first = await http.consumed("t", 0, max_records=7)
    assert (first["count"], first["next_fetch_offset"]) == (7, 7)
    seen = [record["value"] for record in first["records"]]
    at = first["next_fetch_offset"]
    while len(found := await http.values("t", 0, at, max_bytes=40)) > 0:
        assert len(found) < 10, "bytes are a bound, too"
        seen += found
        at += len(found)
    assert seen == [f"{number}-{place}" for number in range(5) for place in range(10)]
    assert await http.values("t", 0, "end") == []

    empty = await http.consumed("t", 0, 50)
    assert (empty["count"], empty["start_offset"], empty["end_offset"], empty["next_fetch_offset"]) == (0, None, None, 50)


async def test_one_record_comes_however_large_it_is(http: Http) -> None:
    await http.produced("t", 0, ["x" * 100_000, "y"])

    assert await http.values("t", 0, max_bytes=1) == ["x" * 100_000]


async def test_a_time_is_a_place_to_read_from(http: Http) -> None:
    await http.produced("t", 0, [{"value": str(number), "timestamp": 1_000 * number} for number in range(1, 6)])

    assert await http.values("t", 0, "@3000") == ["3", "4", "5"]
    assert await http.values("t", 0, "@3001") == ["4", "5"]
    assert await http.values("t", 0, "@99999999") == []


async def test_a_reader_waits_for_records(http: Http) -> None:
    await http.produced("t", 0, ["before"])
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(http.consumed("t", 0, 1, max_wait_ms=30_000))
        group.create_task(http.produced("t", 0, ["after"]))

    assert [record["value"] for record in waiting.result()["records"]] == ["after"]


async def test_partitions_fail_one_by_one(http: Http) -> None:
    await http.produced("t", 0, ["there"])
    status, answer = await http.post(
        "/produce",
        {"topic_partitions": [{"topic": name, "partition": at, "records": ["a"]} for name, at in (("t", 0), ("t", 7), ("no/topic", 0))]},
    )
    assert status == 409
    assert [result["ok"] for result in answer["results"]] == [True, False, False]
    assert [result.get("error_type") for result in answer["results"]] == [None, "UnknownTopicOrPartition", "InvalidTopic"]
    assert (answer["success_count"], answer["error_count"]) == (1, 2)

    named = [("t", 0, 0), ("t", 0 + 7, 0), ("t-2", 0, 0)]
    status, answer = await http.post(
        "/consume", {"topic_partitions": [{"topic": name, "partition": at, "fetch_offset": offset} for name, at, offset in named]}
    )
    assert status == 409
    assert [result["ok"] for result in answer["results"]] == [True, False, False]
    assert {result["error_type"] for result in answer["results"][1:]} == {"UnknownTopicOrPartition"}


async def test_an_offset_beyond_the_log_is_refused_with_both_bounds(http: Http) -> None:
    await http.produced("t", 0, ["a", "b"])

    status, answer = await http.post("/consume", {"topic_partitions": [{"topic": "t", "partition": 0, "fetch_offset": 9}]})

    assert status == 409
    (result,) = answer["results"]
    assert (result["error_type"], result["error_code"], result["retriable"]) == ("OffsetOutOfRange", 1, False)
    assert (result["log_start_offset"], result["high_watermark"]) == (0, 2)
    assert "0" in result["error"]


async def test_a_batch_above_the_bound_of_its_topic_is_refused_whole(http: Http) -> None:
    named = [{"topic": "t", "partition": 0, "records": ["x" * 600_000, "y" * 600_000]}]
    status, answer = await http.post("/produce", {"topic_partitions": named})

    assert status == 409
    assert (answer["results"][0]["error_type"], answer["results"][0]["retriable"]) == ("MessageTooLarge", False)
    assert await http.values("t", 0) == []


async def test_what_a_producer_sends_again_is_there_once() -> None:
    async with running_cluster() as cluster:
        one, other = await cluster.join(), await cluster.join()
        async with http_of(one) as here, http_of(other) as there:
            _, given = await here.post("/producers", b"", content_type="")
            producer = {"id": given["id"], "epoch": given["epoch"]}
            assert given["expires_after_ms"] == 86_400_000
            first = await here.produced("t", 0, ["a", "b"], producer=producer, sequence=0)
            assert (first["duplicate"], first["next_sequence"]) == (False, 2)

            again = await there.produced("t", 0, ["a", "b"], producer=producer, sequence=0)

            assert (again["duplicate"], again["start_offset"], again["end_offset"]) == (True, 0, 1)
            await there.produced("t", 0, ["c"], producer=producer, sequence=2)
            assert await here.values("t", 0) == ["a", "b", "c"]
            assert there.member.requests("forebay_http_duplicates_total") == 1

            ahead = [{"topic": "t", "partition": 0, "records": ["e"], "sequence": 9}]
            status, answer = await here.post("/produce", {"topic_partitions": ahead, "producer": producer})
            assert (status, answer["results"][0]["error_type"]) == (409, "OutOfOrderSequence")


def test_a_sequence_wraps_as_those_of_kafka_do() -> None:
    assert [next_sequence(2**31 - 2, count) for count in (1, 2, 3)] == [2**31 - 1, 0, 1]


async def test_memory_of_requests_and_answers_is_given_back(http: Http) -> None:
    for _ in range(3):
        await http.produced("t", 0, ["x" * 1_000] * 300)
    assert len(await http.values("t", 0)) == 900
    await http.post("/produce", b"{")

    parts = http.member.broker.http
    assert parts.responses.held_bytes == 0
    assert parts.address_of("127.0.0.1").claimed_bytes == 0


async def test_where_records_lie_is_explained_to_who_asks(http: Http) -> None:
    named = {"topic": "t", "partition": 0}
    status, produced = await http.post("/produce", {"topic_partitions": [named | {"records": ["a" * 100]}], "explain": True})
    assert status == 200
    (result,) = produced["results"]
    assert result["index_key"].endswith("/partitions/00000/meta/control")
    assert result["object_uri"].startswith("memory://")
    assert "/wal/" in result["object_uri"]
    assert result["byte_length"] > 100
    status, consumed = await http.post("/consume", {"topic_partitions": [named | {"fetch_offset": 0}], "explain": True})
    places = ("index_key", "object_uri", "byte_offset", "byte_length")
    assert [consumed["results"][0][name] for name in places] == [result[name] for name in places]
    assert not {*places} & (await http.consumed("t", 0)).keys()


async def test_many_partitions_are_not_explained_at_a_time(http: Http) -> None:
    for path, one in (("/produce", {"records": ["a"]}), ("/consume", {"fetch_offset": 0})):
        document = {"topic_partitions": [{"topic": "t", "partition": number} | one for number in range(EXPLAINED_MAX + 1)], "explain": True}
        status, answer = await http.post(path, document)
        assert (status, answer["error_type"]) == (400, "InvalidRequest")
        assert "explain" in answer["error"]
