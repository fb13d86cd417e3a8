"""Topics, their configs and their names, as administrators are refused them."""

import asyncio
import datetime
import uuid
from typing import Any

import kio.schema.delete_topics.v6.request as delete_v6
import kio.schema.find_coordinator.v6.request as find_v6
from aiokafka.protocol.admin import CreateTopicsRequest, DescribeAclsRequest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from tests.kit.seen_errors import (
    TIMEOUT_S,
    TOPIC,
    Scene,
    Seen,
    aiokafka_client,
    node_of,
    of_aiokafka,
    of_confluent,
    of_frame,
)

ANY = 1
"""Of resource types, patterns, operations and permissions."""


async def existing_topic(scene: Scene) -> Seen:
    return await _creating(scene, NewTopic(TOPIC, 1, 1))


async def name_with_a_space(scene: Scene) -> Seen:
    return await _creating(scene, NewTopic("two words", 1, 1))


async def fewer_partitions(scene: Scene) -> Seen:
    return await scene.admin_told(scene.admin.create_partitions([NewPartitions(TOPIC, 1)])[TOPIC])


async def unknown_config(scene: Scene) -> Seen:
    return await _creating(scene, NewTopic("configured", 1, 1, config={"cleanup.policy": "sometimes"}))


async def no_replicas(scene: Scene) -> Seen:
    return await _creating(scene, NewTopic("replicated", 1, 0))


async def a_replica_twice(scene: Scene) -> Seen:
    return await _creating(scene, NewTopic("assigned", 1, replica_assignment=[[1, 1]]))


async def missing_topic(scene: Scene) -> Seen:
    return await scene.admin_told(scene.admin.create_partitions([NewPartitions("nowhere", 2)])["nowhere"])


async def acls_without_an_authorizer(scene: Scene) -> Seen:
    async with aiokafka_client(scene.bootstrap) as client:
        told = await client.send(await node_of(client), DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY))
        return of_aiokafka(told.error_code, told.error_message)


async def records_of_a_compacted_topic(scene: Scene) -> Seen:
    scene.admin.create_topics([NewTopic("compacted", 1, 1, config={"cleanup.policy": "compact"})])["compacted"].result(20)
    (answer,) = scene.admin.delete_records([TopicPartition("compacted", 0, 0)]).values()
    return await scene.admin_told(answer)


async def topic_twice_in_a_request(scene: Scene) -> Seen:
    twice = [("twice", 1, 1, [], [])] * 2
    async with aiokafka_client(scene.bootstrap) as client:
        told = await client.send(await node_of(client), CreateTopicsRequest(twice, 20_000, False))
        ((_, code, message),) = told.topic_errors
        return of_aiokafka(code, message)


async def users_that_are_unknown(scene: Scene) -> Seen:
    return await scene.admin_told(scene.admin.describe_user_scram_credentials(["alice"])["alice"])


async def election_of_who_leads(scene: Scene) -> Seen:
    partition = TopicPartition(TOPIC, 0)
    answer = await asyncio.to_thread(scene.admin.elect_leaders(ElectionType.PREFERRED, [partition]).result, TIMEOUT_S)
    return of_confluent(answer[partition])


async def id_of_no_topic(scene: Scene) -> Seen:
    made: Any = delete_v6
    topic = made.DeleteTopicState(name=None, topic_id=uuid.UUID(int=7))
    (answer,) = scene.raw(made.DeleteTopicsRequest(topics=(topic,), timeout=_timeout())).responses
    return of_frame(answer.error_code, answer.error_message)


async def coordinator_of_a_share_group(scene: Scene) -> Seen:
    made: Any = find_v6
    (answer,) = scene.raw(made.FindCoordinatorRequest(key_type=2, coordinator_keys=("g",))).coordinators
    return of_frame(answer.error_code, answer.error_message)


def _timeout() -> Any:
    return datetime.timedelta(seconds=20)


async def _creating(scene: Scene, topic: NewTopic) -> Seen:
    return await scene.admin_told(scene.admin.create_topics([topic])[topic.topic])
