"""DeleteTopics (API key 20), v1-v6.

By name, or by id (v6). When it is answered, nothing can be appended to the topic any more and its name is free; its objects go later.
That there is no topic of a name is proven by a write; that there is none of an id rests on a read.
A topic named twice, by name, by id or by both, is INVALID_REQUEST and stays. The timeout is honoured: what is not done in time is
REQUEST_TIMED_OUT, and is finished by whoever looks for the topic next.
"""

import asyncio
from typing import Final, NamedTuple

from kio.schema.delete_topics import v5, v6
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode

from broker.handling.administration import Requester
from broker.handling.context import BrokerParts, Context
from broker.handling.errors import error_code_of
from broker.handling.kio_types import as_topic_id, as_topic_name, as_uuid
from broker.protocol.codec import as_field, milliseconds
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topic import validate_name
from storage.catalog.topics import Topic
from storage.errors import NotFound, StorageError
from storage.vocabulary import TopicId

DeleteTopicsRequest = v5.DeleteTopicsRequest | v6.DeleteTopicsRequest


CHANGED_AS_TOPICS: Final = 50
"""What to read or change one counts in turns."""
LINE_AS_TOPICS: Final = 5
"""What it costs to log a topic, beside answering it."""


class AskedTopic(NamedTuple):
    """A topic as the request names it: one of the two is None, unless the request is wrong."""

    name: str | None
    topic_id: TopicId | None


class DeleteTopicsAnswer(NamedTuple):
    error: ErrorCode
    message: str | None = None
    topic: Topic | None = None


async def handle(context: Context, request: Request[DeleteTopicsRequest]) -> DeleteTopicsResponse:
    turns = Turns()
    asked = await _asked(request.body, turns)
    by = context.by(request.client_id)
    timed_out = DeleteTopicsAnswer(ErrorCode.request_timed_out, "not done in the time that the request allowed; it may still happen")
    answers = dict.fromkeys(asked, timed_out)
    try:
        async with asyncio.timeout(
            min(max(milliseconds(request.body.timeout), 0), context.parts.limits.administration_timeout_ms_max) / 1_000
        ):
            await _delete_all(context.parts, asked, answers, by)
    except TimeoutError:
        pass  # the topics that were not reached keep the answer they were given above
    with context.parts.administration.failures("topic_deleted", by) as failures:
        for named, answer in answers.items():
            await turns.spent(LINE_AS_TOPICS)
            if answer.error is not ErrorCode.none:
                name, topic_id = _as_known(named, answer)
                failures.add(name or str(topic_id), error=answer.error, message=answer.message, topic=name, topic_id=topic_id)
    return DeleteTopicsResponse(throttle_time=as_field(0), responses=tuple(await turns.each(_respond, answers.items())))


async def _asked(body: DeleteTopicsRequest, turns: Turns) -> list[AskedTopic]:
    if isinstance(body, v5.DeleteTopicsRequest):
        return await turns.each(lambda name: AskedTopic(name, None), body.topic_names)
    return await turns.each(
        lambda topic: AskedTopic(topic.name, None if topic.topic_id is None else as_topic_id(topic.topic_id)), body.topics
    )


async def _delete_all(parts: BrokerParts, asked: list[AskedTopic], answers: dict[AskedTopic, DeleteTopicsAnswer], by: Requester) -> None:
    served = []
    turns = Turns()
    for named, occurrences in (await turns.count(asked)).items():
        await turns.spent()
        if (named.name is None) == (named.topic_id is None):
            answers[named] = DeleteTopicsAnswer(ErrorCode.invalid_request, "a topic is named either by its name or by its id")
        elif occurrences > 1:
            answers[named] = DeleteTopicsAnswer(ErrorCode.invalid_request, "the request names this topic more than once")
        else:
            served.append(named)
    try:
        found = await _find(parts, served)
    except StorageError as error:
        answers |= dict.fromkeys(served, _failed(error))
        return
    incarnations = await turns.count(topic.topic_id for topic in found.values())
    for named in served:
        # A store in memory, and a cache that knows what is asked, answer without a pause.
        await turns.spent(CHANGED_AS_TOPICS)
        topic = found.get(named)
        if topic is None:
            answers[named] = await _delete_if_there(parts, named, by)
        elif incarnations[topic.topic_id] > 1:
            answers[named] = DeleteTopicsAnswer(ErrorCode.invalid_request, "the request names this topic by its name and by its id", topic)
        else:
            answers[named] = await _delete(parts, named, topic, by)


async def _find(parts: BrokerParts, served: list[AskedTopic]) -> dict[AskedTopic, Topic]:
    by_name = await parts.topics.lookup_now([named.name for named in served if named.name is not None])
    by_id = await parts.topics.lookup_ids([named.topic_id for named in served if named.topic_id is not None])
    found: dict[AskedTopic, Topic] = {}
    turns = Turns()
    for named in served:
        topic = by_id.get(named.topic_id) if named.topic_id is not None else by_name.get(named.name or "")
        if topic is not None:
            found[named] = topic
        await turns.spent()
    return found


async def _delete_if_there(parts: BrokerParts, named: AskedTopic, by: Requester) -> DeleteTopicsAnswer:
    """Delete a topic that a read missed, if it is there after all: a client takes "no such topic" for a finished deletion."""
    if named.name is None or validate_name(named.name) is not None:
        return _unknown(named)
    try:
        topic = await parts.topics.lookup_certainly(named.name)
    except StorageError as error:
        return _failed(error)
    return _unknown(named) if topic is None else await _delete(parts, named, topic, by)


async def _delete(parts: BrokerParts, named: AskedTopic, topic: Topic, by: Requester) -> DeleteTopicsAnswer:
    try:
        await parts.topics.delete(topic)
    except NotFound:
        return _unknown(named)
    except StorageError as error:
        return _failed(error)
    parts.administration.changed("topic_deleted", by, topic=topic.name, topic_id=topic.topic_id)
    return DeleteTopicsAnswer(ErrorCode.none, None, topic)


def _unknown(named: AskedTopic) -> DeleteTopicsAnswer:
    return DeleteTopicsAnswer(
        ErrorCode.unknown_topic_or_partition if named.topic_id is None else ErrorCode.unknown_topic_id, "no such topic"
    )


def _failed(error: StorageError) -> DeleteTopicsAnswer:
    return DeleteTopicsAnswer(error_code_of(error), str(error))


def _as_known(named: AskedTopic, answer: DeleteTopicsAnswer) -> AskedTopic:
    return named if answer.topic is None else AskedTopic(answer.topic.name, answer.topic.topic_id)


def _respond(answered: tuple[AskedTopic, DeleteTopicsAnswer]) -> DeletableTopicResult:
    named, answer = answered
    name, topic_id = _as_known(named, answer)
    return DeletableTopicResult(
        name=None if name is None else as_topic_name(name),
        topic_id=None if topic_id is None else as_uuid(topic_id),
        error_code=answer.error,
        error_message=answer.message,
    )
