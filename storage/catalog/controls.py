"""The control records of all partitions of a topic: created with it, turned into tombstones with it."""

from collections.abc import Iterable
from typing import Final

import msgspec

from runtime.ids import Entropy
from storage.catalog.records import ATTEMPTS_MAX, given_up, pause, write_each
from storage.formats.control import Control, LogState, decode_control, encode
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Key, MetadataStore, NotApplied, Put, Status, Unknown
from storage.vocabulary import PartitionId, TopicId

_READ_KEYS_MAX: Final = 1_000


async def create_controls(metadata: MetadataStore, topic_id: TopicId, count: int, *, entropy: Entropy, first: int = 0) -> None:
    """Create the records of partitions `first` to `count` - 1. One that is there is left alone: it comes from an attempt that ended half
    way, from another broker that adds partitions too, or it is a tombstone, which the CAS of the topic's record will find out.

    Raises `Unavailable` or `OutcomeUnknown`. Cancelled: any of them may exist, or may yet.
    """
    value = encode(Control())
    missing = [_control(topic_id, partition) for partition in range(first, count)]
    unknown: Unknown | None = None
    reason = ""
    for attempt in range(ATTEMPTS_MAX):
        outcomes = await write_each(metadata, [Put(key, value, ABSENT) for key in missing])
        remaining = []
        for key, outcome in zip(missing, outcomes, strict=True):
            if isinstance(outcome, Unknown | NotApplied):
                remaining.append(key)
                reason = outcome.reason
                unknown = outcome if isinstance(outcome, Unknown) else unknown
        if not remaining:
            return
        missing = remaining
        await pause(attempt, entropy)
    raise given_up(f"create the control records of topic id {topic_id}", unknown=unknown, reason=reason)


async def tombstone_controls(metadata: MetadataStore, topic_id: TopicId, count: int, *, entropy: Entropy) -> None:
    """Set log_state DELETED in every control record, against writers that go on committing, and put a tombstone where there is none,
    against a creation that is still on its way.

    Idempotent. Raises `Unavailable` or `OutcomeUnknown` when some record was not reached; call again to continue.
    """
    waiting = [_control(topic_id, partition) for partition in range(count)]
    unknown: Unknown | None = None
    reason = ""
    for attempt in range(ATTEMPTS_MAX):
        ops = await _tombstones(metadata, waiting)
        waiting = []
        unknown = None  # what an earlier attempt left open, the read has settled
        for op, outcome in zip(ops, await write_each(metadata, ops), strict=True):
            if isinstance(outcome, Unknown | NotApplied):
                reason = outcome.reason
                unknown = outcome if isinstance(outcome, Unknown) else unknown
            elif outcome.status is Status.OK:
                continue
            else:
                reason = "its version moved each time"
            waiting.append(op.key)
        if not waiting:
            return
        await pause(attempt, entropy)
    raise given_up(f"mark {len(waiting)} partitions of topic id {topic_id} deleted", unknown=unknown, reason=reason)


async def _tombstones(metadata: MetadataStore, waiting: list[Key]) -> list[Put]:
    """The puts that are still needed. That a record says DELETED stays true, however old the state is that was read."""
    puts = []
    for keys in _chunks(waiting):
        for key, record in zip(keys, await metadata.get_many(keys), strict=True):
            if record is None:
                puts.append(Put(key, encode(Control(log_state=LogState.DELETED)), ABSENT))
                continue
            control = decode_control(record.value, path=key.path)
            if control.log_state is not LogState.DELETED:
                tombstone = msgspec.structs.replace(control, log_state=LogState.DELETED)
                puts.append(Put(key, encode(tombstone), record.version))
    return puts


def _chunks(keys: list[Key]) -> Iterable[list[Key]]:
    return (keys[start : start + _READ_KEYS_MAX] for start in range(0, len(keys), _READ_KEYS_MAX))


def _control(topic_id: TopicId, partition: int) -> Key:
    return PartitionKeys(PartitionId(topic_id, partition)).control
