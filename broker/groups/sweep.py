"""Finds the committed offsets to forget, in the groups of the slots that this broker holds or may claim (KIP-211).

A look at everything costs one read of the claims, one scan of group records a shard, and one read of the topics that they name; it is taken
once a check interval. Groups that are loaded are judged as memory has them, the others by their record. Only groups with something to
forget, or with silent members, are loaded; to load a group is to take it over, so what is forgotten is fenced by versions like any other
write. If a group's record does not say when its offsets expire, they are read, and the time is remembered for as long as the record stays
as it is: a later commit only makes it later.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from broker.cluster.leadership import slot_of
from broker.cluster.ownership import Slots, slots_by_shard
from broker.groups.group import EXPIRED_TOGETHER_MAX, Closed, Expire, LoadedGroup
from broker.groups.offset_expiration import due_of, due_of_offset
from broker.groups.state import GroupError, GroupSettings, GroupState
from broker.groups.store import committed_of, offsets_of, read_heads, topics_beside
from broker.limits import DEFAULT_GROUP_LIMITS, GroupLimits
from runtime.clock import Clock
from storage.catalog.groups import GroupHead, topic_names
from storage.errors import Corrupt, IncompatibleFormat, StorageError, Unavailable
from storage.metadata.keys import GroupKeys
from storage.metadata.port import MetadataStore
from storage.vocabulary import TopicId

PAGE_GROUPS: Final = 500
TURN_GROUPS: Final = 32
"""Groups that are loaded or read before others have a turn."""
TURN_PAUSE_S: Final = 0.1
LOOKS_MAX: Final = 256
"""Topics whose offsets one sweep reads for groups that are not loaded, of its last group all; others have their turn in later ones."""
REMEMBERED_MAX: Final = 100_000
NAMES_TOGETHER_MAX: Final = 1_000
SILENCE: Final = (GroupError.COORDINATOR_LOAD_IN_PROGRESS, GroupError.COORDINATOR_NOT_AVAILABLE)
"""What is said of a group that the store does not give. If that took long, the store does not give those after it either."""

log = structlog.get_logger("groups")


class Sweep:
    """`find` is the coordinator's: it loads a group, or raises `Closed`; `loaded` gives a group that is loaded, or None."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        slots: Slots,
        clock: Clock,
        settings: GroupSettings,
        find: Callable[[str], Awaitable[LoadedGroup]],
        loaded: Callable[[str], LoadedGroup | None],
        limits: GroupLimits = DEFAULT_GROUP_LIMITS,
    ) -> None:
        self._silent_after_s = limits.silent_after_s
        self._deadline_s = limits.sweep_deadline_s
        self._metadata = metadata
        self._slots = slots
        self._clock = clock
        self._settings = settings
        self._find = find
        self._loaded = loaded
        self._not_before_ms: dict[str, tuple[int, int]] = {}
        """By group: the version of its record, and when an offset of it is to go at the earliest."""
        self._names: dict[TopicId, str | None] = {}
        self._are_names_read = True
        self._looks_left = 0
        self._turn = 0

    async def run(self) -> None:
        """Sweep once a check interval, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.retention_check_s)
            try:
                await self.sweep()
            except StorageError as error:
                log.warning("offsets_not_swept", cause=str(error))

    async def sweep(self) -> None:
        """Look at every group once. Raises `StorageError` if nobody can say which slots are this broker's. A shard that does not answer is
        left until the next sweep, and so is what was not reached of one that stops answering.
        """
        self._names, self._looks_left, self._are_names_read = {}, LOOKS_MAX, True
        try:
            async with asyncio.timeout(self._silent_after_s):
                own = await self._slots.own()
        except TimeoutError:
            raise Unavailable(f"metadata did not answer: op=read_claims after_s={self._silent_after_s}") from None
        for shard_slots in slots_by_shard(self._metadata, own):
            try:
                await self._sweep_shard(shard_slots)
            except (StorageError, TimeoutError) as error:
                log.warning("shard_not_swept", of_slot=shard_slots[0], cause=repr(error))

    async def _sweep_shard(self, shard_slots: Sequence[int]) -> None:
        """Raises `StorageError` and `TimeoutError` as soon as the shard does not answer."""
        heads = await read_heads(self._metadata, shard_slots, silent_after_s=self._silent_after_s)
        for first in range(0, len(heads), PAGE_GROUPS):
            judged = []
            for head, version in heads[first : first + PAGE_GROUPS]:
                if (topic_ids := await self._topic_ids(head)) is not None:
                    judged.append((head, version, topic_ids))
            await self._learn_names({topic_id for _, _, topic_ids in judged for topic_id in topic_ids})
            for head, version, topic_ids in judged:
                began_s = self._clock.monotonic_s()
                try:
                    await self._judge(head, version, topic_ids)
                except Closed as closed:
                    if closed.error in SILENCE and self._clock.monotonic_s() - began_s >= self._silent_after_s:
                        raise Unavailable(f"group not swept: group={head.group!r} cause={closed.error.name}") from None
                    # Another broker's by now, or it has to be loaded again: there is a next time.
                    log.info("group_not_swept", group=head.group, cause=closed.error.name)
                except (Corrupt, IncompatibleFormat) as error:
                    log.warning("group_not_readable", group=head.group, cause=str(error))

    async def _topic_ids(self, head: GroupHead) -> Sequence[TopicId] | None:
        """The ids of topics in which the group may have offsets; None if that cannot be read."""
        loaded = self._loaded(head.group)
        if loaded is not None:
            return list(loaded.stored.topic_ids)
        named = [TopicId(topic_id) for topic_id in head.topics]
        if head.topic_pages:
            await self._take_turn()
            try:
                async with asyncio.timeout(self._silent_after_s):
                    named += await topics_beside(self._metadata, self._keys_of(head), head.topic_pages)
            except (Corrupt, IncompatibleFormat) as error:
                log.warning("group_not_readable", group=head.group, cause=str(error))
                return None
        return named

    async def _learn_names(self, topic_ids: set[TopicId]) -> None:
        if len(self._names) > REMEMBERED_MAX:
            self._names = {}
        if not self._are_names_read:
            return
        unknown = sorted(topic_ids - self._names.keys())
        for start in range(0, len(unknown), NAMES_TOGETHER_MAX):
            if start:
                await asyncio.sleep(0)
            chunk = unknown[start : start + NAMES_TOGETHER_MAX]
            try:
                async with asyncio.timeout(self._silent_after_s):
                    self._names |= await topic_names(self._metadata, chunk)
            except (Unavailable, TimeoutError) as error:
                # What is of no topic any more waits for the next sweep; what is old does not.
                self._are_names_read = False
                log.warning("topic_names_not_read", cause=repr(error))
                return

    async def _judge(self, head: GroupHead, version: int, topic_ids: Sequence[TopicId]) -> None:
        loaded = self._loaded(head.group)
        if loaded is None:
            if not await self._is_worth_loading(head, version, topic_ids):
                return
            await self._take_turn()
            loaded = await self._find(head.group)
        found = loaded.find_forgettable(self._names)
        if not found.has_work:
            return
        # Each of them judges again, and of many offsets that takes a while: what is left then has its turn in the next sweep.
        for _ in range(max(1, -(-(len(found.expired) + len(found.orphaned)) // EXPIRED_TOGETHER_MAX))):
            if not loaded.is_open:
                return
            await self._take_turn()
            try:
                error = await loaded.do(Expire(self._names), deadline_s=self._deadline_s)
            except TimeoutError:
                error = GroupError.REQUEST_TIMED_OUT
            if error is GroupError.REQUEST_TIMED_OUT:
                raise Unavailable(f"group not swept in time: group={head.group!r} after_s={self._deadline_s}")
            if error:
                return

    async def _is_worth_loading(self, head: GroupHead, version: int, topic_ids: Sequence[TopicId]) -> bool:
        if head.state != GroupState.EMPTY.value:
            # Nobody has heard of its members since their coordinator went: the one that loads it waits for them, and finds out.
            return True
        if not topic_ids or any(self._names.get(topic_id, "") is None for topic_id in topic_ids):
            return True
        now_ms = self._clock.now_ms()
        due_ms = due_of(head, retention_ms=self._settings.offsets_retention_ms)
        if due_ms is None:
            known_version, due_ms = self._not_before_ms.get(head.group, (None, 0))
            if known_version != version:
                if self._looks_left <= 0:
                    return False
                due_ms = await self._earliest_ms(head, topic_ids, now_ms)
                if len(self._not_before_ms) >= REMEMBERED_MAX:
                    self._not_before_ms.clear()
                self._not_before_ms[head.group] = version, due_ms
        if due_ms > now_ms:
            return False
        self._not_before_ms.pop(head.group, None)
        return True

    async def _earliest_ms(self, head: GroupHead, topic_ids: Sequence[TopicId], now_ms: int) -> int:
        """When the first of its offsets is to go; now, if it has none."""
        retention_ms = self._settings.offsets_retention_ms
        earliest_ms = None
        for topic_id in topic_ids:
            self._looks_left -= 1
            await self._take_turn()
            async with asyncio.timeout(self._silent_after_s):
                records = await offsets_of(self._metadata, self._keys_of(head), topic_id)
            for record in records:
                due_ms = due_of_offset(head, committed_of(record), retention_ms=retention_ms)
                earliest_ms = due_ms if earliest_ms is None else min(earliest_ms, due_ms)
        return now_ms if earliest_ms is None else earliest_ms

    async def _take_turn(self) -> None:
        """What costs requests goes on a few groups at a time."""
        self._turn += 1
        if self._turn % TURN_GROUPS == 0:
            await asyncio.sleep(TURN_PAUSE_S)

    def _keys_of(self, head: GroupHead) -> GroupKeys:
        return GroupKeys(head.group, slot_of(head.group))
