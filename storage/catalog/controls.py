"""The control records of all partitions of a topic: created with it, turned into tombstones with it."""

from collections.abc import Iterable
from typing import Final

import msgspec

from runtime.ids import Entropy
from storage.catalog.writes import ATTEMPTS_MAX, given_up, pause, write_each
from storage.errors import Conflict
from storage.formats.control import Control, LogState, decode_control, encode
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Delete, Key, MetadataStore, NotApplied, Put, Status, Unknown
from storage.vocabulary import PartitionId, TopicId

_READ_KEYS_MAX: Final = 1_000


async def create_controls(metadata: MetadataStore, topic_id: TopicId, count: int, *, entropy: Entropy, first: int = 0) -> None:
    """Create the records of partitions `first` to `count` - 1: of a new topic id, or (`first` > 0) beside those that the topic has.

    Raises `Unavailable`, `OutcomeUnknown`, or `Conflict` if the topic id is not new. Cancelled: any of them may exist. Partitions that are
    added may have their record already, from an attempt that ended half way or from another broker that adds them too: it is left alone.
    """
    value = encode(Control())
    missing = [_control(topic_id, partition) for partition in range(first, count)]
    unknown: Unknown | None = None
    reason = ""
    for attempt in range(ATTEMPTS_MAX):
        outcomes = await write_each(metadata, [Put(key, value, ABSENT) for key in missing])
        remaining = []
        taken_is_ours = unknown is not None or first > 0
        for key, outcome in zip(missing, outcomes, strict=True):
            if isinstance(outcome, Unknown | NotApplied):
                remaining.append(key)
                reason = outcome.reason
                unknown = outcome if isinstance(outcome, Unknown) else unknown
            elif outcome.status is not Status.OK and not taken_is_ours:
                raise Conflict(f"control record of a new topic id exists: key={key.path!r}")
        if not remaining:
            return
        missing = remaining
        await pause(attempt, entropy)
    raise given_up(f"create the control records of topic id {topic_id}", unknown=unknown, reason=reason)


async def tombstone_controls(metadata: MetadataStore, topic_id: TopicId, count: int, *, entropy: Entropy) -> None:
    """Set log_state DELETED in every control record that exists, against writers that go on committing.

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


async def remove_controls(metadata: MetadataStore, topic_id: TopicId, count: int) -> None:
    """Remove the records of a topic id that was never published. What cannot be removed is garbage that nobody reaches."""
    await write_each(metadata, [Delete(_control(topic_id, partition)) for partition in range(count)])


async def is_tombstoned(metadata: MetadataStore, partition: PartitionId) -> bool:
    key = PartitionKeys(partition).control
    (record,) = await metadata.get_many([key])
    return record is not None and decode_control(record.value, path=key.path).log_state is LogState.DELETED


async def _tombstones(metadata: MetadataStore, waiting: list[Key]) -> list[Put]:
    """The puts that are still needed. An absent record needs none: only the creation of its topic could have put it."""
    puts = []
    for keys in _chunks(waiting):
        for key, record in zip(keys, await metadata.get_many(keys), strict=True):
            if record is None:
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
