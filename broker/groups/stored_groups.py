"""The groups of some slots as they are stored, read shard by shard: one that is silent holds up its own groups and no others."""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from broker.coordination.rendezvous import slot_of
from broker.groups.committed import NOTHING
from broker.groups.offsets import committed_of, offsets_of, partition_of, topics_beside
from storage.catalog.groups import GroupHead, decode_head
from storage.errors import Corrupt, IncompatibleFormat, Unavailable
from storage.metadata import keys
from storage.metadata.keys import GroupKeys
from storage.metadata.port import MetadataStore, Record
from storage.vocabulary import PartitionId, TopicId

_RECORDS_PER_SIGN: Final = 256

log = structlog.get_logger("groups")


async def read_heads(metadata: MetadataStore, shard_slots: Sequence[int], *, silent_after_s: float) -> list[tuple[GroupHead, int]]:
    """The groups of these slots, which are of one shard, with the versions of their records; without those that this release cannot read.

    Raises `Unavailable`, after `silent_after_s` without a record at the latest. The scan may take longer than that, but has to go on.
    """
    start, end = keys.groups(shard_slots[0])
    loop = asyncio.get_running_loop()
    heads: list[tuple[GroupHead, int]] = []
    scanned = 0
    try:
        async with asyncio.timeout(silent_after_s) as patience:
            async for record in metadata.range_scan(start, end):
                scanned += 1
                if scanned % _RECORDS_PER_SIGN == 0:
                    patience.reschedule(loop.time() + silent_after_s)
                if slot_of(keys.group_of(record.path)) in shard_slots and (head := _readable_head(record)) is not None:
                    heads.append((head, record.version))
    except TimeoutError:
        raise Unavailable(f"metadata did not answer: op=range_scan groups_of_slot={shard_slots[0]} after_s={silent_after_s}") from None
    return heads


async def read_offsets(
    metadata: MetadataStore, head: GroupHead, *, offsets_max: int, silent_after_s: float
) -> dict[PartitionId, int] | None:
    """The offsets that a group has committed, read without taking it over; None of a group with more than that many, or that this release
    cannot read. A commit under way may be in it or not. Raises `Unavailable` as `read_heads` does.
    """
    group_keys = GroupKeys(head.group, slot_of(head.group))
    committed: dict[PartitionId, int] = {}
    try:
        async with asyncio.timeout(silent_after_s) as patience:
            named = [TopicId(topic_id) for topic_id in head.topics]
            for topic_id in dict.fromkeys([*named, *await topics_beside(metadata, group_keys, head.topic_pages)]):
                for record in await offsets_of(metadata, group_keys, topic_id):
                    if (found := committed_of(record)) != NOTHING:
                        committed[partition_of(record.path)] = found.offset
                if len(committed) > offsets_max:
                    return None
                patience.reschedule(asyncio.get_running_loop().time() + silent_after_s)
    except TimeoutError:
        raise Unavailable(f"metadata did not answer: op=range_scan offsets_of={head.group!r} after_s={silent_after_s}") from None
    except (Corrupt, IncompatibleFormat) as error:
        log.warning("group_not_readable", group=head.group, cause=str(error))
        return None
    return committed


def _readable_head(record: Record) -> GroupHead | None:
    """None of a record that this release cannot read: the other groups are not to suffer from that."""
    try:
        return decode_head(record)
    except (Corrupt, IncompatibleFormat) as error:
        log.warning("group_not_readable", cause=str(error))
        return None
