"""Cycles over partitions without appends: they are tidied once, who lives is asked once, and attempts of dead compactors come to an end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from compactor.assembly import open_compactor
from compactor.compaction import CompactionEnd
from compactor.limits import CompactorLimits
from compactor.plan import CompactionPolicy
from process.settings.loading import load
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.catalog.identity import open_cluster, write_marker
from storage.catalog.topics import Topics
from storage.formats.manifest import (
    CompactionState,
    Manifest,
    PageRef,
    ProducerBatch,
    ProducerPage,
    ProducerState,
    WriterEntry,
    decode_attempt,
    encode,
)
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Applied, Put
from storage.vocabulary import PartitionId
from tests.unit.compactor.compacting import OneByOne, index_ends, left_behind, opened
from tests.unit.compactor.crashing import Crash, Crashing
from tests.unit.compactor.test_upkeep import PARTITIONS, Cluster, CountingMetadata, cluster

LATER_MS = 660_000
LATER = CompactionPolicy(entries_due=1_000, age_due_ms=86_400_000)
"""Nothing is due for a day."""


async def change(it: Cluster, partition: PartitionId, **fields: Any) -> None:
    changed = msgspec.structs.replace(await it.manifest(partition), **fields)
    assert isinstance(await it.broker.shared.write([Put(PartitionKeys(partition).manifest, encode(changed), None)]), Applied)


async def register(it: Cluster, broker_id: int) -> int:
    """The epoch of that broker, from now on."""
    outcome = await it.broker.shared.write([Put(keys.broker(broker_id), b"{}", None)])
    assert isinstance(outcome, Applied)
    epoch = outcome.results[0].version
    assert epoch is not None
    return epoch


def writers(epochs: Sequence[int]) -> dict[int, WriterEntry]:
    return {epoch: WriterEntry(1, 1) for epoch in epochs}


def asked(it: Cluster) -> list[str]:
    """The sentinels that were put."""
    return [path for path in it.metadata.scanned if "/brokers/w" in path]


@pytest.fixture(autouse=True)
def note_sentinels(monkeypatch: pytest.MonkeyPatch) -> None:
    """`scanned` has these, too."""
    write = CountingMetadata.write

    async def noting(self: CountingMetadata, ops: Any) -> Any:
        self.scanned += [op.key.path for op in ops if isinstance(op, Put) and "/brokers/w" in op.key.path]
        return await write(self, ops)

    monkeypatch.setattr(CountingMetadata, "write", noting)


async def test_every_idle_partition_is_tidied_in_one_cycle_also_where_retention_is_endless() -> None:
    async with cluster() as it:
        live, dead = await register(it, 1), [91, 92]
        for partition in it.partitions:
            await change(it, partition, writers=writers([live, *dead]))
        before = [await it.broker.read_all(partition) for partition in it.partitions]
        upkeep = it.upkeep(LATER)
        await upkeep.cycle()
        early = [await it.manifest(partition) for partition in it.partitions]
        unasked = asked(it)
        it.clock.later_ms = LATER_MS
        await upkeep.cycle()
        manifests = [await it.manifest(partition) for partition in it.partitions]
        versions = [one.version for one in await it.broker.shared.get_many([PartitionKeys(one).manifest for one in it.partitions]) if one]
        await upkeep.cycle()
        again = [one.version for one in await it.broker.shared.get_many([PartitionKeys(one).manifest for one in it.partitions]) if one]
        await upkeep.close()

        assert [len(manifest.pending) for manifest in early] == [3] * PARTITIONS
        assert unasked == []
        assert [(manifest.pending, [*manifest.writers]) for manifest in manifests] == [((), [live])] * PARTITIONS
        assert [await index_ends(it.broker.shared, partition) for partition in it.partitions] == [[2]] * PARTITIONS
        assert len(asked(it)) == 1, "once per cycle at most, and never again without a question"
        assert versions == again
        assert [await it.broker.read_all(partition) for partition in it.partitions] == before


async def test_a_broker_that_registers_while_a_cycle_asks_keeps_its_entry() -> None:
    """Finding C: the record is read again after the list was made, and names a broker that the list lacks."""
    async with cluster() as it:
        partition = it.partitions[0]
        await change(it, partition, writers=writers([91]))
        it.clock.later_ms = LATER_MS
        upkeep = it.upkeep(LATER)
        ask = upkeep._gone.ask
        late: list[int] = []

        async def ask_and_be_late(session: Any) -> None:
            await ask(session)
            late.append(await register(it, 2))
            await change(it, partition, writers=writers([91, *late]))

        upkeep._gone.ask = ask_and_be_late  # type: ignore[method-assign]
        await upkeep.cycle()
        await upkeep.close()
        manifest = await it.manifest(partition)

        assert (manifest.pending, [*manifest.writers]) == ((), late)


async def test_brokers_are_asked_for_once_in_a_cycle_of_several_reads() -> None:
    """Those whom later records name are asked for in the next cycle."""
    async with cluster() as it:
        for number, partition in enumerate(it.partitions):
            await change(it, partition, writers=writers(range(100 * number, 100 * number + 5)))
        it.clock.later_ms = LATER_MS
        upkeep = it.upkeep(LATER, limits=CompactorLimits(manifests_per_read=2))
        counts, left = [], []
        for _ in range(3):
            await upkeep.cycle()
            counts.append(len(asked(it)))
            left.append([len((await it.manifest(partition)).writers) for partition in it.partitions])
        await upkeep.close()

        assert counts == [1, 2, 2]
        assert left == [[0, 0, 5, 5, 5, 5], [0] * PARTITIONS, [0] * PARTITIONS]


async def test_a_cycle_that_cannot_know_who_is_gone_says_so_and_tidies_the_rest() -> None:
    async with cluster() as it:
        partition = it.partitions[0]
        await change(it, partition, writers=writers([91]))
        it.clock.later_ms = LATER_MS
        upkeep = it.upkeep(LATER)
        listed = it.metadata._inner.list

        async def old_list(start: keys.Key, end: str) -> list[str]:
            found = await listed(start, end)
            return [path for path in found if "/brokers/w" not in path]

        it.metadata.list = old_list  # type: ignore[attr-defined]
        with capture_logs() as logged:
            report = await upkeep.cycle()
        await upkeep.close()
        manifest = await it.manifest(partition)

        assert (manifest.pending, [*manifest.writers], report.failed) == ((), [91], {})
        assert [line["event"] for line in logged if line["event"] == "dead_brokers_not_known"] == ["dead_brokers_not_known"]


async def test_more_than_a_few_entries_of_dead_brokers_leave_a_record_that_has_nothing_else_to_leave_out() -> None:
    async with cluster() as it:
        it.clock.later_ms = LATER_MS
        upkeep = it.upkeep(LATER)
        await upkeep.cycle()
        few, many = it.partitions[:2]
        await change(it, few, writers=writers(range(91, 95)))
        await change(it, many, writers=writers(range(91, 96)))
        await upkeep.cycle()
        await upkeep.close()

        assert len((await it.manifest(few)).writers) == 4
        assert (await it.manifest(many)).writers == {}


async def test_the_setting_of_the_brokers_says_when_a_compactor_forgets_producers(tmp_path: Path) -> None:
    """Of a topic with endless retention, from the record and from a page."""
    settings = load(
        environ={},
        assignments=[
            f"storage.url=file://{tmp_path}/objects",
            f"metadata.url=sqlite:///{tmp_path}/meta.db",
            "kafka.producer_id_expiration=1h",
        ],
    ).settings
    async with open_compactor(settings) as compactor:
        upkeep = compactor.upkeep
        store, clock = upkeep._metadata, upkeep._clock
        ids = IdSource(clock=clock)
        topics = Topics(store, clock=clock, ids=ids, telemetry=Telemetry())
        topic = await topics.create("t", partition_count=1, replication_factor=1, configs={"retention.ms": "-1"})
        topics.close()
        await write_marker(upkeep._objects, await open_cluster(store, ids, clock, level_max=2))
        at = PartitionKeys(topic.partition(0))
        now_ms = clock.now_ms()
        old_ms, new_ms = now_ms - 3 * 3_600_000, now_ms - 3_600_000
        states = {one: ProducerState(0, (ProducerBatch(0, 0, 0, at_ms),)) for one, at_ms in ((5, old_ms), (6, new_ms))}
        pages = [PageRef("1-1-1-1-0", 10, 19, old_ms), PageRef("1-1-1-1-1", 20, 29, new_ms)]
        manifest = Manifest(producers=states, pages=tuple(pages), last_append_ms=new_ms)
        await store.write([Put(at.producer_page(one.name), encode(ProducerPage(producers={})), ABSENT) for one in pages])
        await store.write([Put(at.manifest, encode(manifest), None)])
        await upkeep.cycle()
        record, *left = await store.get_many([at.manifest, *(at.producer_page(one.name) for one in pages)])

        assert record is not None
        kept = msgspec.json.decode(record.value)
        assert ([*kept["producers"]], [page[0] for page in kept["pages"]]) == (["6"], ["1-1-1-1-1"])
        assert [one is not None for one in left] == [False, True]


# Attempts of compactors that died


EFFECTS = 8
"""The claim, three notes of the attempt, the object, the CAS, the index keys, the end of the attempt."""


async def die(it: Cluster, partition: PartitionId, *, at: int, is_done: bool) -> CompactionState | None:
    """A compactor dies at its `at`th effect, and its session ends. The state of the attempt that it leaves."""
    counted = [0]
    stores = [Crashing(store, at=at, is_done=is_done, shared=counted) for store in (it.broker.shared, it.broker.objects)]
    with pytest.raises(Crash):
        async with opened(*stores) as compaction:
            await OneByOne(compaction, stores[1]).run(partition)  # type: ignore[arg-type]
    (record,) = await it.broker.shared.get_many([PartitionKeys(partition).compaction])
    return None if record is None else decode_attempt(record.value, path=record.path).state


@pytest.mark.parametrize("has_looked", [False, True], ids=["a new compactor", "one that had looked before"])
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, EFFECTS))
async def test_an_attempt_left_in_a_partition_without_appends_is_finished_or_dropped(at: int, is_done: bool, has_looked: bool) -> None:
    async with cluster() as it:
        partition = it.partitions[0]
        await it.append([partition], count=20)
        before = await it.broker.read_all(partition)
        upkeep = it.upkeep(LATER)
        if has_looked:
            await upkeep.cycle()
            await upkeep.cycle()
        state = await die(it, partition, at=at, is_done=is_done)
        report = await upkeep.cycle()
        await upkeep.close()
        manifest = await it.manifest(partition)

        is_whole = state in (CompactionState.COMMITTING, CompactionState.DELETING_INDEX)
        assert report.failed == {}
        assert await left_behind(it.broker.shared, partition) == []
        assert manifest.compaction_cursor == (23 if is_whole or at >= EFFECTS - 1 else 0)
        assert manifest.compaction_cursor == 0 or await index_ends(it.broker.shared, partition) == []
        assert await it.broker.read_all(partition) == before


@pytest.mark.parametrize(
    ("at", "state"), [(1, CompactionState.WRITING_SEGMENT), (3, CompactionState.COMMITTING), (5, CompactionState.DELETING_INDEX)]
)
async def test_every_state_of_an_attempt_is_left_by_some_of_them(at: int, state: CompactionState) -> None:
    async with cluster() as it:
        await it.append(it.partitions[:1], count=20)

        assert await die(it, it.partitions[0], at=at, is_done=True) is state


async def test_an_attempt_waits_for_the_claim_of_the_dead_and_no_longer() -> None:
    async with cluster() as it:
        partition = it.partitions[0]
        await it.append([partition], count=20)
        upkeep = it.upkeep(LATER)
        await upkeep.cycle()
        session = await it.broker.shared.open_session(timeout_ms=10_000)
        claim = Put(PartitionKeys(partition).compactor_claim, b"dead", ABSENT, session=session.session_id)
        state = await die(it, partition, at=5, is_done=True)
        await it.broker.shared.write([claim])
        await upkeep.cycle()
        claimed = it.counted("forebay_compactor_runs_total", outcome=CompactionEnd.CLAIMED.value)
        waiting = await left_behind(it.broker.shared, partition)
        await session.close()
        await upkeep.cycle()
        await upkeep.close()

        assert state is CompactionState.DELETING_INDEX
        assert (claimed, len(waiting)) == (1, 2)
        assert await left_behind(it.broker.shared, partition) == []
        assert it.counted("forebay_compactor_recoveries_total") == 1
