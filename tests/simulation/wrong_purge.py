"""Purges that are wrong on purpose: one function per guard of docs/internals/design/upkeep.md#purging-deleted-topics."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any
from unittest import mock

import msgspec

from compactor.purge import Purge
from sim.metadata import SimMetadata
from storage.catalog import topic as topic_module
from storage.catalog.topic import TopicIdRecord, TopicState, decode_topic, tombstone_manifests
from storage.formats.manifest import LogState, Manifest, encode
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Delete, Put, Record
from storage.vocabulary import PartitionId

TOMBSTONE = encode(Manifest(log_state=LogState.DELETED))


@contextlib.contextmanager
def goes_by_the_mark_of_a_deletion() -> Iterator[None]:
    """Model: F-purge-keys-first. Keys go before there is a tombstone, which takes its time here."""

    async def tombstone(*args: Any, **others: Any) -> None:
        await asyncio.sleep(4.0)
        await tombstone_manifests(*args, **others)

    async def topic_ids(self: Any) -> AsyncGenerator[Record, None]:
        if not _is_of_a_compactor(self):
            async for record in self._records.metadata.range_scan(*keys.topic_ids()):
                yield record
            return
        start, end = keys.topics()
        async for record in self._records.metadata.range_scan(start, end):
            topic = decode_topic(record)
            if topic.state is TopicState.DELETING:
                yield _as_deleted(topic.topic_id, topic.logs_max)

    slowly = mock.patch.object(topic_module, "tombstone_manifests", tombstone)
    with mock.patch.object(Purge, "_topic_ids", topic_ids), _asks_for_no_tombstone(), slowly:
        yield


@contextlib.contextmanager
def goes_by_a_list_of_topics() -> Iterator[None]:
    """Model: F-purge-old-list. A list that is older than a topic's id does not have the topic."""

    async def topic_ids(self: Any) -> AsyncGenerator[Record, None]:
        scan = self._records.metadata.range_scan
        listed = {decode_topic(record).topic_id async for record in scan(*keys.topics())}
        await asyncio.sleep(0.5 if _is_of_a_compactor(self) else 0.0)
        async for record in scan(*keys.topic_ids()):
            topic_id = keys.topic_of_id(record.path)
            if topic_id not in listed:
                yield _as_deleted(topic_id, 1)

    with mock.patch.object(Purge, "_topic_ids", topic_ids), _asks_for_no_tombstone():
        yield


@contextlib.contextmanager
def removes_the_tombstone_too() -> Iterator[None]:
    """Model: F-purge-tombstone-early. A put of the creation is under way still, and arrives when the tombstone is gone."""
    original = Purge._purge_partition

    async def purge(self: Any, partition: PartitionId, manifest: Record | None, *others: Any) -> None:
        await original(self, partition, manifest, *others)
        if manifest is not None and _is_of_a_compactor(self):
            key = PartitionKeys(partition).manifest
            await self._records.write([Delete(key, manifest.version)])
            await self._records.write([Put(key, encode(Manifest()), ABSENT)])

    with mock.patch.object(Purge, "_purge_partition", purge):
        yield


def _is_of_a_compactor(purge: Any) -> bool:
    """The one that cleans up before the stores are judged is right."""
    return isinstance(purge._records.metadata, SimMetadata)


def _as_deleted(topic_id: str, logs: int) -> Record:
    return Record(keys.topic_id(topic_id).path, msgspec.json.encode(TopicIdRecord(name="", deleted_logs=logs)), 0)


@contextlib.contextmanager
def _asks_for_no_tombstone() -> Iterator[None]:
    original = Purge._purge_partition

    async def purge(self: Any, partition: PartitionId, manifest: Record | None, *others: Any) -> None:
        tombstone = None if manifest is None else manifest._replace(value=TOMBSTONE)
        await original(self, partition, tombstone, *others)

    with mock.patch.object(Purge, "_purge_partition", purge):
        yield
