import asyncio
import random
import time
from collections.abc import Sequence

import msgspec
import pytest

from runtime.ids import IdSource
from storage.catalog.limits import DEFAULT_LIMITS, CatalogLimits
from storage.catalog.records import ATTEMPTS_MAX, encode
from storage.catalog.topic import decode_topic_id, read_topic
from storage.catalog.topics import FORMER_KEPT_MAX, FORMER_MAX, Topic, Topics, TopicState
from storage.errors import AlreadyExists, Corrupt, IncompatibleFormat, NotFound, OutcomeUnknown, StorageError, Unavailable
from storage.formats import manifest as manifest_format
from storage.formats.manifest import LogState, Manifest, decode_manifest
from storage.metadata import keys
from storage.metadata.port import Key, MetadataStore, OnChange, Put, Subscription, WriteOp, WriteOutcome, children_of
from storage.vocabulary import TopicId
from tests.kit.faulty_metadata import Fault, FaultyMetadata, ManualClock, no_jitter


def open_topics(
    metadata: MetadataStore, *, clock: ManualClock | None = None, cache_topics_max: int = 1_000, limits: CatalogLimits = DEFAULT_LIMITS
) -> Topics:
    clock = clock or ManualClock()
    return Topics(metadata, clock=clock, ids=IdSource(clock=clock), entropy=no_jitter, cache_topics_max=cache_topics_max, limits=limits)


async def create(topics: Topics, name: str = "orders", *, partition_count: int = 3) -> Topic:
    return await topics.create(name, partition_count=partition_count, replication_factor=1, configs={"retention.ms": "1"})


async def log_states(metadata: MetadataStore, topic: Topic) -> list[LogState | None]:
    manifests = [keys.PartitionKeys(topic.partition(number)).manifest for number in range(topic.partition_count)]
    return [
        None if record is None else decode_manifest(record.value, path=record.path).log_state
        for record in await metadata.get_many(manifests)
    ]


async def topic_ids(metadata: MetadataStore) -> list[str]:
    """Those of topics that are not deleted."""
    start, end = children_of("llog/topic-ids")
    records = [record async for record in metadata.range_scan(Key(start, keys.ROOT), end)]
    return [record.path.removeprefix(start) for record in records if not decode_topic_id(record).is_deleted]


async def names(metadata: MetadataStore) -> list[str]:
    start, end = keys.topics()
    return [path.removeprefix(keys.TOPICS_PREFIX) for path in await metadata.list(start, end)]


def all_topic_ids_written(metadata: FaultyMetadata) -> set[str]:
    """The ids of every manifest that was ever put."""
    puts = [op for ops in metadata.writes for op in ops if isinstance(op, Put)]
    return {found.topic_id for op in puts if (found := keys.partition_of_manifest(op.key.path)) is not None}


async def test_a_topic_is_found_in_the_cache_only_once_it_was_looked_up() -> None:
    metadata = FaultyMetadata()
    created = await create(open_topics(metadata))
    topics = open_topics(metadata)

    assert topics.find("orders") is None
    assert await topics.lookup(["orders", "nothing"]) == {"orders": created}
    assert topics.find("orders") == created
    assert topics.find_id(created.topic_id) == created


async def test_creation_writes_an_open_manifest_for_every_partition() -> None:
    metadata = FaultyMetadata()

    topic = await create(open_topics(metadata), partition_count=2_500)

    assert await log_states(metadata, topic) == [LogState.OPEN] * 2_500
    assert await names(metadata) == ["orders"]
    assert await topic_ids(metadata) == [topic.topic_id]
    assert all(len(ops) <= 1_000 for ops in metadata.writes)


async def test_a_name_is_reserved_first_and_nobody_finds_the_topic_before_everything_is_there() -> None:
    metadata = FaultyMetadata()
    seen: list[tuple[TopicState | None, bool]] = []

    async def look(_: Sequence[WriteOp]) -> None:
        holder, _version = await read_topic(metadata.store, "orders")
        found = await open_topics(metadata.store).lookup_now(["orders"])
        seen.append((None if holder is None else holder.state, "orders" in found))

    metadata.before_write = look
    created = await create(open_topics(metadata), partition_count=1)

    assert seen == [(None, False), (TopicState.CREATING, False), (TopicState.CREATING, False)]
    assert await open_topics(metadata).lookup(["orders"]) == {"orders": created}
    assert created.state is TopicState.ACTIVE


async def test_the_second_creator_of_a_name_is_told() -> None:
    metadata = FaultyMetadata()
    first = await create(open_topics(metadata))

    with pytest.raises(AlreadyExists, match="orders"):
        await create(open_topics(metadata))

    assert (await open_topics(metadata).lookup(["orders"]))["orders"] == first
    assert all_topic_ids_written(metadata) == {first.topic_id}


@pytest.mark.parametrize("seed", range(40))
async def test_a_race_of_creators_leaves_one_topic_and_no_orphan(seed: int) -> None:
    metadata = FaultyMetadata(chaos=random.Random(seed))
    outcomes = await asyncio.gather(*(create(open_topics(metadata)) for _ in range(3)), return_exceptions=True)

    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Topic)]
    assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 2
    assert await names(metadata) == ["orders"]
    assert await topic_ids(metadata) == [winner.topic_id]
    assert (await open_topics(metadata).lookup_ids([winner.topic_id]))[winner.topic_id] == winner
    for topic_id in all_topic_ids_written(metadata):
        states = await log_states(metadata, msgspec.structs.replace(winner, topic_id=TopicId(topic_id)))
        assert states == [LogState.OPEN] * 3 if topic_id == winner.topic_id else LogState.OPEN not in states


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST, Fault.REPLY_LOST])
@pytest.mark.parametrize("write", range(4))
async def test_creation_survives_any_fault_of_any_write(write: int, fault: Fault) -> None:
    metadata = FaultyMetadata()
    metadata.faults[write] = fault

    topic = await create(open_topics(metadata))

    assert await names(metadata) == ["orders"]
    assert await topic_ids(metadata) == [topic.topic_id]
    assert await log_states(metadata, topic) == [LogState.OPEN] * 3


RESERVED, MANIFESTS, ACTIVATED = range(3)
"""The writes of a creation with one partition."""


@pytest.mark.parametrize("repeated", [RESERVED, MANIFESTS, ACTIVATED])
async def test_a_creation_of_which_something_arrives_late_counts_as_ours(repeated: int) -> None:
    metadata = FaultyMetadata()
    metadata.faults = {repeated: Fault.LATE}

    async def deliver_before_the_repetition(_: Sequence[WriteOp]) -> None:
        if len(metadata.writes) == repeated + 2:
            await metadata.deliver()

    metadata.before_write = deliver_before_the_repetition
    topic = await create(open_topics(metadata), partition_count=1)

    assert len(metadata.writes) == 4
    assert await names(metadata) == ["orders"]
    assert await topic_ids(metadata) == [topic.topic_id]
    assert await log_states(metadata, topic) == [LogState.OPEN]


@pytest.mark.parametrize("write", [RESERVED, MANIFESTS, ACTIVATED])
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST])
async def test_a_name_that_cannot_be_put_is_no_topic_and_the_error_says_how_sure_that_is(fault: Fault, write: int) -> None:
    metadata = FaultyMetadata()
    metadata.faults = dict.fromkeys(range(write, 100), fault)
    in_doubt = fault is Fault.REQUEST_LOST and write == ACTIVATED

    with pytest.raises(OutcomeUnknown if in_doubt else Unavailable):
        await create(open_topics(metadata), partition_count=1)

    assert await open_topics(metadata).lookup(["orders"]) == {}
    metadata.faults = {}
    created = await create(open_topics(metadata), partition_count=1)
    assert await topic_ids(metadata) == [created.topic_id]


async def test_a_creation_whose_logs_cannot_be_made_leaves_nobody_waiting() -> None:
    metadata = FaultyMetadata()
    metadata.faults = dict.fromkeys(range(MANIFESTS, MANIFESTS + ATTEMPTS_MAX), Fault.REFUSED)

    with pytest.raises(Unavailable):
        await create(open_topics(metadata), partition_count=1)

    holder, _ = await read_topic(metadata, "orders")
    assert holder is not None
    assert holder.state is TopicState.DELETING
    assert await open_topics(metadata).lookup(["orders"]) == {}
    assert await names(metadata) == []


async def test_a_first_attempt_that_arrives_after_the_topic_was_deleted_is_no_topic() -> None:
    """The review's T: it used to be found for ever, and its log took no batch."""
    metadata = FaultyMetadata()
    metadata.faults[RESERVED] = Fault.LATE
    topics = open_topics(metadata)
    topic = await create(topics, partition_count=1)
    await topics.delete(topic)

    await metadata.deliver()

    assert await topics.lookup_now(["orders"]) == {}
    assert await topics.all() == []
    again = await create(topics, partition_count=1)
    assert await topics.lookup_now(["orders"]) == {"orders": again}
    assert await log_states(metadata, again) == [LogState.OPEN]
    assert await topic_ids(metadata) == [again.topic_id]


async def test_an_activation_that_arrives_after_the_topic_was_deleted_changes_nothing() -> None:
    metadata = FaultyMetadata()
    metadata.faults[ACTIVATED] = Fault.LATE
    topics = open_topics(metadata)
    topic = await create(topics, partition_count=1)
    await topics.delete(topic)

    await metadata.deliver()

    assert await names(metadata) == []
    assert await topic_ids(metadata) == []
    assert await log_states(metadata, topic) == [LogState.DELETED]


async def test_a_creation_that_nobody_continues_is_given_up_by_the_next() -> None:
    metadata = FaultyMetadata()
    doomed = open_topics(metadata)

    async def die(_: Sequence[WriteOp]) -> None:
        if len(metadata.writes) > MANIFESTS:
            raise asyncio.CancelledError

    metadata.before_write = die
    with pytest.raises(asyncio.CancelledError):
        await create(doomed, partition_count=2)
    metadata.before_write = None
    holder, _ = await read_topic(metadata, "orders")
    assert holder is not None
    topic = await create(open_topics(metadata), partition_count=1)

    assert holder.state is TopicState.CREATING
    assert topic.topic_id != holder.topic_id
    assert await log_states(metadata, holder) == [LogState.DELETED] * 2, "where a log may yet arrive, a tombstone is"
    assert await log_states(metadata, topic) == [LogState.OPEN]
    assert await topic_ids(metadata) == [topic.topic_id]


async def test_a_creation_that_was_given_up_by_another_broker_says_so_and_is_no_topic() -> None:
    metadata = FaultyMetadata()
    rival = open_topics(metadata.store)
    won: list[Topic] = []

    async def rival_creates(_: Sequence[WriteOp]) -> None:
        if len(metadata.writes) == ACTIVATED + 1:
            won.append(await create(rival, partition_count=1))

    metadata.before_write = rival_creates
    with pytest.raises(Unavailable, match="gave it up"):
        await create(open_topics(metadata), partition_count=1)

    assert await rival.lookup_now(["orders"]) == {"orders": won[0]}
    assert await topic_ids(metadata) == [won[0].topic_id]


@pytest.mark.parametrize("state", ["deleted", "being deleted", "given up before"])
async def test_a_creation_in_doubt_whose_topic_was_deleted_leaves_the_doubt(state: str) -> None:
    metadata = FaultyMetadata()
    metadata.faults[ACTIVATED] = Fault.REQUEST_LOST if state == "given up before" else Fault.REPLY_LOST
    rival = open_topics(metadata.store)

    async def rival_deletes(_: Sequence[WriteOp]) -> None:
        if len(metadata.writes) != ACTIVATED + 2:
            return
        holder, version = await read_topic(metadata.store, "orders")
        assert holder is not None
        if state == "deleted":
            await rival.delete(holder)
        else:
            marked = msgspec.structs.replace(holder, state=TopicState.DELETING)
            await metadata.store.write([Put(keys.topic("orders"), encode(marked), version)])

    metadata.before_write = rival_deletes
    with pytest.raises(OutcomeUnknown, match="created and deleted, or given up"):
        await create(open_topics(metadata), partition_count=1)

    assert await open_topics(metadata).lookup(["orders"]) == {}
    assert await names(metadata) == []
    assert await topic_ids(metadata) == []


async def test_reads_that_fail_after_an_activation_in_doubt_leave_the_doubt() -> None:
    metadata = FaultyMetadata()
    metadata.faults[ACTIVATED] = Fault.REPLY_LOST

    async def reads_fail(_: Sequence[WriteOp]) -> None:
        metadata.reads_fail = len(metadata.writes) == ACTIVATED + 2

    metadata.before_write = reads_fail
    with pytest.raises(OutcomeUnknown):
        await create(open_topics(metadata), partition_count=1)


async def test_a_creation_waits_for_one_that_is_under_way_and_finds_its_topic() -> None:
    metadata = FaultyMetadata()
    slow, go_on = FaultyMetadata(metadata.store), asyncio.Event()

    async def hold(_: Sequence[WriteOp]) -> None:
        if len(slow.writes) == ACTIVATED + 1:
            await go_on.wait()

    async def release() -> None:
        if len(metadata.reads) == 3:
            go_on.set()
            await asyncio.sleep(0)

    slow.before_write, metadata.after_read = hold, release
    first = asyncio.get_running_loop().create_task(create(open_topics(slow)))
    while len(slow.writes) <= ACTIVATED:  # noqa: ASYNC110 - until it is about to be activated
        await asyncio.sleep(0)
    with pytest.raises(AlreadyExists):
        await create(open_topics(metadata))

    assert await open_topics(metadata).lookup(["orders"]) == {"orders": await first}


async def test_deletion_leaves_tombstones_and_frees_the_name() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics)

    await topics.delete(topic)

    assert await log_states(metadata, topic) == [LogState.DELETED] * 3
    assert await names(metadata) == []
    assert await topic_ids(metadata) == []
    assert topics.find("orders") is None
    assert await topics.lookup_ids([topic.topic_id]) == {}


async def test_a_tombstone_keeps_what_the_manifest_said() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics, partition_count=1)
    key = keys.PartitionKeys(topic.partition(0)).manifest
    await metadata.write([Put(key, manifest_format.encode(Manifest(sequence_counter=7, log_start=2)), None)])

    await topics.delete(topic)

    (record,) = await metadata.get_many([key])
    assert record is not None
    assert decode_manifest(record.value, path=key.path) == Manifest(sequence_counter=7, log_start=2, log_state=LogState.DELETED)


async def test_a_recreated_topic_has_another_id() -> None:
    topics = open_topics(FaultyMetadata())
    old = await create(topics)
    await topics.delete(old)

    new = await create(topics)

    assert new.topic_id != old.topic_id
    assert await topics.lookup_ids([old.topic_id, new.topic_id]) == {new.topic_id: new}


async def test_deleting_an_incarnation_that_is_gone_leaves_the_new_one_alone() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    old = await create(topics)
    await topics.delete(old)
    new = await create(topics)

    with pytest.raises(NotFound):
        await topics.delete(old)

    assert (await topics.lookup_now(["orders"]))["orders"] == new
    assert await log_states(metadata, new) == [LogState.OPEN] * 3


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST, Fault.REPLY_LOST])
@pytest.mark.parametrize("write", range(4))
async def test_deletion_survives_any_fault_of_any_write(write: int, fault: Fault) -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics)
    metadata.faults[len(metadata.writes) + write] = fault

    await topics.delete(topic)

    assert await log_states(metadata, topic) == [LogState.DELETED] * 3
    assert await names(metadata) == []
    assert await topic_ids(metadata) == []


async def _crash_in_deletion(metadata: FaultyMetadata, *, after_writes: int) -> Topic:
    """Delete a topic with a broker that dies after so many writes of the deletion: its mark, two shards of manifests, its name."""
    doomed = FaultyMetadata(metadata.store)
    topics = open_topics(doomed)
    topic = await create(topics)
    first = len(doomed.writes) + after_writes
    doomed.faults = dict.fromkeys(range(first, first + 100), Fault.REFUSED)
    with pytest.raises(StorageError):
        await topics.delete(topic)
    assert after_writes < len({metadata.shard_of(f"{topic.topic_id}/{number}") for number in range(3)}) + 2
    return topic


@pytest.mark.parametrize("after_writes", [1, 2, 3])
@pytest.mark.parametrize("finder", ["lookup", "create", "delete"])
async def test_whoever_finds_a_half_deleted_topic_finishes_the_deletion(finder: str, after_writes: int) -> None:
    metadata = FaultyMetadata()
    topic = await _crash_in_deletion(metadata, after_writes=after_writes)
    topics = open_topics(metadata)

    match finder:
        case "lookup":
            assert await topics.lookup(["orders"]) == {}
        case "create":
            assert (await create(topics)).topic_id != topic.topic_id
        case "delete":
            await topics.delete(topic)

    assert await log_states(metadata, topic) == [LogState.DELETED] * 3
    assert topic.topic_id not in await topic_ids(metadata)
    assert await names(metadata) == (["orders"] if finder == "create" else [])


async def test_a_half_deleted_topic_is_gone_even_if_nobody_can_finish_it_now() -> None:
    metadata = FaultyMetadata()
    topic = await _crash_in_deletion(metadata, after_writes=1)
    metadata.all_faults = Fault.REFUSED
    topics = open_topics(metadata)

    assert await topics.lookup(["orders"]) == {}
    assert await topics.lookup_ids([topic.topic_id]) == {}
    assert await topics.all() == []
    with pytest.raises(Unavailable):
        await create(topics)


async def test_deletion_wins_against_writers_that_go_on_committing() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics, partition_count=1)
    key = keys.PartitionKeys(topic.partition(0)).manifest
    commits = 0

    async def commit(ops: Sequence[WriteOp]) -> None:
        nonlocal commits
        if commits < 5 and isinstance(ops[0], Put) and ops[0].key == key:
            commits += 1
            (record,) = await metadata.store.get_many([key])
            assert record is not None
            await metadata.store.write([Put(key, record.value, record.version)])

    metadata.before_write = commit
    await topics.delete(topic)

    assert commits == 5
    assert await log_states(metadata, topic) == [LogState.DELETED]


async def test_deletion_gives_up_when_it_never_gets_its_turn_and_can_be_taken_up_again() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics, partition_count=1)
    key = keys.PartitionKeys(topic.partition(0)).manifest

    async def commit(ops: Sequence[WriteOp]) -> None:
        if isinstance(ops[0], Put) and ops[0].key == key:
            (record,) = await metadata.store.get_many([key])
            assert record is not None
            await metadata.store.write([Put(key, record.value, record.version)])

    metadata.before_write = commit
    with pytest.raises(Unavailable, match="version moved"):
        await topics.delete(topic)
    metadata.before_write = None
    await topics.delete(topic)

    assert await log_states(metadata, topic) == [LogState.DELETED]
    assert await names(metadata) == []


@pytest.mark.parametrize("seed", range(20))
async def test_deletion_by_several_brokers_at_once_ends_the_same(seed: int) -> None:
    metadata = FaultyMetadata(chaos=random.Random(seed))
    topic = await create(open_topics(metadata))

    outcomes = await asyncio.gather(*(open_topics(metadata).delete(topic) for _ in range(3)), return_exceptions=True)

    assert None in outcomes
    assert all(outcome is None or isinstance(outcome, NotFound) for outcome in outcomes)
    assert await log_states(metadata, topic) == [LogState.DELETED] * 3
    assert await names(metadata) == []
    assert await topic_ids(metadata) == []


async def test_a_hint_drops_what_another_broker_changed() -> None:
    metadata = FaultyMetadata()
    here, there = open_topics(metadata), open_topics(metadata)
    topic = await create(here)
    await there.lookup(["orders"])

    await here.delete(topic)
    await asyncio.sleep(0)

    assert there.find("orders") is None
    assert there.find_id(topic.topic_id) is None


async def test_without_hints_an_entry_expires_by_age() -> None:
    clock = ManualClock()
    topics = open_topics(FaultyMetadata(), clock=clock)
    await create(topics)
    topics.close()

    clock.seconds += DEFAULT_LIMITS.topics_cache_age_s - 1
    assert topics.find("orders") is not None
    clock.seconds += 1
    assert topics.find("orders") is None


async def test_what_was_read_while_a_hint_came_is_answered_but_not_cached() -> None:
    metadata = FaultyMetadata()
    topic = await create(open_topics(metadata))
    topics = open_topics(metadata)
    changed = Put(keys.topic("orders"), encode(msgspec.structs.replace(topic, partition_count=9)), None)

    async def change() -> None:
        metadata.after_read = None
        await metadata.store.write([changed])
        await asyncio.sleep(0)

    metadata.after_read = change
    first = (await topics.lookup(["orders"]))["orders"]

    assert first.partition_count == 3
    assert topics.find("orders") is None
    assert (await topics.lookup(["orders"]))["orders"].partition_count == 9


@pytest.mark.parametrize("what", ["altered", "deleted"])
async def test_a_topic_that_another_broker_changed_before_its_creator_was_answered_is_not_cached_as_it_was_made(what: str) -> None:
    metadata = FaultyMetadata()
    here, there = open_topics(metadata), open_topics(metadata.store)
    write = metadata.write

    async def slowly(ops: Sequence[WriteOp]) -> WriteOutcome:
        outcome = await write(ops)
        if found := await there.lookup_now(["orders"]):
            if what == "deleted":
                await there.delete(found["orders"])
            else:
                await there.add_partitions(found["orders"], 9)
            await asyncio.sleep(0)
        return outcome

    metadata.write = slowly  # type: ignore[method-assign]
    assert (await create(here)).partition_count == 3
    metadata.write = write  # type: ignore[method-assign]

    found = (await here.lookup(["orders"])).get("orders")
    assert (found and found.partition_count) == (9 if what == "altered" else None)


async def test_what_was_cached_of_a_name_is_not_found_once_it_was_created_anew_though_only_hints_of_others_came() -> None:
    metadata = FaultyMetadata()
    hints: list[OnChange] = []

    def deaf(callback: OnChange, *, prefix: str = "") -> Subscription:
        hints.append(callback)
        return metadata.store.subscribe(lambda _path, _version: None, prefix=prefix)

    async def hint_of_another(_ops: Sequence[WriteOp]) -> None:
        hints[0](keys.topic("another").path, 1)

    metadata.subscribe = deaf  # type: ignore[method-assign]
    here, there = open_topics(metadata), open_topics(metadata.store)
    old = await create(here)
    await there.delete(old)
    metadata.before_write = hint_of_another
    new = await create(here)

    assert here.find("orders") != old
    assert here.find_id(old.topic_id) is None
    assert await here.lookup(["orders"]) == {"orders": new}


@pytest.mark.parametrize("what", ["configs", "partitions", "deletion", "recreation"])
async def test_what_another_broker_changed_is_known_after_half_a_minute_though_all_hints_are_lost(what: str) -> None:
    """Counted from when the read began that the cache has its answer from, however long that took."""
    metadata, clock = FaultyMetadata(), ManualClock()
    metadata.subscribe = lambda _callback, *, prefix="": metadata.store.subscribe(lambda _path, _version: None, prefix=prefix)  # type: ignore[method-assign]
    here, there = open_topics(metadata, clock=clock), open_topics(metadata.store, clock=clock)
    topic = await create(there, "orders", partition_count=1)

    async def take_time() -> None:
        clock.seconds += 4.0

    metadata.after_read = take_time
    await here.lookup(["orders"])
    if what == "configs":
        await there.alter_configs(topic, lambda configs: {**configs, "max.message.bytes": "1000"})
    elif what == "partitions":
        await there.add_partitions(topic, 9)
    else:
        await there.delete(topic)
        if what == "recreation":
            await create(there, "orders", partition_count=1)
    clock.seconds += DEFAULT_LIMITS.topics_cache_age_s - 5.0
    within = here.find("orders")
    clock.seconds += 1.0
    after = here.find("orders")
    newest = (await there.lookup_now(["orders"])).get("orders")

    assert within == topic
    assert after is None
    assert (await here.lookup(["orders"])).get("orders") == newest != topic


async def test_what_waits_for_its_turn_to_be_cached_is_not_once_this_broker_deleted_it_though_no_hint_came() -> None:
    metadata = FaultyMetadata()
    here = open_topics(metadata)
    here.close()
    made = [await create(here, f"t{number:03}", partition_count=1) for number in range(600)]
    for topic in made:
        here.forget(topic.name)
    async with asyncio.TaskGroup() as group:
        group.create_task(here.lookup([topic.name for topic in made]))
        while here.find(made[0].name) is None:  # noqa: ASYNC110 - until the first turn of what was read is cached
            await asyncio.sleep(0)
        assert here.find(made[-1].name) is None, "the last one still waits"
        await here.delete(made[-1])

    assert here.find(made[-1].name) is None


async def test_the_cache_is_bounded() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata, cache_topics_max=2)
    topics.close()
    for name in ("a", "b", "c"):
        await create(topics, name, partition_count=1)

    assert [name for name in ("a", "b", "c") if topics.find(name)] == ["b", "c"]


async def test_the_oldest_leaves_a_cache_that_is_full_at_the_same_price_however_many_have_left() -> None:
    topics = open_topics(FaultyMetadata(), cache_topics_max=5_000)
    topics.close()
    sample = await create(topics, "sample")

    def fill_s(first: int) -> float:
        began_s = time.thread_time()
        for number in range(first, first + 5_000):
            topics._remember(msgspec.structs.replace(sample, name=f"t{number}", topic_id=TopicId(f"id-{number}")), 1_000.0)
        return time.thread_time() - began_s

    filling_s, replacing_s = fill_s(0), fill_s(5_000)

    # Looked for from the front of a dict, they took 40 times as long.
    assert replacing_s < 8 * filling_s
    assert topics.find("t9999") is not None
    assert topics.find("t4999") is None


async def test_concurrent_lookups_share_reads() -> None:
    metadata = FaultyMetadata(chaos=random.Random(1))
    await create(open_topics(metadata))
    topics = open_topics(metadata)
    metadata.reads.clear()

    answers = await asyncio.gather(*(topics.lookup(["orders", f"absent-{number}"]) for number in range(50)))

    assert all(list(answer) == ["orders"] for answer in answers)
    assert len(metadata.reads) <= 2


async def test_a_topic_created_before_the_question_is_never_missed() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)

    async def create_while_a_read_runs() -> None:
        metadata.after_read = None
        await create(open_topics(metadata.store), "late")
        asked.set_result(asyncio.get_running_loop().create_task(topics.lookup(["late"])))

    asked: asyncio.Future[asyncio.Task[dict[str, Topic]]] = asyncio.get_running_loop().create_future()
    metadata.after_read = create_while_a_read_runs
    await topics.lookup(["late", "other"])

    assert "late" in await (await asked)


async def test_a_lookup_that_is_cancelled_does_not_take_the_others_with_it() -> None:
    metadata = FaultyMetadata(chaos=random.Random(3))
    await create(open_topics(metadata))
    topics = open_topics(metadata)
    loop = asyncio.get_running_loop()
    first, second = loop.create_task(topics.lookup(["orders"])), loop.create_task(topics.lookup(["orders"]))
    await asyncio.sleep(0)

    first.cancel()

    assert list(await second) == ["orders"]
    assert first.cancelled()


async def test_a_lookup_of_an_illegal_name_reads_nothing() -> None:
    metadata = FaultyMetadata()

    assert await open_topics(metadata).lookup(["no/such", "", "x" * 250]) == {}
    assert metadata.reads == []


async def test_an_id_whose_name_belongs_to_another_topic_is_not_found() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    await create(topics)
    await metadata.write([Put(keys.topic_id("orphan"), b'{"fmt":1,"name":"orders"}', None)])

    assert await topics.lookup_ids([TopicId("orphan"), TopicId("unheard-of")]) == {}


async def test_all_topics_come_by_name_without_those_in_deletion() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    await _crash_in_deletion(metadata, after_writes=1)
    created = [await create(topics, name) for name in ("zebra", "apple")]

    assert await topics.all() == created[::-1]


async def test_a_topic_marked_for_deletion_is_not_cached() -> None:
    metadata = FaultyMetadata()
    await _crash_in_deletion(metadata, after_writes=1)
    metadata.all_faults = Fault.REFUSED
    topics = open_topics(metadata)
    await topics.all()

    assert topics.find("orders") is None


@pytest.mark.parametrize(("existing", "name", "other"), [("a.b", "a_b", "a.b"), ("a_b.c", "a.b_c", "a_b.c")])
async def test_a_name_that_differs_in_dots_and_underscores_collides(existing: str, name: str, other: str) -> None:
    topics = open_topics(FaultyMetadata())
    await create(topics, existing)

    assert await topics.colliding([name, existing, "plain"]) == {name: other}


async def test_a_topic_in_deletion_collides_with_nothing() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics, "a.b")
    marked = msgspec.structs.replace(topic, state=TopicState.DELETING)
    await metadata.write([Put(keys.topic("a.b"), encode(marked), None)])
    await asyncio.sleep(0)

    assert await topics.colliding(["a_b"]) == {}


async def test_a_record_of_a_newer_format_is_refused() -> None:
    metadata = FaultyMetadata()
    await metadata.write([Put(keys.topic("orders"), b'{"fmt":2,"new":"shape"}', None)])

    with pytest.raises(IncompatibleFormat, match="format 2"):
        await open_topics(metadata).lookup(["orders"])


async def test_a_record_that_is_none_is_corrupt() -> None:
    metadata = FaultyMetadata()
    await metadata.write([Put(keys.topic("orders"), b"garbage", None)])

    with pytest.raises(Corrupt, match="llog/topics/orders"):
        await open_topics(metadata).lookup(["orders"])


async def test_a_store_that_does_not_answer_is_reported_to_every_asker() -> None:
    metadata = FaultyMetadata(chaos=random.Random(5))
    metadata.reads_fail = True
    topics = open_topics(metadata)

    outcomes = await asyncio.gather(*(topics.lookup(["orders"]) for _ in range(3)), return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3


async def test_whoever_asks_past_the_cache_is_refused_in_time_when_the_store_is_silent() -> None:
    """A request that waits keeps those behind it on its connection waiting, and clients give it up."""
    metadata = FaultyMetadata()
    topics = open_topics(metadata, limits=CatalogLimits(topics_timeout_s=0.05))
    await create(topics)
    metadata.muted.add(metadata.shard_of(keys.ROOT))

    async with asyncio.timeout(25):
        with pytest.raises(Unavailable, match="topics were not read in time"):
            await topics.lookup_now(["orders"])
    assert topics.is_silent
    metadata.speak()
    assert set(await topics.lookup_now(["orders"])) == {"orders"}


async def test_the_deleted_topics_of_a_name_are_told_the_one_deleted_last_ahead() -> None:
    metadata = FaultyMetadata()
    topics, other = open_topics(metadata), open_topics(metadata)
    former: list[TopicId] = []
    for _ in range(FORMER_MAX + 2):
        await create(topics, "payments")
        old = await create(topics)
        former.insert(0, old.topic_id)
        await topics.delete(old)
        await topics.delete((await topics.lookup(["payments"]))["payments"])
    new = await create(topics)

    assert await other.former(new.topic_id) == tuple(former[:FORMER_MAX]), "any broker finds them"
    assert await other.former(TopicId("unheard")) == ()
    assert await other.former((await create(topics, "fresh")).topic_id) == ()
    await metadata.close()


async def test_former_topics_are_searched_once_for_each_topic_and_not_without_pauses() -> None:
    metadata, clock = FaultyMetadata(), ManualClock()
    topics = open_topics(metadata, clock=clock)
    old = await create(topics)
    await topics.delete(old)
    new, fresh, third = await create(topics), await create(topics, "fresh"), await create(topics, "third")

    async def takes_long() -> None:
        clock.seconds += 2.0

    metadata.after_read = takes_long
    assert await topics.former(new.topic_id) == (old.topic_id,)
    metadata.after_read = None
    assert await topics.former(new.topic_id) == (old.topic_id,)
    assert metadata.scans == 1
    assert await topics.former(fresh.topic_id) == ()
    assert metadata.scans == 1, "a search of two seconds is followed by twenty without"
    clock.seconds += 20.0
    assert await topics.former(fresh.topic_id) == ()
    assert await topics.former(third.topic_id) == ()
    assert metadata.scans == 3
    metadata.reads_fail = True
    with pytest.raises(Unavailable):
        await topics.former((await create_unread(metadata, topics)).topic_id)
    await metadata.close()


async def test_former_topics_are_remembered_for_some_topics() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    created = [await create(topics, f"t{number}", partition_count=1) for number in range(FORMER_KEPT_MAX + 1)]
    for topic in (*created, created[-1]):
        assert await topics.former(topic.topic_id) == ()
    assert metadata.scans == len(created)

    await topics.former(created[0].topic_id)
    assert metadata.scans == len(created) + 1
    await metadata.close()


async def create_unread(metadata: FaultyMetadata, topics: Topics) -> Topic:
    metadata.reads_fail = False
    topic = await create(topics, "fourth")
    metadata.reads_fail = True
    return topic
