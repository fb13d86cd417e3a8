"""CreatePartitions (API key 37), v0-v3.

Adds partitions to topics: `count` is how many a topic shall have. A manual assignment is checked as Kafka checks it, and not kept.
A topic named twice is INVALID_REQUEST. validate_only and the timeout are honoured: what is not done in time is REQUEST_TIMED_OUT, and may
still happen. A partition that a client sees has its log: the manifests come first.

Differs from Apache Kafka: brokers of an assignment need not be registered; a topic has at most 10,000 partitions, and one request adds at
most as many to all its topics (INVALID_PARTITIONS).
"""

import asyncio
from collections import Counter
from operator import attrgetter
from typing import Final

from kio.schema.create_partitions.v3 import CreatePartitionsRequest, CreatePartitionsResponse
from kio.schema.create_partitions.v3.request import CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsTopicResult
from kio.schema.errors import ErrorCode

from broker.handling.administration import Requester
from broker.handling.context import BrokerParts, Context
from broker.handling.errors import Refusal, error_code_of
from broker.handling.kio_types import as_topic_name
from broker.protocol.codec import as_field, milliseconds
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topics import PARTITIONS_MAX, Topic
from storage.errors import StorageError

LINE_AS_TOPICS: Final = 5
"""What it costs to log a topic, beside answering it."""


async def handle(context: Context, request: Request[CreatePartitionsRequest]) -> CreatePartitionsResponse:
    body, by = request.body, context.by(request.client_id)
    timed_out = Refusal(ErrorCode.request_timed_out, "not done in the time that the request allowed; it may still happen")
    turns = Turns()
    named = await turns.each(attrgetter("name"), body.topics)
    answers: dict[str, Refusal | None] = dict.fromkeys(named, timed_out)
    try:
        async with asyncio.timeout(min(max(milliseconds(body.timeout), 0), context.parts.limits.administration_timeout_ms_max) / 1_000):
            await _create_all(context.parts, body, await turns.count(named), answers, by)
    except TimeoutError:
        pass  # the topics that were not reached keep the answer they were given above
    with context.parts.administration.failures("partitions_added", by) as failures:
        for name, refusal in answers.items() if not body.validate_only else ():
            await turns.spent(LINE_AS_TOPICS)
            if refusal is not None:
                failures.add(name, error=refusal.error, message=refusal.message, topic=name)
    return CreatePartitionsResponse(
        throttle_time=as_field(0),
        results=tuple(await turns.each(_respond, answers.items())),
    )


def _respond(answer: tuple[str, Refusal | None]) -> CreatePartitionsTopicResult:
    name, refusal = answer
    return CreatePartitionsTopicResult(
        name=as_topic_name(name),
        error_code=refusal.error if refusal else ErrorCode.none,
        error_message=refusal.message if refusal else None,
    )


async def _create_all(
    parts: BrokerParts, body: CreatePartitionsRequest, occurrences: Counter[str], answers: dict[str, Refusal | None], by: Requester
) -> None:
    try:
        existing = await parts.topics.lookup_now(list(occurrences))
    except StorageError as error:
        answers |= dict.fromkeys(occurrences, _failed(error))
        return
    allowed = PARTITIONS_MAX
    turns = Turns()
    for wanted in body.topics:
        await turns.spent()
        topic = existing.get(wanted.name)
        if occurrences[wanted.name] > 1:
            answers[wanted.name] = Refusal(ErrorCode.invalid_request, "the request names this topic more than once")
        elif topic is None:
            answers[wanted.name] = Refusal(ErrorCode.unknown_topic_or_partition, f"topic {wanted.name!r} does not exist")
        else:
            refusal = check(wanted, topic, added_max=allowed)
            allowed -= 0 if refusal else wanted.count - topic.partition_count
            answers[wanted.name] = refusal if refusal or body.validate_only else await _create(parts, wanted, topic, by)


def check(wanted: CreatePartitionsTopic, topic: Topic, *, added_max: int) -> Refusal | None:
    """What is wrong with the request; None if the partitions may be added."""
    added = wanted.count - topic.partition_count
    if added <= 0:
        return _no_increase(topic.partition_count, wanted.count)
    if wanted.count > PARTITIONS_MAX:
        return Refusal(ErrorCode.invalid_partitions, f"{wanted.count} partitions: a topic has at most {PARTITIONS_MAX}")
    if added > added_max:
        message = f"{added} partitions: one request may add {PARTITIONS_MAX}, {added_max} of them are left"
        return Refusal(ErrorCode.invalid_partitions, message)
    if wanted.assignments is None:
        return None
    if len(wanted.assignments) != added:
        message = f"{added} partitions would be added, and {len(wanted.assignments)} assignments are given"
        return Refusal(ErrorCode.invalid_replica_assignment, message)
    for assignment in wanted.assignments:
        broker_ids = assignment.broker_ids
        if len(broker_ids) != topic.replication_factor:
            message = f"an assignment names {len(broker_ids)} brokers, the replication factor of the topic is {topic.replication_factor}"
            return Refusal(ErrorCode.invalid_replica_assignment, message)
        if min(broker_ids) < 0 or len(set(broker_ids)) != len(broker_ids):
            return Refusal(ErrorCode.invalid_replica_assignment, "an assignment names a negative broker id, or the same broker twice")
    return None


async def _create(parts: BrokerParts, wanted: CreatePartitionsTopic, topic: Topic, by: Requester) -> Refusal | None:
    try:
        before = await parts.topics.add_partitions(topic, wanted.count)
    except StorageError as error:
        return _failed(error)
    if before >= wanted.count:
        return _no_increase(before, wanted.count)
    facts = {"topic": topic.name, "topic_id": topic.topic_id, "partitions_before": before, "partitions": wanted.count}
    parts.administration.changed("partitions_added", by, **facts)
    return None


def _no_increase(current: int, wanted: int) -> Refusal:
    if current == wanted:
        return Refusal(ErrorCode.invalid_partitions, f"the topic already has {current} partitions")
    return Refusal(ErrorCode.invalid_partitions, f"the topic has {current} partitions, {wanted} would not be an increase")


def _failed(error: StorageError) -> Refusal:
    return Refusal(error_code_of(error), str(error))
