"""Probes of topics: created, described, grown, emptied, deleted, and every way to ask for that wrongly."""

import uuid
from typing import Any, Final

from tests.compat.second_opinion.asking import Line, latest, until, versions
from tests.kit.record_batches import record_batch

TIMEOUT_MS: Final = 10_000


def topic(name: str, partitions: int = 1, replication_factor: int = 1, **configs: str) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def create(line: Line, *topics: dict[str, Any]) -> None:
    """Not a probe: what others need. Apache Kafka's brokers hear of a topic some time after it was created."""
    answer = line.ask("", "CreateTopics", latest("CreateTopics"), {"topics": topics, "timeout": TIMEOUT_MS}, kept=False)
    assert all(one["error_code"] == 0 for one in answer["topics"]), answer
    asked = [
        {"name": one["name"], "partitions": [{"partition_index": index, "timestamp": -1} for index in range(one["num_partitions"])]}
        for one in topics
    ]

    def served() -> bool:
        found = line.ask("", "ListOffsets", 5, {"replica_id": -1, "topics": asked}, kept=False)["topics"]
        return not any(part["error_code"] for one in found for part in one["partitions"])

    until(served)


def append(line: Line, name: str, partition: int = 0, *batches: bytearray) -> None:
    """Not a probe: what others need."""
    for batch in batches or (record_batch(b"a", b"b", b"c", timestamps=(1_700_000_000_000, 1_700_000_001_000, 1_700_000_002_000)),):
        data = [{"name": name, "partition_data": [{"index": partition, "records": bytes(batch)}]}]
        answer = line.ask("", "Produce", 9, {"acks": -1, "timeout": TIMEOUT_MS, "topic_data": data}, kept=False)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0, answer


def topic_id(line: Line, name: str) -> uuid.UUID:
    """Not a probe: what others need."""
    answer = line.ask("", "Metadata", 12, {"topics": [{"name": name}]}, kept=False)
    return uuid.UUID(answer["topics"][0]["topic_id"])


def creation(line: Line) -> None:
    for version in versions("CreateTopics"):

        def asks(title: str, *topics: dict[str, Any], v: int = version, **more: Any) -> None:
            answer = line.ask(title, "CreateTopics", v, {"topics": topics, "timeout": TIMEOUT_MS, **more}, kept=False)
            for one in answer.get("topics", []):
                # Which keys there are, and their defaults, is a probe of its own (configs.py).
                one.pop("configs", None)
            line.asked.keep(title, "CreateTopics", v, answer or None)

        asks("one", topic(f"created-{version}", 3))
        asks("one that exists", topic(f"created-{version}", 3))
        asks("twice in one request", topic(f"twice-{version}"), topic(f"twice-{version}"))
        asks("validated only", topic(f"validated-{version}"), validate_only=True)
        asks("validated only, exists", topic(f"created-{version}"), validate_only=True)
        asks("the default of partitions and replicas", topic(f"defaults-{version}", -1, -1))
        asks("no partitions", topic(f"none-{version}", 0))
        asks("minus two partitions", topic(f"negative-{version}", -2))
        asks("replication factor 0", topic(f"unreplicated-{version}", 1, 0))
        asks("replication factor -2", topic(f"minus-two-{version}", 1, -2))
        asks("replication factor 3 with one broker", topic(f"replicated-{version}", 1, 3))
        for title, name in (
            ("empty", ""),
            ("dot", "."),
            ("dots", ".."),
            ("a blank", "a b"),
            ("a slash", "a/b"),
            ("250 long", "x" * 250),
            ("an umlaut", "ä"),
        ):
            asks(f"named {title}", topic(name))
        asks("colliding", topic(f"colliding.{version}"))
        asks("colliding with it", topic(f"colliding_{version}"))
        asks("a config", topic(f"configured-{version}", retention_ms="1000"))
        asks("an unknown config", topic(f"unknown-{version}", no_such_key="1"))
        asks("a config that is no number", topic(f"odd-{version}", retention_ms="long"))
        asks("a config out of range", topic(f"range-{version}", retention_ms="-2"))
        asks("a codec of its own", topic(f"coded-{version}", compression_type="lz4"))
        asks("records elsewhere", topic(f"tiered-{version}", remote_storage_enable="true"))
        asks("a config of null", {**topic(f"null-{version}"), "configs": [{"name": "retention.ms", "value": None}]})
        asks(
            "a config twice",
            {**topic(f"repeated-{version}"), "configs": [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}]},
        )
        asks(
            "assigned by hand",
            {
                **topic(f"assigned-{version}", -1, -1),
                "assignments": [{"partition_index": 0, "broker_ids": [1]}, {"partition_index": 1, "broker_ids": [1]}],
            },
        )
        asks("assigned with a count", {**topic(f"both-{version}", 2, 1), "assignments": [{"partition_index": 0, "broker_ids": [1]}]})
        asks("assigned with a gap", {**topic(f"gap-{version}", -1, -1), "assignments": [{"partition_index": 1, "broker_ids": [1]}]})
        asks("assigned to nobody", {**topic(f"nobody-{version}", -1, -1), "assignments": [{"partition_index": 0, "broker_ids": []}]})
        asks("assigned twice to one", {**topic(f"doubly-{version}", -1, -1), "assignments": [{"partition_index": 0, "broker_ids": [1, 1]}]})
        asks(
            "assigned to a stranger", {**topic(f"stranger-{version}", -1, -1), "assignments": [{"partition_index": 0, "broker_ids": [77]}]}
        )
        asks(
            "assigned unevenly",
            {
                **topic(f"uneven-{version}", -1, -1),
                "assignments": [{"partition_index": 0, "broker_ids": [1]}, {"partition_index": 1, "broker_ids": []}],
            },
        )
        asks("nothing")


def partitions(line: Line) -> None:
    create(line, topic("grows", 2))
    for version in versions("CreatePartitions"):
        count = 3 + version

        def asks(title: str, *topics: dict[str, Any], v: int = version, **more: Any) -> None:
            line.ask(title, "CreatePartitions", v, {"topics": topics, "timeout": TIMEOUT_MS, **more})

        asks("one more", {"name": "grows", "count": count, "assignments": None})
        asks("as many", {"name": "grows", "count": count, "assignments": None})
        asks("fewer", {"name": "grows", "count": 1, "assignments": None})
        asks("none", {"name": "grows", "count": 0, "assignments": None})
        asks("negative", {"name": "grows", "count": -1, "assignments": None})
        asks("of a topic that is missing", {"name": "missing", "count": 3, "assignments": None})
        asks("of no name", {"name": "", "count": 3, "assignments": None})
        asks(
            "twice", {"name": "grows", "count": count + 1, "assignments": None}, {"name": "grows", "count": count + 2, "assignments": None}
        )
        asks("validated only", {"name": "grows", "count": count + 1, "assignments": None}, validate_only=True)
        asks("assigned", {"name": "grows", "count": count + 1, "assignments": [{"broker_ids": [1]}]}, validate_only=True)
        asks("assigned to a stranger", {"name": "grows", "count": count + 1, "assignments": [{"broker_ids": [77]}]}, validate_only=True)
        asks(
            "too many assignments",
            {"name": "grows", "count": count + 1, "assignments": [{"broker_ids": [1]}, {"broker_ids": [1]}]},
            validate_only=True,
        )
        asks("too few assignments", {"name": "grows", "count": count + 2, "assignments": [{"broker_ids": [1]}]}, validate_only=True)
        asks("assigned to nobody", {"name": "grows", "count": count + 1, "assignments": [{"broker_ids": []}]})
        asks("nothing")


def deletion(line: Line) -> None:
    for version in versions("DeleteTopics"):
        name = f"doomed-{version}"
        create(line, topic(name), topic(f"{name}-too"))
        if version < 6:
            line.ask("two", "DeleteTopics", version, {"topic_names": [name, f"{name}-too"], "timeout": TIMEOUT_MS})
            line.ask("one that is missing", "DeleteTopics", version, {"topic_names": [name], "timeout": TIMEOUT_MS})
            line.ask("of no name", "DeleteTopics", version, {"topic_names": [""], "timeout": TIMEOUT_MS})
            line.ask("nothing", "DeleteTopics", version, {"topic_names": [], "timeout": TIMEOUT_MS})
            continue
        line.ask("by name", "DeleteTopics", version, {"topics": [{"name": name}], "timeout": TIMEOUT_MS})
        line.ask("one that is missing", "DeleteTopics", version, {"topics": [{"name": name}], "timeout": TIMEOUT_MS})
        known = topic_id(line, f"{name}-too")
        line.ask("name and id", "DeleteTopics", version, {"topics": [{"name": f"{name}-too", "topic_id": known}], "timeout": TIMEOUT_MS})
        line.ask("neither name nor id", "DeleteTopics", version, {"topics": [{"name": None}], "timeout": TIMEOUT_MS})
        line.ask("twice", "DeleteTopics", version, {"topics": [{"name": f"{name}-too"}, {"name": f"{name}-too"}], "timeout": TIMEOUT_MS})
        create(line, topic(f"{name}-again"))
        again = topic_id(line, f"{name}-again")
        line.ask("by id", "DeleteTopics", version, {"topics": [{"name": None, "topic_id": again}], "timeout": TIMEOUT_MS})
        line.ask("by an id that is gone", "DeleteTopics", version, {"topics": [{"name": None, "topic_id": again}], "timeout": TIMEOUT_MS})


def records_deletion(line: Line) -> None:
    create(line, topic("shrinks", 2))
    for _ in range(4):
        append(line, "shrinks")
    for version in versions("DeleteRecords"):

        def asks(title: str, name: str, partition: int, offset: int, v: int = version, timeout_ms: int = TIMEOUT_MS) -> None:
            asked = [{"name": name, "partitions": [{"partition_index": partition, "offset": offset}]}]
            line.ask(title, "DeleteRecords", v, {"topics": asked, "timeout": timeout_ms})

        asks("before the third", "shrinks", 0, 2 + 2 * version)
        asks("before the first, again", "shrinks", 0, 0)
        asks("without any time", "shrinks", 0, 3 + 2 * version, timeout_ms=0)
        asks("past the end", "shrinks", 0, 99)
        asks("minus two", "shrinks", 0, -2)
        asks("of no such partition", "shrinks", 7, 1)
        asks("of no such topic", "missing", 0, 1)
        asks("of an empty partition, all", "shrinks", 1, -1)
    line.ask(
        "all",
        "DeleteRecords",
        2,
        {"topics": [{"name": "shrinks", "partitions": [{"partition_index": 0, "offset": -1}]}], "timeout": TIMEOUT_MS},
    )
    line.ask("nothing", "DeleteRecords", 2, {"topics": [], "timeout": TIMEOUT_MS})


def metadata(line: Line) -> None:
    create(line, topic("described", 3))
    known = topic_id(line, "described")
    for version in versions("Metadata"):
        line.ask("one topic", "Metadata", version, {"topics": [{"name": "described"}], "allow_auto_topic_creation": False})
        line.ask(
            "one twice", "Metadata", version, {"topics": [{"name": "described"}, {"name": "described"}], "allow_auto_topic_creation": False}
        )
        line.ask("a missing one", "Metadata", version, {"topics": [{"name": "missing"}], "allow_auto_topic_creation": True})
        line.ask("a bad name", "Metadata", version, {"topics": [{"name": "a b"}], "allow_auto_topic_creation": True})
        line.ask("no name", "Metadata", version, {"topics": [{"name": ""}], "allow_auto_topic_creation": False})
        if version >= 1:
            line.ask("none", "Metadata", version, {"topics": []})
        if version >= 8:
            line.ask(
                "with operations",
                "Metadata",
                version,
                {
                    "topics": [{"name": "described"}],
                    "include_cluster_authorized_operations": True,
                    "include_topic_authorized_operations": True,
                },
            )
        if version >= 10:
            line.ask("by id", "Metadata", version, {"topics": [{"name": None, "topic_id": known}]})
            line.ask("by a strange id", "Metadata", version, {"topics": [{"name": None, "topic_id": uuid.UUID(int=12345)}]})
            line.ask("by no id and no name", "Metadata", version, {"topics": [{"name": None}]})
    asked = {"topics": [{"name": "described"}, {"name": "missing"}, {"name": "a b"}], "response_partition_limit": 2000, "cursor": None}
    line.ask("three", "DescribeTopicPartitions", 0, asked)
    limited = {"topics": [{"name": "described"}], "response_partition_limit": 2, "cursor": None}
    line.ask("two partitions", "DescribeTopicPartitions", 0, limited)
    line.ask("the rest", "DescribeTopicPartitions", 0, {**limited, "cursor": {"topic_name": "described", "partition_index": 2}})
    line.ask(
        "a cursor past the end", "DescribeTopicPartitions", 0, {**limited, "cursor": {"topic_name": "described", "partition_index": 9}}
    )
    line.ask("a negative cursor", "DescribeTopicPartitions", 0, {**limited, "cursor": {"topic_name": "described", "partition_index": -1}})
    line.ask("a limit of zero", "DescribeTopicPartitions", 0, {**limited, "response_partition_limit": 0})


PROBES: Final = (creation, partitions, deletion, records_deletion, metadata)
