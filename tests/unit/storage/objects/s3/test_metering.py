"""The meter counts what the server was sent, request by request, whatever becomes of it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from runtime.telemetry import Telemetry
from storage.errors import AlreadyExists, EndsEarly, NotFound, OutcomeUnknown, Unavailable
from storage.objects.requests import caused_by
from storage.objects.s3.object_store import S3ObjectStore
from storage.objects.s3.store import S3ClientName
from tests.kit.opened_s3 import IN_THREE_PARTS, SMALL_PARTS, hurry, opened
from tests.kit.scripted_s3 import LOST, Reply, Request, ScriptedS3, error

FREE = {
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
    "ExpiredToken",
    "RequestTimeTooSkewed",
    "OperationAborted",
    "NoSuchUpload",
    "InvalidRange",
}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(run="01TOKEN")


@pytest.fixture
async def store(server: ScriptedS3, client: S3ClientName, telemetry: Telemetry) -> AsyncIterator[S3ObjectStore]:
    async with opened(server.endpoint, client, prefix="logs/a", telemetry=telemetry, limits=SMALL_PARTS) as store:
        yield store


def counted(telemetry: Telemetry, *labels: str) -> Counter[tuple[str, ...]]:
    """The meter's requests by some of its labels."""
    found: Counter[tuple[str, ...]] = Counter()
    for family in telemetry.registry.collect():
        for sample in family.samples:
            if sample.name == "forebay_s3_requests_total":
                found[tuple(sample.labels[label] for label in labels)] += int(sample.value)
    return found


def moved(telemetry: Telemetry, direction: str, cause: str) -> float:
    return telemetry.registry.get_sample_value("forebay_s3_bytes_total", {"direction": direction, "cause": cause}) or 0.0


def seen(server: ScriptedS3) -> Counter[tuple[str, ...]]:
    """What the server was sent, as (request, key, answer)."""
    return Counter((kind(request), key_class(request), answer(reply)) for request, reply in server.answered)


def kind(request: Request) -> str:
    query = request.query
    match request.method:
        case "PUT":
            return "upload_part" if "partNumber" in query else "put"
        case "POST":
            return "delete" if "delete" in query else "upload_begin" if "uploads" in query else "upload_finish"
        case "DELETE":
            return "abort" if "uploadId" in query else "delete"
        case "GET" if "list-type" in query or "uploads" in query:
            return "list"
        case "GET":
            return "ranged_get" if "range" in request.headers else "get"
    return request.method.lower()


def key_class(request: Request) -> str:
    key = request.key.removeprefix("logs/a/")
    names = {"wal/": "wal", "segments/": "segment", ".probe/": "probe", "forebay-": "marker"}
    return next((name for prefix, name in names.items() if key.startswith(prefix)), "other")


def answer(reply: Reply) -> str:
    if reply.raw is not None:
        return "none"
    if reply.status < 300:
        return "2xx"
    if reply.status >= 500:
        return "5xx"
    return "4xx_free" if any(code.encode() in reply.body for code in FREE) else "4xx"


async def test_each_kind_of_request_is_counted_as_what_it_is(store: S3ObjectStore, server: ScriptedS3, telemetry: Telemetry) -> None:
    await store.put_if_absent("wal/1", [b"abc", b"d"])
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("wal/1", [b"other"])
    await store.put_if_absent("segments/s", [IN_THREE_PARTS])
    await store.put_if_absent("forebay-cluster.json", [b"{}"])
    assert bytes(await store.get_range("wal/1", 1, 3)) == b"bc"
    await store.get_parts("segments/s", 0, 1000, part_bytes=100)
    assert (await store.stat("forebay-cluster.json")).size_bytes == 2
    with pytest.raises(NotFound):
        await store.stat("wal/none")
    with pytest.raises(NotFound):
        await store.get_range("wal/none", 0, 1)
    with pytest.raises(EndsEarly):
        await store.get_range("wal/1", 100, 101)
    assert len([one async for one in store.list("")]) == 3
    assert [one async for one in store.unfinished_uploads("")] == []
    await store.abort_upload("segments/s", "0")
    await store.delete_many(["wal/1", "segments/s"])
    await store.probe()

    assert counted(telemetry, "request", "key", "answer") == seen(server)
    kinds = {"put", "ranged_get", "head", "list", "delete", "upload_begin", "upload_part", "upload_finish", "abort"}
    assert kinds <= {request for request, *_ in seen(server)}
    assert counted(telemetry, "attempt") == {("first",): len(server.requests)}


@pytest.mark.parametrize(
    "reply",
    [
        error(500, "InternalError"),
        error(503, "SlowDown"),
        Reply(503),
        error(403, "RequestTimeTooSkewed"),
        error(409, "OperationAborted"),
        error(404, "NoSuchBucket"),
        LOST,
    ],
)
async def test_a_request_that_fails_is_counted_with_its_answer_and_each_repetition_beside_it(
    reply: Reply, store: S3ObjectStore, server: ScriptedS3, telemetry: Telemetry
) -> None:
    await store.put_if_absent("wal/1", [b"abcd"])
    for method in ("PUT", "GET", "HEAD", "POST"):
        server.answer(method, reply, times=2)

    with contextlib.suppress(Unavailable, OutcomeUnknown):
        await store.put_if_absent("wal/2", [b"x"])
    with contextlib.suppress(Unavailable, NotFound):
        await store.get_range("wal/1", 0, 4)
    with contextlib.suppress(Unavailable, NotFound):
        await store.stat("wal/1")
    with contextlib.suppress(Unavailable):
        assert [one async for one in store.list("")]
    with contextlib.suppress(Unavailable, OutcomeUnknown):
        await store.delete_many(["wal/1"])

    bare = {("head", "wal", "4xx_free"): ("head", "wal", "4xx")}  # a HEAD has no code to tell them apart
    expected = Counter({bare.get(key, key): count for key, count in seen(server).items()})
    assert counted(telemetry, "request", "key", "answer") == expected
    assert counted(telemetry, "attempt")["retry",] == len(server.requests) - counted(telemetry, "attempt")["first",]


async def test_a_body_that_is_cut_off_was_answered_and_a_lost_answer_was_not(
    store: S3ObjectStore, server: ScriptedS3, telemetry: Telemetry
) -> None:
    server.objects["logs/a/wal/1"] = bytes(50_000)
    whole = {"Content-Range": "bytes 0-39999/50000"}
    server.answer("GET", Reply(206, bytes(40_000), whole, cut=7))
    server.answer("GET", LOST)
    server.answer("GET", Reply(206, bytes(40_000), whole, cut=30_000))

    found = await store.get_parts("wal/1", 0, 40_000, part_bytes=4_096)

    assert sum(map(len, found)) == 40_000
    assert counted(telemetry, "request", "attempt", "answer") == {
        ("ranged_get", "first", "2xx"): 1,
        ("ranged_get", "retry", "none"): 1,
        ("ranged_get", "retry", "2xx"): 2,
    }
    assert moved(telemetry, "out", "check") == 40_000  # the whole ones


async def test_a_lost_reply_to_a_put_is_read_back_and_that_is_said(store: S3ObjectStore, server: ScriptedS3, telemetry: Telemetry) -> None:
    server.lose_reply("PUT")

    with caused_by("flush"):
        await store.put_if_absent("wal/1", [b"abcd"])

    assert counted(telemetry, "cause", "request", "attempt", "answer") == {
        ("flush", "put", "first", "none"): 1,
        ("flush", "put", "retry", "4xx"): 1,
        ("read_back", "head", "first", "2xx"): 1,
        ("read_back", "ranged_get", "first", "2xx"): 1,
    }


async def test_parts_that_fail_are_repeated_alone_and_counted(store: S3ObjectStore, server: ScriptedS3, telemetry: Telemetry) -> None:
    server.answer("PUT", error(500, "InternalError"), when=lambda request: request.query.get("partNumber") == "2")
    body = IN_THREE_PARTS

    with caused_by("compaction"):
        await store.put_if_absent("segments/1", [body])

    assert counted(telemetry, "request", "attempt", "answer") == {
        ("upload_begin", "first", "2xx"): 1,
        ("upload_part", "first", "2xx"): 2,
        ("upload_part", "first", "5xx"): 1,
        ("upload_part", "retry", "2xx"): 1,
        ("upload_finish", "first", "2xx"): 1,
    }
    assert moved(telemetry, "in", "compaction") == len(body)


async def test_a_request_that_is_given_up_is_counted_without_an_answer(
    store: S3ObjectStore, server: ScriptedS3, telemetry: Telemetry
) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def silent(request: Request) -> Reply | None:
        asked.set()
        await never.wait()
        return None

    server.add(silent)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        reading = group.create_task(store.get_range("wal/1", 0, 1))
        await asked.wait()
        reading.cancel()

    assert counted(telemetry, "request", "answer") == {("ranged_get", "none"): 1}


async def test_what_finds_no_connection_was_never_sent(client: S3ClientName, telemetry: Telemetry) -> None:
    async with ScriptedS3.running() as gone:
        endpoint = gone.endpoint
    async with opened(endpoint, client, telemetry=telemetry) as store:
        with pytest.raises(Unavailable):
            await store.get_range("wal/1", 0, 1)
        with pytest.raises(Unavailable):
            assert [one async for one in store.list("")]

    assert counted(telemetry, "answer") == {}


async def test_a_bulk_delete_that_a_server_does_not_know_is_counted_with_each_of_its_deletes(
    store: S3ObjectStore, server: ScriptedS3, telemetry: Telemetry
) -> None:
    server.answer("POST", error(501, "NotImplemented"))

    await store.delete_many(["wal/1", "wal/2", "segments/1"])

    assert counted(telemetry, "request", "key", "answer") == {
        ("delete", "other", "5xx"): 1,
        ("delete", "wal", "2xx"): 2,
        ("delete", "segment", "2xx"): 1,
    }


async def test_every_request_of_both_clients_names_the_process(store: S3ObjectStore, server: ScriptedS3) -> None:
    await store.put_if_absent("wal/1", [b"x"])
    await store.get_range("wal/1", 0, 1)
    await store.stat("wal/1")
    assert [one async for one in store.list("")]
    await store.delete_many(["wal/1"])

    assert len(server.requests) == 5
    assert [
        request.headers["user-agent"] for request in server.requests if "forebay run/01TOKEN" not in request.headers["user-agent"]
    ] == []


async def test_a_second_put_with_an_older_checksum_is_a_repetition(server: ScriptedS3, telemetry: Telemetry) -> None:
    async with opened(server.endpoint, "aioboto3", telemetry=telemetry) as store:
        server.answer("PUT", error(400, "InvalidRequest", "unknown header x-amz-checksum-crc32c"))
        await store.put_if_absent("wal/1", [b"x"])
        await store.put_if_absent("wal/2", [b"x"])

    assert counted(telemetry, "request", "attempt", "answer") == {
        ("put", "first", "4xx"): 1,
        ("put", "retry", "2xx"): 1,
        ("put", "first", "2xx"): 1,
    }


async def test_a_redirection_that_aioboto3_follows_is_two_requests(server: ScriptedS3, telemetry: Telemetry) -> None:
    server.objects["wal/1"] = b"x"
    async with opened(server.endpoint, "aioboto3", telemetry=telemetry) as store:
        server.answer("GET", Reply(307, b"", {"Location": f"{server.endpoint}/bucket/wal/1"}))
        await store.get_range("wal/1", 0, 1)

    assert counted(telemetry, "request", "answer") == {("ranged_get", "4xx_free"): 1, ("ranged_get", "2xx"): 1}
    assert len(server.requests) == 2
