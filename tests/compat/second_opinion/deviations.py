"""The differences from Apache Kafka that are meant, each with its reason. What is not here is a fault of Forebay's, or new in Kafka."""

import fnmatch
from typing import Final, NamedTuple

from tests.compat.second_opinion.differences import Difference


class Deviation(NamedTuple):
    """Of `api`, in the probes whose titles match one of `titles`, at the places that match one of `where` (shell patterns)."""

    api: str
    titles: tuple[str, ...]
    where: tuple[str, ...]
    reason: str

    def explains(self, difference: Difference) -> bool:
        return (
            difference.api == self.api
            and any(fnmatch.fnmatchcase(difference.title, title) for title in self.titles)
            and any(fnmatch.fnmatchcase(difference.where, where) for where in self.where)
        )


_ALL: Final = ("*",)
_BELIEVED: Final = (
    "Where the header of several records names a time later than its base time as the greatest, it is believed; Kafka reads every record."
)

DEVIATIONS: Final = (
    Deviation(
        "ApiVersions",
        ("ranges",),
        ("api_keys.*", "supported_features", "finalized_features"),
        "What is not served is not offered: no transactions, share groups or new consumer protocol yet, no topic ids in Produce and in "
        "offset requests, no APIs between brokers, and no feature levels, because no feature is complete.",
    ),
    Deviation(
        "CreateTopics",
        ("replication factor 3 with one broker",),
        _ALL,
        "Any replication factor is accepted and reported as asked: durability is the object store's, and tools that insist on 3 go on.",
    ),
    Deviation(
        "CreateTopics",
        ("assigned to a stranger",),
        _ALL,
        "An assignment by hand is checked for sense and not kept, as every broker serves every partition: its brokers need not be alive.",
    ),
    Deviation(
        "CreatePartitions",
        ("assigned to a stranger",),
        _ALL,
        "As with CreateTopics: an assignment is checked for sense and not kept, its brokers need not be alive.",
    ),
    Deviation(
        "CreateTopics",
        ("validated only",),
        ("topics.*.topic_id",),
        "A topic that is only validated has no id; Kafka makes one up that no topic will have.",
    ),
    Deviation(
        "Metadata",
        ("by id", "by a strange id", "by no id and no name"),
        _ALL,
        "Kafka answers a request by id before v12, or by neither id nor name, with an error and no brokers; here the brokers are told, and "
        "what is neither id nor name is INVALID_REQUEST instead of UNKNOWN_SERVER_ERROR.",
    ),
    Deviation(
        "DescribeQuorum",
        ("of the controllers",),
        (
            *("topics.*.partitions.*.leader_epoch", "topics.*.partitions.*.high_watermark"),
            *("topics.*.partitions.*.current_voters.*.log_end_offset", "nodes.*.listeners.*.name"),
        ),
        "There is no quorum, and no log of it: the live brokers are told as its voters, at the listener that was asked by, so that tools "
        "have what they look for.",
    ),
    Deviation(
        "DescribeTopicPartitions",
        ("three",),
        ("topics.*.topic_authorized_operations",),
        "Operations are told of topics that exist.",
    ),
    Deviation(
        "DescribeConfigs",
        ("a topic", "no key"),
        ("results.*.configs.min.insync.replicas.config_source",),
        "A default here; Kafka 4 sets it for the cluster when it formats its storage.",
    ),
    Deviation(
        "DescribeConfigs",
        ("a topic with synonyms",),
        ("results.*.configs.retention.ms.synonyms",),
        "The broker's log.retention.ms is named: it has a value here, and is unset in Kafka, which falls back to log.retention.hours.",
    ),
    Deviation(
        "DescribeConfigs",
        ("one twice",),
        _ALL,
        "What is named again is not described again: 100,000 times one name would be an answer of 125 MB.",
    ),
    Deviation(
        "DescribeConfigs",
        ("some of a broker",),
        _ALL,
        "Brokers are configured where they are started, so nothing of a broker is alterable. log.retention.ms has a value, and a group "
        "has a greatest size.",
    ),
    Deviation(
        "DescribeConfigs",
        ("a group", "client metrics"),
        _ALL,
        "Kafka's keys of groups are of its consumer, share and streams protocols, and client metrics are KIP-714's: none is served.",
    ),
    Deviation("IncrementalAlterConfigs", ("an unknown operation",), _ALL, "INVALID_REQUEST says what UNKNOWN_SERVER_ERROR does not."),
    Deviation(
        "ListConfigResources",
        ("all", "of type 8"),
        ("config_resources",),
        "Brokers have no loggers to be configured through the protocol.",
    ),
    Deviation(
        "Produce",
        ("transactional without an id",),
        ("responses.*.partition_responses.*.error_code",),
        "INVALID_TXN_STATE: there are no transactions to be authorized for yet.",
    ),
    Deviation(
        "Produce",
        ("codec 5",),
        ("responses.*.partition_responses.*.error_code",),
        "UNSUPPORTED_COMPRESSION_TYPE says what UNKNOWN_SERVER_ERROR does not.",
    ),
    Deviation(
        "Produce",
        ("what does not decompress, *",),
        ("responses.*.partition_responses.*.error_code",),
        "INVALID_RECORD says what UNKNOWN_SERVER_ERROR does not, and is as final.",
    ),
    Deviation(
        "Produce",
        ("bytes left over",),
        _ALL,
        "Bytes after the batch are refused; Kafka drops them without a word, and they may have been records.",
    ),
    Deviation(
        "Produce",
        ("log append time set",),
        _ALL,
        "INVALID_TIMESTAMP: Kafka lets an uncompressed batch claim that the broker stamped it. Consumers would believe it.",
    ),
    Deviation(
        "Produce",
        _ALL,
        ("responses.*.partition_responses.*.log_start_offset",),
        "A refused batch is not answered with the log's start: a partition that was not read for it may have another by now.",
    ),
    Deviation(
        "ListOffsets",
        ("a time within, to a topic: *",),
        _ALL,
        _BELIEVED,
    ),
    Deviation(
        "Fetch",
        ("what is kept of a time within, to a topic",),
        _ALL,
        _BELIEVED,
    ),
    Deviation(
        "Produce",
        ("0 again", "0 again, later"),
        ("responses.*.partition_responses.*.log_append_time",),
        "A duplicate in a topic with CreateTime has no append time (-1), like the batch it repeats; Kafka answers with its timestamp.",
    ),
    Deviation(
        "DescribeProducers",
        ("of three partitions",),
        ("topics.*.partitions.*.active_producers.*.last_timestamp",),
        "When the last batch was appended, not what timestamp it carries.",
    ),
    Deviation(
        "Fetch",
        ("before the log start", "past the end", "minus one", "one of two is past the end"),
        ("responses.*.partitions.*.*",),
        "OFFSET_OUT_OF_RANGE comes with where the log begins and ends: a client need not ask for it.",
    ),
    Deviation(
        "Fetch",
        ("no such partition", "no such topic", "one of two is not there"),
        ("responses.*.partitions.*.aborted_transactions",),
        "Null and no aborted transactions are the same to clients.",
    ),
    Deviation(
        "Fetch",
        ("one of two is not there: how long",),
        ("waited",),
        "Told at once; Kafka tells it when another partition has something, or the time is over.",
    ),
    Deviation(
        "Fetch",
        ("a session begins", "a session begins anew"),
        ("session_id",),
        "There are no sessions: every request names what it wants. 0 tells clients so, and they go on without.",
    ),
    Deviation(
        "Fetch",
        ("one partition twice",),
        ("responses.*.partitions",),
        "Each is answered; Kafka merges them.",
    ),
    Deviation(
        "OffsetFetch",
        ("what was committed with it",),
        ("topics.*.partitions.*.committed_leader_epoch",),
        "A leader epoch above 0 came with the offsets of a group that moved here. A Java consumer that is given it back waits for an epoch "
        "that never comes, so it is not kept.",
    ),
    Deviation(
        "ListOffsets",
        ("one partition twice", "one partition twice, another", "one topic twice", "by a replica, one topic twice"),
        ("topics", "topics.*.partitions"),
        "Each is answered; Kafka merges them.",
    ),
    Deviation(
        "DescribeGroups",
        ("one twice",),
        _ALL,
        "What is named again is not described again: a group may be megabytes.",
    ),
    Deviation(
        "DescribeGroups",
        ("cooperative, before it synced",),
        ("groups.*.members.*.member_assignment",),
        "Between a join and its sync nobody has an assignment; Kafka shows that of the generation before.",
    ),
    Deviation(
        "FindCoordinator",
        ("a transaction", "no transaction"),
        _ALL,
        "Transactions are not served yet: their producers are told so in words, with the error that makes clients of that version give up.",
    ),
    Deviation(
        "FindCoordinator",
        _ALL,
        ("error_message",),
        "No error has no message; Kafka's says NONE.",
    ),
)


def explanation(difference: Difference) -> Deviation | None:
    return next((one for one in DEVIATIONS if one.explains(difference)), None)
