"""What a compactor that is killed while it uploads leaves in a real server goes by the collector and by hand, and nothing else does."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from compactor.collector import CollectorPolicy, UploadsReport
from compactor.compaction import RoundPolicy
from compactor.measures import Measures
from compactor.plan import CompactionPolicy
from compactor.upkeep import Upkeep
from forebay.cli import application
from runtime.blocking import InlineBlocking
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from runtime.ulid import encode_ulid
from services.versitygw import S3Server
from storage.catalog.identity import open_cluster, write_marker
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import MetadataStore
from storage.metadata.sqlite.store import SqliteMetadataStore
from storage.objects.s3.location import parse_s3_url
from storage.objects.s3.object_store import S3ObjectStore
from storage.objects.s3.store import S3ClientName, open_s3
from storage.vocabulary import ObjectId, PartitionId, TopicId

PARTITION = PartitionId(TopicId("00000000-0000-4000-8000-000000000001"), 0)
HOUR_MS = 3_600_000


class LaterClock(SystemClock):
    """An hour ahead: what a real server has just begun is old by it."""

    def now_ms(self) -> int:
        return super().now_ms() + HOUR_MS


@asynccontextmanager
async def opened(url: str, client: S3ClientName) -> AsyncIterator[S3ObjectStore]:
    store = await open_s3(parse_s3_url(url), client=client, clock=SystemClock(), chance=random.Random(1), telemetry=Telemetry())
    try:
        yield store
    finally:
        await store.close()


async def begin(store: S3ObjectStore, key: str) -> None:
    """An upload that has one part, as a process leaves it that is killed then."""
    name = f"{store._root}{key}"
    await store._control.put_part(name, await store._control.begin_upload(name), 1, b"part")


async def found_cluster(metadata: MetadataStore, store: S3ObjectStore) -> None:
    await write_marker(store, await open_cluster(metadata, IdSource(clock=SystemClock()), SystemClock(), level_max=2))


def made(at_ms: int) -> ObjectId:
    return ObjectId(encode_ulid((at_ms << 80) + 1))


async def unfinished(store: S3ObjectStore) -> list[str]:
    return [upload.key async for upload in store.unfinished_uploads("")]


async def test_a_compactor_aborts_what_is_old_and_leaves_what_is_young_finished_or_not_ours(
    s3_server: S3Server, client: S3ClientName
) -> None:
    clock = LaterClock()
    old, young = made(clock.now_ms() - HOUR_MS), made(clock.now_ms())
    async with opened(s3_server.url(prefix=f"unfinished-{client}"), client) as store:
        metadata = MemoryMetadataStore(clock=clock, shards=1)
        await found_cluster(metadata, store)
        kept = [object_key(young), segment_key(PARTITION, young), "wal/readme"]
        for key in (object_key(old), segment_key(PARTITION, old), *kept):
            await begin(store, key)
        finished = segment_key(PARTITION, young)
        await store.put_if_absent(finished, [b"a segment"])
        upkeep = Upkeep(
            metadata=metadata,
            objects=store,
            blocking=InlineBlocking(),
            ids=IdSource(clock=clock),
            clock=clock,
            policy=CompactionPolicy(),
            rounds=RoundPolicy(),
            measures=Measures(Telemetry(), clock),
            collecting=CollectorPolicy(),
        )
        report = await upkeep.cycle()
        await upkeep.close()

        assert report.collection.uploads == UploadsReport(looked_at=5, aborted=2)
        assert sorted(await unfinished(store)) == sorted(kept)
        assert await store.get_range(finished, 0, 9) == b"a segment"


def gc(*options: str) -> tuple[Any, str]:
    result = CliRunner().invoke(application, ["storage", "gc", "--config", os.devnull, *options, "-o", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), result.stderr


def test_uploads_are_counted_and_aborted_by_hand(s3_server: S3Server, tmp_path: Path) -> None:
    url, file = s3_server.url(prefix="unfinished-by-hand"), tmp_path / "meta.db"
    key = segment_key(PARTITION, made(SystemClock().now_ms()))

    async def prepare() -> None:
        ids, clock = IdSource(clock=SystemClock()), SystemClock()
        metadata = await SqliteMetadataStore.open(file, blocking=InlineBlocking(), clock=clock, ids=ids)
        async with opened(url, "obstore") as store:
            await found_cluster(metadata, store)
            await begin(store, key)
        await metadata.close()

    async def left() -> list[str]:
        async with opened(url, "obstore") as store:
            return await unfinished(store)

    asyncio.run(prepare())
    stores = [f"--set=storage.url={url}", f"--set=metadata.url=sqlite:///{file}"]
    young, _ = gc("--delete", *stores)
    counted, said = gc("--set=compactor.delete_grace=0ms", *stores)
    there = asyncio.run(left())
    aborted, _ = gc("--delete", "--set=compactor.delete_grace=0ms", *stores)

    assert (young["uploads"], counted["uploads"], aborted["uploads"]) == (0, 1, 1)
    assert (counted["deleted"], aborted["deleted"]) == (False, True)
    assert "Nothing was deleted" in said
    assert there == [key]
    assert asyncio.run(left()) == []
