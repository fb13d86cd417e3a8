"""Topics for people."""

from collections.abc import Sequence

import msgspec

from forebay.commands.topic.administration import TopicFacts, TopicLine
from forebay.kafka_client.text import NOTHING, align, facts

_SET_FOR_TOPIC = "DYNAMIC_TOPIC_CONFIG"


def topics_table(topics: Sequence[TopicLine]) -> str:
    return align(("NAME", "PARTITIONS", "REPLICAS"), [(topic.name, topic.partitions, topic.replication_factor) for topic in topics])


def topic_table(topic: TopicFacts) -> str:
    """A topic, with those of its configs that were set for it."""
    given = [f"{name}={config.value}" for name, config in topic.configs.items() if config.source == _SET_FOR_TOPIC]
    rows = [
        (one.partition, one.leader, _ids(one.replicas), _ids(one.isr), one.start, one.end, one.end - one.start, _size(one.size_bytes))
        for one in topic.partitions
    ]
    return "\n\n".join(
        (
            facts([("name", topic.name), ("id", topic.id), ("size", _total(topic)), ("configs", ", ".join(given) or "defaults")]),
            align(("PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "RECORDS", "BYTES"), rows),
        )
    )


class TrimmedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """`records` from `start` on, before `to`, which is the new start."""

    partition: int
    start: int
    to: int
    records: int


def trim_table(partitions: Sequence[TrimmedPartition]) -> str:
    return align(("PARTITION", "START", "NEW START", "RECORDS"), [(one.partition, one.start, one.to, one.records) for one in partitions])


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _total(topic: TopicFacts) -> str:
    known = [one.size_bytes for one in topic.partitions if isinstance(one.size_bytes, int)]
    unknown = len(topic.partitions) - len(known)
    return counted(sum(known), "byte") + (f", without {counted(unknown, 'partition')} of unknown size" if unknown else "")


def _size(size_bytes: int | msgspec.UnsetType | None) -> int | str:
    return size_bytes if isinstance(size_bytes, int) else NOTHING


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "none"
