"""The next write notices metadata that were put back, and so does a read that is older than the last: a slow or late answer never does."""

import asyncio
from collections.abc import Sequence

import pytest

from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.errors import Unavailable
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Applied, Key, NotApplied, Put, Record, Unknown, WriteOp, WriteOutcome
from storage.metadata.version_watch import PutManifest, VersionWatch, read_certainly
from storage.vocabulary import PartitionId, TopicId

PARTITION = PartitionId(TopicId("00000000-0000-4000-8000-000000000001"), 0)
MANIFEST = PartitionKeys(PARTITION).manifest


class Watched:
    """A store of one shard, and what is told of it."""

    def __init__(self, inner: MemoryMetadataStore | None = None) -> None:
        self.store = inner or MemoryMetadataStore(clock=SystemClock(), shards=1)
        self.told: list[str] = []
        self.telemetry = Telemetry()
        self.watch = VersionWatch(self.store, ids=IdSource(clock=SystemClock()), telemetry=self.telemetry, on_lost=self.told.append)

    async def put(self, text: str = "", key: Key = MANIFEST) -> WriteOutcome:
        return await self.watch.write([Put(key, text.encode(), None)])

    @property
    def gauge(self) -> float | None:
        return self.telemetry.registry.get_sample_value("forebay_metadata_went_back")


async def test_a_put_that_gets_an_older_version_ends_all_that_follows() -> None:
    it = Watched()
    await it.put("one")
    backup = it.store.shared.copy()
    await it.put("two")
    assert it.told == []
    it.store.shared.put_back(backup)

    assert isinstance(await it.put("three"), Unknown), "it is in the store"
    assert len(it.told) == 1
    assert it.gauge == 1
    assert isinstance(await it.put("four"), NotApplied)
    for read in (it.watch.get_many([MANIFEST]), it.watch.list(MANIFEST, "~"), it.watch.probe(), it.watch.open_session(timeout_ms=5_000)):
        with pytest.raises(Unavailable, match=r"older than they were.*--accept-older-metadata"):
            await read
    assert len(it.told) == 1, "it is told once"


async def test_a_read_that_is_older_than_what_is_known_is_looked_into() -> None:
    it = Watched()
    await it.put("one")
    backup = it.store.shared.copy()
    await it.put("two")
    it.store.shared.put_back(backup)
    # Others have written meanwhile, so a put of this process is no longer behind what it knows.
    for _ in range(3):
        await it.store.write([Put(Key("llog/other", "llog"), b"", None)])

    await it.watch.doubt(MANIFEST, 2)
    assert len(it.told) == 1
    assert MANIFEST.path in it.told[0]


async def test_a_deposed_leader_that_answers_from_the_past_is_no_alarm() -> None:
    class Deposed(MemoryMetadataStore):
        past: Sequence[Record | None] | None = None

        async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
            found = await super().get_many(keys)
            return found if self.past is None else [old for old, _ in zip([*self.past, None, None], keys, strict=False)]

    store = Deposed(clock=SystemClock(), shards=1)
    it = Watched(store)
    await it.put("one")
    store.past = [None, *await store.get_many([MANIFEST])]
    await it.put("two")

    with pytest.raises(Unavailable, match="answered from the past"):
        await it.watch.doubt(MANIFEST, 2)
    store.past = None
    await it.watch.doubt(MANIFEST, 2)
    assert it.told == []


async def test_answers_of_requests_that_are_under_way_together_come_in_any_order() -> None:
    class Slow(MemoryMetadataStore):
        async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
            outcome = await super().write(ops)
            if isinstance(ops[0], Put) and ops[0].value == b"slow":
                await answered.wait()
            return outcome

    answered = asyncio.Event()
    it = Watched(Slow(clock=SystemClock(), shards=1))
    async with asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(it.put("slow"))
        await asyncio.sleep(0)
        await it.put("fast", Key("llog/other", "llog"))
        answered.set()
    assert isinstance(slow.result(), Applied)
    assert it.told == []


async def test_a_record_that_is_gone_says_nothing() -> None:
    """Topics are purged."""
    it = Watched()
    await it.watch.doubt(MANIFEST, 7)
    assert it.told == []


async def test_the_last_commit_of_a_shard_is_known() -> None:
    it = Watched()
    await it.put("one")
    await it.put("no manifest", Key("llog/other", "llog"))
    assert it.watch.commits == {0: PutManifest(MANIFEST, 1)}
    await it.put("two")
    assert it.watch.commits == {0: PutManifest(MANIFEST, 3)}


async def test_a_certain_read_leaves_nothing_behind() -> None:
    it = Watched()
    await it.put("one")
    found = await read_certainly(it.watch, [MANIFEST], name="n")
    assert [record and record.value for record in found.records] == [b"one"]
    assert found.version == 2
    assert await it.store.list(Key("llog/probes/", MANIFEST.partition_key), "llog/probes/~") == []
