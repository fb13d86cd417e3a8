"""Offsets of groups in the stores that brokers really use: what is taken over, and what is forgotten."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.cluster.leadership import COORDINATOR_SLOTS
from broker.groups.state import GroupError, GroupSettings
from runtime.blocking import ThreadBlocking
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from services.oxia import OxiaServer
from storage.metadata.oxia.location import parse_oxia_url
from storage.metadata.oxia.store import OxiaMetadataStore
from storage.metadata.port import MetadataStore
from storage.metadata.sqlite.store import SqliteMetadataStore
from storage.vocabulary import PartitionId, TopicId
from tests.kit.coordinating import OpenClient, committed, simple, world
from tests.kit.group_offsets import commit, keys_of, restarted, topic_of

HOUR_MS = 3_600_000
SETTINGS = GroupSettings(initial_delay_s=0, offsets_retention_ms=HOUR_MS)


@pytest.fixture(params=["oxia", "sqlite"])
async def client(request: pytest.FixtureRequest, oxia_server: OxiaServer, tmp_path: Path) -> AsyncIterator[OpenClient]:
    clock = SystemClock()
    async with Nursery() as nursery:

        async def oxia() -> MetadataStore:
            return await OxiaMetadataStore.open(parse_oxia_url(oxia_server.url), clock=clock, chance=random.Random(), nursery=nursery)

        async def sqlite() -> MetadataStore:
            blocking = ThreadBlocking(threads=1, name="sqlite")
            return await SqliteMetadataStore.open(
                tmp_path / "meta.db", blocking=blocking, clock=clock, ids=IdSource(clock=clock), boot_id=None, busy_timeout_s=5.0
            )

        yield oxia if request.param == "oxia" else sqlite


def some_partitions(topic_count: int) -> list[PartitionId]:
    ids = IdSource(clock=SystemClock(), entropy=random.Random(topic_count).randbytes)
    return [PartitionId(TopicId(ids.random_uuid()), number % 3) for number in range(topic_count)]


@pytest.mark.parametrize("topic_count", [200, 1_500])
async def test_all_offsets_of_a_group_are_taken_over_in_however_many_topics(client: OpenClient, topic_count: int) -> None:
    offsets = {partition: committed(number, "here") for number, partition in enumerate(some_partitions(topic_count))}
    async with world(settings=SETTINGS, client=client) as made:
        old = await made.node(1)
        for group in ("g", "g/", "f", "h"):
            assert await old.coordinator.commit(group, simple(offsets if group == "g" else {})) is GroupError.NONE
        new = await restarted(made, old)

        assert (await new.coordinator.checked("g")).stored.offsets == offsets
        await new.coordinator.delete("g")
        assert await keys_of(new, "g") == 0


async def test_what_is_to_be_forgotten_is(client: OpenClient) -> None:
    async with world(settings=SETTINGS, client=client) as made:
        old = await made.node(1)
        kept, gone = await topic_of(old, "kept"), await topic_of(old, "gone")
        await commit(old, "of-a-topic-that-is-gone", gone.partition(0), kept.partition(0))
        await commit(old, "forgotten", kept.partition(0))
        await old.topics.delete(gone)
        new = await restarted(made, old)
        await new.coordinator.sweep()
        assert [await keys_of(new, name) for name in ("of-a-topic-that-is-gone", "forgotten")] == [2, 2]
        made.clock.wall_ms += HOUR_MS
        await commit(new, "of-a-topic-that-is-gone", kept.partition(0))
        await new.coordinator.sweep()

        assert [await keys_of(new, name) for name in ("of-a-topic-that-is-gone", "forgotten")] == [2, 0]
        assert len(await new.coordinator.slots.own()) == COORDINATOR_SLOTS
        await new.topics.delete(kept)
