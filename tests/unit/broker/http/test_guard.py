import asyncio
import dataclasses
import gzip
import socket
from typing import Any

import aiohttp
import pytest

from broker.http.guard import TOKENS_MAX, HttpLimits
from broker.http.routes import ROUTES, limits_of
from process.settings.model import Settings
from process.settings.notation import HttpAddress
from tests.kit.clustering import running_cluster
from tests.kit.http_asking import LOCAL, Http, http_of

ONE: dict[str, Any] = {"topic_partitions": [{"topic": "t", "partition": 0, "records": ["a"]}]}


def of(**changed: object) -> dict[str, Any]:
    return {"topic_partitions": [ONE["topic_partitions"][0] | changed]}


WRONG: dict[str, tuple[object, str]] = {
    "no JSON": (b"{", "not JSON"),
    "not UTF-8": (b'{"topic_partitions": [{"topic": "\xff", "partition": 0, "records": ["a"]}]}', "not JSON"),
    "deep": (b"[" * 100_000, "Expected `object`"),
    "a list": (b"[]", "Expected `object`"),
    "nothing": ({}, "missing required field `topic_partitions`"),
    "empty": ({"topic_partitions": []}, "topic_partitions: Expected `array` of length >= 1"),
    "unknown field": (ONE | {"acks": 1}, "unknown field `acks`"),
    "a partition that is text": (of(partition="0"), "topic_partitions[0].partition: Expected `int`"),
    "a negative partition": (of(partition=-1), "topic_partitions[0].partition"),
    "a huge partition": (of(partition=2**31), "topic_partitions[0].partition"),
    "a long name": (of(topic="x" * 250), "topic_partitions[0].topic: Expected `str` of length <= 249"),
    "no record": (of(records=[]), "topic_partitions[0].records"),
    "a number": (of(records=["a", 3]), "topic_partitions[0].records[1]"),
    "bad base64": (of(records=[{"base64": "!"}]), "topic_partitions[0].records[0].base64: Invalid base64"),
    "two values": (of(records=[{"base64": "AA==", "value": "a"}]), "topic_partitions[0].records[0]: A record has"),
    "a negative time": (of(records=[{"value": "a", "timestamp": -1}]), "topic_partitions[0].records[0].timestamp"),
    "too many headers": (of(records=[{"value": "a", "headers": [["h", "v"]] * 101}]), "topic_partitions[0].records[0].headers"),
    "twice": ({"topic_partitions": ONE["topic_partitions"] * 2}, "topic_partitions[1]: t-0 is named twice"),
    "a sequence alone": (of(sequence=0), "topic_partitions[0].sequence"),
    "a producer alone": (ONE | {"producer": {"id": 1, "epoch": 0}}, "topic_partitions[0].sequence"),
    "a codec": (ONE | {"compression": "brotli"}, "compression: Invalid enum value 'brotli'"),
    "no time": (ONE | {"timeout_ms": 0}, "timeout_ms"),
    "many partitions": ({"topic_partitions": [of(partition=at)["topic_partitions"][0] for at in range(1_001)]}, "at most 1000"),
}


async def test_a_document_that_is_wrong_is_refused_by_the_place_where_it_is(http: Http) -> None:
    for name, (body, message) in WRONG.items():
        status, answer = await http.post("/produce", body)
        assert (status, answer["error_type"]) == (400, "InvalidRequest"), name
        assert message in answer["error"], (name, answer)
    assert (await http.get("/api/v1/topics"))[1]["topics"] == [], "nothing was done"


WRONG_READS: dict[str, tuple[object, str]] = {
    "a place": ({"fetch_offset": "middle"}, "topic_partitions[0].fetch_offset"),
    "no place": ({}, "missing required field `fetch_offset`"),
    "a long time": ({"fetch_offset": "@" + "9" * 30}, "topic_partitions[0].fetch_offset"),
    "negative": ({"fetch_offset": -1}, "topic_partitions[0].fetch_offset"),
    "too much": ({"fetch_offset": 0, "partition_max_bytes": 2**30}, "topic_partitions[0].partition_max_bytes"),
}


async def test_a_read_that_is_wrong_is_refused_by_the_place_where_it_is(http: Http) -> None:
    for name, (changed, message) in WRONG_READS.items():
        status, answer = await http.post("/consume", {"topic_partitions": [{"topic": "t", "partition": 0} | changed]})  # type: ignore[operator]
        assert (status, answer["error_type"]) == (400, "InvalidRequest"), name
        assert message in answer["error"], (name, answer)


async def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    async with running_cluster() as cluster:
        member = await cluster.join()
        async with http_of(member, max_body_bytes="64KiB") as http:
            with socket.create_connection(http.address) as client:
                client.sendall(
                    b"POST /produce HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 999999999\r\n\r\n"
                )
                assert (await asyncio.to_thread(client.recv, 100)).startswith(b"HTTP/1.1 413 ")

            async def chunks(count: int) -> Any:
                yield b'{"topic_partitions":[{"topic":"t","partition":0,"records":["'
                for _ in range(count):
                    yield b"x" * 1_000
                yield b'"]}]}'

            for count, expected in ((50, 200), (70, 413), (2_000, 413)):
                async with http.session.post("/produce", data=chunks(count), headers={"content-type": "application/json"}) as response:
                    assert response.status == expected, count
            assert [len(value) for value in await http.values("t", 0)] == [50_000]
            assert member.broker.http.address_of("127.0.0.1").claimed_bytes == 0


async def test_a_document_of_too_many_parts_is_refused_before_it_is_decoded(http: Http) -> None:
    body = b'{"topic_partitions":[{"topic":"t","partition":0,"records":[' + b'"",' * TOKENS_MAX + b'""]}]}'
    status, answer = await http.post("/produce", body)
    assert (status, answer["error_type"]) == (413, "BodyTooLarge")
    assert "application/x-ndjson" in answer["error"]


async def test_a_body_that_is_encoded_is_refused_before_it_is_read(http: Http) -> None:
    for path, kind in (("/produce", "application/json"), ("/produce", "application/x-ndjson"), ("/consume", "application/json")):
        status, answer = await http.post(path, gzip.compress(b"\n" * 1_000_000), content_type=kind, content_encoding="gzip")
        assert (status, answer["error_type"]) == (415, "UnsupportedMediaType")
    assert http.member.requests("forebay_unexpected_errors_total") == 0


async def test_an_error_repeats_only_the_beginning_of_what_was_sent(http: Http) -> None:
    for body in (ONE | {"x" * 1_000_000: 1}, of(**{"y" * 1_000_000: 1})):
        status, answer = await http.post("/produce", body)
        assert (status, answer["error_type"]) == (400, "InvalidRequest")
        assert len(answer["error"]) < 2_000


async def test_a_browser_of_another_site_gets_nothing(http: Http) -> None:
    own = f"http://{http.address}"
    assert (await http.post("/produce", ONE, origin=own))[0] == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://[", own + ".evil.example"):
        status, answer = await http.post("/produce", ONE, origin=origin)
        assert (status, answer["error_type"]) == (403, "NotAuthorized"), origin
        assert (await http.get("/api/v1/topics", origin=origin))[0] == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert (await http.post("/produce", ONE, content_type=kind))[0] == 415, kind
    async with http.session.options("/produce") as response:
        assert response.status == 405
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


async def test_a_host_that_is_not_this_server_is_misdirected() -> None:
    async with running_cluster() as cluster, http_of(await cluster.join(), hosts="kafka.example.com") as http:
        for host in ("localhost", "127.0.0.1:99", "[::1]:8070", "10.1.2.3", "KAFKA.example.com:8070"):
            assert (await http.get("/api/v1/topics", host=host))[0] == 200, host
        for host in ("evil.example", "localhost.evil.example:8070", "127.0.0.1.evil.example", "[", "evil.example@127.0.0.1"):
            status, answer = await http.get("/api/v1/topics", host=host)
            assert (status, answer["error_type"]) == (421, "MisdirectedRequest"), host
            assert "http.hosts" in answer["error"]


async def test_the_api_is_served_as_the_settings_say() -> None:
    read = {"topic_partitions": [{"topic": "t", "partition": 0, "fetch_offset": "end"}]}
    async with running_cluster() as cluster:
        member = await cluster.join()
        for log_api, writes, reads in (("auto", 200, 200), ("read_write", 200, 200), ("read", 403, 200), ("off", 403, 403)):
            async with http_of(member, log_api=log_api) as http:
                assert (await http.post("/produce", ONE))[0] == writes, log_api
                assert (await http.post("/consume", read))[0] == reads, log_api
                assert (await http.get("/api/v1/topics"))[0] == reads, log_api
                assert (await http.get("/"))[0] == (await http.get("/health"))[0] == 200
                assert (await http.get("/"))[1]["log_api"] == ("read_write" if log_api == "auto" else log_api)


def test_beyond_this_machine_the_api_is_off_until_somebody_says_otherwise() -> None:
    def log_api(**http: object) -> str:
        return limits_of(Settings.model_validate({"http": {"listen": HttpAddress("0.0.0.0", 8070), "insecure": True, **http}})).log_api

    assert log_api() == "off"
    assert log_api(log_api="read") == "read"


async def test_a_broker_that_leaves_writes_nothing(http: Http) -> None:
    http.member.broker.http.controlled_shutdown.refuse()

    async with http.session.post("/produce", json=ONE) as response:
        answer = await response.json()
        assert (response.status, response.headers["Retry-After"], answer["error_type"]) == (503, "1", "BackPressureRejected")
    assert (await http.get("/"))[0] == 200


async def test_a_body_that_stops_half_way_has_its_time() -> None:
    async with running_cluster() as cluster:
        member = await cluster.join()
        limits = dataclasses.replace(HttpLimits(LOCAL), body_within_s=0.05)
        async with http_of(member, limits=limits) as http:
            with socket.create_connection(http.address) as client:
                head = b"POST /produce HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900000\r\n\r\n"
                client.sendall(head + b'{"topic_partitions":')
                assert (await asyncio.to_thread(client.recv, 100)).startswith(b"HTTP/1.1 408 ")
            assert member.broker.http.address_of("127.0.0.1").claimed_bytes == 0


async def test_a_request_for_which_there_is_no_memory_is_refused_after_a_while(http: Http) -> None:
    admission = http.member.broker.http.admission
    admission.change(512 * 2**20)
    try:
        status, answer = await http.post("/produce", of(records=["x" * 2_000_000]))
    finally:
        admission.change(-512 * 2**20)
    assert (status, answer["error_type"]) == (503, "BackPressureRejected")
    assert (await http.post("/produce", ONE))[0] == 200


async def test_what_is_not_there_is_said_in_json(http: Http) -> None:
    for path in ("/nothing", "/api/v1/topics/../../etc/passwd", "/api/v1/topics/%2e%2e%2fx"):
        async with http.session.get(aiohttp.client.URL(f"http://{http.address}{path}", encoded=True)) as response:
            assert response.status == 404
            assert "error" in await response.json()
    async with http.session.get("/produce") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_requests_are_counted_by_route_and_status(http: Http) -> None:
    await http.produced("t", 0, ["a", "b"])
    await http.post("/produce", b"{")
    await http.get("/api/v1/topics/t")

    count = http.member.requests
    assert count("forebay_http_requests_total", route="/produce", status="200") == 1
    assert count("forebay_http_requests_total", route="/produce", status="400") == 1
    assert count("forebay_http_requests_total", route="/api/v1/topics/{topic}") == 1
    assert count("forebay_http_records_total", direction="in") == 2


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_old_and_pipelined_requests_are_answered_in_order(http: Http, version: bytes) -> None:
    with socket.create_connection(http.address) as client:
        head = b"GET /health HTTP/" + version + b"\r\nHost: localhost\r\n"
        client.sendall(head + b"Connection: keep-alive\r\n\r\n" + head + b"Connection: close\r\n\r\n")
        received = b""
        while data := await asyncio.to_thread(client.recv, 65_536):
            received += data
    assert received.count(b" 200 OK") == 2


async def test_the_document_of_the_api_names_the_routes_that_are_served(http: Http) -> None:
    _, document = await http.get("/openapi.json")

    told = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert told == {(route.method, route.path) for route in ROUTES}
    for method, path in told:
        url = path.replace("{topic}", "t").replace("{group}", "g").replace("{consumer}", "c").replace("{broker}", "1")
        async with http.session.request(method, url) as response:
            answer = await response.json()
            assert "no such path" not in str(answer), path
            operation = document["paths"][path][method.lower()]
            assert str(response.status) in operation["responses"], (path, response.status)
    names = set(document["components"]["schemas"])
    assert {"ProduceDocument", "ProducedPartition", "FailedPartition", "ConsumedPartition", "ErrorAnswer"} <= names
