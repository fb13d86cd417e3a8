import asyncio
from collections.abc import AsyncIterator
from typing import Any

from broker.http.guard import HttpLimits
from runtime.clock import SystemClock
from storage.errors import Unavailable
from storage.objects.memory import MemoryObjectStore
from storage.objects.port import ObjectStat
from tests.kit.clustering import running_cluster
from tests.kit.http_asking import LOCAL, Http, http_of


async def test_lists_are_told_page_by_page(http: Http) -> None:
    for name in ("b", "a", "d", "c", "e"):
        await http.produced(name, 0, ["x"])

    seen: list[str] = []
    after = ""
    while True:
        status, page = await http.get(f"/api/v1/topics?limit=2&after={after}")
        assert status == 200
        seen += [topic["topic"] for topic in page["topics"]]
        if page["next"] is None:
            break
        assert len(page["topics"]) == 2
        after = page["next"]
    assert seen == ["a", "b", "c", "d", "e"]
    for limit in ("0", "1001", "-1", "x", "9" * 40, "0" * 5_000 + "1", "000000001500", ""):
        status, answer = await http.get(f"/api/v1/topics?limit={limit}")
        assert (status, answer["error_type"]) == (400, "InvalidRequest"), limit


async def test_a_topic_is_told_with_its_partitions(http: Http) -> None:
    await http.produced("t", 0, ["a", "b"])

    status, told = await http.get("/api/v1/topics/t")

    assert status == 200
    assert (told["topic"], told["partition_count"], told["internal"], told["configs"]) == ("t", 1, False, {})
    (partition,) = told["partitions"]
    assert (partition["partition"], partition["log_start_offset"], partition["high_watermark"]) == (0, 0, 2)
    assert partition["bytes"] > 0
    assert (await http.get("/api/v1/topics/none"))[0] == 404


async def test_the_cluster_and_its_brokers_are_told(http: Http) -> None:
    _, cluster = await http.get("/api/v1/cluster")
    _, brokers = await http.get("/api/v1/brokers")
    member = http.member

    assert cluster["cluster_id"] == member.broker.cluster_id
    assert (cluster["broker_id"], cluster["brokers"]) == (member.broker_id, [member.broker_id])
    (broker,) = brokers["brokers"]
    assert broker["listeners"] == [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": member.port}]


async def test_a_group_that_is_not_there_is_not_found(http: Http) -> None:
    status, groups = await http.get("/api/v1/groups")
    assert (status, groups) == (200, {"groups": [], "complete": True, "next": None})
    status, answer = await http.get("/api/v1/groups/none")
    assert (status, answer["error_type"]) == (404, "GroupIdNotFound")


async def test_objects_are_told_page_by_page_with_their_sizes(http: Http) -> None:
    written = [await http.produced("t", 0, [f"record {number}"], explain=True) for number in range(5)]
    keys = [result["object_uri"].partition("://")[2].lstrip("/") for result in written]

    seen: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        status, page = await http.get(f"/api/v1/objects?prefix=wal/&limit=2&after={after}")
        assert status == 200
        assert len(page["objects"]) <= 2
        seen += page["objects"]
        after = page["next"]

    assert [found["key"] for found in seen] == sorted(keys)
    stats = [await http.member.broker.http.objects.stat(found["key"]) for found in seen]
    assert [(found["size_bytes"], found["modified_ms"]) for found in seen] == [(stat.size_bytes, stat.modified_ms) for stat in stats]
    assert (await http.get("/api/v1/objects?limit=1000"))[1]["next"] is None
    for query in ("prefix=none/", "prefix=../", "prefix=%00", "prefix=%ff", "after=~", "prefix=/etc/"):
        assert await http.get(f"/api/v1/objects?{query}") == (200, {"objects": [], "next": None}), query
    for limit in ("0", "1001", "x"):
        assert (await http.get(f"/api/v1/objects?limit={limit}"))[0] == 400


class Listing(MemoryObjectStore):
    """Says one object, and then waits or fails as `then` does."""

    async def then(self) -> None:
        return

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        async for stat in super().list(prefix, start_after=start_after):
            yield stat
            await self.then()


async def away() -> None:
    raise Unavailable("the store is away")


async def test_a_listing_that_fails_or_takes_too_long_is_refused_and_the_next_one_is_not() -> None:
    async with running_cluster() as cluster:
        store = cluster.objects = Listing(clock=SystemClock())
        limits = HttpLimits(listen=LOCAL, listed_within_s=0.1)
        async with http_of(await cluster.join(), limits=limits) as http:
            await http.produced("t", 0, ["x"])
            well, never = store.then, asyncio.Event()
            for then in (away, never.wait):
                store.then = then  # type: ignore[method-assign, assignment]
                status, answer = await http.get("/api/v1/objects")
                assert (status, answer["error_type"]) == (503, "StorageUnavailable")
                store.then = well  # type: ignore[method-assign]
                assert (await http.get("/api/v1/objects"))[0] == 200


async def test_settings_are_told_without_secrets(http: Http) -> None:
    told: dict[str, Any] = (await http.get("/api/v1/settings"))[1]["settings"]
    assert told["kafka.default_partitions"] == "1"
