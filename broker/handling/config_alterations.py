"""What IncrementalAlterConfigs and AlterConfigs have in common: which resources can be altered, and how a topic is."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from broker.handling.administration import By
from broker.handling.config_resources import BROKER, TOPIC, refuse_broker_name, refuse_topic_name, refuse_type
from broker.handling.context import BrokerParts
from broker.handling.errors import error_code_of
from broker.handling.not_enforced import NotEnforced, noting_not_enforced
from broker.handling.refusal import Refusal
from runtime.turns import Turns
from storage.catalog.topic_configs import InvalidTopicConfig
from storage.catalog.topics import Topic
from storage.errors import StorageError

KEYS_MAX: Final = 1_000
"""Per resource. A topic has some thirty."""

LINE_AS_RESOURCES: Final = 5
"""What it costs to log a resource, beside altering it."""

ConfigChange = Callable[[Mapping[str, str]], dict[str, str]]
"""The configs of a topic → those after the change. Raises `InvalidTopicConfig`."""


class ResourceChange(NamedTuple):
    resource_type: int
    resource_name: str
    keys: Collection[str]
    """What it would change."""
    change: ConfigChange | Refusal


async def alter_all(parts: BrokerParts, changes: Sequence[ResourceChange], by: By, *, validate_only: bool) -> list[Refusal | None]:
    """In the order of `changes`, each for itself: None for what was altered, or with `validate_only` would have been."""
    turns = Turns()
    occurrences = await turns.count((one.resource_type, one.resource_name) for one in changes)
    names = [name for resource_type, name in occurrences if resource_type == TOPIC]
    found: dict[str, Topic] | StorageError
    try:
        found = await parts.topics.lookup_now(names)
    except StorageError as error:
        found = error
    answers = []
    with parts.administration.failures("configs_altered", by) as failures, noting_not_enforced(by) as noted:
        for one in changes:
            await turns.spent()
            if occurrences[one.resource_type, one.resource_name] > 1:
                answer: Refusal | None = Refusal(ErrorCode.invalid_request, "each resource must appear at most once")
            elif isinstance(one.change, Refusal):
                answer = one.change
            elif one.resource_type == TOPIC:
                answer = await _alter_topic(parts, one.resource_name, one.change, found, by, noted, validate_only=validate_only)
            elif one.resource_type == BROKER:
                answer = _refuse_broker(one, own_id=parts.broker_id)
            else:
                answer = refuse_type(one.resource_type)
            if answer is not None and not validate_only:
                await turns.spent(LINE_AS_RESOURCES)
                facts = {"resource_type": one.resource_type, "name": one.resource_name, "keys": sorted(one.keys)}
                failures.add(one.resource_name, error=answer.error, message=answer.message, **facts)
            answers.append(answer)
    return answers


async def _alter_topic(
    parts: BrokerParts,
    name: str,
    change: ConfigChange,
    found: dict[str, Topic] | StorageError,
    by: By,
    noted: NotEnforced,
    *,
    validate_only: bool,
) -> Refusal | None:
    if not name:
        return Refusal(ErrorCode.invalid_request, "default topic resources are not allowed")
    refusal = refuse_topic_name(name)
    if refusal is not None:
        return refusal
    try:
        if isinstance(found, StorageError):
            raise found
        topic = found.get(name)
        if topic is None:
            return Refusal(ErrorCode.unknown_topic_or_partition, f"topic {name!r} does not exist")
        if validate_only:
            change(topic.configs)
        else:
            noted.add(name, await _alter(parts, topic, change, by))
    except InvalidTopicConfig as error:
        return Refusal(ErrorCode.invalid_config, str(error))
    except StorageError as error:
        return Refusal(error_code_of(error), str(error))
    return None


async def _alter(parts: BrokerParts, topic: Topic, change: ConfigChange, by: By) -> dict[str, str]:
    """Its configs are altered from the newest there are, which are not known before: those that were given another value."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}

    def noted(current: Mapping[str, str]) -> dict[str, str]:
        nonlocal before, after
        if current != after:  # else a write of ours whose reply was lost
            before = dict(current)
        after = change(current)
        return after

    await parts.topics.alter_configs(topic, noted)
    given = {key: value for key, value in after.items() if before.get(key) != value}
    removed = sorted(before.keys() - after.keys())
    parts.administration.changed("configs_altered", by, resource_type=TOPIC, name=topic.name, configs=given, removed=removed)
    return given


def _refuse_broker(one: ResourceChange, *, own_id: int) -> Refusal | None:
    """Brokers are configured where they are started."""
    refusal = refuse_broker_name(one.resource_name, own_id=own_id) if one.resource_name else None
    if refusal is None and one.keys:
        message = f"brokers cannot be configured while they run: {', '.join(sorted(one.keys))}"
        return Refusal(ErrorCode.invalid_request, message)
    return refusal
