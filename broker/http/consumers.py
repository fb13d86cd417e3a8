"""Consuming by group over HTTP: `/groups/G/consumers` and what is below it.

A consumer is a member of the classic protocol that lives in the broker that coordinates its group; other brokers send its client there
(307). It stays for as long as its client asks for something within `idle_timeout_ms`. A poll moves on only when its answer was sent, and
its number lets a client say which answer it has: one that got lost comes again, and one whose end the broker did not see counts if the
client has it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, islice
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import msgspec
import structlog
from aiohttp import web
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from broker.groups.group import Closed
from broker.handling.kio_types import as_i32, as_i64, as_topic_name
from broker.http.admin import elsewhere
from broker.http.consume import (
    BYTES_DEFAULT,
    Bytes,
    ConsumeByHttp,
    ConsumeDocument,
    HttpReading,
    Millis,
    Offset,
    PartitionToConsume,
    PolledRecords,
)
from broker.http.errors import HttpError, invalid, too_busy, type_of
from broker.http.group_member import HttpConsumer, NewConsumerDocument, SentAnswer
from broker.http.guard import Asked, HttpLimits, one_of_each
from broker.http.produce import Count, TopicName
from runtime.blocking import Blocking
from runtime.supervision import Nursery
from runtime.telemetry import Metric

CONSUMERS: Final = Metric("forebay_http_consumers", "Members of groups that this broker is for HTTP clients", aggregation="sum")

LOOK_FOR_IDLE_S: Final = 1.0
JOINED_WITHIN_S: Final = 1.0
"""The answer to a new consumer waits so long for a refusal. A poll reports a slower one."""
OFFSET_COMMIT: Final = 8
_REBALANCED: Final = frozenset({ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress, ErrorCode.unknown_member_id})
_MS_PER_S: Final = 1_000

CallHandler = Callable[[Asked, int, int, object], Awaitable[Any]]

_log = structlog.get_logger("http")


class NewConsumer(msgspec.Struct, frozen=True):
    consumer: str
    url: str


class PollDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As of `/consume`. `last_poll`: the number of the last answer that the client has; one that was given since comes again."""

    max_wait_ms: Millis = 500
    min_bytes: Bytes = 1
    max_bytes: Bytes = BYTES_DEFAULT
    max_records: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    last_poll: Annotated[int, msgspec.Meta(ge=0)] | None = None


class AssignedPartition(msgspec.Struct, frozen=True):
    topic: str
    partition: int


class PollAnswer(msgspec.Struct, frozen=True):
    """`generation` is -1 while the group has not settled. `rebalanced`: `assigned` may differ from that of the answer before."""

    generation: int
    poll: int
    rebalanced: bool
    assigned: list[AssignedPartition]
    results: Annotated[list[Any], one_of_each("ConsumedPartition", "UnreadPartition")]
    success_count: int
    error_count: int


class OffsetToCommit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`offset`: of the next record to read."""

    topic: TopicName
    partition: Count
    offset: Offset
    metadata: str = ""


class CommitDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Without `offsets`: what the polls have given. `poll`: refuse it if that is not the number of the last one."""

    offsets: list[OffsetToCommit] | None = None
    poll: int | None = None


class GroupOffsetsDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    offsets: Annotated[list[OffsetToCommit], msgspec.Meta(min_length=1)]


class CommittedPartition(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: str
    partition: int
    offset: int
    ok: bool
    error_type: str | None = None
    error_code: int | None = None
    retriable: bool | None = None


class CommitAnswer(msgspec.Struct, frozen=True):
    results: list[CommittedPartition]
    success_count: int
    error_count: int


class LeftGroup(msgspec.Struct, frozen=True):
    consumer: str


class HttpConsumers:
    """The consumers of this broker, and the requests of their clients."""

    def __init__(self, reading: HttpReading, limits: HttpLimits, consume: ConsumeByHttp, call: CallHandler, *, blocking: Blocking) -> None:
        """`call` asks a handler of Kafka's; `blocking` assigns, and both stay the caller's."""
        self._reading = reading
        self._parts = parts = reading.parts
        self._call = call
        self._is_ended = False
        self._limits = limits
        self._consume = consume
        self._blocking = blocking
        self._consumers: dict[str, tuple[HttpConsumer, asyncio.Task[None]]] = {}
        self._nursery: Nursery = parts.nursery
        self._looking: asyncio.Task[None] | None = None
        parts.before_drain.append(self._end_all)
        parts.telemetry.gauge(CONSUMERS).set_function(lambda: float(len(self._consumers)))

    async def create(self, asked: Asked) -> web.StreamResponse:
        async with asked.document(_new_decoder) as (document, _):
            pass
        group = asked.http.match_info["group"]
        await self.check_here(asked, group)
        if self._is_ended:
            raise too_busy("this broker is shutting down: ask another")
        consumers_max = self._limits.consumers_max
        if len(self._consumers) >= consumers_max:
            raise HttpError(
                429, "TooManyConsumers", f"this broker has {consumers_max} consumers already: delete one, or wait until one is idle"
            )
        consumer = HttpConsumer(self._reading, group, document, client_host=asked.client_host, blocking=self._blocking)
        self._consumers[consumer.consumer_id] = consumer, self._nursery.spawn(consumer.run(), name="http-consumer")
        if self._looking is None:
            self._looking = self._nursery.spawn(self._look_for_idle(), name="http-consumers")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOINED_WITHIN_S):
                await consumer.settled.wait()
        await self._check_member(consumer, asked)
        url = f"/groups/{quote(group, safe='')}/consumers/{consumer.consumer_id}"
        return await asked.answer(201, NewConsumer(consumer.consumer_id, url))

    async def poll(self, asked: Asked) -> web.StreamResponse:
        async with asked.document(_poll_decoder) as (document, _):
            consumer = await self._found(asked)
        if document.max_records is not None and document.max_records > self._limits.records_max:
            raise invalid(f"max_records: at most {self._limits.records_max} come in one answer")
        if consumer.is_polling:
            raise HttpError(409, "Conflict", "another poll of this consumer is under way")
        consumer.is_polling = True
        try:
            consumer.note_poll()
            return await self._polled(asked, consumer, document)
        finally:
            consumer.is_polling, consumer.last_asked_s = False, self._parts.clock.monotonic_s()

    async def _polled(self, asked: Asked, consumer: HttpConsumer, document: PollDocument) -> web.StreamResponse:
        consumer.note_answered(document.last_poll)
        consumer.sent = None
        if _check_last(consumer, document.last_poll) and consumer.progress is not None:
            consumer.progress.go_back()
            consumer.polls -= 1
        max_wait_s, began_s = document.max_wait_ms / _MS_PER_S, self._parts.clock.monotonic_s()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_wait_s):
                # One that just began to join again tells so by its next generation.
                await asyncio.sleep(0)
                await consumer.settled.wait()
        await self._check_member(consumer, asked)
        progress = consumer.progress if consumer.settled.is_set() else None
        if progress is None or not progress.assigned:
            if progress is not None:
                await asyncio.sleep(max(0.0, began_s + max_wait_s - self._parts.clock.monotonic_s()))
            told = PollAnswer(
                generation=-1 if progress is None else progress.generation,
                poll=consumer.polls,
                rebalanced=progress is not None and not progress.is_told,
                assigned=[],
                results=[],
                success_count=0,
                error_count=0,
            )
            if progress is not None:
                progress.is_told = True
            return await asked.answer(200, told)
        first = progress.turn % len(progress.assigned)
        named = list(islice(chain(islice(progress.assigned, first, None), islice(progress.assigned, first)), self._limits.partitions_max))
        wanted = ConsumeDocument(
            topic_partitions=[PartitionToConsume(topic, partition, progress.places[topic, partition]) for topic, partition in named],  # type: ignore[index]
            max_wait_ms=document.max_wait_ms,
            min_bytes=document.min_bytes,
            max_bytes=document.max_bytes,
            max_records=document.max_records,
            isolation=document.isolation,
        )
        head = b'{"generation":%d,"poll":%d,"rebalanced":%b,"assigned":%b' % (
            progress.generation,
            consumer.polls + 1,
            b"false" if progress.is_told else b"true",
            progress.assigned_json,
        )
        poll = consumer.polls + 1

        def note_sent(records: PolledRecords) -> None:
            consumer.sent = SentAnswer(poll, progress, records)

        response = await self._consume.answered(asked, wanted, head=head, before_sent=note_sent)
        consumer.note_answered(poll)
        return response

    async def commit(self, asked: Asked) -> web.StreamResponse:
        async with asked.document(_commit_decoder) as (document, _):
            consumer = await self._found(asked)
        consumer.last_asked_s = self._parts.clock.monotonic_s()
        consumer.note_answered(document.poll)
        progress = consumer.progress
        if document.poll is not None and document.poll != consumer.polls:
            raise HttpError(409, "Conflict", f"the last poll was {consumer.polls}, not {document.poll}: nothing is committed")
        if progress is None or not progress.is_told:
            text = "the group has rebalanced since the last poll: poll again, what was not committed comes again"
            raise HttpError(409, "RebalanceInProgress", text)
        if document.offsets is None:
            offsets = [OffsetToCommit(topic, partition, offset) for (topic, partition), offset in progress.polled.items()]
        else:
            offsets = document.offsets
            if len(offsets) > self._limits.partitions_max:
                raise invalid(f"offsets: {len(offsets)} of them, at most {self._limits.partitions_max} are committed at a time")
            for place, one in enumerate(offsets):
                if (one.topic, one.partition) not in progress.places:
                    raise invalid(f"offsets[{place}]: {one.topic[:250]}-{one.partition} is not assigned to this consumer")
        return await self._commit(asked, consumer.group, offsets, consumer.member_id, progress.generation, consumer.document.instance_id)

    async def commit_offsets(self, asked: Asked) -> web.StreamResponse:
        async with asked.document(_offsets_decoder) as (document, _):
            pass
        group = asked.http.match_info["group"]
        await self.check_here(asked, group)
        return await self.commit_as(asked, group, document.offsets)

    async def commit_as(self, asked: Asked, group: str, offsets: Sequence[OffsetToCommit]) -> web.StreamResponse:
        """Commit for a group in which nobody is."""
        if len(offsets) > self._limits.partitions_max:
            raise invalid(f"offsets: {len(offsets)} of them, at most {self._limits.partitions_max} are committed at a time")
        return await self._commit(asked, group, offsets, "", -1, None)

    async def end(self, asked: Asked) -> web.StreamResponse:
        consumer = await self._found(asked)
        await self._end(consumer)
        return await asked.answer(200, LeftGroup(consumer.consumer_id))

    async def _commit(
        self, asked: Asked, group: str, offsets: Sequence[OffsetToCommit], member_id: str, generation: int, instance_id: str | None
    ) -> web.StreamResponse:
        codes: list[ErrorCode] = []
        for start in range(0, len(offsets), self._limits.partitions_max):
            together = offsets[start : start + self._limits.partitions_max]
            codes += await self._committed(asked, group, together, member_id, generation, instance_id)
        if member_id and codes and set(codes) <= _REBALANCED:
            raise HttpError(409, "RebalanceInProgress", "the group has rebalanced: poll again, what was not committed comes again")
        results = [
            CommittedPartition(one.topic, one.partition, one.offset, True)
            if code is ErrorCode.none
            else CommittedPartition(one.topic, one.partition, one.offset, False, type_of(code), int(code), code.retriable)
            for one, code in zip(offsets, codes, strict=True)
        ]
        good = sum(one.ok for one in results)
        return await asked.answer(200 if good == len(results) else 409, CommitAnswer(results, good, len(results) - good))

    async def _committed(
        self, asked: Asked, group: str, offsets: Sequence[OffsetToCommit], member_id: str, generation: int, instance_id: str | None
    ) -> list[ErrorCode]:
        """Commit by the handler that Kafka's clients ask. Return the result of each offset."""
        from kio.schema.offset_commit.v9 import OffsetCommitRequest
        from kio.schema.offset_commit.v9.request import OffsetCommitRequestPartition, OffsetCommitRequestTopic

        body = OffsetCommitRequest(
            group_id=GroupId(group),
            generation_id_or_member_epoch=as_i32(generation),
            member_id=member_id,
            group_instance_id=instance_id,
            topics=tuple(
                OffsetCommitRequestTopic(
                    name=as_topic_name(one.topic),
                    partitions=(
                        OffsetCommitRequestPartition(
                            partition_index=as_i32(one.partition), committed_offset=as_i64(one.offset), committed_metadata=one.metadata
                        ),
                    ),
                )
                for one in offsets
            ),
        )
        answer = await self._call(asked, OFFSET_COMMIT, 9, body)
        return [ErrorCode(topic.partitions[0].error_code) for topic in answer.topics]

    async def _found(self, asked: Asked) -> HttpConsumer:
        group, consumer_id = asked.http.match_info["group"], asked.http.match_info["consumer"]
        known = self._consumers.get(consumer_id)
        if known is None or known[0].group != group:
            await self.check_here(asked, group)
            raise HttpError(404, "UnknownConsumer", "there is no such consumer: create it again, committed offsets stand")
        await self._check_member(known[0], asked)
        return known[0]

    async def check_here(self, asked: Asked, group: str) -> None:
        """Raise `HttpError` if another broker coordinates the group, or nobody does now; and for a name that no URL can have."""
        if group in (".", ".."):
            raise invalid("a group of this name has no URL: clients take it for a folder")
        try:
            await self._parts.parts.groups.find(group)
        except Closed as closed:
            raise await elsewhere(self._parts, asked, group, closed.error) from None

    async def _check_member(self, consumer: HttpConsumer, asked: Asked) -> None:
        """Raise `HttpError` if the group has no place for it."""
        if (refusal := consumer.refusal) is None:
            return
        await self._end(consumer)
        raise await elsewhere(self._parts, asked, consumer.group, refusal)

    async def _end(self, consumer: HttpConsumer) -> None:
        known = self._consumers.pop(consumer.consumer_id, None)
        if known is not None:
            known[1].cancel()
            if consumer.refusal is None:
                await consumer.leave()

    async def _end_all(self) -> None:
        """The groups go on with their other members at once."""
        self._is_ended = True
        async with asyncio.TaskGroup() as leaving:
            for consumer, _ in list(self._consumers.values()):
                leaving.create_task(self._end(consumer))

    async def _look_for_idle(self) -> None:
        while True:
            await asyncio.sleep(LOOK_FOR_IDLE_S)
            async with asyncio.TaskGroup() as leaving:
                for consumer, _ in list(self._consumers.values()):
                    if consumer.idle_s * _MS_PER_S >= consumer.document.idle_timeout_ms:
                        _log.info("http_consumer_idle", group=consumer.group, idle_s=round(consumer.idle_s, 1))
                        leaving.create_task(self._end(consumer))


_new_decoder: Final = msgspec.json.Decoder(NewConsumerDocument)
_poll_decoder: Final = msgspec.json.Decoder(PollDocument)
_commit_decoder: Final = msgspec.json.Decoder(CommitDocument)
_offsets_decoder: Final = msgspec.json.Decoder(GroupOffsetsDocument)


def _check_last(consumer: HttpConsumer, last_poll: int | None) -> bool:
    """Whether the last answer got lost. Raise `HttpError` if it is not the last one that did."""
    if last_poll is None or last_poll == consumer.polls:
        return False
    if last_poll != consumer.polls - 1:
        raise HttpError(409, "Conflict", f"the last poll was {consumer.polls}: what came before it cannot come again")
    # In a generation that has not polled yet, what was lost was not committed, and comes again by itself.
    return consumer.progress is not None and bool(consumer.progress.before)
