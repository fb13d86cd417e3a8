"""The contract against a real S3 server, with both clients."""

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from services.versitygw import S3Server
from storage.errors import AlreadyExists
from storage.objects.port import ObjectStore
from storage.objects.s3.location import S3Location
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
    async def opened(self, folder: Path) -> AsyncIterator[ObjectStore]:
        location = self.location(f"contract-{self.client}/{next(_FOLDERS)}")
        async with opened(location, self.client) as store:
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


class TestObstore(S3Contract):
    client = "obstore"


class TestAioboto3(S3Contract):
    client = "aioboto3"


@asynccontextmanager
async def opened(location: S3Location, client: S3ClientName) -> AsyncIterator[ObjectStore]:
    store = await open_s3(location, client=client, clock=SystemClock(), chance=random.Random(1), telemetry=Telemetry())
    try:
        yield store
    finally:
        await store.close()
