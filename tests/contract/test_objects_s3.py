"""The contract against a real S3 server, with both clients."""

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from services.versitygw import S3Server
from storage.errors import AlreadyExists, OutcomeUnknown, Unavailable
from storage.objects.port import ObjectStore
from storage.objects.s3.client import DEFAULT_LIMITS, S3Limits
from storage.objects.s3.location import S3Location
from storage.objects.s3.object_store import S3ObjectStore
from storage.objects.s3.store import S3ClientName, open_s3
from tests.kit.objects_contract import ObjectStoreContract, listed

_FOLDERS: Final = itertools.count()


class S3Contract(ObjectStoreContract):
    """Each store is a folder of its own in one bucket."""

    client: S3ClientName

    @pytest.fixture(autouse=True)
    def credentials(self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = s3_server
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)

    def location(self, prefix: str) -> S3Location:
        server = self.server
        return S3Location(bucket=server.bucket, prefix=prefix, endpoint=server.endpoint, region=server.region, path_style=True)

    @asynccontextmanager
    async def opened(self, folder: Path, limits: S3Limits = DEFAULT_LIMITS) -> AsyncIterator[ObjectStore]:
        location = self.location(f"contract-{self.client}/{next(_FOLDERS)}")
        async with opened(location, self.client, limits=limits) as store:
            yield store

    @pytest.fixture
    def limits(self) -> S3Limits:
        return DEFAULT_LIMITS

    @pytest.fixture
    async def store(self, tmp_path: Path, limits: S3Limits) -> AsyncIterator[ObjectStore]:
        async with self.opened(tmp_path, limits) as store:
            yield store

    async def test_stores_of_one_bucket_do_not_see_each_other(self, store: ObjectStore, tmp_path: Path) -> None:
        await store.put_if_absent("wal/1", [b"first"])
        async with self.opened(tmp_path) as other:
            await other.put_if_absent("wal/1", [b"second"])

            assert await other.get_range("wal/1", 0, 6) == b"second"
            assert await listed(other, "") == ["wal/1"]
        assert await store.get_range("wal/1", 0, 5) == b"first"

    async def test_an_object_of_several_parts_is_put_once(self, store: ObjectStore) -> None:
        whole = random.Random(5).randbytes(70 << 20)
        await store.put_if_absent("wal/1", [whole[:1_000], whole[1_000:]])

        with pytest.raises(AlreadyExists):
            await store.put_if_absent("wal/1", [whole[::-1]])
        for start in (0, (16 << 20) - 5, len(whole) - 10):
            assert await store.get_range("wal/1", start, start + 10) == whole[start : start + 10]
        assert (await store.stat("wal/1")).size_bytes == len(whole)

    @pytest.mark.parametrize("limits", [S3Limits(page_objects=2)], ids=["small pages"])
    async def test_uploads_are_listed_in_pages_and_gone_once_they_are_aborted(self, store: S3ObjectStore, tmp_path: Path) -> None:
        now_ms = SystemClock().now_ms()
        begun = [(key, (await begin(store, key))[0]) for key in ("segments/x", "wal/1", "wal/1", "wal/2", "wal/3", "wal/4")]
        async with self.opened(tmp_path) as other:
            of_other = [upload async for upload in other.unfinished_uploads("")]
        found = [upload async for upload in store.unfinished_uploads("wal/")]
        later = [upload.key async for upload in store.unfinished_uploads("", start_after="wal/2")]
        for upload in found:
            await store.abort_upload(upload.key, upload.upload_id)
        left = [(upload.key, upload.upload_id) async for upload in store.unfinished_uploads("")]
        await store.abort_upload(*begun[0])

        assert of_other == []
        assert sorted((upload.key, upload.upload_id) for upload in found) == sorted(begun[1:])
        assert all(abs(upload.begun_ms - now_ms) < 600_000 for upload in found)
        assert later == ["wal/3", "wal/4"]
        assert left == begun[:1]

    async def test_aborting_an_upload_that_was_finished_leaves_its_object_alone(self, store: S3ObjectStore) -> None:
        upload, etag = await begin(store, "wal/1")
        await store._control.finish_upload(f"{store._root}wal/1", upload, [etag])
        await store.abort_upload("wal/1", upload)

        assert await store.get_range("wal/1", 0, 4) == b"part"

    @pytest.mark.parametrize("limits", [S3Limits(multipart_above_bytes=1 << 20)], ids=["small parts"])
    @pytest.mark.parametrize("at", ["part", "end"])
    async def test_a_put_whose_upload_is_aborted_underneath_stores_nothing_and_may_be_repeated(
        self, store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch, at: str
    ) -> None:
        control: Any = store._control
        name = "put_part" if at == "part" else "finish_upload"
        real = getattr(control, name)

        async def aborted_before(key: str, upload: str, *arguments: Any) -> Any:
            await store.abort_upload("wal/1", upload)
            return await real(key, upload, *arguments)

        whole = random.Random(6).randbytes(17 << 20)
        with monkeypatch.context() as patch:
            patch.setattr(control, name, aborted_before)
            # A server that refuses a part before it has its bytes may reset the connection: then it is not known what became of the part.
            refusals = Unavailable if at == "end" else (Unavailable, OutcomeUnknown)
            with pytest.raises(refusals, match="NoSuchUpload" if at == "end" else "object not stored"):
                await store.put_if_absent("wal/1", [whole])
        after = await listed(store, "")
        await store.put_if_absent("wal/1", [whole])

        assert after == []
        assert (await store.stat("wal/1")).size_bytes == len(whole)
        assert await store.get_range("wal/1", (16 << 20) - 5, (16 << 20) + 5) == whole[(16 << 20) - 5 : (16 << 20) + 5]


async def begin(store: S3ObjectStore, key: str) -> tuple[str, str]:
    """The id of an upload that has one part, and the part's ETag."""
    name = f"{store._root}{key}"
    upload = await store._control.begin_upload(name)
    return upload, await store._control.put_part(name, upload, 1, b"part")


class TestObstore(S3Contract):
    client = "obstore"


class TestAioboto3(S3Contract):
    client = "aioboto3"


@asynccontextmanager
async def opened(location: S3Location, client: S3ClientName, *, limits: S3Limits) -> AsyncIterator[ObjectStore]:
    clock, chance = SystemClock(), random.Random(1)
    store = await open_s3(location, client=client, clock=clock, chance=chance, telemetry=Telemetry(), limits=limits)
    try:
        yield store
    finally:
        await store.close()
