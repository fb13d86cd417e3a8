"""What tools expect to read of a broker's configuration: how it is reached, what it assumes for topics, what it is."""

from typing import Final, NamedTuple

from broker.groups.state import GroupSettings
from broker.handling.config_sources import DEFAULT, STATIC_BROKER
from storage.catalog.brokers import BrokerRecord, Role
from storage.catalog.topic_configs import TOPIC_CONFIGS, ConfigType
from storage.limits import FETCH_RESPONSE_BYTES_MAX, FRAME_BYTES_MAX

LOG_DIR: Final = "object-store"
PROTOCOL_LEVEL: Final = "4.0"
"""The release of Kafka whose tools may take this broker for their own. Some read it to decide which features to offer."""

_MINUTE_MS: Final = 60_000


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
        BrokerConfig(config.synonym, config.type, config.default, DEFAULT, config.documentation)
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
