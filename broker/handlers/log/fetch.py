"""Fetch (API key 1), v4-v17.

Whole batches, the first one even if it is larger than asked for; waits for min_bytes up to max_wait. A read at or above the known end looks
at the manifest again first, so that no broker answers older than what any has acknowledged (docs/internals/design/reading.md, promise 5).
A reader that names a rack (v11+) is sent to a broker of that rack, if there is one and it is not this one (KIP-392); a reader that stays
is served. So is a reader that comes to a broker without the role `consume`. Every broker serves every partition, so no reader is refused
for not asking the leader.

Differs from Apache Kafka: no fetch sessions (session id 0, a full fetch each time: KIP-227 allows it); at most FETCH_RESPONSE_BYTES_MAX
record bytes per response; a partition whose records are read slowly is answered empty while the others have some, and its read goes on;
no wait for more when a partition already has more than its answer may hold, or when another request than a Fetch waits behind it on its
connection; no wait above five minutes; the high watermark is the last stable offset as long as there are no transactions; leader epoch 0
forever (I12).
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker.cluster.roles import Fetcher, Near, PreferredReplicas
from broker.delayed_fetch import DelayedFetch, FetchPartitionStatus, Waiters, needs_refresh
from broker.handling.errors import error_code_of
from broker.limits import DEFAULT_FETCH_LIMITS, FetchLimits
from broker.protocol.fetch import TOPIC_IDS_MINIMUM, FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from broker.responses import TASTE_BYTES, Room
from runtime.clock import Clock
from runtime.turns import Turns, in_turns
from storage.catalog.topics import Topic, Topics
from storage.errors import NotFound, OffsetOutOfRange, StorageError, Unavailable
from storage.limits import FETCH_RESPONSE_BYTES_MAX, MIB
from storage.log.fresh_reads import ManifestReads
from storage.log.index import check_range, readable
from storage.log.partition import Partitions
from storage.log.reader import Reader
from storage.vocabulary import PartitionId, TopicId

FULL_FETCH_EPOCHS: Final = (0, -1)
"""Epochs of a request that begins a session or does without: it names all its partitions (KIP-227)."""
RACKS_MINIMUM: Final = 11
"""The first version that names the reader's rack, and may be answered with a broker to read from."""
PINNED_BYTES_MAX: Final = FETCH_RESPONSE_BYTES_MAX + 4 * MIB
"""Memory that one response may keep alive: a batch that was kept where the socket put it keeps the whole frame it came in."""

COPIED_SHARE_MAX: Final = 7 / 8
"""As a share of the memory that it keeps alive: what is more is not copied, so that of a large batch nothing is."""

assert FETCH_RESPONSE_BYTES_MAX / COPIED_SHARE_MAX <= PINNED_BYTES_MAX


@dataclass(slots=True)
class Target:
    """A partition of the request with the records it wants, or with its answer."""

    asked: FetchPartition
    wanted: FetchPartitionStatus | None
    answer: FetchedPartition | None = None


class Fetch:
    def __init__(
        self,
        *,
        topics: Topics,
        partitions: Partitions,
        manifest_reads: ManifestReads,
        reader: Reader,
        waiters: Waiters,
        clock: Clock,
        replicas: PreferredReplicas | None = None,
        limits: FetchLimits = DEFAULT_FETCH_LIMITS,
    ) -> None:
        self.limits = limits
        self._topics = topics
        self._partitions = partitions
        self._manifest_reads = manifest_reads
        self._reader = reader
        self._waiters = waiters
        self._clock = clock
        self._replicas = replicas
        self._leaves_reading = replicas is not None and replicas.leaves_reading
        self._partitions_under_way = 0

    async def handle(
        self, request: FetchRequest, *, version: int, client: Fetcher | None = None, room: Room | None = None
    ) -> FetchResponse:
        """Answer `request`. `client`, if given, may be sent to a nearer broker. The caller gives back `room`, which the answer holds.

        Raises `Unavailable` when too much is being fetched already.
        """
        if request.session_epoch not in FULL_FETCH_EPOCHS:
            return FetchResponse((), error_code=ErrorCode.fetch_session_id_not_found)
        if self._partitions.refused is not None:
            asked = await _once_each(request.partitions, per_step=self.limits.partitions_per_step)
            return FetchResponse([FetchedPartition(one.topic, one.partition, ErrorCode.kafka_storage_error) for one in asked])
        if self._partitions_under_way + len(request.partitions) > 2 * self.limits.partitions_waiting_max:
            raise Unavailable(
                f"too many partitions are being fetched: under_way={self._partitions_under_way} wanted={len(request.partitions)}"
            )
        self._partitions_under_way += len(request.partitions)
        try:
            return await self._handle(request, version, client, room)
        finally:
            self._partitions_under_way -= len(request.partitions)

    async def _handle(self, request: FetchRequest, version: int, client: Fetcher | None, room: Room | None) -> FetchResponse:
        began_s, per_step = self._clock.monotonic_s(), self.limits.partitions_per_step
        asked: Sequence[FetchPartition] = request.partitions
        if len(asked) > per_step:
            asked = await _once_each(asked, per_step=per_step)
        targets = await self._resolve(asked, version)
        if not targets:
            return FetchResponse([])
        if len(targets) > per_step:
            await asyncio.sleep(0)
        if (
            self._replicas is not None
            and client is not None
            and (request.rack_id or (self._leaves_reading and version >= RACKS_MINIMUM and self._replicas.sends_away(client)))
        ):
            near = await self._replicas.near(request.rack_id, client)
            if near is not None:
                await self._send_nearer(targets, near, request.isolation_level)
        wanted = await self._gather(targets, request, began_s, room, client)
        if version < TOPIC_IDS_MINIMUM and any(isinstance(one.error, NotFound) for one in wanted):
            await self._resolve_anew(targets, version)
            if room is not None:
                room.give_back()  # all is taken again; and who went on beyond the budget would wait for itself
            wanted = await self._gather(targets, request, began_s, room, client)
        is_tasting = room is not None and room.is_tasting
        pinned_bytes = _pinned_bytes(wanted, copied_above_bytes=TASTE_BYTES if is_tasting else PINNED_BYTES_MAX)
        is_enough = pinned_bytes > 0 or not any(one.is_too_large for one in wanted)
        if room is not None and not room.keep(pinned_bytes, is_enough=is_enough):
            del wanted  # too much to be held now: it is read again when there is room
            _begin_again(targets)
            wanted = await self._gather(targets, request, began_s, room, client)
            room.keep(_pinned_bytes(wanted, copied_above_bytes=PINNED_BYTES_MAX))
        by_id = version >= TOPIC_IDS_MINIMUM
        if len(targets) <= per_step:
            return FetchResponse([self._answer(target, request.isolation_level, by_id=by_id) for target in targets])
        answers: list[FetchedPartition] = []
        for begin in range(0, len(targets), per_step):
            await asyncio.sleep(0)
            part = targets[begin : begin + per_step]
            answers += [self._answer(target, request.isolation_level, by_id=by_id) for target in part]
        return FetchResponse(answers)

    async def _resolve_anew(self, targets: list[Target], version: int) -> None:
        """Read names again that may belong to a newer incarnation of a topic by now: only the cache has said that there is none."""
        places = [place for place, target in enumerate(targets) if target.wanted is not None and isinstance(target.wanted.error, NotFound)]
        for place in places:
            wanted = targets[place].wanted
            assert wanted is not None
            self._forget(wanted.log.partition)
        found = await self._resolve([targets[place].asked for place in places], version)
        for place, target in zip(places, found, strict=True):
            targets[place] = target
        _begin_again(targets)

    async def _gather(
        self, targets: Sequence[Target], request: FetchRequest, began_s: float, room: Room | None, client: Fetcher | None
    ) -> Sequence[FetchPartitionStatus]:
        """Read for those without an answer, and return them. Without room there are no records, and where some were refused the others wait
        for none.
        """
        wanted = _left(targets)
        may_wait = (
            request.max_wait_ms > 0 and self._partitions_under_way <= self.limits.partitions_waiting_max and not self._partitions.is_crowded
        )
        is_wide = len(wanted) > self.limits.partitions_per_step
        wait = self._waiters.wait([one.log for one in wanted])
        bytes_max = min(max(request.max_bytes, 0), FETCH_RESPONSE_BYTES_MAX)
        deadline_s = began_s + (min(request.max_wait_ms / 1_000, self.limits.fetch_wait_s_max) if may_wait else 0.0)
        now_s = self._clock.monotonic_s()  # much later than it began, if its topics had to be read
        gathering = DelayedFetch(
            wanted,
            bytes_max=bytes_max if room is None else _room_at_once(room, wanted, bytes_max, now_s),
            # A client that wants more than it takes would wait in vain.
            bytes_min=min(request.min_bytes, request.max_bytes),
            is_refused=len(wanted) < len(targets),
            began_s=began_s,
            deadline_s=deadline_s,
            reader=self._reader,
            manifest_reads=self._manifest_reads,
            wake=wait.wake,
            limits=self.limits,
        )
        try:
            if is_wide:
                await in_turns(gathering.look_in_steps(now_s))
            else:
                gathering.look(now_s)
            if not gathering.is_open and not await self._find_room(gathering, room, bytes_max, deadline_s, is_wide=is_wide):
                return wanted
            if gathering.may_leave():
                if is_wide:
                    await in_turns(gathering.fail_in_steps())
                return wanted
            with contextlib.ExitStack() as waiting:
                if client is not None:
                    waiting.callback(client.when_followed, None)
                    client.when_followed(gathering.hurry)
                if room is not None:
                    waiting.callback(room.when_short, None)
                    room.when_short(gathering.hurry)
                is_waiting = False
                while not (gathering.may_leave() or self._waiters.is_stopped):
                    if not is_waiting and not gathering.is_reading:
                        is_waiting = True
                        if not is_wide:
                            waiting.enter_context(wait)
                        else:
                            waiting.push(wait)
                            await in_turns(wait.begin_in_steps())
                            # What moved before it was waited for has woken nobody.
                            await self._look(gathering, is_wide=True)
                            if not await self._find_room(gathering, room, bytes_max, deadline_s, is_wide=True):
                                return wanted
                            continue
                    await wait.moved(gathering.left_s())
                    await self._look(gathering, is_wide=is_wide)
                    if not await self._find_room(gathering, room, bytes_max, deadline_s, is_wide=is_wide):
                        return wanted
            if is_wide:
                await in_turns(gathering.fail_in_steps())
            return wanted
        finally:
            gathering.close()

    async def _look(self, gathering: DelayedFetch, *, is_wide: bool) -> None:
        if is_wide:
            await in_turns(gathering.look_in_steps(self._clock.monotonic_s()))
        else:
            gathering.look(self._clock.monotonic_s())

    async def _find_room(self, gathering: DelayedFetch, room: Room | None, bytes_max: int, deadline_s: float, *, is_wide: bool) -> bool:
        """Wait for room before the first record is taken. False if none came in time: the answer has no records."""
        if room is None or not gathering.wants_room:
            return True
        timeout_s = max(deadline_s - self._clock.monotonic_s(), self.limits.refresh_timeout_s)
        granted_bytes = await room.to_read(bytes_max, timeout_s)
        if granted_bytes:
            gathering.open(min(bytes_max, granted_bytes), is_strict=room.is_tasting)
            if room.is_tasting:
                gathering.hurry()
            await self._look(gathering, is_wide=is_wide)
        return granted_bytes > 0

    async def _send_nearer(self, targets: Sequence[Target], near: Near, isolation_level: int) -> None:
        """Answer with a broker of the reader's rack and without records, as Kafka does. Partitions that no broker can serve fail here."""
        by_log = {target.wanted.log: target for target in targets if target.wanted is not None}
        now_s = self._clock.monotonic_s()
        stale = [log for log, target in by_log.items() if needs_refresh(log, target.asked.fetch_offset, now_s)]
        failed = await self._manifest_reads.refresh_each(stale, timeout_s=self.limits.refresh_timeout_s, silent_timeout_s=0.0)
        for target in targets:
            if target.wanted is None or target.wanted.log in failed or (broker_id := near(target.wanted.log.partition)) is None:
                continue
            try:
                check_range(target.wanted.log, target.asked.fetch_offset)
                target.answer = _answer(target.asked, target.wanted, isolation_level)._replace(preferred_read_replica=broker_id)
            except StorageError:
                continue  # `_gather` comes to the same end, and answers it

    async def _resolve(self, partitions: Sequence[FetchPartition], version: int) -> list[Target]:
        by_id, per_step = version >= TOPIC_IDS_MINIMUM, self.limits.partitions_per_step
        unknown = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
        topics: dict[str, Topic] = {}
        missing: set[str] = set()
        doubtful: dict[str, str] = {}
        if len(partitions) <= per_step:
            self._find_cached(partitions, topics, missing, doubtful, by_id=by_id)
        else:
            for begin in range(0, len(partitions), per_step):
                self._find_cached(partitions[begin : begin + per_step], topics, missing, doubtful, by_id=by_id)
                await asyncio.sleep(0)
        unread: StorageError | None = None
        if missing or doubtful:
            topics, unread = await self._find_others(topics, missing, doubtful, by_id=by_id)
        targets: list[Target] = []
        for asked in partitions:
            if targets and len(targets) % per_step == 0:
                await asyncio.sleep(0)
            topic = topics.get(asked.topic)
            if topic is None:
                targets.append(_failed(asked, unknown if unread is None else error_code_of(unread)))
            elif not 0 <= asked.partition < topic.partition_count:
                absent = ErrorCode.unknown_topic_or_partition
                targets.append(_failed(asked, absent if unread is None else error_code_of(unread)))
            elif asked.current_leader_epoch > 0:
                targets.append(_failed(asked, ErrorCode.unknown_leader_epoch))
            else:
                log = self._partitions.get(topic.partition(asked.partition))
                targets.append(Target(asked, FetchPartitionStatus(log, asked.fetch_offset, asked.partition_max_bytes)))
        return targets

    def _find_cached(
        self, asked: Iterable[FetchPartition], found: dict[str, Topic], missing: set[str], doubtful: dict[str, str], *, by_id: bool
    ) -> None:
        """Sort topics, by the name or id in the request, into those the cache knows, those it misses, and those it contradicts."""
        for partition in asked:
            name = partition.topic
            topic = found.get(name) or (self._topics.find_id(TopicId(name)) if by_id else self._topics.find(name))
            if topic is None:
                missing.add(name)
            else:
                found[name] = topic
                if not 0 <= partition.partition < topic.partition_count:
                    doubtful[name] = topic.name

    async def _find_others(
        self, found: dict[str, Topic], missing: Iterable[str], doubtful: Mapping[str, str], *, by_id: bool
    ) -> tuple[dict[str, Topic], StorageError | None]:
        """Read topics that the cache misses or contradicts, and add them to `found`. Also returns why a topic could not be read."""
        unread: StorageError | None = None
        # Without other partitions to answer there is no hurry.
        timeout_s = self.limits.refresh_timeout_s if found.keys() - doubtful.keys() else self.limits.topics_timeout_s
        if missing:
            try:
                if by_id:
                    by_topic_id, unread = await self._topics.look_up_ids(map(TopicId, missing), timeout_s=timeout_s)
                    found |= {str(topic_id): topic for topic_id, topic in by_topic_id.items()}
                else:
                    by_name, unread = await self._topics.look_up(missing, timeout_s=timeout_s)
                    found |= by_name
            except StorageError as error:
                unread = error
        if doubtful:
            # A client that is wrong about its partitions takes the topic from nobody else, should this read fail.
            try:
                async with asyncio.timeout(timeout_s):
                    newest = await self._topics.lookup_now(doubtful.values())
            except StorageError as error:
                return found, error
            except TimeoutError:
                return found, Unavailable(f"topics were not read in time: after_s={timeout_s}")
            for name, its_name in doubtful.items():
                topic = newest.get(its_name)
                if topic is not None and (not by_id or topic.topic_id == name):
                    found[name] = topic
                else:
                    del found[name]
        return found, unread

    def _answer(self, target: Target, isolation_level: int, *, by_id: bool) -> FetchedPartition:
        if target.answer is not None:
            return target.answer
        wanted = target.wanted
        assert wanted is not None
        error = wanted.error
        if error is None:
            try:
                answer = _answer(target.asked, wanted, isolation_level)
            except StorageError as unreadable:
                error = unreadable
            else:
                if wanted.size_bytes:
                    traffic = wanted.log.traffic
                    traffic.bytes_out += wanted.size_bytes
                    traffic.records_out += wanted.passed
                return answer
        if isinstance(error, NotFound):
            self._forget(wanted.log.partition)
            if by_id:
                # Clients ask for metadata, which forgets the id: under its name there may be another topic by now.
                return FetchedPartition(target.asked.topic, target.asked.partition, ErrorCode.unknown_topic_id)
        return _refusal(target.asked, error)

    def _forget(self, partition: PartitionId) -> None:
        """Forget a topic whose manifest contradicts the cache: it is gone, or another topic has its name by now."""
        topic = self._topics.find_id(partition.topic_id)
        if topic is not None:
            self._topics.forget(topic.name)


async def _once_each(partitions: Sequence[FetchPartition], *, per_step: int) -> list[FetchPartition]:
    """Keep the last entry for a partition that is named more than once, in the place of the first, as Kafka does."""
    latest: dict[tuple[str, int], FetchPartition] = {}
    turns = Turns(per_step)
    for asked in partitions:
        latest[asked.topic, asked.partition] = asked
        await turns.spent()
    return list(latest.values())


def _left(targets: Iterable[Target]) -> list[FetchPartitionStatus]:
    """Partitions without an answer."""
    return [target.wanted for target in targets if target.wanted is not None and target.answer is None]


def _room_at_once(room: Room, wanted: Iterable[FetchPartitionStatus], bytes_max: int, now_s: float) -> int | None:
    """Bytes that the first look may take; None if it is not known yet whether there are records, or if readers wait for room."""
    for one in wanted:
        if not needs_refresh(one.log, one.offset, now_s):
            one.is_asked = True  # the first look need not find that out once more
            granted_bytes = room.to_read_now(bytes_max)
            return min(bytes_max, granted_bytes) if granted_bytes else None
    return None


def _begin_again(targets: Iterable[Target]) -> None:
    """Forget what was read of those without an answer."""
    for target in targets:
        if target.wanted is not None and target.answer is None:
            target.wanted = FetchPartitionStatus(target.wanted.log, target.asked.fetch_offset, target.asked.partition_max_bytes)


def _pinned_bytes(wanted: Sequence[FetchPartitionStatus], *, copied_above_bytes: int) -> int:
    """What the records keep alive; less is, after a copy of small parts, if it would be more than `copied_above_bytes`."""
    pinned_bytes = sum({id(view.obj): _whole_bytes(view) for one in wanted for view in one.buffers}.values())
    return pinned_bytes if pinned_bytes <= copied_above_bytes else _copy_parts(wanted, pinned_bytes_max=copied_above_bytes)


def _copy_parts(wanted: Sequence[FetchPartitionStatus], *, pinned_bytes_max: int) -> int:
    """Copy what is only a part of the memory it keeps alive, the smallest part first, until that is no more than `pinned_bytes_max`, or
    copying would free little. Returns what is kept alive then.
    """
    whole_bytes: dict[int, int] = {}
    sent_bytes: Counter[int] = Counter()
    for one in wanted:
        for view in one.buffers:
            whole_bytes[id(view.obj)] = _whole_bytes(view)
            sent_bytes[id(view.obj)] += len(view)
    pinned_bytes = sum(whole_bytes.values())
    copied: set[int] = set()
    for memory in sorted(whole_bytes, key=lambda memory: sent_bytes[memory] / whole_bytes[memory]):
        if pinned_bytes <= pinned_bytes_max or sent_bytes[memory] > whole_bytes[memory] * COPIED_SHARE_MAX:
            break
        pinned_bytes -= whole_bytes[memory] - sent_bytes[memory]
        copied.add(memory)
    for one in wanted:
        one.buffers = [memoryview(bytes(view)) if id(view.obj) in copied else view for view in one.buffers]
    return pinned_bytes


def _whole_bytes(view: memoryview) -> int:
    return memoryview(view.obj).nbytes


def _answer(asked: FetchPartition, wanted: FetchPartitionStatus, isolation_level: int) -> FetchedPartition:
    manifest = readable(wanted.log)
    end = manifest.sequence_counter
    aborted = () if isolation_level else None
    return FetchedPartition(asked.topic, asked.partition, 0, end, end, manifest.log_start, aborted, -1, wanted.buffers)


def _refusal(asked: FetchPartition, error: StorageError) -> FetchedPartition:
    if isinstance(error, OffsetOutOfRange):
        code = ErrorCode.offset_out_of_range
        return FetchedPartition(asked.topic, asked.partition, code, error.high_watermark, error.high_watermark, error.log_start)
    return FetchedPartition(asked.topic, asked.partition, error_code_of(error))


def _failed(asked: FetchPartition, code: ErrorCode) -> Target:
    return Target(asked, None, FetchedPartition(asked.topic, asked.partition, code))
