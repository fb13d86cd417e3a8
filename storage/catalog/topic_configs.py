"""The topic configs of Apache Kafka 4: names, types, defaults, which values are accepted, and what they do here.

A value is kept in the form Kafka would print it. A key whose effect is not served is refused where ignoring it would be noticed
(tiers), and accepted where it only concerns the disks of a Kafka broker.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from storage.limits import BATCH_BYTES_DEFAULT_MAX, FRAME_BYTES_MAX, KIB, METADATA_VALUE_BYTES_MAX

_NAME_COMPARED_LENGTH: Final = 100
"""Names of configs are shorter; to find out what a longer one was meant for would take long."""
CONFIGS_BYTES_MAX: Final = 32 * KIB
"""Names and values of one topic, as characters: they share a record with the rest of the topic."""

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_DAY_MS: Final = 86_400_000

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{0,19})?([eE][+-]?[0-9]{1,3})?|[+-]?\.[0-9]{1,19}")
_THROTTLED: Final = re.compile(r"\*|none|[0-9]+:[0-9]+")

Rule = Callable[[str], str]
"""A value as it was sent → the value to keep. Raises ValueError with what is expected of it."""


class ConfigType(Enum):
    """The numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class TopicConfig(NamedTuple):
    """`synonym` is the broker config that would supply the default in Kafka; None where there is none."""

    name: str
    type: ConfigType
    default: str
    rule: Rule
    synonym: str | None
    documentation: str


class TopicConfigValue(NamedTuple):
    """What holds for a topic; `is_set` says that it was set for this topic, to the default or to something else."""

    config: TopicConfig
    value: str
    is_set: bool


def _integer(minimum: int, maximum: int) -> Rule:
    def rule(text: str) -> str:
        if not _INTEGER.fullmatch(text) or not minimum <= int(text) <= maximum:
            raise ValueError(f"must be an integer from {minimum} to {maximum}")
        return str(int(text))

    return rule


def _long(minimum: int) -> Rule:
    return _integer(minimum, _LONG_MAX)


def _ratio(text: str) -> str:
    if not _NUMBER.fullmatch(text) or not 0 <= float(text) <= 1:
        raise ValueError("must be a number from 0 to 1")
    return str(float(text))


def _boolean(text: str) -> str:
    if text.lower() not in {"true", "false"}:
        raise ValueError("must be true or false")
    return text.lower()


def _one_of(*names: str) -> Rule:
    def rule(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return text

    return rule


def _only(value: str, reason: str, accepts: Rule) -> Rule:
    def rule(text: str) -> str:
        if accepts(text) != value:
            raise ValueError(f"must be {value}: {reason}")
        return value

    return rule


def _cleanup_policy(text: str) -> str:
    policies = [item.strip() for item in text.split(",")]
    if not {"compact", "delete"}.issuperset(policies) or len(set(policies)) != len(policies):
        raise ValueError("must be delete, compact, or both with a comma between")
    return ",".join(policies)


def _throttled_replicas(text: str) -> str:
    items = [item.strip() for item in text.split(",")] if text else []
    if not all(_THROTTLED.fullmatch(item) for item in items):
        raise ValueError("must be *, or a list of partition:broker")
    return ",".join(items)


_KEPT: Final = "Kept for tools; without effect, because a broker here keeps no log files."
_NO_TIER: Final = "there is no second tier, the whole log lies in the object store"
_CODECS: Final = _one_of("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer")

_INT, _LONG, _BOOLEAN = ConfigType.INT, ConfigType.LONG, ConfigType.BOOLEAN
_STRING, _LIST, _DOUBLE = ConfigType.STRING, ConfigType.LIST, ConfigType.DOUBLE

_TABLE: Final = (
    TopicConfig(
        "cleanup.policy", _LIST, "delete", _cleanup_policy, "log.cleanup.policy",
        "delete: old records go by time and size. compact: they go when a newer one has their key.",
    ),
    TopicConfig(
        "compression.gzip.level", _INT, "-1",
        lambda text: "-1" if text == "-1" else _integer(1, 9)(text), "compression.gzip.level",
        "With compression.type=gzip, how hard other batches are compressed.",
    ),
    TopicConfig(
        "compression.lz4.level", _INT, "9", _integer(1, 17), "compression.lz4.level",
        "With compression.type=lz4, how hard other batches are compressed: 9 is the fast compressor, above 12 counts as 12.",
    ),
    TopicConfig(
        "compression.type", _STRING, "producer", _CODECS, "compression.type",
        "The codec that batches are kept in. producer: as they come. Batches of another codec are compressed anew before they are stored.",
    ),
    TopicConfig(
        "compression.zstd.level", _INT, "3", _integer(-131_072, 22), "compression.zstd.level",
        "With compression.type=zstd, how hard other batches are compressed; above 19 counts as 19.",
    ),
    TopicConfig(
        "delete.retention.ms", _LONG, str(_DAY_MS), _long(0), "log.cleaner.delete.retention.ms",
        "How long compaction keeps the mark of a deleted key.",
    ),
    TopicConfig("file.delete.delay.ms", _LONG, "60000", _long(0), "log.segment.delete.delay.ms", _KEPT),
    TopicConfig(
        "flush.messages", _LONG, str(_LONG_MAX), _long(1), "log.flush.interval.messages",
        "Kept for tools; without effect, because what is acknowledged is durable.",
    ),
    TopicConfig(
        "flush.ms", _LONG, str(_LONG_MAX), _long(0), "log.flush.interval.ms",
        "Kept for tools; without effect, because what is acknowledged is durable.",
    ),
    TopicConfig(
        "follower.replication.throttled.replicas", _LIST, "", _throttled_replicas, None,
        "Kept for tools; without effect, because there is no replication between brokers.",
    ),
    TopicConfig("index.interval.bytes", _INT, "4096", _integer(0, _INT_MAX), "log.index.interval.bytes", _KEPT),
    TopicConfig(
        "leader.replication.throttled.replicas", _LIST, "", _throttled_replicas, None,
        "Kept for tools; without effect, because there is no replication between brokers.",
    ),
    TopicConfig("local.retention.bytes", _LONG, "-2", _long(-2), "log.local.retention.bytes", _KEPT),
    TopicConfig("local.retention.ms", _LONG, "-2", _long(-2), "log.local.retention.ms", _KEPT),
    TopicConfig(
        "max.compaction.lag.ms", _LONG, str(_LONG_MAX), _long(1), "log.cleaner.max.compaction.lag.ms",
        "How long a record may stay uncompacted.",
    ),
    TopicConfig(
        "max.message.bytes", _INT, str(BATCH_BYTES_DEFAULT_MAX), _integer(0, FRAME_BYTES_MAX), "message.max.bytes",
        "The largest batch that is accepted, as it was sent, header included.",
    ),
    TopicConfig(
        "message.timestamp.after.max.ms", _LONG, "3600000", _long(0), "log.message.timestamp.after.max.ms",
        "How far a record's timestamp may lie ahead of the broker's clock, with CreateTime.",
    ),
    TopicConfig(
        "message.timestamp.before.max.ms", _LONG, str(_LONG_MAX), _long(0), "log.message.timestamp.before.max.ms",
        "How far a record's timestamp may lie behind the broker's clock, with CreateTime.",
    ),
    TopicConfig(
        "message.timestamp.type", _STRING, "CreateTime", _one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type", "Whose time the records carry: the producer's, or the broker's.",
    ),
    TopicConfig(
        "min.cleanable.dirty.ratio", _DOUBLE, "0.5", _ratio, "log.cleaner.min.cleanable.ratio",
        "How much of the log may be uncompacted before it is compacted.",
    ),
    TopicConfig(
        "min.compaction.lag.ms", _LONG, "0", _long(0), "log.cleaner.min.compaction.lag.ms",
        "How long a record stays uncompacted at least.",
    ),
    TopicConfig(
        "min.insync.replicas", _INT, "1", _integer(1, _INT_MAX), "min.insync.replicas",
        "Kept for tools; without effect, because what is acknowledged lies in the object store.",
    ),
    TopicConfig("preallocate", _BOOLEAN, "false", _boolean, "log.preallocate", _KEPT),
    TopicConfig(
        "remote.log.copy.disable", _BOOLEAN, "false", _only("false", _NO_TIER, _boolean), None,
        "Always false: there is no second tier.",
    ),
    TopicConfig(
        "remote.log.delete.on.disable", _BOOLEAN, "false", _only("false", _NO_TIER, _boolean), None,
        "Always false: there is no second tier.",
    ),
    TopicConfig(
        "remote.storage.enable", _BOOLEAN, "false", _only("false", _NO_TIER, _boolean), None,
        "Always false: there is no second tier.",
    ),
    TopicConfig(
        "retention.bytes", _LONG, "-1", _long(-1), "log.retention.bytes",
        "How many bytes of a partition are kept; -1 for all.",
    ),
    TopicConfig(
        "retention.ms", _LONG, str(7 * _DAY_MS), _long(-1), "log.retention.ms",
        "How long records are kept; -1 for ever.",
    ),
    TopicConfig("segment.bytes", _INT, str(2**30), _integer(14, _INT_MAX), "log.segment.bytes", _KEPT),
    TopicConfig("segment.index.bytes", _INT, "10485760", _integer(4, _INT_MAX), "log.index.size.max.bytes", _KEPT),
    TopicConfig("segment.jitter.ms", _LONG, "0", _long(0), "log.roll.jitter.ms", _KEPT),
    TopicConfig("segment.ms", _LONG, str(7 * _DAY_MS), _long(1), "log.roll.ms", _KEPT),
    TopicConfig(
        "unclean.leader.election.enable", _BOOLEAN, "false", _boolean, "unclean.leader.election.enable",
        "Kept for tools; without effect, because there are no leaders to elect.",
    ),
)  # fmt: skip

assert CONFIGS_BYTES_MAX < METADATA_VALUE_BYTES_MAX

TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {config.name: config for config in _TABLE}


class InvalidTopicConfig(ValueError):
    """Says which key or value is wrong, and why, in words for the client."""


def validate(configs: Mapping[str, str | None]) -> dict[str, str]:
    """The configs to keep with the topic. Raises `InvalidTopicConfig` for the first that is unknown or bad."""
    kept: dict[str, str] = {}
    for name, value in configs.items():
        config = TOPIC_CONFIGS.get(name)
        if config is None:
            raise _unknown(name)
        if value is None:
            raise InvalidTopicConfig(f"{name} has no value (null); the default is {config.default!r}")
        try:
            kept[name] = config.rule(value.strip())
        except ValueError as error:
            raise InvalidTopicConfig(f"{name}={value}: {error} (default {config.default})") from error
    size = sum(len(name) + len(value) for name, value in kept.items())
    if size > CONFIGS_BYTES_MAX:
        raise InvalidTopicConfig(f"the configs of a topic have at most {CONFIGS_BYTES_MAX} characters, these have {size}")
    if integer(kept, "min.compaction.lag.ms") > integer(kept, "max.compaction.lag.ms"):
        raise InvalidTopicConfig("min.compaction.lag.ms must not be greater than max.compaction.lag.ms")
    return kept


def value_of(configs: Mapping[str, str], name: str) -> str:
    """What holds for a topic with these configs."""
    return configs.get(name, TOPIC_CONFIGS[name].default)


def integer(configs: Mapping[str, str], name: str) -> int:
    """As `value_of`, for a key of type INT or LONG."""
    return int(value_of(configs, name))


def effective(configs: Mapping[str, str]) -> Iterator[TopicConfigValue]:
    """Every key of the table, by name, with what holds for a topic with these configs."""
    for name, config in TOPIC_CONFIGS.items():
        yield TopicConfigValue(config, value_of(configs, name), name in configs)


class Operation(Enum):
    """What to do with one key. The numbers are those of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    name: str
    operation: Operation
    value: str = ""
    """Without meaning for DELETE."""


def alter(configs: Mapping[str, str], alterations: Iterable[Alteration]) -> dict[str, str]:
    """`configs` with each alteration made, in order, and validated as a whole. Raises `InvalidTopicConfig`.

    APPEND adds the items of a list that are not there, SUBTRACT takes away those that are, both starting from the default if nothing was
    set: so all of it twice is as good as once. DELETE goes back to the default; a key that nobody knows has nothing to go back from.
    """
    altered: dict[str, str] = dict(configs)
    for name, operation, value in alterations:
        if operation is Operation.SET:
            altered[name] = value
        elif operation is Operation.DELETE:
            altered.pop(name, None)
        else:
            config = TOPIC_CONFIGS.get(name)
            if config is None:
                raise _unknown(name)
            if config.type is not ConfigType.LIST:
                raise InvalidTopicConfig(f"{operation.name} is for lists, and {name} is of type {config.type.name}")
            named = _items(value)
            items = _items(altered.get(name, config.default))
            if operation is Operation.APPEND:
                items += [item for item in dict.fromkeys(named) if item not in items]
            else:
                items = [item for item in items if item not in named]
            altered[name] = ",".join(items)
    return validate(altered)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _unknown(name: str) -> InvalidTopicConfig:
    nearest = difflib.get_close_matches(name, TOPIC_CONFIGS, n=1) if len(name) <= _NAME_COMPARED_LENGTH else []
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return InvalidTopicConfig(f"{name} is not a topic config.{hint}")
