"""Configs of resources as the config APIs show and alter them: whose there are, how a topic is altered, what a broker says of itself.

Resource types and sources of values have the numbers of CreateTopics, DescribeConfigs and AlterConfigs.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from broker.groups.state import GroupSettings
from broker.handling.administration import NAMED_MAX, Requester
from broker.handling.context import BrokerParts
from broker.handling.errors import Refusal, error_code_of
from runtime.turns import Turns
from storage.catalog.brokers import BrokerRecord, Role
from storage.catalog.topic import validate_name
from storage.catalog.topic_configs import TOPIC_CONFIGS, ConfigType, InvalidTopicConfig, TopicConfigValue, not_enforced
from storage.catalog.topics import Topic
from storage.errors import StorageError
from storage.limits import FETCH_RESPONSE_BYTES_MAX, FRAME_BYTES_MAX

# Where a value comes from.
SET_FOR_TOPIC: Final = 1
STATIC_BROKER: Final = 4
SET_BY_DEFAULT: Final = 5

# Types of resources.
TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32

LOG_DIR: Final = "object-store"
PROTOCOL_LEVEL: Final = "4.0"
"""The release of Kafka whose tools may take this broker for their own. Some read it to decide which features to offer."""

KEYS_MAX: Final = 1_000
"""Per resource. A topic has some thirty."""
LINE_AS_RESOURCES: Final = 5
"""What it costs to log a resource, beside altering it."""
_MINUTE_MS: Final = 60_000

_log = structlog.get_logger("administration")

ConfigChange = Callable[[Mapping[str, str]], dict[str, str]]
"""The configs of a topic → those after the change. Raises `InvalidTopicConfig`."""


def source_of(held: TopicConfigValue) -> int:
    return SET_FOR_TOPIC if held.is_set else SET_BY_DEFAULT


class BrokerConfig(NamedTuple):
    name: str
    type: ConfigType
    value: str | None
    source: int
    documentation: str


def broker_configs(
    record: BrokerRecord, *, auto_create: bool, partition_count: int, producer_expiration_ms: int, groups: GroupSettings
) -> list[BrokerConfig]:
    """By name."""
    listeners = ",".join(str(endpoint) for endpoint in record.kafka_listeners)
    names = ",".join(f"{endpoint.name}:PLAINTEXT" for endpoint in record.kafka_listeners)
    number = str(record.broker_id)
    roles = [role.value for role in Role if record.has_role(role)]
    configs = [
        _static("advertised.listeners", ConfigType.STRING, listeners, "The addresses that clients connect to."),
        _static("authorizer.class.name", ConfigType.STRING, "", "There is no authorizer: every client may do everything."),
        _static("auto.create.topics.enable", ConfigType.BOOLEAN, str(auto_create).lower(), "Whether asking for a topic creates it."),
        _static("auto.leader.rebalance.enable", ConfigType.BOOLEAN, "false", "Any broker serves any partition: nothing is rebalanced."),
        _static("broker.id", ConfigType.INT, number, "This broker's id."),
        _static("broker.rack", ConfigType.STRING, record.rack, "The rack or zone of this broker."),
        _static("broker.roles", ConfigType.LIST, ",".join(roles), "What clients are sent here for; a name of Forebay's own."),
        _static("controlled.shutdown.enable", ConfigType.BOOLEAN, "true", "A broker that is stopped answers what it has begun."),
        _static("default.replication.factor", ConfigType.INT, "1", "Reported for topics; durability comes from the object store."),
        _static("delete.topic.enable", ConfigType.BOOLEAN, "true", "Topics may be deleted."),
        _static(
            "fetch.max.bytes", ConfigType.INT, str(FETCH_RESPONSE_BYTES_MAX), "Record bytes in a Fetch response, its first batch excepted."
        ),
        _static(
            "inter.broker.protocol.version", ConfigType.STRING, PROTOCOL_LEVEL, "What tools may assume; brokers do not talk to each other."
        ),
        _static("listener.security.protocol.map", ConfigType.STRING, names, "Every listener speaks plaintext."),
        _static("listeners", ConfigType.LIST, listeners, "As advertised."),
        _static("log.dir", ConfigType.STRING, LOG_DIR, "There are no log directories: records lie in the object store."),
        _static("log.dirs", ConfigType.STRING, LOG_DIR, "There are no log directories: records lie in the object store."),
        _static("log.retention.hours", ConfigType.INT, "168", "As log.retention.ms, which wins."),
        _static("log.roll.hours", ConfigType.INT, "168", "Kept for tools; without effect, because a broker here keeps no log files."),
        _static("max.incremental.fetch.session.cache.slots", ConfigType.INT, "0", "Every Fetch is a full one: no sessions are kept."),
        _static("max.request.partition.size.limit", ConfigType.INT, "2000", "Partitions in an answer to DescribeTopicPartitions."),
        _static("node.id", ConfigType.INT, number, "This broker's id."),
        _static("num.partitions", ConfigType.INT, str(partition_count), "Partitions of a topic that asks for no number."),
        _static(
            "producer.id.expiration.ms",
            ConfigType.INT,
            str(producer_expiration_ms),
            "How long a partition remembers a producer that is silent.",
        ),
        _static("process.roles", ConfigType.LIST, "broker", "There are no controllers."),
        _static(
            "remote.log.storage.system.enable",
            ConfigType.BOOLEAN,
            "false",
            "There is no second tier: the whole log is in the object store.",
        ),
        _static("sasl.enabled.mechanisms", ConfigType.LIST, "", "Clients do not authenticate."),
        _static("security.inter.broker.protocol", ConfigType.STRING, "PLAINTEXT", "Brokers do not talk to each other."),
        _static("socket.request.max.bytes", ConfigType.INT, str(FRAME_BYTES_MAX), "The largest request that is read."),
    ]
    configs += _group_configs(groups)
    configs += [
        BrokerConfig(config.synonym, config.type, config.default, SET_BY_DEFAULT, config.documentation)
        for config in TOPIC_CONFIGS.values()
        if config.synonym is not None
    ]
    return sorted(configs)


def _group_configs(groups: GroupSettings) -> list[BrokerConfig]:
    int_, long = ConfigType.INT, ConfigType.LONG
    delay_ms, check_ms = round(groups.initial_delay_s * 1_000), round(groups.retention_check_s * 1_000)
    shortest_ms, longest_ms = round(groups.session_timeout_s_min * 1_000), round(groups.session_timeout_s_max * 1_000)
    retention_min = groups.offsets_retention_ms // _MINUTE_MS
    chars = str(groups.offset_metadata_chars_max)
    return [
        _static("group.coordinator.rebalance.protocols", ConfigType.LIST, "classic", "The group protocols that are served."),
        _static("group.initial.rebalance.delay.ms", int_, str(delay_ms), "How long the first members of an empty group wait for others."),
        _static("group.max.session.timeout.ms", int_, str(longest_ms), "The longest session timeout that a member may ask for."),
        _static("group.max.size", int_, str(groups.members_max), "Members of a group; a further one is refused."),
        _static("group.min.session.timeout.ms", int_, str(shortest_ms), "The shortest session timeout that a member may ask for."),
        _static("offset.metadata.max.bytes", int_, chars, "Characters beside a committed offset, counted as Kafka does."),
        _static("offsets.retention.check.interval.ms", long, str(check_ms), "How often the broker looks for offsets that have expired."),
        _static("offsets.retention.minutes", int_, str(retention_min), "How long offsets outlive the last member of their group."),
    ]


def _static(name: str, type_: ConfigType, value: str | None, documentation: str) -> BrokerConfig:
    return BrokerConfig(name, type_, value, STATIC_BROKER, documentation)


def refuse_type(resource_type: int) -> Refusal:
    return Refusal(ErrorCode.invalid_request, f"configs of resource type {resource_type} are not supported")


def refuse_group_name(name: str) -> Refusal | None:
    """Why there is no such group; None for any name but the empty one: a group has its configs before it has members."""
    return None if name else Refusal(ErrorCode.invalid_request, "group name must not be empty")


def refuse_topic_name(name: str) -> Refusal | None:
    """Why no topic can have that name; None if one can."""
    problem = validate_name(name)
    return None if problem is None else Refusal(ErrorCode.invalid_topic_exception, problem)


def refuse_broker_name(name: str, *, own_id: int) -> Refusal | None:
    """Why this broker does not answer for that one; None for its own id. An empty name is the caller's business."""
    if not (name.isascii() and name.isdecimal()):
        return Refusal(ErrorCode.invalid_request, f"broker id must be an integer, but it is: {name!r}")
    if name != str(own_id):
        return Refusal(ErrorCode.invalid_request, f"unexpected broker id: expected {own_id} or an empty string, got {name}")
    return None


class NotEnforced:
    """Says in the log which configs were just given to topics although no broker enforces them yet. Made by `noting_not_enforced`."""

    def __init__(self) -> None:
        self._configs: set[str] = set()
        self._topics: list[str] = []
        self._count = 0

    def add(self, topic: str, configs: Mapping[str, str]) -> None:
        """`topic` has just been given `configs`."""
        kept = not_enforced(configs)
        if kept:
            self._configs.update(kept)
            self._count += 1
            if self._count <= NAMED_MAX:
                self._topics.append(topic)

    def say(self, by: Requester) -> None:
        if self._count:
            _log.warning("configs_not_enforced", configs=sorted(self._configs), count=self._count, topics=self._topics, **by._asdict())


@contextlib.contextmanager
def noting_not_enforced(by: Requester) -> Iterator[NotEnforced]:
    """One line for all topics of a request, if any of them needs one."""
    noted = NotEnforced()
    try:
        yield noted
    finally:
        noted.say(by)


class ResourceChange(NamedTuple):
    resource_type: int
    resource_name: str
    keys: Collection[str]
    """What it would change."""
    change: ConfigChange | Refusal


async def alter_all(parts: BrokerParts, changes: Sequence[ResourceChange], by: Requester, *, validate_only: bool) -> list[Refusal | None]:
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
    by: Requester,
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


async def _alter(parts: BrokerParts, topic: Topic, change: ConfigChange, by: Requester) -> dict[str, str]:
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
