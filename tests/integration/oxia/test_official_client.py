"""Our client beside the official one, `oxia` 0.2.1 (docs/internals/adr/0006): the same records on one shard, and what it does on four."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import oxia
import oxia.ex
import pytest
from oxia.internal.proto.io.streamnative.oxia import proto

from services.oxia import OxiaServer, running_oxia
from storage.metadata.port import ABSENT, Applied, Key, OpResult, Put, Status
from tests.integration.oxia.opening import opened
from tests.kit.official_oxia import Discovery, official_client

NAMES = [f"topic-{number}" for number in range(20)]


@pytest.fixture
def one_shard(tmp_path: Path) -> Iterator[OxiaServer]:
    with running_oxia(tmp_path / "oxia", shards=1) as server:
        yield server


def officially(address: str, do: Callable[[oxia.Client], None]) -> None:
    with official_client(address) as client:
        do(client)


async def test_on_one_shard_each_reads_what_the_other_wrote(one_shard: OxiaServer) -> None:
    path = "llog/topic-1/meta/control"
    async with opened(one_shard.url) as store:
        outcome = await store.write([Put(Key(path, "topic-1"), b"ours", ABSENT)])
        assert isinstance(outcome, Applied)
        versions = [outcome.results[0].version]

        def read_and_replace(client: oxia.Client) -> None:
            found, value, version = client.get(path, partition_key="topic-1")
            assert (found, value, version.version_id()) == (path, b"ours", versions[0])
            _, version = client.put(path, b"theirs", partition_key="topic-1", expected_version_id=version.version_id())
            versions.append(version.version_id())
            assert client.list("llog/topic-1/meta/", "llog/topic-1/meta/~") == [path]

        await asyncio.to_thread(officially, one_shard.address, read_and_replace)

        (record,) = await store.get_many([Key(path, "topic-1")])
        assert record == (path, b"theirs", versions[1])
        outcome = await store.write([Put(Key(path, "topic-1"), b"", versions[0])])
        assert outcome == Applied((OpResult(Status.UNEXPECTED_VERSION, None),))


async def test_on_four_shards_the_official_client_looks_on_the_wrong_ones(oxia_server: OxiaServer) -> None:
    found: list[str] = []
    async with opened(oxia_server.url) as store:
        for name in NAMES:
            assert isinstance(await store.write([Put(Key(f"interop/{name}", name), b"", None)]), Applied)

        def look(client: oxia.Client) -> None:
            for name in NAMES:
                try:
                    client.get(f"interop/{name}", partition_key=name)
                except oxia.ex.KeyNotFound:
                    continue
                found.append(name)

        await asyncio.to_thread(officially, oxia_server.address, look)
        ours = await store.get_many([Key(f"interop/{name}", name) for name in NAMES])

    assert None not in ours
    # Chance alone finds a quarter: it hashes with XXH64 where Oxia says XXHASH3.
    assert len(found) < len(NAMES) * 3 / 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_official_client_hangs_in_its_second_update_of_the_assignments() -> None:
    told: list[int] = []

    class Node:
        def get_shard_assignments(self, request: object) -> Iterator[proto.ShardAssignments]:
            whole = proto.Int32HashRange(min_hash_inclusive=0, max_hash_inclusive=2**32 - 1)
            for number in range(3):
                told.append(number)
                shard = proto.ShardAssignment(shard=0, leader=f"n{number}:1", int32_hash_range=whole)
                assigned = proto.NamespaceShardsAssignment(assignments=[shard], shard_key_router=proto.ShardKeyRouter.XXHASH3)
                yield proto.ShardAssignments(namespaces={"default": assigned})

    class Nodes:
        def get(self, address: str) -> Node:
            return Node()

    discovery = Discovery("n0:1", Nodes(), "default")
    discovery._thread.join(1)

    assert discovery._thread.is_alive()
    assert told == [0, 1]
    discovery._closed = True
    discovery._init_barrier.abort()
    discovery._thread.join(10)
