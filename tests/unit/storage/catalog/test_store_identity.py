import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest

from runtime.ids import IdSource
from storage.catalog.identity import (
    LISTED_MAX,
    MARKER_KEY,
    NAMED_MAX,
    ClusterRecord,
    Identity,
    Objects,
    StoreContents,
    StoreMarker,
    StoreOwnership,
    identify,
    judge,
    look,
    open_cluster,
    read_marker,
    write_marker,
)
from storage.catalog.topic import read_topic
from storage.catalog.topics import Topics
from storage.errors import Corrupt, IncompatibleFormat, OutcomeUnknown, Unavailable
from storage.formats.manifest import Early, Entry, IndexChunk, Manifest, SegmentEntry, decode_manifest, encode
from storage.formats.segment import segment_key
from storage.formats.wal import Slice, encode_header, header_bytes, object_key
from storage.metadata.keys import CLUSTER, PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import MetadataStore, Put
from storage.objects.memory import MemoryObjectStore
from storage.objects.port import ObjectStore
from storage.vocabulary import Buffer, ObjectId, PartitionId, TopicId
from tests.kit.faulty_metadata import Fault, FaultyMetadata, ManualClock, no_jitter

STRANGER = PartitionId(TopicId("8e66447a-4af2-46f2-9663-5c2cb2777f87"), 0)
A = ClusterRecord(cluster_id="A", created_at_ms=1)
MARK_A, MARK_B = StoreMarker(cluster_id="A", created_at_ms=1), StoreMarker(cluster_id="B", created_at_ms=2)
NOTHING, OURS, STRANGE = Objects.NOTHING, Objects.OURS, Objects.STRANGE


class Place:
    """Two stores, and a broker's start on them."""

    def __init__(self, metadata: MetadataStore | None = None, objects: MemoryObjectStore | None = None) -> None:
        self.clock = ManualClock()
        self.metadata = metadata or MemoryMetadataStore(clock=self.clock)
        self.objects: ObjectStore = objects or MemoryObjectStore(clock=self.clock)

    async def start(self, seed: int = 0, *, accept: bool = False) -> Identity:
        ids = IdSource(clock=self.clock, entropy=random.Random(seed).randbytes)
        return await identify(self.metadata, self.objects, ids, self.clock, accept_new_store=accept, entropy=no_jitter)

    async def begin_without_marker(self, seed: int = 0) -> ClusterRecord:
        """As a release did that knew of no marker."""
        ids = IdSource(clock=self.clock, entropy=random.Random(seed).randbytes)
        return await open_cluster(self.metadata, ids, self.clock, entropy=no_jitter)

    async def create_topic(self, name: str = "t", *, partitions: int = 1) -> Sequence[PartitionId]:
        topics = Topics(self.metadata, clock=self.clock, ids=IdSource(clock=self.clock))
        topic = await topics.create(name, partition_count=partitions, replication_factor=1, configs={})
        topics.close()
        return [topic.partition(number) for number in range(partitions)]

    async def put_object(self, number: int, partition: PartitionId) -> ObjectId:
        object_id = ObjectId(f"{number:026}")
        header = encode_header(object_id, 1, [Slice(partition, header_bytes(1), 1)])
        await self.objects.put_if_absent(object_key(object_id), [header, b"x"])
        return object_id

    async def name_object(self, partition: PartitionId, object_id: ObjectId) -> None:
        entry = Entry(0, 0, object_id, ((header_bytes(1), 1),), 0, 0)
        await self.metadata.write([Put(PartitionKeys(partition).manifest, encode(Manifest(sequence_counter=1, pending=(entry,))), None)])

    async def append(self, number: int, partition: PartitionId) -> str:
        object_id = await self.put_object(number, partition)
        await self.name_object(partition, object_id)
        return object_key(object_id)

    async def marked(self) -> str | None:
        marker = await read_marker(self.objects)
        return marker and marker.cluster_id

    async def cluster_id(self) -> str | None:
        (record,) = await self.metadata.get_many([CLUSTER])
        return None if record is None else (await self.begin_without_marker()).cluster_id


EXPECTED = {
    # metadata, marker, what the metadata name, what the store holds: the verdict, and with --accept-new-store
    (None, None, None, NOTHING): (StoreOwnership.MARK, StoreOwnership.MARK),
    (None, None, None, OURS): (StoreOwnership.MARK, StoreOwnership.MARK),
    (None, None, None, STRANGE): (StoreOwnership.STRANGE, StoreOwnership.ACCEPTED),
    (None, None, "wal/x", NOTHING): (StoreOwnership.GONE, StoreOwnership.ACCEPTED),
    (None, None, "wal/x", OURS): (StoreOwnership.MARK, StoreOwnership.MARK),
    (None, None, "wal/x", STRANGE): (StoreOwnership.STRANGE, StoreOwnership.ACCEPTED),
    ("A", None, None, NOTHING): (StoreOwnership.MARK, StoreOwnership.MARK),
    ("A", None, None, OURS): (StoreOwnership.MARK, StoreOwnership.MARK),
    ("A", None, None, STRANGE): (StoreOwnership.STRANGE, StoreOwnership.ACCEPTED),
    ("A", None, "wal/x", NOTHING): (StoreOwnership.GONE, StoreOwnership.ACCEPTED),
    ("A", None, "wal/x", OURS): (StoreOwnership.MARK, StoreOwnership.MARK),
    ("A", None, "wal/x", STRANGE): (StoreOwnership.STRANGE, StoreOwnership.ACCEPTED),
}


@pytest.mark.parametrize(
    ("cluster", "marker", "named", "objects"),
    list(itertools.product([None, A], [None, MARK_A, MARK_B], [None, "wal/x"], list(Objects))),
)
@pytest.mark.parametrize("accept", [False, True])
def test_every_cell_of_the_decision(
    cluster: ClusterRecord | None, marker: StoreMarker | None, named: str | None, objects: Objects, accept: bool
) -> None:
    verdict = judge(StoreContents(cluster, marker, named=named, objects=objects), accept_new_store=accept)

    if marker is None:
        assert verdict is EXPECTED[cluster and cluster.cluster_id, None, named, objects][accept]
    elif cluster is None:
        assert verdict is StoreOwnership.LOST_METADATA
    else:
        assert verdict is (StoreOwnership.SAME if marker is MARK_A else StoreOwnership.ANOTHERS)


async def test_new_stores_get_one_id_and_are_the_same_cluster_from_then_on() -> None:
    place = Place()

    first, second = await place.start(1), await place.start(2)

    assert (first.verdict, second.verdict) == (StoreOwnership.MARK, StoreOwnership.SAME)
    assert first.cluster == second.cluster
    assert await place.marked() == await place.cluster_id()


async def test_brokers_that_start_together_on_new_stores_agree() -> None:
    place = Place(FaultyMetadata(chaos=random.Random(1)))

    started = await asyncio.gather(*(place.start(seed) for seed in range(5)))

    assert len({identity.cluster for identity in started}) == 1
    assert started[0].cluster is not None
    assert await place.marked() == started[0].cluster.cluster_id


async def test_of_two_clusters_that_begin_in_one_store_one_gets_it() -> None:
    one = Place(FaultyMetadata(chaos=random.Random(1)))
    other = Place(FaultyMetadata(chaos=random.Random(2)), cast("MemoryObjectStore", one.objects))

    started = await asyncio.gather(one.start(1), other.start(2))
    (refused,) = [identity for identity in started if identity.cluster is None]

    assert refused.verdict is StoreOwnership.ANOTHERS
    assert [(await place.start()).cluster is None for place in (one, other)] == [identity.cluster is None for identity in started]


async def test_who_is_killed_between_the_two_ids_is_followed_by_who_writes_the_second() -> None:
    place = Place()
    began = await place.begin_without_marker()

    identity = await place.start(7)

    assert (identity.cluster, identity.verdict) == (began, StoreOwnership.MARK)
    assert await place.marked() == began.cluster_id


async def test_an_older_release_has_put_no_marker_and_its_store_is_known_by_an_object_that_the_metadata_name() -> None:
    place = Place()
    began = await place.begin_without_marker()
    (partition,) = await place.create_topic()
    for number in range(LISTED_MAX):
        await place.put_object(number, STRANGER)
    await place.append(LISTED_MAX, partition)

    identity = await place.start()

    assert (identity.cluster, identity.verdict) == (began, StoreOwnership.MARK)
    assert await place.marked() == began.cluster_id


async def test_one_lost_object_does_not_make_the_store_a_strange_one() -> None:
    place = Place()
    await place.begin_without_marker()
    partitions = await place.create_topic(partitions=NAMED_MAX)
    for number, partition in enumerate(partitions):
        key = await place.append(number, partition)
        if number < NAMED_MAX - 1:
            await place.objects.delete_many([key])

    assert (await place.start()).verdict is StoreOwnership.MARK


async def test_topics_without_a_record_and_an_empty_store_are_an_upgrade() -> None:
    place = Place()
    await place.begin_without_marker()
    await place.create_topic(partitions=300)

    assert (await place.start()).verdict is StoreOwnership.MARK


async def test_garbage_of_topics_that_were_deleted_is_known_by_their_partitions() -> None:
    place = Place()
    await place.begin_without_marker()
    (partition,) = await place.create_topic()
    await place.append(0, partition)
    topics = Topics(place.metadata, clock=place.clock, ids=IdSource(clock=place.clock))
    topic, _ = await read_topic(place.metadata, "t")
    assert topic is not None
    await topics.delete(topic)
    topics.close()

    assert (await place.start()).verdict is StoreOwnership.MARK


async def test_a_store_without_what_the_metadata_name_is_refused_until_that_is_accepted() -> None:
    place = Place()
    began = await place.begin_without_marker()
    (partition,) = await place.create_topic()
    key = await place.append(0, partition)
    await place.objects.delete_many([key])

    refused = await place.start()
    marked_then = await place.marked()
    accepted = await place.start(accept=True)
    after = await place.start()

    assert (refused.cluster, refused.verdict, refused.found.named, marked_then) == (None, StoreOwnership.GONE, key, None)
    assert (accepted.cluster, accepted.verdict) == (began, StoreOwnership.ACCEPTED)
    assert (after.cluster, after.verdict) == (began, StoreOwnership.SAME)
    manifest = (await place.metadata.get_many([PartitionKeys(partition).manifest]))[0]
    assert manifest is not None
    assert decode_manifest(manifest.value, path="").pending, "what was named stays named"


@pytest.mark.parametrize("where", ["index", "segment", "segment that begins below the log"])
async def test_what_a_drained_ring_has_left_to_the_index_or_to_a_segment_is_named_as_well(where: str) -> None:
    """Otherwise the rings of a cluster to which nobody appends would make any empty store its own."""
    place = Place()
    await place.begin_without_marker()
    (partition,) = await place.create_topic()
    object_id, at = await place.put_object(0, partition), PartitionKeys(partition)
    entry, segment = Entry(0, 3, object_id, ((header_bytes(1), 1),), 0, 0), SegmentEntry(0, 3, object_id, 1, 0, 0)
    key = object_key(object_id) if where == "index" else segment_key(partition, object_id)
    manifest = Manifest(sequence_counter=4)
    if where != "index":
        await place.objects.put_if_absent(key, [b"segment"])
        manifest = Manifest(sequence_counter=4, compaction_cursor=4, segment=segment, log_start=2 if "below" in where else 0)
    await place.metadata.write([Put(at.index(3), encode(IndexChunk(entries=(entry,))), None), Put(at.manifest, encode(manifest), None)])
    there = await look(place.metadata, place.objects)
    await place.objects.delete_many([key, object_key(object_id)])

    refused = await place.start()

    assert (there.named, there.objects) == (key, OURS)
    assert (refused.verdict, refused.found.named) == (StoreOwnership.GONE, key)


async def test_a_ring_that_is_in_a_segment_names_no_object_that_a_collector_may_have_taken() -> None:
    """The marker was lost: a healthy store without WAL objects is not taken for one that lacks what the metadata name."""
    place = Place()
    await place.begin_without_marker()
    (partition,) = await place.create_topic()
    entry, segment = Entry(0, 3, ObjectId(f"{0:026}"), ((0, 1),), 0, 0), SegmentEntry(0, 3, ObjectId(f"{1:026}"), 1, 0, 0)
    await place.objects.put_if_absent(segment_key(partition, segment.object_id), [b"segment"])
    manifest = Manifest(sequence_counter=4, pending=(entry,), compaction_cursor=4, segment=segment)
    await place.metadata.write([Put(PartitionKeys(partition).manifest, encode(manifest), None)])

    assert (await place.start()).verdict is StoreOwnership.MARK


@pytest.mark.parametrize("is_pending", [True, False], ids=["pending", "index"])
async def test_the_end_of_a_log_is_named_of_which_the_beginning_may_be_collected(is_pending: bool) -> None:
    place = Place()
    await place.begin_without_marker()
    (partition,) = await place.create_topic()
    object_id, at = await place.put_object(1, partition), PartitionKeys(partition)
    entries = Entry(0, 1, ObjectId(f"{0:026}"), ((0, 1),), 0, 0), Entry(2, 3, object_id, ((header_bytes(1), 1),), 0, 0)
    manifest = Manifest(sequence_counter=4, log_start=2, pending=entries if is_pending else ())
    await place.metadata.write([Put(at.index(3), encode(IndexChunk(entries=entries)), None), Put(at.manifest, encode(manifest), None)])

    assert (await look(place.metadata, place.objects)).named == object_key(object_id)


@pytest.mark.parametrize("batches", [b"carried", Early(64, ((64, 7),))], ids=["inline", "early"])
@pytest.mark.parametrize("is_pending", [True, False], ids=["pending", "index"])
async def test_behind_what_entries_carry_the_last_object_that_must_be_there_is_named(is_pending: bool, batches: bytes | Early) -> None:
    place = Place()
    await place.begin_without_marker()
    (partition,) = await place.create_topic()
    object_id, at = await place.put_object(1, partition), PartitionKeys(partition)
    stored = Entry(0, 1, object_id, ((header_bytes(1), 1),), 0, 0)
    entries = stored, Entry(2, 3, ObjectId(f"{2:026}"), batches, 0, 0)
    segment = SegmentEntry(0, 1, ObjectId(f"{3:026}"), 1, 0, 0)

    async def named(**fields: Any) -> str | None:
        manifest = Manifest(sequence_counter=4, pending=entries if is_pending else (), **fields)
        await place.metadata.write([Put(at.index(3), encode(IndexChunk(entries=entries)), None), Put(at.manifest, encode(manifest), None)])
        return (await look(place.metadata, place.objects)).named

    assert await named() == object_key(object_id)
    assert await named(log_start=2) == MARKER_KEY, "the object may have been collected, but a marker was put before the last entry"
    assert await named(compaction_cursor=2, segment=segment) == segment_key(partition, segment.object_id)


async def test_an_object_is_named_though_many_logs_before_it_have_none() -> None:
    place = Place()
    await place.begin_without_marker()
    carried = Entry(0, 0, ObjectId(f"{1:026}"), b"carried", 0, 0)
    segment = SegmentEntry(0, 3, ObjectId(f"{2:026}"), 1, 0, 0)
    *first, last = await place.create_topic(partitions=NAMED_MAX + 2)
    for partition in first:
        await place.metadata.write([Put(PartitionKeys(partition).manifest, encode(Manifest(sequence_counter=1, pending=(carried,))), None)])
    manifest = Manifest(sequence_counter=4, compaction_cursor=4, segment=segment)
    assert (await look(place.metadata, place.objects)).named == MARKER_KEY

    await place.metadata.write([Put(PartitionKeys(last).manifest, encode(manifest), None)])
    assert (await look(place.metadata, place.objects)).named == segment_key(last, segment.object_id)


@pytest.mark.parametrize("is_pending", [True, False], ids=["pending", "index"])
async def test_a_log_that_was_trimmed_to_its_end_names_nothing(is_pending: bool) -> None:
    place = Place()
    await place.begin_without_marker()
    (partition,) = await place.create_topic()
    entries, at = (Entry(0, 3, ObjectId(f"{0:026}"), ((0, 1),), 0, 0),), PartitionKeys(partition)
    manifest = Manifest(sequence_counter=4, log_start=4, pending=entries if is_pending else ())
    await place.metadata.write([Put(at.index(3), encode(IndexChunk(entries=entries)), None), Put(at.manifest, encode(manifest), None)])

    assert (await place.start()).verdict is StoreOwnership.MARK


async def test_a_log_of_which_nothing_is_left_names_nothing() -> None:
    place = Place()
    await place.begin_without_marker()
    (partition,) = await place.create_topic()
    segment = SegmentEntry(0, 3, ObjectId(f"{0:026}"), 1, 0, 0)
    manifest = Manifest(sequence_counter=4, compaction_cursor=4, segment=segment, log_start=4)
    await place.metadata.write([Put(PartitionKeys(partition).manifest, encode(manifest), None)])

    assert (await place.start()).verdict is StoreOwnership.MARK


@pytest.mark.parametrize("has_cluster", [False, True])
async def test_a_store_with_objects_that_nobody_knows_is_refused_until_that_is_accepted(has_cluster: bool) -> None:
    place = Place()
    strange = object_key(await place.put_object(0, STRANGER))
    if has_cluster:
        await place.begin_without_marker()

    refused = await place.start()
    id_then = await place.cluster_id() if has_cluster else None
    accepted = await place.start(accept=True)

    assert (refused.verdict, refused.found.strange) == (StoreOwnership.STRANGE, strange)
    assert await place.marked() == accepted.cluster.cluster_id if accepted.cluster else None
    assert accepted.verdict is StoreOwnership.ACCEPTED
    assert id_then in (None, await place.cluster_id())
    assert [stat.key async for stat in place.objects.list("wal/")] == [strange], "what is strange is left alone"


async def test_an_object_that_is_none_of_ours_at_all_makes_the_store_strange() -> None:
    place = Place()
    await place.objects.put_if_absent("wal/photo", [b"jpeg"])

    assert (await place.start()).verdict is StoreOwnership.STRANGE


@pytest.mark.parametrize("accept", [False, True])
async def test_a_store_of_another_cluster_is_refused_and_nothing_is_written(accept: bool) -> None:
    other = Place()
    await other.start(1)
    objects = cast("MemoryObjectStore", other.objects)
    empty, full = Place(objects=objects), Place(objects=objects)
    await full.begin_without_marker(2)

    lost, anothers = await empty.start(3, accept=accept), await full.start(3, accept=accept)

    assert (lost.cluster, lost.verdict) == (None, StoreOwnership.LOST_METADATA)
    assert (anothers.cluster, anothers.verdict) == (None, StoreOwnership.ANOTHERS)
    assert await empty.metadata.get_many([CLUSTER]) == [None]
    assert await other.marked() == await other.cluster_id()


@pytest.mark.parametrize("body", [b"{}", b"", b"not json", b'{"fmt":1}', b"x" * 5000])
async def test_an_object_of_that_name_that_is_no_marker_is_told(body: bytes) -> None:
    place = Place()
    await place.objects.put_if_absent(MARKER_KEY, [body])

    with pytest.raises(Corrupt, match=MARKER_KEY):
        await place.start()


async def test_a_marker_of_a_newer_release_is_refused() -> None:
    place = Place()
    await place.objects.put_if_absent(MARKER_KEY, [b'{"fmt":2,"cluster_id":"x"}'])

    with pytest.raises(IncompatibleFormat):
        await place.start()
    assert await place.metadata.get_many([CLUSTER]) == [None]


class LosesReplies(MemoryObjectStore):
    """`arrives`: whether a put is done before its reply is lost."""

    arrives = True

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        if self.arrives:
            await super().put_if_absent(key, parts)
        raise OutcomeUnknown("no reply")


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_put_of_the_marker_without_a_reply_is_read_back(arrives: bool) -> None:
    objects = LosesReplies(clock=ManualClock())
    objects.arrives = arrives

    if arrives:
        assert (await write_marker(objects, A)).cluster_id == "A"
    else:
        with pytest.raises(OutcomeUnknown, match="no reply"):
            await write_marker(objects, A)


async def test_a_store_that_does_not_answer_is_not_taken_for_an_empty_one() -> None:
    metadata = FaultyMetadata()
    metadata.reads_fail = True

    with pytest.raises(Unavailable):
        await Place(metadata).start()


async def test_a_marker_is_not_put_before_the_cluster_has_its_id() -> None:
    metadata = FaultyMetadata()
    metadata.all_faults = Fault.REFUSED
    place = Place(metadata)

    with pytest.raises(Unavailable):
        await place.start()

    assert await place.marked() is None
