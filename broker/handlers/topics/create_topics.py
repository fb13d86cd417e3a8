"""CreateTopics (API key 19), v2-v7.

Partitions and replication factor -1 stand for the broker's defaults. Any replication factor is accepted and reported, and asks nothing of
the storage. A manual assignment is checked as Kafka checks it, gives the number of partitions and replicas, and is not kept.
Configs are validated against storage/catalog/topic_configs.py; those that are kept and not yet enforced are named in the log.
A name that differs from an existing one in '.' and '_' only is refused.
validate_only (all of the above, nothing written) and the timeout are honoured: what is not done in time is REQUEST_TIMED_OUT, and may
still happen.

Differs from Apache Kafka: brokers of an assignment need not be registered; more than 10,000 partitions in one request are
INVALID_PARTITIONS for the topics that come after them.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from kio.schema.create_topics.v7 import CreateTopicsRequest, CreateTopicsResponse
from kio.schema.create_topics.v7.request import CreatableReplicaAssignment, CreatableTopic
from kio.schema.create_topics.v7.response import CreatableTopicConfigs, CreatableTopicResult
from kio.schema.errors import ErrorCode

from broker.handling.administration import Requester
from broker.handling.configs import noting_not_enforced, source_of
from broker.handling.context import BrokerParts, Context
from broker.handling.errors import Refusal, error_code_of
from broker.handling.kio_types import as_i8, as_i16, as_i32, as_topic_name, as_uuid
from broker.protocol.codec import as_field, milliseconds
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topic import NEVER_A_TOPIC, collision_key, validate_name
from storage.catalog.topic_configs import InvalidTopicConfig, effective, validate
from storage.catalog.topics import PARTITIONS_MAX
from storage.errors import StorageError
from storage.vocabulary import TopicId

_DEFAULT: Final = -1
_DEFAULT_REPLICATION_FACTOR: Final = 1
CREATED_AS_TOPICS: Final = 50
"""What to create one counts in turns, and each of its partitions counts one more."""
REFUSED_AS_TOPICS: Final = 50
"""What a refusal counts in turns: it may look for the config that an unknown name was meant for."""
LINE_AS_TOPICS: Final = 5
"""What it costs to log a topic, beside answering it."""


class TopicPlan(NamedTuple):
    """A topic that may be created."""

    partition_count: int
    replication_factor: int
    configs: dict[str, str]
    topic_id: TopicId | None = None


async def handle(context: Context, request: Request[CreateTopicsRequest]) -> CreateTopicsResponse:
    body, by = request.body, context.by(request.client_id)
    timed_out = Refusal(ErrorCode.request_timed_out, "not done in the time that the request allowed; it may still happen")
    turns = Turns()
    named = await turns.each(attrgetter("name"), body.topics)
    answers: dict[str, TopicPlan | Refusal] = dict.fromkeys(named, timed_out)
    try:
        async with asyncio.timeout(min(max(milliseconds(body.timeout), 0), context.parts.limits.administration_timeout_ms_max) / 1_000):
            await _create_all(context.parts, body, await turns.count(named), answers, by)
    except TimeoutError:
        pass  # the topics that were not reached keep the answer they were given above
    with context.parts.administration.failures("topic_created", by) as failures, noting_not_enforced(by) as noted:
        for name, answer in answers.items() if not body.validate_only else ():
            await turns.spent(LINE_AS_TOPICS)
            if isinstance(answer, Refusal):
                failures.add(name, error=answer.error, message=answer.message, topic=name)
            else:
                noted.add(name, answer.configs)
    return CreateTopicsResponse(
        throttle_time=as_field(0),
        topics=tuple(await turns.each(_respond, answers.items())),
    )


async def _create_all(
    parts: BrokerParts, body: CreateTopicsRequest, occurrences: Counter[str], answers: dict[str, TopicPlan | Refusal], by: Requester
) -> None:
    try:
        existing = await parts.topics.lookup_now(list(occurrences))
        colliding = await parts.topics.colliding(list(occurrences))
    except StorageError as error:
        answers |= dict.fromkeys(occurrences, _refusal_of(error))
        return
    allowed = PARTITIONS_MAX
    planned_names: dict[str, str] = {}
    turns = Turns()
    for topic in body.topics:
        await turns.spent()
        if occurrences[topic.name] > 1:
            answers[topic.name] = Refusal(ErrorCode.invalid_request, "the request names this topic more than once")
            continue
        if topic.name in existing:
            planned = plan(topic, partition_count_default=parts.topic_defaults.partition_count, partitions_max=allowed)
            answers[topic.name] = Refusal(ErrorCode.topic_already_exists, f"topic {topic.name!r} already exists")
            if isinstance(planned, TopicPlan) and not body.validate_only:
                # A read may be older than a deletion that its client has the answer of. Only a write that finds the name taken is proof.
                answers[topic.name] = created = await _create(parts, topic.name, planned, by)
                await turns.spent(CREATED_AS_TOPICS + planned.partition_count)
                allowed -= created.partition_count if isinstance(created, TopicPlan) else 0
            continue
        other = colliding.get(topic.name, planned_names.get(collision_key(topic.name)))
        if other is not None:
            message = f"topic {topic.name!r} collides with existing topic {other!r}"
            answers[topic.name] = Refusal(ErrorCode.invalid_topic_exception, message)
            continue
        planned = plan(topic, partition_count_default=parts.topic_defaults.partition_count, partitions_max=allowed)
        if isinstance(planned, TopicPlan):
            allowed -= planned.partition_count
            planned_names[collision_key(topic.name)] = topic.name
            if body.validate_only:
                answers[topic.name] = planned
            else:
                answers[topic.name] = await _create(parts, topic.name, planned, by)
                # A store in memory writes without a pause.
                await turns.spent(CREATED_AS_TOPICS + planned.partition_count)
        else:
            answers[topic.name] = planned
            await turns.spent(REFUSED_AS_TOPICS)


async def _create(parts: BrokerParts, name: str, planned: TopicPlan, by: Requester) -> TopicPlan | Refusal:
    try:
        topic = await parts.topics.create(
            name,
            partition_count=planned.partition_count,
            replication_factor=planned.replication_factor,
            configs=planned.configs,
        )
    except StorageError as error:
        return _refusal_of(error)
    parts.administration.changed(
        "topic_created",
        by,
        topic=name,
        topic_id=topic.topic_id,
        partitions=planned.partition_count,
        replication_factor=planned.replication_factor,
        configs=planned.configs,
    )
    return planned._replace(topic_id=topic.topic_id)


def plan(topic: CreatableTopic, *, partition_count_default: int, partitions_max: int) -> TopicPlan | Refusal:
    """What to create, or what is wrong with the request, apart from what exists already."""
    problem = validate_name(topic.name)
    if problem is not None:
        return Refusal(ErrorCode.invalid_topic_exception, problem)
    if topic.name == NEVER_A_TOPIC:
        return Refusal(ErrorCode.invalid_request, f"Creation of internal topic {NEVER_A_TOPIC} is prohibited.")
    try:
        configs = validate({config.name: config.value for config in topic.configs})
    except InvalidTopicConfig as error:
        return Refusal(ErrorCode.invalid_config, str(error))
    if topic.assignments:
        refusal = _check_assignments(topic)
        if refusal is not None:
            return refusal
        partition_count, replication_factor = len(topic.assignments), len(topic.assignments[0].broker_ids)
    else:
        partition_count, replication_factor = topic.num_partitions, topic.replication_factor
        if replication_factor < _DEFAULT or replication_factor == 0:
            message = f"replication factor {replication_factor}: must be above 0, or -1 for the default"
            return Refusal(ErrorCode.invalid_replication_factor, message)
        if partition_count < _DEFAULT or partition_count == 0:
            message = f"number of partitions {partition_count}: must be above 0, or -1 for the default"
            return Refusal(ErrorCode.invalid_partitions, message)
        if replication_factor == _DEFAULT:
            replication_factor = _DEFAULT_REPLICATION_FACTOR
        if partition_count == _DEFAULT:
            partition_count = partition_count_default
    if partition_count > partitions_max:
        message = f"{partition_count} partitions: one request may create {PARTITIONS_MAX}, {partitions_max} of them are left"
        return Refusal(ErrorCode.invalid_partitions, message)
    return TopicPlan(partition_count, replication_factor, configs)


def _check_assignments(topic: CreatableTopic) -> Refusal | None:
    if topic.replication_factor != _DEFAULT:
        return Refusal(ErrorCode.invalid_request, "with a manual assignment, the replication factor must be -1")
    if topic.num_partitions != _DEFAULT:
        return Refusal(ErrorCode.invalid_request, "with a manual assignment, the number of partitions must be -1")
    problem = _assignment_problem(topic.assignments)
    return None if problem is None else Refusal(ErrorCode.invalid_replica_assignment, problem)


def _assignment_problem(assignments: Sequence[CreatableReplicaAssignment]) -> str | None:
    if sorted(assignment.partition_index for assignment in assignments) != list(range(len(assignments))):
        return "the partitions of a manual assignment must be 0, 1, 2 … without gaps or repeats"
    for assignment in assignments:
        broker_ids = assignment.broker_ids
        if not broker_ids:
            return f"partition {assignment.partition_index} is assigned to no broker"
        if min(broker_ids) < 0 or len(set(broker_ids)) != len(broker_ids):
            return f"partition {assignment.partition_index} is assigned to a negative broker id, or twice to the same broker"
        if len(broker_ids) != len(assignments[0].broker_ids):
            return "all partitions of a manual assignment must have the same number of replicas"
    return None


def _refusal_of(error: StorageError) -> Refusal:
    return Refusal(error_code_of(error), str(error))


def _respond(answered: tuple[str, TopicPlan | Refusal]) -> CreatableTopicResult:
    name, answer = answered
    if isinstance(answer, Refusal):
        return CreatableTopicResult(
            name=as_topic_name(name), topic_id=None, error_code=answer.error, error_message=answer.message, configs=()
        )
    return CreatableTopicResult(
        name=as_topic_name(name),
        topic_id=None if answer.topic_id is None else as_uuid(answer.topic_id),
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=as_i32(answer.partition_count),
        replication_factor=as_i16(answer.replication_factor),
        configs=tuple(
            CreatableTopicConfigs(
                name=held.config.name,
                value=held.value,
                read_only=False,
                config_source=as_i8(source_of(held)),
                is_sensitive=False,
            )
            for held in effective(answer.configs)
        ),
    )
