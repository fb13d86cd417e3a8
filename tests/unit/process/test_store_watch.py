"""Stores that change under a running broker, and those that only do not answer."""

import asyncio
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from process.http.health import METADATA, OBJECT_STORE
from process.settings.model import Settings
from process.store_watch import StoreWatch
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from storage.catalog.identity import MARKER_KEY, ClusterRecord, StoreMarker, identify, read_marker
from storage.catalog.records import encode
from storage.errors import Unavailable
from storage.metadata.keys import CLUSTER
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Delete, Put
from storage.objects.memory import MemoryObjectStore
from storage.opening import Stores

clock = SystemClock()
OTHERS = ClusterRecord(cluster_id="b" * 22, created_at_ms=1)
WITHIN_S = 20.0


class Counted(MemoryObjectStore):
    """Counts reads, and fails on demand."""

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.reads = 0
        self.fails = False

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.reads += 1
        if self.fails:
            raise Unavailable("503")
        return await super().get_range(key, start, end)


@dataclass
class Watched:
    stores: Stores
    objects: Counted
    metadata: MemoryMetadataStore
    cluster: ClusterRecord
    lost: list[tuple[str, str]] = field(default_factory=list)

    async def looked(self, reads_max: int = 12) -> None:
        """Let it look until it has read so often, or has seen enough."""
        watch = StoreWatch(
            self.stores,
            Settings(),
            self.cluster,
            on_lost=lambda store, cause: self.lost.append((store, cause)),
            look_every_s=0.0,
            look_again_s=0.0,
        )
        reads = self.objects.reads
        async with asyncio.timeout(WITHIN_S), Nursery() as nursery:
            task = nursery.spawn(watch.run(), name="watch")
            while not task.done() and self.objects.reads < reads + reads_max:  # noqa: ASYNC110 - reads are counted, not told
                await asyncio.sleep(0)

    async def replace_marker(self, bytes_: bytes) -> None:
        await self.objects.delete_many([MARKER_KEY])
        await self.objects.put_if_absent(MARKER_KEY, [bytes_])


@pytest.fixture
async def watched() -> Watched:
    objects, metadata = Counted(), MemoryMetadataStore(clock=clock)
    identity = await identify(metadata, objects, IdSource(clock=clock), clock)
    assert identity.cluster is not None
    return Watched(Stores(metadata, objects), objects, metadata, identity.cluster)


async def test_a_store_without_what_is_ours_is_another_s_only_if_it_takes_what_is_put_into_it(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused() -> None:
        raise Unavailable("not a directory")

    await watched.objects.delete_many([MARKER_KEY])
    await watched.objects.put_if_absent("wal/01/strange", [b"strange"])
    monkeypatch.setattr(watched.objects, "probe", refused)
    await watched.looked()
    assert watched.lost == []

    monkeypatch.undo()
    await watched.looked()
    assert [store for store, _ in watched.lost] == [OBJECT_STORE]


async def test_stores_that_stay_are_left_alone(watched: Watched) -> None:
    await watched.looked()

    assert not watched.lost


async def test_another_s_marker_is_told_once_with_both_clusters(watched: Watched) -> None:
    await watched.replace_marker(encode(StoreMarker(cluster_id=OTHERS.cluster_id, created_at_ms=1)))
    with capture_logs() as logged:
        await watched.looked()

    ((store, cause),) = watched.lost
    assert store == OBJECT_STORE
    assert OTHERS.cluster_id in cause
    assert watched.cluster.cluster_id in cause
    assert [(line["event"], line["store"], line["log_level"]) for line in logged] == [("store_replaced", OBJECT_STORE, "error")]


async def test_objects_of_unknown_origin_without_a_marker_are_another_s(watched: Watched) -> None:
    await watched.objects.delete_many([MARKER_KEY])
    await watched.objects.put_if_absent("wal/01/strange", [b"strange"])
    await watched.looked()

    assert [store for store, _ in watched.lost] == [OBJECT_STORE]


async def test_what_is_no_marker_is_another_s(watched: Watched) -> None:
    await watched.replace_marker(b"{}")
    await watched.looked()

    assert [store for store, _ in watched.lost] == [OBJECT_STORE]


@pytest.mark.parametrize("other", [OTHERS, None])
async def test_metadata_of_another_cluster_or_of_none_are_told(watched: Watched, other: ClusterRecord | None) -> None:
    await watched.metadata.write([Delete(CLUSTER) if other is None else Put(CLUSTER, encode(other), None)])
    await watched.looked()

    ((store, cause),) = watched.lost
    assert store == METADATA
    assert "none" in cause or "no cluster" in cause or OTHERS.cluster_id in cause


async def test_both_replaced_by_empty_ones_are_told(watched: Watched) -> None:
    await watched.metadata.write([Delete(CLUSTER)])
    await watched.objects.delete_many([MARKER_KEY])
    await watched.looked()

    assert [store for store, _ in watched.lost] == [METADATA]


async def test_a_marker_that_alone_was_removed_is_put_again(watched: Watched) -> None:
    await watched.objects.delete_many([MARKER_KEY])
    with capture_logs() as logged:
        await watched.looked()

    assert not watched.lost
    assert [line["event"] for line in logged] == ["store_marked_again"]
    assert await read_marker(watched.objects) == StoreMarker(
        cluster_id=watched.cluster.cluster_id, created_at_ms=watched.cluster.created_at_ms
    )


async def test_a_store_that_does_not_answer_is_nobody_else_s(watched: Watched) -> None:
    watched.objects.fails = True
    await watched.looked()

    assert not watched.lost
