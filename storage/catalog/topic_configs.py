"""The topic configs of Apache Kafka 4: names, types, defaults, which values are accepted, and what they do here.

The one table that CreateTopics, AlterConfigs, DescribeConfigs and docs/reference/topic-configs.md are read off. A value is kept in the form
Kafka would print it. What a broker does about it is the config's `ConfigEffect`: Connect, Streams and Schema Registry create compacted
topics and give up if they cannot, so what is not enforced yet is accepted, and said to be so wherever it is described.
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


class ConfigEffect(Enum):
    """What a broker does about a config."""

    ENFORCED = "enforced"
    NOT_YET = "kept, not yet enforced"
    """No record goes because a newer one has its key."""
    NOTHING_TO_DO = "kept, nothing to act on"
    """It concerns disks, replicas or elections, which brokers here do not have."""
    REFUSED = "refused"
    """Only the default is accepted."""


class TopicConfig(NamedTuple):
    """`synonym` is the broker config that would supply the default in Kafka; None where there is none."""

    name: str
    type: ConfigType
    default: str
    rule: Rule
    synonym: str | None
    effect: ConfigEffect
    meaning: str
    """What it asks for; where there is nothing to do or it is refused, why."""
    idle: str | None = None
    """The value of a config not enforced yet that asks for nothing that is missing."""

    @property
    def documentation(self) -> str:
        """What DescribeConfigs says of it."""
        return self.meaning if self.effect is ConfigEffect.ENFORCED else f"{_INTRODUCTION[self.effect]} {self.meaning}"


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


_INTRODUCTION: Final = {
    ConfigEffect.NOT_YET: "Kept, not yet enforced: no record goes because a newer one has its key.",
    ConfigEffect.NOTHING_TO_DO: "Kept for tools, without effect:",
    ConfigEffect.REFUSED: "Other values are refused:",
}
_NO_FILES: Final = "a broker here keeps no log files."
_DURABLE: Final = "what is acknowledged is durable."
_NO_REPLICATION: Final = "there is no replication between brokers."
_NO_TIER: Final = "there is no second tier, the whole log lies in the object store."
_CODECS: Final = _one_of("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer")

_ENFORCED, _NOT_YET, _NOTHING_TO_DO, _REFUSED = ConfigEffect
_INT, _LONG, _BOOLEAN = ConfigType.INT, ConfigType.LONG, ConfigType.BOOLEAN
_STRING, _LIST, _DOUBLE = ConfigType.STRING, ConfigType.LIST, ConfigType.DOUBLE

_TABLE: Final = (
    TopicConfig(
        "cleanup.policy", _LIST, "delete", _cleanup_policy, "log.cleanup.policy",
        _NOT_YET, "delete: old records go by time and size. compact: they go when a newer one has their key. "
        "Enforced already: delete; where compact is named, records without a key are refused; where delete is not, DeleteRecords is.",
        idle="delete",
    ),
    TopicConfig(
        "compression.gzip.level", _INT, "-1",
        lambda text: "-1" if text == "-1" else _integer(1, 9)(text), "compression.gzip.level",
        _ENFORCED, "With compression.type=gzip, how hard other batches are compressed.",
    ),
    TopicConfig(
        "compression.lz4.level", _INT, "9", _integer(1, 17), "compression.lz4.level",
        _ENFORCED, "With compression.type=lz4, how hard other batches are compressed: 9 is the fast compressor, above 12 counts as 12.",
    ),
    TopicConfig(
        "compression.type", _STRING, "producer", _CODECS, "compression.type",
        _ENFORCED, "The codec that batches are kept in. producer: as they come. Batches of another codec are compressed again "
        "before they are stored.",
    ),
    TopicConfig(
        "compression.zstd.level", _INT, "3", _integer(-131_072, 22), "compression.zstd.level",
        _ENFORCED, "With compression.type=zstd, how hard other batches are compressed; above 19 counts as 19.",
    ),
    TopicConfig(
        "delete.retention.ms", _LONG, str(_DAY_MS), _long(0), "log.cleaner.delete.retention.ms",
        _NOT_YET, "How long compaction keeps the mark of a deleted key.",
    ),
    TopicConfig("file.delete.delay.ms", _LONG, "60000", _long(0), "log.segment.delete.delay.ms", _NOTHING_TO_DO, _NO_FILES),
    TopicConfig("flush.messages", _LONG, str(_LONG_MAX), _long(1), "log.flush.interval.messages", _NOTHING_TO_DO, _DURABLE),
    TopicConfig("flush.ms", _LONG, str(_LONG_MAX), _long(0), "log.flush.interval.ms", _NOTHING_TO_DO, _DURABLE),
    TopicConfig("follower.replication.throttled.replicas", _LIST, "", _throttled_replicas, None, _NOTHING_TO_DO, _NO_REPLICATION),
    TopicConfig("index.interval.bytes", _INT, "4096", _integer(0, _INT_MAX), "log.index.interval.bytes", _NOTHING_TO_DO, _NO_FILES),
    TopicConfig("leader.replication.throttled.replicas", _LIST, "", _throttled_replicas, None, _NOTHING_TO_DO, _NO_REPLICATION),
    TopicConfig("local.retention.bytes", _LONG, "-2", _long(-2), "log.local.retention.bytes", _NOTHING_TO_DO, _NO_TIER),
    TopicConfig("local.retention.ms", _LONG, "-2", _long(-2), "log.local.retention.ms", _NOTHING_TO_DO, _NO_TIER),
    TopicConfig(
        "max.compaction.lag.ms", _LONG, str(_LONG_MAX), _long(1), "log.cleaner.max.compaction.lag.ms",
        _NOT_YET, "How long a record may stay uncompacted.",
    ),
    TopicConfig(
        "max.message.bytes", _INT, str(BATCH_BYTES_DEFAULT_MAX), _integer(0, FRAME_BYTES_MAX), "message.max.bytes",
        _ENFORCED, "The largest batch that is accepted, as it was sent, header included.",
    ),
    TopicConfig(
        "message.timestamp.after.max.ms", _LONG, "3600000", _long(0), "log.message.timestamp.after.max.ms",
        _ENFORCED, "How far a record's timestamp may lie ahead of the broker's clock, with CreateTime.",
    ),
    TopicConfig(
        "message.timestamp.before.max.ms", _LONG, str(_LONG_MAX), _long(0), "log.message.timestamp.before.max.ms",
        _ENFORCED, "How far a record's timestamp may lie behind the broker's clock, with CreateTime.",
    ),
    TopicConfig(
        "message.timestamp.type", _STRING, "CreateTime", _one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
        _ENFORCED, "Whose time the records carry: the producer's, or the broker's.",
    ),
    TopicConfig(
        "min.cleanable.dirty.ratio", _DOUBLE, "0.5", _ratio, "log.cleaner.min.cleanable.ratio",
        _NOT_YET, "How much of the log may be uncompacted before it is compacted.",
    ),
    TopicConfig(
        "min.compaction.lag.ms", _LONG, "0", _long(0), "log.cleaner.min.compaction.lag.ms",
        _NOT_YET, "How long a record stays uncompacted at least.",
    ),
    TopicConfig("min.insync.replicas", _INT, "1", _integer(1, _INT_MAX), "min.insync.replicas", _NOTHING_TO_DO, _DURABLE),
    TopicConfig("preallocate", _BOOLEAN, "false", _boolean, "log.preallocate", _NOTHING_TO_DO, _NO_FILES),
    TopicConfig("remote.log.copy.disable", _BOOLEAN, "false", _boolean, None, _REFUSED, _NO_TIER),
    TopicConfig("remote.log.delete.on.disable", _BOOLEAN, "false", _boolean, None, _REFUSED, _NO_TIER),
    TopicConfig("remote.storage.enable", _BOOLEAN, "false", _boolean, None, _REFUSED, _NO_TIER),
    TopicConfig(
        "retention.bytes", _LONG, "-1", _long(-1), "log.retention.bytes",
        _ENFORCED, "How many bytes of a partition are kept; -1 for all. More are kept where no whole entry or segment is too much.",
    ),
    TopicConfig(
        "retention.ms", _LONG, str(7 * _DAY_MS), _long(-1), "log.retention.ms",
        _ENFORCED, "How long records are kept; -1 forever. They go when all records of their entry or segment are older.",
    ),
    TopicConfig("segment.bytes", _INT, str(2**30), _integer(14, _INT_MAX), "log.segment.bytes", _NOTHING_TO_DO, _NO_FILES),
    TopicConfig("segment.index.bytes", _INT, "10485760", _integer(4, _INT_MAX), "log.index.size.max.bytes", _NOTHING_TO_DO, _NO_FILES),
    TopicConfig("segment.jitter.ms", _LONG, "0", _long(0), "log.roll.jitter.ms", _NOTHING_TO_DO, _NO_FILES),
    TopicConfig("segment.ms", _LONG, str(7 * _DAY_MS), _long(1), "log.roll.ms", _NOTHING_TO_DO, _NO_FILES),
    TopicConfig(
        "unclean.leader.election.enable", _BOOLEAN, "false", _boolean, "unclean.leader.election.enable",
        _NOTHING_TO_DO, "there are no leaders to elect.",
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
        if config.effect is ConfigEffect.REFUSED and kept[name] != config.default:
            raise InvalidTopicConfig(f"{name}={value}: must be {config.default}: {config.meaning.removesuffix('.')}")
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


def retention_ms(configs: Mapping[str, str]) -> int | None:
    """Return how long a topic with these configs keeps records. None: forever, as where `cleanup.policy` does not name delete."""
    kept_ms = integer(configs, "retention.ms") if "delete" in value_of(configs, "cleanup.policy").split(",") else -1
    return None if kept_ms < 0 else kept_ms


def not_enforced(configs: Mapping[str, str]) -> list[str]:
    """Names of `configs` that ask for something no broker does yet."""
    known = (config for name in configs if (config := TOPIC_CONFIGS.get(name)) is not None)
    return sorted(config.name for config in known if config.effect is ConfigEffect.NOT_YET and configs[config.name] != config.idle)


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
