"""DescribeConfigs (API key 32), v1-v4.

Topics (resource type 2): every key of storage/catalog/topic_configs.py, with what was set for the topic or the default.
Brokers (4): this one by its id, read-only; an empty name asks for cluster-wide dynamic defaults, of which there are none.
Groups (32): nothing. The keys that Kafka has for them are all about the other group protocols, which are not served here.
Any other type, another broker's id and an empty group name are INVALID_REQUEST.
A list of keys narrows the answer; null and an empty list do not.
Synonyms and documentation (v3+) are given when asked for.

Differs from Apache Kafka: a resource that is named more than once is answered once, with all keys that were asked for; and one request
describes at most `configs_described_max` resources, the others are INVALID_REQUEST: 100,000 topics would make an answer of 125 MB.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from kio.schema.describe_configs.v4 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym
from kio.schema.errors import ErrorCode

from broker.handling.configs import (
    BROKER,
    GROUP,
    SET_BY_DEFAULT,
    SET_FOR_TOPIC,
    TOPIC,
    BrokerConfig,
    broker_configs,
    refuse_broker_name,
    refuse_group_name,
    refuse_topic_name,
    refuse_type,
    source_of,
)
from broker.handling.context import Context
from broker.handling.errors import Refusal, error_code_of
from broker.handling.kio_types import as_i8
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topic_configs import TopicConfigValue, effective
from storage.catalog.topics import Topic
from storage.errors import StorageError

TURN_RESOURCES: Final = 20
"""Between two turns of other tasks: a topic has some thirty configs."""

Entries = Iterable[DescribeConfigsResourceResult]


class Details(NamedTuple):
    synonyms: bool
    documentation: bool


class AskedResource(NamedTuple):
    resource_type: int
    resource_name: str
    keys: set[str]
    """Which of its configs; empty: all."""


async def handle(context: Context, request: Request[DescribeConfigsRequest]) -> DescribeConfigsResponse:
    body = request.body
    details = Details(body.include_synonyms, body.include_documentation)
    turns = Turns(TURN_RESOURCES)
    resources = await _merged(body.resources, turns)
    topics = await _topics(context, resources)
    results = []
    described, described_max = 0, context.parts.limits.configs_described_max
    defaults: Entries = [_topic_entry(held, details) for held in effective({})]
    for resource in resources:
        await turns.spent()
        entries: Entries | Refusal
        if described >= described_max:
            entries = Refusal(
                ErrorCode.invalid_request, f"one request describes at most {described_max} resources: ask for the others again"
            )
        elif resource.resource_type == TOPIC:
            entries = _topic_entries(resource.resource_name, topics(resource.resource_name), details, defaults)
        elif resource.resource_type == BROKER:
            entries = await _broker_entries(context, resource.resource_name, details)
        elif resource.resource_type == GROUP:
            entries = refuse_group_name(resource.resource_name) or ()
        else:
            entries = refuse_type(resource.resource_type)
        described += not isinstance(entries, Refusal)
        results.append(_result(resource, entries))
    return DescribeConfigsResponse(throttle_time=as_field(0), results=tuple(results))


async def _merged(named: Sequence[DescribeConfigsResource], turns: Turns) -> Collection[AskedResource]:
    """Each resource once, with all keys that are asked of it; without any, all of them."""
    merged: dict[tuple[int, str], AskedResource] = {}
    for resource in named:
        key = resource.resource_type, resource.resource_name
        keys = frozenset(resource.configuration_keys or ())
        before = merged.get(key)
        if before is None:
            merged[key] = AskedResource(*key, set(keys))
        elif keys and before.keys:
            before.keys.update(keys)
        else:
            before.keys.clear()
        await turns.spent()
    return merged.values()


async def _topics(context: Context, resources: Iterable[AskedResource]) -> Callable[[str], Topic | Refusal]:
    """Answers by name, all from one read."""
    names = [resource.resource_name for resource in resources if resource.resource_type == TOPIC]
    try:
        found = await context.parts.topics.lookup_now(names)
    except StorageError as error:
        failed = Refusal(error_code_of(error), str(error))
        return lambda _: failed
    return lambda name: found.get(name) or Refusal(ErrorCode.unknown_topic_or_partition, f"topic {name!r} does not exist")


def _topic_entries(name: str, topic: Topic | Refusal, details: Details, defaults: Entries) -> Entries | Refusal:
    refusal = refuse_topic_name(name)
    if refusal is not None:
        return refusal
    if isinstance(topic, Refusal):
        return topic
    return [_topic_entry(held, details) for held in effective(topic.configs)] if topic.configs else defaults


async def _broker_entries(context: Context, name: str, details: Details) -> Entries | Refusal:
    own = context.parts.broker_id
    if not name:
        return ()
    refusal = refuse_broker_name(name, own_id=own)
    if refusal is not None:
        return refusal
    try:
        live = await context.parts.brokers.live()
    except StorageError as error:
        return Refusal(error_code_of(error), str(error))
    record = next((record for record in live if record.broker_id == own), None)
    if record is None:
        return Refusal(ErrorCode.broker_id_not_registered, f"broker {own} is not registered")
    defaults = context.parts.topic_defaults
    configs = broker_configs(
        record,
        auto_create=defaults.auto_create,
        partition_count=defaults.partition_count,
        producer_expiration_ms=context.parts.active_producers.expiration_ms,
        groups=context.parts.groups.settings,
    )
    return (_broker_entry(config, details) for config in configs)


def _topic_entry(held: TopicConfigValue, details: Details) -> DescribeConfigsResourceResult:
    config = held.config
    synonyms = []
    if details.synonyms:
        if held.is_set:
            synonyms.append(_synonym(config.name, held.value, SET_FOR_TOPIC))
        if config.synonym is not None:
            synonyms.append(_synonym(config.synonym, config.default, SET_BY_DEFAULT))
    return DescribeConfigsResourceResult(
        name=config.name,
        value=held.value,
        read_only=False,
        config_source=as_i8(source_of(held)),
        is_sensitive=False,
        synonyms=tuple(synonyms),
        config_type=as_i8(config.type.value),
        documentation=config.documentation if details.documentation else None,
    )


def _broker_entry(config: BrokerConfig, details: Details) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=config.name,
        value=config.value,
        read_only=True,
        config_source=as_i8(config.source),
        is_sensitive=False,
        synonyms=(_synonym(config.name, config.value, config.source),) if details.synonyms else (),
        config_type=as_i8(config.type.value),
        documentation=config.documentation if details.documentation else None,
    )


def _synonym(name: str, value: str | None, source: int) -> DescribeConfigsSynonym:
    return DescribeConfigsSynonym(name=name, value=value, source=as_i8(source))


def _result(resource: AskedResource, entries: Entries | Refusal) -> DescribeConfigsResult:
    refusal = entries if isinstance(entries, Refusal) else None
    wanted = resource.keys
    return DescribeConfigsResult(
        error_code=refusal.error if refusal else ErrorCode.none,
        error_message=refusal.message if refusal else None,
        resource_type=as_i8(resource.resource_type),
        resource_name=resource.resource_name,
        configs=() if isinstance(entries, Refusal) else tuple(entry for entry in entries if not wanted or entry.name in wanted),
    )
