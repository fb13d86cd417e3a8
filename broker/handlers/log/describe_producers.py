"""DescribeProducers (API key 61), v0.

The producers with sequences that a partition remembers: what its manifest holds and the pages it names hold.
Any broker can answer for any partition. Partitions that do not exist are UNKNOWN_TOPIC_OR_PARTITION.

Differs from Apache Kafka: a partition that is named more than once is answered once;
last_timestamp is when the last batch was appended, not the greatest timestamp in it.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

from kio.schema.describe_producers.v0 import DescribeProducersRequest, DescribeProducersResponse
from kio.schema.describe_producers.v0.response import PartitionResponse, ProducerState, TopicResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from broker.handling.context import BrokerParts, Context
from broker.handling.errors import error_code_of
from broker.handling.kio_types import as_i32, as_i64, as_producer_id
from broker.handling.topics import TopicPartition, describe_absence, find_existing
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.errors import StorageError
from storage.log.page_store import ActiveProducer
from storage.vocabulary import PartitionId

READS_MAX: Final = 16
"""Partitions of one request that are read at the same time."""
_NO_COORDINATOR: Final = -1

DescribeProducersAnswer = list[ActiveProducer] | ErrorCode


async def handle(context: Context, request: Request[DescribeProducersRequest]) -> DescribeProducersResponse:
    body = request.body
    turns = Turns()
    partitions: dict[TopicName, dict[int, None]] = {}
    for topic in body.topics:
        partitions.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        await turns.spent()
    asked: dict[TopicPartition, None] = {}
    for name, named in partitions.items():
        asked |= dict.fromkeys(await turns.each(partial(TopicPartition, name), named))
    answers = await _read_all(context.parts, asked)
    return DescribeProducersResponse(
        throttle_time=as_field(0),
        topics=tuple([await _answer(name, named, answers, turns) for name, named in partitions.items()]),
    )


async def _answer(
    name: TopicName, named: Iterable[int], answers: dict[TopicPartition, DescribeProducersAnswer], turns: Turns
) -> TopicResponse:
    partitions = []
    for partition in named:
        answer = answers[TopicPartition(name, partition)]
        partitions.append(_respond(partition, answer))
        await turns.spent(1 if isinstance(answer, ErrorCode) else 1 + len(answer))
    return TopicResponse(name=name, partitions=tuple(partitions))


async def _read_all(parts: BrokerParts, asked: dict[TopicPartition, None]) -> dict[TopicPartition, DescribeProducersAnswer]:
    answers: dict[TopicPartition, DescribeProducersAnswer] = {}
    existing: list[tuple[TopicPartition, PartitionId]] = []
    turns = Turns()
    for partition, topic in (await find_existing(parts, asked)).items():
        await turns.spent()
        if isinstance(topic, ErrorCode):
            answers[partition] = topic
        else:
            existing.append((partition, topic.partition(partition.partition)))

    remaining = iter(existing)

    async def read() -> None:
        for partition, partition_id in remaining:
            try:
                answers[partition] = await parts.active_producers.of(partition_id)
            except StorageError as error:
                answers[partition] = error_code_of(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(READS_MAX, len(existing))):
            group.create_task(read())
    return answers


def _respond(partition: int, answer: DescribeProducersAnswer) -> PartitionResponse:
    producers = () if isinstance(answer, ErrorCode) else tuple(map(_producer, answer))
    return PartitionResponse(
        partition_index=as_i32(partition),
        error_code=answer if isinstance(answer, ErrorCode) else ErrorCode.none,
        error_message=describe_absence(answer) if isinstance(answer, ErrorCode) else None,
        active_producers=producers,
    )


def _producer(active: ActiveProducer) -> ProducerState:
    return ProducerState(
        producer_id=as_producer_id(active.producer_id),
        producer_epoch=as_i32(active.epoch),
        last_sequence=as_i32(active.last_sequence),
        last_timestamp=as_i64(active.last_append_ms),
        coordinator_epoch=as_i32(_NO_COORDINATOR),
        current_txn_start_offset=as_i64(active.txn_first_offset),
    )
