"""Uploads in parts that are listed and aborted, also underneath their writer."""

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from storage.errors import OutcomeUnknown, StorageError, Unavailable
from storage.objects.port import UnfinishedUpload
from storage.objects.s3.client import S3Limits
from storage.objects.s3.object_store import S3ObjectStore
from storage.objects.s3.store import S3ClientName
from tests.kit.opened_s3 import IN_THREE_PARTS, QUICK, SMALL_PARTS, hurry, opened
from tests.kit.scripted_s3 import LOST, Reply, Request, ScriptedS3, error, uploads_page

KEY = "wal/1"
SMALL_PAGES = replace(QUICK, page_objects=2)
BUSY = error(503, "SlowDown")
DENIED = error(403, "AccessDenied")
PERMISSIONS = r"s3:ListBucketMultipartUploads on bucket and s3:AbortMultipartUpload on bucket/\*"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def limits() -> S3Limits:
    return QUICK


@pytest.fixture
async def store(server: ScriptedS3, client: S3ClientName, limits: S3Limits) -> AsyncIterator[S3ObjectStore]:
    async with opened(server.endpoint, client, limits=limits) as store:
        yield store


async def unfinished(store: S3ObjectStore, prefix: str = "", *, start_after: str = "") -> list[tuple[str, str]]:
    return [(upload.key, upload.upload_id) async for upload in store.unfinished_uploads(prefix, start_after=start_after)]


# Listing


async def test_uploads_are_listed_with_the_time_at_which_they_were_begun(store: S3ObjectStore) -> None:
    upload = await store._control.begin_upload(KEY)

    assert [one async for one in store.unfinished_uploads("wal/")] == [UnfinishedUpload(KEY, upload, 1_795_244_400_000)]


async def test_uploads_of_keys_are_listed_in_pages_without_those_of_other_names(server: ScriptedS3, client: S3ClientName) -> None:
    async with opened(server.endpoint, client, prefix="root", limits=SMALL_PAGES) as store:
        for name in ("root/wal/c", "root/wal/a", "root/wal/b", "root/wal/d e", "root/segments/x", "rooted/wal/x", "wal/x"):
            await store._control.begin_upload(name)

        assert [key for key, _ in await unfinished(store, "wal/")] == ["wal/a", "wal/b", "wal/c"]
        assert [key for key, _ in await unfinished(store, "wal/", start_after="wal/a")] == ["wal/b", "wal/c"]
        assert [key for key, _ in await unfinished(store, "segments/", start_after="segments/x")] == []


async def test_nobody_is_asked_for_uploads_of_keys_that_no_key_can_be(store: S3ObjectStore, server: ScriptedS3) -> None:
    assert await unfinished(store, "/") == []
    assert await unfinished(store, "segments/", start_after="wal/1") == []
    assert server.requests == []


async def test_a_server_is_asked_for_no_place_that_is_outside_of_the_prefix(store: S3ObjectStore, server: ScriptedS3) -> None:
    """Servers differ about a marker that does not begin with the prefix: some refuse it, some find nothing behind it."""
    await store._control.begin_upload(KEY)

    assert await unfinished(store, "wal/", start_after="segments/x") == [(KEY, "0")]
    assert [request.query.get("key-marker", "") for request in server.requests if request.method == "GET"] == [""]


async def test_a_server_that_passes_a_marker_over_shows_no_upload_again(store: S3ObjectStore, server: ScriptedS3) -> None:
    server.answer("GET", uploads_page([(KEY, "0"), ("wal/2", "1")], more="false"))

    assert await unfinished(store, "wal/", start_after=KEY) == [("wal/2", "1")]


@pytest.mark.parametrize("limits", [SMALL_PAGES], ids=["small pages"])
async def test_uploads_that_a_page_ends_between_show_once_the_first_are_gone(store: S3ObjectStore) -> None:
    for name in (KEY, KEY, KEY, "wal/2"):
        await store._control.begin_upload(name)
    first = await unfinished(store)
    for key, upload in first:
        await store.abort_upload(key, upload)

    assert first == [(KEY, "0"), (KEY, "1"), ("wal/2", "3")]
    assert await unfinished(store) == [(KEY, "2")]


async def test_a_page_of_uploads_that_fails_is_asked_for_again(store: S3ObjectStore, server: ScriptedS3) -> None:
    await store._control.begin_upload(KEY)
    server.answer("GET", BUSY)
    server.answer("GET", LOST)

    assert await unfinished(store) == [(KEY, "0")]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (uploads_page([(KEY, "0")], more="true"), "does not move on"),
        (uploads_page([], more="true"), "does not move on"),
        (BUSY, "SlowDown"),
        (LOST, "list failed"),
        (error(501, "NotImplemented"), "NotImplemented"),
        (Reply(200, b"<html>"), "list failed"),
        (Reply(200, b"<R><Upload><Key>a</Key></Upload></R>"), "list failed"),
        (DENIED, PERMISSIONS),
    ],
)
async def test_uploads_that_cannot_be_listed_are_unavailable(store: S3ObjectStore, server: ScriptedS3, reply: Reply, said: str) -> None:
    server.answer("GET", reply, times=1_000)

    with pytest.raises(Unavailable, match=said):
        await unfinished(store)


# Aborting


async def test_an_aborted_upload_is_gone_and_aborting_it_again_is_no_error(store: S3ObjectStore, server: ScriptedS3) -> None:
    upload = await store._control.begin_upload(KEY)
    server.answer("DELETE", BUSY)
    await store.abort_upload(KEY, upload)
    await store.abort_upload(KEY, upload)

    assert server.uploads == {}
    assert await unfinished(store) == []


async def test_an_abort_whose_reply_was_lost_succeeds(store: S3ObjectStore, server: ScriptedS3) -> None:
    upload = await store._control.begin_upload(KEY)
    server.lose_reply("DELETE")
    await store.abort_upload(KEY, upload)

    assert (server.uploads, server.count("DELETE")) == ({}, 2)


@pytest.mark.parametrize(
    ("reply", "raised", "said"),
    [
        (DENIED, Unavailable, PERMISSIONS),
        (error(404, "NoSuchBucket"), Unavailable, "NoSuchBucket"),
        (BUSY, Unavailable, "SlowDown"),
        (error(502), OutcomeUnknown, "502"),
        (LOST, OutcomeUnknown, "not aborted"),
    ],
)
async def test_an_abort_that_fails_says_whether_anything_happened(
    store: S3ObjectStore, server: ScriptedS3, reply: Reply, raised: type[StorageError], said: str
) -> None:
    upload = await store._control.begin_upload(KEY)
    server.answer("DELETE", reply, times=1_000)

    with pytest.raises(raised, match=said):
        await store.abort_upload(KEY, upload)


# Underneath a writer


@pytest.mark.parametrize("limits", [SMALL_PARTS], ids=["small parts"])
@pytest.mark.parametrize("at", ["before the first part", "between two parts", "before the end"])
async def test_a_put_whose_upload_is_aborted_underneath_stores_nothing_and_may_be_repeated(
    store: S3ObjectStore, server: ScriptedS3, at: str
) -> None:
    body = IN_THREE_PARTS
    struck = {"before the first part": ("PUT", 1), "between two parts": ("PUT", 2), "before the end": ("POST", 2)}
    method, number = struck[at]
    turns = itertools.count(1)

    async def abort_first(request: Request) -> Reply | None:
        if request.method == method and next(turns) == number:
            server.uploads.clear()
        return None

    server.add(abort_first)
    with pytest.raises(Unavailable, match="NoSuchUpload"):
        await store.put_if_absent(KEY, [body])
    after = dict(server.objects)
    await store.put_if_absent(KEY, [body])

    assert after == {}
    assert server.objects == {KEY: body}
    assert server.uploads == {}
