"""Readers: one follows partitions of a topic from offset 0 through changing brokers; another keeps asking where partitions end."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v10 import ListOffsetsRequest, ListOffsetsResponse
from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.types import TopicName

from broker.handlers.log import list_offsets
from broker.handlers.log.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from broker.handling.kio_types import as_broker_id, as_i8, as_i32, as_i64
from broker.protocol.codec import as_field
from broker.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest
from broker.protocol.wire import Request
from sim.batches import TIMESTAMP_MS, value_of
from sim.broker import ABSENT, ConnectionLost, CurrentBrokers, Place, Serving, SimBroker
from sim.history import End, History, LogStart, SeenBatch
from storage.catalog.topics import Topic
from storage.log.partition import AGE_S_MAX
from storage.recordbatch import parse_header
from storage.vocabulary import Buffer

ASK_TIMEOUT_S: Final = 5.0
FETCH_WAIT_MS: Final = 500
FETCH_BYTES_MAX: Final = 600
PAUSE_S: Final = 0.3
BY_NAME: Final = 12
BY_ID: Final = 17
LIST_OFFSETS: Final = 2
LIST_OFFSETS_VERSION: Final = 7
QUESTIONS: Final = (LATEST, LATEST, LATEST, EARLIEST, MAX_TIMESTAMP, TIMESTAMP_MS + 2)


class SimReader:
    """Reads every offset once, in order, as a consumer that begins again when the topic is another one. `stop_at` ends it."""

    def __init__(self, name: str, places: Sequence[Place], brokers: CurrentBrokers, history: History, chance: random.Random) -> None:
        """`places` are of one topic."""
        self._name = name
        self._places = {place.partition: place for place in places}
        self._topic = places[0].topic
        self._brokers = brokers
        self._history = history
        self._chance = chance
        self._topic_id: str | None = None
        self._version = BY_ID if places[0].may_be_absent else chance.choice((BY_NAME, BY_ID))
        self._offsets = dict.fromkeys(self._places, 0)
        self._starts: set[int] = set()
        self.stop_at: tuple[str, Mapping[int, int]] | None = None
        """The incarnation to be read, and by partition the offset to be read up to."""

    @property
    def places(self) -> list[Place]:
        return list(self._places.values())

    async def run(self) -> None:
        broker = self._chance.choice(self._brokers())
        while not self._is_done():
            if self._chance.random() < 0.3:
                broker = self._chance.choice(self._brokers())
            if not await self._step(broker):
                broker = self._chance.choice(self._brokers())
                await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S))

    def _is_done(self) -> bool:
        if self.stop_at is None:
            return False
        topic_id, ends = self.stop_at
        return self._topic_id == topic_id and all(self._offsets[partition] >= end for partition, end in ends.items())

    async def _step(self, broker: SimBroker) -> bool:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                if self._topic_id is None:
                    return await self._find(broker)
                return await self._fetch(broker, self._topic_id)
        except (TimeoutError, ConnectionLost):
            return False

    async def _find(self, broker: SimBroker) -> bool:
        """As Metadata answers it."""

        async def look(serving: Serving) -> Topic | None:
            return (await serving.parts.topics.lookup([self._topic])).get(self._topic)

        topic = await broker.ask(look)
        if topic is not None:
            self._topic_id = topic.topic_id
            self._offsets = dict.fromkeys(self._places, 0)
        elif not any(place.may_be_absent for place in self._places.values()):
            self._history.violation(f"a topic is said not to exist: {self._name} broker={broker.name} {self._topic}")
        return topic is not None

    async def _fetch(self, broker: SimBroker, topic_id: str) -> bool:
        """True if something was read or waited for."""
        invoked_s = self._history.now_s
        wait_ms = self._chance.choice((0, FETCH_WAIT_MS))
        is_well, has_read = True, False
        for answer in await self._ask(broker, topic_id, self._offsets, wait_ms):
            if answer.error_code:
                is_well = False
                self._refused(broker, self._places[answer.partition], answer, invoked_s)
            elif answer.records:
                has_read = True
                self._read(broker, topic_id, answer, invoked_s)
            elif answer.high_watermark <= self._offsets[answer.partition]:
                # Further back it says that the records come late, beside an end that is as old as the last look (as beside records).
                may_be_old = broker.may_have_read_old(invoked_s)
                place = str(self._places[answer.partition])
                self._history.heard_end(
                    End(self._name, broker.name, place, invoked_s, self._history.now_s, answer.high_watermark, may_be_old)
                )
        return is_well and (has_read or wait_ms > 0)

    async def reread(self, broker: SimBroker, topic_id: str, partition: int, offset: int) -> None:
        """Ask once for an offset at which there were records. They may be deleted by now; no error says that they never were."""
        invoked_s = self._history.now_s
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                answers = await self._ask(broker, topic_id, {partition: offset}, 0)
        except (TimeoutError, ConnectionLost):
            return
        for answer in answers:
            deleted_max = self._history.trimmed.get(str(self._places[partition]), 0)
            if answer.error_code == ErrorCode.offset_out_of_range and not offset < answer.log_start_offset <= deleted_max:
                self._history.violation(f"a read that no reader deserves: {self._name} broker={broker.name} {offset=} {answer}")
            for batch in _batches(answer.records):
                self._saw(broker, topic_id, partition, batch, invoked_s)

    async def _ask(self, broker: SimBroker, topic_id: str, offsets: Mapping[int, int], wait_ms: int) -> Sequence[FetchedPartition]:
        named = topic_id if self._version == BY_ID else self._topic
        partitions = [FetchPartition(named, one, -1, offset, FETCH_BYTES_MAX, -1, -1) for one, offset in offsets.items()]
        request = FetchRequest(wait_ms, 1, FETCH_BYTES_MAX * 2, 0, 0, -1, "", partitions, [])

        async def fetch(serving: Serving) -> Sequence[FetchedPartition]:
            room = serving.responses.room()
            try:
                return (await serving.fetch.handle(request, version=self._version, room=room)).partitions
            finally:
                room.give_back()

        return await broker.ask(fetch)

    def _saw(self, broker: SimBroker, topic_id: str, partition: int, batch: memoryview, invoked_s: float) -> None:
        header, place, now_s = parse_header(batch), str(self._places[partition]), self._history.now_s
        may_be_old = broker.may_have_read_old(invoked_s - AGE_S_MAX)
        value, base, count = value_of(batch), header.base_offset, header.record_count
        self._history.saw(SeenBatch(self._name, broker.name, place, topic_id, base, count, value, now_s, invoked_s, may_be_old))

    def _read(self, broker: SimBroker, topic_id: str, answer: FetchedPartition, invoked_s: float) -> None:
        place = self._places[answer.partition]
        for batch in _batches(answer.records):
            header = parse_header(batch)
            wanted = self._offsets[answer.partition]
            # Records may be deleted up to the middle of a batch, which is served whole.
            begun = header.base_offset == wanted or (wanted in self._starts and header.base_offset <= wanted)
            if not begun or header.base_offset + header.record_count <= wanted:
                where = f"{place} wanted={wanted} got={header.base_offset}"
                self._history.violation(f"a reader was sent elsewhere: {self._name} broker={broker.name} {where}")
            self._saw(broker, topic_id, answer.partition, batch, invoked_s)
            self._offsets[answer.partition] = header.base_offset + header.record_count

    def _refused(self, broker: SimBroker, place: Place, answer: FetchedPartition, invoked_s: float) -> None:
        code, offset = ErrorCode(answer.error_code), self._offsets[answer.partition]
        who = f"{self._name} broker={broker.name} {place} offset={offset}"
        if code is ErrorCode.offset_out_of_range:
            if offset < answer.log_start_offset <= self._history.trimmed.get(str(place), 0):
                self._offsets[answer.partition] = answer.log_start_offset  # as auto.offset.reset=earliest does
                self._starts.add(answer.log_start_offset)
            elif broker.may_have_read_old(invoked_s):
                self._history.violation(f"an old end for the end of a log: {who} high_watermark={answer.high_watermark}")
            else:
                self._history.violation(f"a read that no reader deserves: {who} {answer}")
        elif code in ABSENT and place.may_be_absent:
            self._topic_id = None
        elif not place.is_deserved(code):
            self._history.violation(f"a read that no reader deserves: {who} {code.name}")


class EndAsker:
    """Asks any broker for the ends of partitions (ListOffsets), their beginnings, and offsets by time."""

    def __init__(self, name: str, places: list[Place], brokers: CurrentBrokers, history: History, chance: random.Random) -> None:
        """`places` may grow."""
        self._name = name
        self._places = places
        self._brokers = brokers
        self._history = history
        self._chance = chance

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S))
            broker = self._chance.choice(self._brokers())
            asked = self._chance.sample(self._places, self._chance.randint(1, len(self._places)))
            question = self._chance.choice(QUESTIONS)
            invoked_s = self._history.now_s
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    answers = await broker.ask(lambda serving, asked=asked, question=question: _list_offsets(serving, asked, question))  # type: ignore[misc]
            except (TimeoutError, ConnectionLost):
                continue
            for place, (code, offset) in zip(asked, answers, strict=True):
                if code is not ErrorCode.none:
                    if not place.is_deserved(code):
                        self._history.violation(f"no offset given: {self._name} broker={broker.name} {place} {code.name}")
                    continue
                bound = self._name, broker.name, str(place), invoked_s, self._history.now_s, offset, broker.may_have_read_old(invoked_s)
                if question == LATEST:
                    self._history.heard_end(End(*bound))
                elif question == EARLIEST:
                    self._history.heard_start(LogStart(*bound))


async def _list_offsets(serving: Serving, places: Sequence[Place], timestamp: int) -> list[tuple[ErrorCode, int]]:
    topics = tuple(
        ListOffsetsTopic(
            name=TopicName(topic),
            partitions=tuple(
                ListOffsetsPartition(partition_index=as_i32(place.partition), timestamp=as_i64(timestamp))
                for place in places
                if place.topic == topic
            ),
        )
        for topic in dict.fromkeys(place.topic for place in places)
    )
    body = ListOffsetsRequest(replica_id=as_broker_id(-1), isolation_level=as_i8(0), topics=topics, timeout=as_field(0))
    answer: ListOffsetsResponse = await list_offsets.handle(serving.context, Request(LIST_OFFSETS, LIST_OFFSETS_VERSION, 0, "sim", body))
    found = {(str(topic.name), int(one.partition_index)): one for topic in answer.topics for one in topic.partitions}
    return [(found[place.topic, place.partition].error_code, found[place.topic, place.partition].offset) for place in places]


def _batches(records: Sequence[Buffer]) -> list[memoryview]:
    found = []
    view = memoryview(b"".join(records))
    while len(view):
        size_bytes = parse_header(view).size_bytes
        found.append(view[:size_bytes])
        view = view[size_bytes:]
    return found
