"""What the store makes of a server's faults, with both clients."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from runtime.frames import Account, make_frame
from runtime.telemetry import Telemetry
from storage.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from storage.objects.s3.client import S3Limits
from storage.objects.s3.object_store import S3ObjectStore
from storage.objects.s3.store import S3ClientName
from storage.vocabulary import Buffer
from tests.kit.collector import no_collector
from tests.kit.opened_s3 import IN_THREE_PARTS, QUICK, SMALL_PARTS, hurry, opened
from tests.kit.scripted_s3 import LOST, Reply, Request, ScriptedS3, error

SOON_S = 25.0
IMPATIENT = replace(QUICK, attempt_s=1.0)
KEY = "wal/1"
BODY = random.Random(1).randbytes(100_000)
BUSY = [error(503, "SlowDown"), error(503), error(429), error(500, "InternalError"), error(502), error(504)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> S3Limits:
    """Of the store; a test that takes an object `in_parts` has small parts."""
    return SMALL_PARTS if "in_parts" in request.fixturenames else QUICK


@pytest.fixture
async def store(server: ScriptedS3, client: S3ClientName, telemetry: Telemetry, limits: S3Limits) -> AsyncIterator[S3ObjectStore]:
    async with opened(server.endpoint, client, telemetry=telemetry, limits=limits) as store:
        yield store


# Putting


async def test_a_put_carries_its_condition_and_a_checksum(store: S3ObjectStore, server: ScriptedS3) -> None:
    await store.put_if_absent(KEY, [BODY[:10], memoryview(BODY)[10:]])

    [put] = server.requests
    assert put.headers["if-none-match"] == "*"
    assert put.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert any(name.startswith("x-amz-checksum-crc") for name in put.headers)
    assert server.objects == {KEY: BODY}


@pytest.mark.parametrize("reply", BUSY, ids=lambda reply: f"{reply.status}-{len(reply.body)}")
async def test_a_busy_store_is_asked_again(store: S3ObjectStore, server: ScriptedS3, telemetry: Telemetry, reply: Reply) -> None:
    server.answer("PUT", reply, times=5)
    await store.put_if_absent(KEY, [BODY])

    assert server.objects == {KEY: BODY}
    assert server.count("PUT") == 6
    labels = {"op": "put", "cause": "throttled"}
    assert telemetry.registry.get_sample_value("forebay_object_store_retries_total", labels) == 5


@pytest.mark.parametrize("reply", [error(502), error(503), error(504)], ids=lambda reply: str(reply.status))
async def test_a_put_that_a_proxy_gave_up_may_be_under_way_behind_it(store: S3ObjectStore, server: ScriptedS3, reply: Reply) -> None:
    server.answer("PUT", reply, times=1_000)

    with pytest.raises(OutcomeUnknown, match="may still take effect"):
        await store.put_if_absent(KEY, [BODY])
    assert server.count("PUT") == QUICK.tries_max


@pytest.mark.parametrize("reply", [error(503, "SlowDown"), error(429), error(500, "InternalError")], ids=lambda reply: str(reply.status))
async def test_a_store_that_stays_busy_is_unavailable_after_a_bounded_number_of_tries(
    store: S3ObjectStore, server: ScriptedS3, reply: Reply
) -> None:
    server.answer("PUT", reply, times=1_000)

    with pytest.raises(Unavailable, match=str(reply.status)):
        await store.put_if_absent(KEY, [BODY])
    assert server.count("PUT") == QUICK.tries_max


@pytest.mark.parametrize("limits", [replace(QUICK, tries_max=100_000, read_tries_max=100_000)], ids=["patient"])
@pytest.mark.parametrize("op", ["PUT", "GET"])
async def test_who_gives_up_a_request_that_is_tried_again_finds_noted_what_it_failed_with(
    store: S3ObjectStore, server: ScriptedS3, op: str
) -> None:
    server.answer(op, error(503, "SlowDown"), times=100_000)

    async def given_up() -> list[str]:
        try:
            await (store.put_if_absent(KEY, [BODY]) if op == "PUT" else store.get_range(KEY, 0, 1))
        except asyncio.CancelledError as cancelled:
            return cancelled.__notes__
        raise AssertionError("it is tried for longer than the test takes")

    async with asyncio.TaskGroup() as group, asyncio.timeout(SOON_S):
        asking = group.create_task(given_up())
        while server.count(op) < 3:  # noqa: ASYNC110 - the server is told what to answer, not asked to tell when it did
            await asyncio.sleep(0.001)
        asking.cancel()
        [note] = await asking

    assert "SlowDown" in note


@pytest.mark.parametrize("busy", [1, 1_000], ids=["once", "always"])
@pytest.mark.parametrize("reply", [error(503, "SlowDown"), error(502), LOST], ids=["busy", "gateway", "lost"])
async def test_what_was_put_is_let_go_with_the_result_though_tries_failed(
    store: S3ObjectStore, server: ScriptedS3, reply: Reply, busy: int
) -> None:
    """Not by the cyclic collector, which runs rarely: an error that is kept in the frame it passed keeps the bytes."""
    account = Account()
    server.answer("PUT", reply, times=busy)
    with no_collector():
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            await store.put_if_absent(KEY, [memoryview(make_frame(memoryview(BODY), account))])
        async with asyncio.timeout(SOON_S):
            while account.held_bytes:  # noqa: ASYNC110 - threads of a client let go of buffers a moment after their result
                await asyncio.sleep(0.001)


async def test_a_put_that_took_effect_before_its_reply_was_lost_succeeds(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.lose_reply("PUT")
    await store.put_if_absent(KEY, [BODY[:1_000], BODY[1_000:]])

    assert server.objects == {KEY: BODY}
    assert server.count("PUT") == 2


async def test_a_reply_lost_on_a_connection_in_use_is_not_taken_for_another_writer(store: S3ObjectStore, server: ScriptedS3) -> None:
    await store.put_if_absent("wal/0", [BODY])
    server.lose_reply("PUT")
    await store.put_if_absent(KEY, [BODY])

    assert server.count("HEAD") == 1


async def test_a_put_that_was_lost_with_its_reply_is_sent_again(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.answer("PUT", LOST, times=3)
    await store.put_if_absent(KEY, [BODY])

    assert server.objects == {KEY: BODY}


async def test_a_put_that_took_effect_before_an_error_was_answered_succeeds(store: S3ObjectStore, server: ScriptedS3) -> None:
    async def rule(request: Request) -> Reply | None:
        if request.method != "PUT":
            return None
        server.serve(request)
        return error(500, "InternalError")

    server.add(rule, times=1_000)
    await store.put_if_absent(KEY, [BODY])

    assert server.objects == {KEY: BODY}


@pytest.mark.parametrize("limits", [IMPATIENT], ids=["impatient"])
@pytest.mark.parametrize("takes_effect", [False, True])
async def test_a_put_without_an_answer_is_sent_again(store: S3ObjectStore, server: ScriptedS3, takes_effect: bool) -> None:
    async def hang(request: Request) -> Reply | None:
        if request.method != "PUT" or server.count("PUT") > 1:
            return None
        if takes_effect:
            server.serve(request)
        await asyncio.sleep(60)
        return LOST

    # Opening a client takes its time, too.
    assert [stat async for stat in store.list("")] == []
    server.add(hang)
    await store.put_if_absent(KEY, [BODY])

    assert server.objects == {KEY: BODY}
    assert server.count("PUT") >= 2


@pytest.mark.parametrize("other", [BODY[::-1], BODY[:-1], b""])
async def test_another_writers_object_is_not_ours_after_a_lost_reply(store: S3ObjectStore, server: ScriptedS3, other: bytes) -> None:
    async def rule(request: Request) -> Reply | None:
        if request.method != "PUT":
            return None
        server.objects[KEY] = other
        return LOST

    server.add(rule)

    with pytest.raises(AlreadyExists, match=KEY):
        await store.put_if_absent(KEY, [BODY])
    assert server.objects == {KEY: other}


async def test_a_taken_name_is_told_at_once(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.objects[KEY] = BODY

    with pytest.raises(AlreadyExists, match=KEY):
        await store.put_if_absent(KEY, [BODY])
    assert [request.method for request in server.requests] == ["PUT"]


async def test_a_conflict_with_a_put_under_way_is_decided_by_the_next_try(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.answer("PUT", error(409, "ConditionalRequestConflict"))
    await store.put_if_absent(KEY, [BODY])
    server.answer("PUT", error(409, "ConditionalRequestConflict"))

    with pytest.raises(AlreadyExists):
        await store.put_if_absent(KEY, [BODY[::-1]])


async def test_a_put_whose_replies_all_get_lost_and_that_is_not_there_is_unknown(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.answer("PUT", LOST, times=1_000)

    with pytest.raises(OutcomeUnknown, match="may still take effect"):
        await store.put_if_absent(KEY, [BODY])


async def test_a_lost_reply_that_cannot_be_looked_into_is_unknown(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.lose_reply("PUT")
    server.answer("HEAD", error(503), times=1_000)

    with pytest.raises(OutcomeUnknown, match="cannot be read back"):
        await store.put_if_absent(KEY, [BODY])


@pytest.mark.parametrize("reply", [error(403, "AccessDenied"), error(400, "EntityTooLarge"), error(404, "NoSuchBucket")])
async def test_a_refused_put_is_not_sent_again(store: S3ObjectStore, server: ScriptedS3, reply: Reply) -> None:
    server.answer("PUT", reply)

    with pytest.raises(Unavailable, match=str(reply.status)):
        await store.put_if_absent(KEY, [BODY])
    assert server.count("PUT") == 1


async def test_a_body_that_arrived_otherwise_than_it_was_sent_is_sent_again(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.answer("PUT", error(400, "IncompleteBody"))
    await store.put_if_absent(KEY, [BODY])

    assert server.objects == {KEY: BODY}


async def test_no_connection_means_that_nothing_happened(client: S3ClientName) -> None:
    async with opened("http://127.0.0.1:1", client) as store:
        with pytest.raises(Unavailable, match="onnect"):
            await store.put_if_absent(KEY, [BODY])
        with pytest.raises(Unavailable, match="onnect"):
            await store.get_range(KEY, 0, 1)
        with pytest.raises(Unavailable, match="onnect"):
            await store.delete_many([KEY])


async def test_of_fifty_writers_one_wins_though_replies_get_lost(store: S3ObjectStore, server: ScriptedS3) -> None:
    chance = random.Random(3)
    bodies = [f"{writer:02}".encode() * 1_000 for writer in range(50)]

    async def faulty(request: Request) -> Reply | None:
        if request.method != "PUT" or chance.random() < 0.5:
            return None
        if chance.random() < 0.5:
            server.serve(request)
        return LOST

    async def wins(body: bytes) -> bool:
        try:
            await store.put_if_absent(KEY, [body])
        except AlreadyExists:
            return False
        return True

    server.add(faulty, times=200)
    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(wins(body)) for body in bodies]

    assert [body for body, writer in zip(bodies, writers, strict=True) if writer.result()] == [server.objects[KEY]]


# Reading

Read = Callable[[S3ObjectStore, int, int], Awaitable[Buffer]]


async def whole(store: S3ObjectStore, start: int, end: int) -> Buffer:
    return await store.get_range(KEY, start, end)


async def in_some_parts(store: S3ObjectStore, start: int, end: int) -> Buffer:
    return b"".join(await store.get_parts(KEY, start, end, part_bytes=10_000))


@pytest.fixture(params=[whole, in_some_parts])
def read(request: pytest.FixtureRequest) -> Read:
    found: Read = request.param
    return found


async def test_a_body_cut_short_is_asked_for_again(store: S3ObjectStore, read: Read, server: ScriptedS3) -> None:
    server.objects[KEY] = BODY
    server.answer("GET", Reply(206, BODY, {"Content-Range": f"bytes 0-{len(BODY) - 1}/{len(BODY)}"}, cut=50_000), times=2)

    assert await read(store, 0, len(BODY)) == BODY
    assert server.count("GET") >= 3


async def test_a_body_that_is_always_cut_short_is_unavailable(store: S3ObjectStore, read: Read, server: ScriptedS3) -> None:
    server.answer("GET", Reply(206, BODY, {"Content-Range": f"bytes 0-{len(BODY) - 1}/{len(BODY)}"}, cut=50_000), times=1_000)

    with pytest.raises(Unavailable, match=KEY):
        await read(store, 0, len(BODY))
    assert server.count("GET") <= 2 * QUICK.read_tries_max


@pytest.mark.parametrize("reply", BUSY, ids=lambda reply: f"{reply.status}-{len(reply.body)}")
async def test_reads_of_a_busy_store_are_sent_again(store: S3ObjectStore, read: Read, server: ScriptedS3, reply: Reply) -> None:
    server.objects[KEY] = BODY
    for method in ("GET", "HEAD"):
        server.answer(method, reply, times=3)

    assert await read(store, 5, 10) == BODY[5:10]
    assert (await store.stat(KEY)).size_bytes == len(BODY)


@pytest.mark.parametrize("reply", [error(403, "AccessDenied"), error(404, "NoSuchBucket"), error(404), Reply(200, b"<html>"), LOST])
async def test_only_an_absent_object_is_not_found(store: S3ObjectStore, read: Read, server: ScriptedS3, reply: Reply) -> None:
    server.answer("GET", reply, times=1_000)

    with pytest.raises(Unavailable, match=KEY):
        await read(store, 0, 10)


@pytest.mark.parametrize("limits", [IMPATIENT], ids=["impatient"])
async def test_a_read_without_an_answer_is_sent_again(store: S3ObjectStore, read: Read, server: ScriptedS3) -> None:
    async def hang(request: Request) -> Reply | None:
        if server.count("GET") > 2:
            return None
        await asyncio.sleep(60)
        return LOST

    server.objects[KEY] = BODY
    # Opening a client takes its time, too.
    assert [stat.key async for stat in store.list("")] == [KEY]
    server.add(hang)

    assert await read(store, 5, 10) == BODY[5:10]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(206, bytes(50), {"Content-Range": "bytes 0-49/2000"}),
        Reply(206, bytes(10), {"Content-Range": "bytes 100-109/2000"}),
        Reply(206, bytes(10)),
    ],
    ids=["longer", "elsewhere", "unnamed"],
)
async def test_other_bytes_than_were_asked_for_are_no_answer(store: S3ObjectStore, read: Read, server: ScriptedS3, reply: Reply) -> None:
    server.answer("GET", reply, times=1_000)

    with pytest.raises(Unavailable, match=KEY):
        await read(store, 0, 10)


@pytest.mark.parametrize("reply", [error(404, "NoSuchBucket"), Reply(404, b"<html>"), error(403, "AccessDenied")])
async def test_a_bucket_that_is_gone_is_not_an_absent_object(store: S3ObjectStore, server: ScriptedS3, reply: Reply) -> None:
    for method in ("HEAD", "GET"):
        server.answer(method, reply, times=1_000)

    with pytest.raises(Unavailable, match=KEY):
        await store.stat(KEY)


@pytest.mark.parametrize("body", [b"", BODY], ids=["empty", "full"])
async def test_an_object_that_comes_between_is_found(store: S3ObjectStore, server: ScriptedS3, body: bytes) -> None:
    server.objects[KEY] = body
    server.answer("HEAD", error(404))

    assert (await store.stat(KEY)).size_bytes == len(body)


async def test_redirects_in_circles_are_unavailable(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.answer("HEAD", error(301), times=10_000)

    with pytest.raises(Unavailable, match=KEY):
        await store.stat(KEY)


async def test_a_missing_object_is_asked_for_once(store: S3ObjectStore, read: Read, server: ScriptedS3) -> None:
    with pytest.raises(NotFound):
        await read(store, 0, 10)
    assert len(server.requests) == 1


# Listing


async def test_names_that_no_key_has_are_passed_over(server: ScriptedS3, client: S3ClientName) -> None:
    server.objects = dict.fromkeys(["root/", "root/a", "root/a b", "root/b/", "root/c", "rooted", "a"], b"x")
    async with opened(server.endpoint, client, prefix="root") as store:
        assert [stat.key async for stat in store.list("")] == ["a", "c"]


async def test_a_listing_that_does_not_begin_where_it_should_gives_no_key_twice(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.objects = dict.fromkeys(["a", "b", "c"], b"x")

    async def everything(request: Request) -> Reply | None:
        request.query.pop("start-after", None)
        return server.serve(request)

    server.add(everything)

    assert [stat.key async for stat in store.list("", start_after="a")] == ["b", "c"]


async def test_a_listing_that_does_not_move_on_ends_with_an_error(store: S3ObjectStore, server: ScriptedS3) -> None:
    page = "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a</Key><Size>1</Size>"
    page += "<LastModified>2026-11-21T07:00:00.000Z</LastModified></Contents></ListBucketResult>"
    server.answer("GET", Reply(200, page.encode()), times=1_000)

    with pytest.raises(Unavailable, match="does not move on"):
        _ = [stat async for stat in store.list("")]


@pytest.mark.parametrize("body", [b"<html>", b"", b"{}", b"<R><Contents><Key>a</Key></Contents></R>", b"\xff\xfe"])
async def test_a_listing_that_is_none_is_unavailable(store: S3ObjectStore, server: ScriptedS3, body: bytes) -> None:
    server.answer("GET", Reply(200, body), times=1_000)

    with pytest.raises(Unavailable, match="list failed"):
        _ = [stat async for stat in store.list("")]


async def test_a_page_that_fails_is_asked_for_again(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.objects = dict.fromkeys([f"{number:04}" for number in range(1_500)], b"x")
    server.answer("GET", error(503, "SlowDown"), times=2, when=lambda request: "start-after" in request.query)

    assert [stat.key async for stat in store.list("")] == sorted(server.objects)


# Deleting


def refusing(*refusals: tuple[str, str]) -> Reply:
    errors = "".join(f"<Error><Key>{key}</Key><Code>{code}</Code><Message>m</Message></Error>" for key, code in refusals)
    return Reply(200, f"<DeleteResult>{errors}</DeleteResult>".encode())


async def test_only_what_was_not_deleted_is_deleted_again(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.answer("POST", refusing(("a", "SlowDown"), ("b", "InternalError")))
    await store.delete_many(["a", "b", "c"])

    assert [request.body.count(b"<Key>") for request in server.requests] == [3, 2]


@pytest.mark.parametrize(
    ("reply", "raised"),
    [
        (refusing(("a", "AccessDenied"), ("b", "AccessDenied")), Unavailable),
        (refusing(("a", "AccessDenied")), OutcomeUnknown),
        (error(403, "AccessDenied"), Unavailable),
        (error(503, "SlowDown"), Unavailable),
        (LOST, OutcomeUnknown),
    ],
)
async def test_a_delete_that_fails_says_whether_anything_happened(
    store: S3ObjectStore, server: ScriptedS3, reply: Reply, raised: type[Exception]
) -> None:
    server.answer("POST", reply, times=1_000)

    with pytest.raises(raised, match="not deleted"):
        await store.delete_many(["a", "b"])


async def test_an_answer_to_a_delete_that_cannot_be_read_is_unknown(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.answer("POST", Reply(206, b"x"), times=1_000)

    with pytest.raises(OutcomeUnknown, match="not deleted"):
        await store.delete_many(["a"])


async def test_a_delete_whose_reply_was_lost_is_sent_again(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.objects = {"a": b"x"}
    server.lose_reply("POST")
    await store.delete_many(["a"])

    assert server.objects == {}


# Parts


@pytest.fixture
def in_parts() -> bytes:
    return IN_THREE_PARTS


async def test_a_large_object_goes_in_parts_and_a_failed_part_again(store: S3ObjectStore, server: ScriptedS3, in_parts: bytes) -> None:
    server.answer("PUT", error(503, "SlowDown"))
    server.answer("PUT", LOST)
    await store.put_if_absent(KEY, [in_parts[:100], in_parts[100:]])

    assert server.objects == {KEY: in_parts}
    assert server.count("PUT") == 5


async def test_a_large_object_whose_last_reply_was_lost_is_ours(store: S3ObjectStore, server: ScriptedS3, in_parts: bytes) -> None:
    server.lose_reply("POST", when=lambda request: "uploadId" in request.query)
    await store.put_if_absent(KEY, [in_parts])

    assert server.objects == {KEY: in_parts}


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_a_success_without_a_word_does_not_store_a_large_object(
    store: S3ObjectStore, server: ScriptedS3, in_parts: bytes, takes_effect: bool
) -> None:
    async def silent(request: Request) -> Reply | None:
        if request.method != "POST" or "uploadId" not in request.query:
            return None
        if takes_effect:
            server.serve(request)
        return Reply(200, b"")

    server.add(silent)
    await store.put_if_absent(KEY, [in_parts])

    assert server.objects == {KEY: in_parts}


async def test_parts_of_a_large_object_that_lost_are_removed(store: S3ObjectStore, server: ScriptedS3, in_parts: bytes) -> None:
    server.objects[KEY] = b"another's"

    with pytest.raises(AlreadyExists):
        await store.put_if_absent(KEY, [in_parts])
    assert server.uploads == {}
    assert server.objects == {KEY: b"another's"}


@pytest.mark.parametrize(
    "refusal",
    [error(501, "NotImplemented"), error(400, "InvalidArgument"), error(403, "AccessDenied"), error(405, "MethodNotAllowed"), error(404)],
)
@pytest.mark.parametrize("step", ["begin", "part", "end"])
async def test_where_parts_are_refused_a_large_object_goes_in_one(
    store: S3ObjectStore, server: ScriptedS3, in_parts: bytes, refusal: Reply, step: str
) -> None:
    refused = {
        "begin": lambda request: "uploads" in request.query,
        "part": lambda request: request.method == "PUT" and "uploadId" in request.query,
        "end": lambda request: request.method == "POST" and "uploadId" in request.query,
    }[step]
    for method in ("POST", "PUT"):
        server.answer(method, refusal, times=1_000, when=refused)
    await store.put_if_absent(KEY, [in_parts])

    assert server.objects == {KEY: in_parts}
    assert server.uploads == {}
    began = sum("uploads" in request.query for request in server.requests)
    with pytest.raises(AlreadyExists):
        await store.put_if_absent(KEY, [in_parts[::-1]])
    assert sum("uploads" in request.query for request in server.requests) == began == 1, "it is not sent in parts again"


@pytest.mark.parametrize("limits", [replace(SMALL_PARTS, put_bytes_max=len(IN_THREE_PARTS) - 1)], ids=["small puts"])
async def test_one_larger_than_a_put_may_be_is_refused_with_what_was_said_of_its_parts(
    store: S3ObjectStore, server: ScriptedS3, in_parts: bytes
) -> None:
    server.answer("POST", error(400, "InvalidArgument", "no parts here"), times=1_000, when=lambda request: "uploads" in request.query)

    with pytest.raises(Unavailable, match="no parts here"):
        await store.put_if_absent(KEY, [in_parts])
    assert server.count("PUT") == 0


# The clock


async def test_a_clock_that_is_too_far_from_the_server_s_is_named(store: S3ObjectStore, server: ScriptedS3) -> None:
    named = r"RequestTimeTooSkewed.*this machine's clock is too far from the server's: set it"
    for method in ("PUT", "GET"):
        server.answer(method, error(403, "RequestTimeTooSkewed"))

    with pytest.raises(Unavailable, match=named):
        await store.put_if_absent(KEY, [BODY])
    with pytest.raises(Unavailable, match=named):
        await store.get_range(KEY, 0, 1)
