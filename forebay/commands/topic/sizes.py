"""How large partitions are, by DescribeLogDirs: librdkafka cannot send it.

Each leader is asked for what it leads. Apache Kafka's brokers know their own replicas alone, and a follower may lag; Forebay's know all.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from confluent_kafka.admin import AdminClient
from kio.schema.describe_log_dirs.v1.request import DescribableLogDirTopic, DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v1.response import DescribeLogDirsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32

from forebay.commands.topic.administration import TopicFacts, look_up_topic
from forebay.kafka_client.connection import BootstrapServer, ClusterConnection
from forebay.kafka_client.failures import ClientFailed
from forebay.kafka_client.one_request import send_request
from runtime.clock import Clock

ANSWER_WITHIN_S: Final = 5.0
"""Sizes are worth no longer wait: what is asked for besides them is there already."""


def with_sizes(
    connection: ClusterConnection, admin: AdminClient, facts: TopicFacts, *, clock: Clock
) -> tuple[TopicFacts, list[ClientFailed]]:
    """The same with the sizes of its partitions, and why some are missing."""
    led: dict[BootstrapServer, list[int]] = {}
    for one in look_up_topic(connection, admin, facts.name).partitions:
        if one.leader is not None:
            led.setdefault(BootstrapServer(one.leader.host, one.leader.port), []).append(one.id)
    sizes, failed = read_sizes(facts.name, led, within_s=connection.timeout_s, clock=clock)
    partitions = [msgspec.structs.replace(known, size_bytes=sizes.get(known.partition)) for known in facts.partitions]
    return msgspec.structs.replace(facts, partitions=partitions), failed


def read_sizes(
    name: str, led: Mapping[BootstrapServer, Sequence[int]], *, within_s: float, clock: Clock
) -> tuple[dict[int, int], list[ClientFailed]]:
    """Bytes by partition of the topic, and why those of a leader are missing. `led`: the partitions of each leader."""
    sizes: dict[int, int] = {}
    failed: list[ClientFailed] = []
    for leader, partitions in led.items():
        topic = DescribableLogDirTopic(topic=TopicName(name), partitions=tuple(map(i32, partitions)))
        try:
            answer = send_request(
                leader,
                DescribeLogDirsRequest(topics=(topic,)),
                DescribeLogDirsResponse,
                within_s=min(ANSWER_WITHIN_S, within_s),
                clock=clock,
            )
        except ClientFailed as error:
            failed.append(error)
            continue
        sizes |= _sizes(answer, name)
        failed += [
            ClientFailed(f"{leader} does not say how large partitions are: {one.error_code.name.upper()} ({one.log_dir})")
            for one in answer.results
            if one.error_code is not ErrorCode.none
        ]
    return sizes, failed


def _sizes(answer: DescribeLogDirsResponse, name: str) -> dict[int, int]:
    """A log that is being moved to another folder is there twice."""
    return {
        int(one.partition_index): int(one.partition_size)
        for result in answer.results
        for topic in result.topics
        if topic.name == name
        for one in topic.partitions
        if not one.is_future_key
    }
