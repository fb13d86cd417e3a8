"""The metadata store does not answer for the catalog: what is served of topics all the same, for how long, and what is not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.catalog.limits import CatalogLimits
from storage.catalog.topics import SILENT_FOR_S, STALE_S, Topic, Topics
from storage.errors import Unavailable
from storage.metadata import keys
from storage.vocabulary import TopicId
from tests.kit.faulty_metadata import FaultyMetadata, ManualClock, no_jitter

SOON_S = 25.0
IMPATIENT = CatalogLimits(topics_timeout_s=0.05, topics_stale_timeout_s=0.05, topics_silent_timeout_s=0.05)
CACHE_AGE_S = IMPATIENT.topics_cache_age_s
UNKNOWN_ID = TopicId("0b6c1a9e-6d5c-4b7e-8a55-00000000000f")


@dataclass
class Scene:
    """A broker without hints that has looked up `known`, a moment too long ago, and another one that goes on reading and writing."""

    metadata: FaultyMetadata
    clock: ManualClock
    telemetry: Telemetry
    broker: Topics
    other: Topics
    known: Topic

    def fall_silent(self) -> None:
        self.metadata.muted.add(self.metadata.shard_of(keys.ROOT))

    def served_stale(self) -> float:
        return self.telemetry.registry.get_sample_value("forebay_topics_stale_total") or 0.0


@contextlib.asynccontextmanager
async def scene(*, age_s: float = CACHE_AGE_S, limits: CatalogLimits = IMPATIENT) -> AsyncIterator[Scene]:
    metadata, clock, telemetry = FaultyMetadata(), ManualClock(), Telemetry()
    broker = Topics(metadata, clock=clock, ids=IdSource(clock=clock), entropy=no_jitter, telemetry=telemetry, limits=limits)
    broker.close()
    other = Topics(metadata.store, clock=clock, ids=IdSource(clock=clock), entropy=no_jitter, limits=limits)
    known = await other.create("t", partition_count=1, replication_factor=1, configs={})
    await broker.lookup(["t"])
    clock.seconds += age_s
    async with asyncio.timeout(SOON_S):
        yield Scene(metadata, clock, telemetry, broker, other, known)
    metadata.speak()


async def test_a_topic_that_is_known_is_found_by_name_and_by_id_while_the_catalog_is_silent() -> None:
    async with scene() as made:
        made.fall_silent()
        assert made.broker.find("t") is None
        assert await made.broker.lookup(["t"]) == {"t": made.known}
        reads = len(made.metadata.reads)

        assert made.broker.is_silent
        assert made.broker.find("t") == made.known
        assert await made.broker.lookup(["t"]) == {"t": made.known}
        assert await made.broker.lookup_ids([made.known.topic_id]) == {made.known.topic_id: made.known}
        assert len(made.metadata.reads) == reads, "it is known to be silent: nobody waits for it"
        assert made.served_stale() == 4


async def test_a_lookup_by_id_finds_out_that_the_catalog_is_silent() -> None:
    async with scene() as made:
        made.fall_silent()

        assert await made.broker.lookup_ids([made.known.topic_id]) == {made.known.topic_id: made.known}
        assert made.broker.is_silent


async def test_a_store_that_refuses_is_as_silent_as_one_that_does_not_answer() -> None:
    async with scene() as made:
        made.metadata.reads_fail = True

        assert await made.broker.lookup(["t"]) == {"t": made.known}


async def test_a_topic_that_is_not_known_is_refused_beside_one_that_is() -> None:
    async with scene() as made:
        made.fall_silent()
        found, unread = await made.broker.look_up(["t", "u"])
        by_id, unread_id = await made.broker.look_up_ids([made.known.topic_id, UNKNOWN_ID])

        assert found == {"t": made.known}
        assert by_id == {made.known.topic_id: made.known}
        assert isinstance(unread, Unavailable)
        assert isinstance(unread_id, Unavailable)
        with pytest.raises(Unavailable, match="not read in time"):
            await made.broker.lookup(["u"])


async def test_nothing_is_served_stale_for_ever() -> None:
    async with scene(age_s=CACHE_AGE_S + STALE_S) as made:
        made.fall_silent()
        with pytest.raises(Unavailable):
            await made.broker.lookup(["t"])

        assert made.broker.find("t") is None


async def test_nothing_is_served_stale_by_a_catalog_that_answers() -> None:
    async with scene() as made:
        await made.other.delete(made.known)
        new = await made.other.create("t", partition_count=2, replication_factor=1, configs={})

        assert made.broker.find("t") is None
        assert await made.broker.lookup(["t"]) == {"t": new}
        assert made.served_stale() == 0


@pytest.mark.parametrize("by", ["name", "id"])
async def test_a_topic_that_was_once_read_as_gone_is_not_served_when_the_catalog_falls_silent(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene() as made:
        await made.other.delete(made.known)
        found = await (made.broker.lookup(["t"]) if by == "name" else made.broker.lookup_ids([made.known.topic_id]))
        assert not found
        made.fall_silent()

        with pytest.raises(Unavailable):
            await made.broker.lookup(["t"])
        with pytest.raises(Unavailable):
            await made.broker.lookup_ids([made.known.topic_id])


async def test_what_contradicts_a_stale_topic_ends_it() -> None:
    async with scene() as made:
        made.fall_silent()
        await made.broker.lookup(["t"])
        made.broker.forget("t")

        with pytest.raises(Unavailable):
            await made.broker.lookup(["t"])


async def test_answers_about_what_is_not_are_never_stale() -> None:
    async with scene() as made:
        made.metadata.reads_fail = True
        await made.broker.lookup(["t"])
        with pytest.raises(Unavailable):
            await made.broker.lookup_now(["t"])

        assert made.broker.find("t") == made.known, "a read that failed contradicts nothing"


@pytest.mark.parametrize("is_watched", [True, False])
async def test_a_catalog_that_speaks_again_is_read_again(is_watched: bool) -> None:
    async with scene(limits=replace(IMPATIENT, probe_pause_s=0.01, probe_timeout_s=0.05)) as made, asyncio.TaskGroup() as tasks:
        made.fall_silent()
        await made.broker.lookup(["t"])
        watching = tasks.create_task(made.broker.watch()) if is_watched else None
        if watching is None:
            made.clock.seconds += SILENT_FOR_S
        else:
            reads = len(made.metadata.reads)
            while len(made.metadata.reads) < reads + 3:  # noqa: ASYNC110 - probes that nobody answers
                await asyncio.sleep(0.005)
            assert made.broker.is_silent
        made.metadata.speak()
        await made.other.delete(made.known)
        while made.broker.is_silent:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

        assert made.broker.find("t") is None
        assert await made.broker.lookup(["t"]) == {}
        if watching is not None:
            watching.cancel()
