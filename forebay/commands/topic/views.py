"""Topics for people."""

from collections.abc import Sequence

from forebay.commands.topic.administration import TopicFacts, TopicLine
from forebay.kafka_client.tables import align, facts

_SET_FOR_TOPIC = "DYNAMIC_TOPIC_CONFIG"


def topics_table(topics: Sequence[TopicLine]) -> str:
    return align(("NAME", "PARTITIONS", "REPLICAS"), [(topic.name, topic.partitions, topic.replication_factor) for topic in topics])


def topic_table(topic: TopicFacts) -> str:
    """A topic, with those of its configs that were set for it."""
    given = [f"{name}={config.value}" for name, config in topic.configs.items() if config.source == _SET_FOR_TOPIC]
    rows = [
        (one.partition, one.leader, _ids(one.replicas), _ids(one.isr), one.start, one.end, one.end - one.start) for one in topic.partitions
    ]
    return "\n\n".join(
        (
            facts([("name", topic.name), ("id", topic.id), ("configs", ", ".join(given) or "defaults")]),
            align(("PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "RECORDS"), rows),
        )
    )


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "none"
