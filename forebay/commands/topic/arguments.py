"""What several commands take that are about topics."""

from typing import Annotated, Final

import typer

from forebay.kafka_client.completion import topic_names
from forebay.kafka_client.text import check_name, check_names

PARTITIONS_MAX: Final = 10_000
"""What brokers create at once, Forebay's (storage/catalog/topics.py) and Apache Kafka's."""

TopicNameArgument = Annotated[
    str,
    typer.Argument(
        help="The topic's name; put -- before a name that begins with a dash.",
        metavar="TOPIC",
        autocompletion=topic_names,
        callback=check_name,
    ),
]

Configs = Annotated[list[str] | None, typer.Option("--config", "-c", help="Set this config of the topic; repeatable.", metavar="KEY=VALUE")]

ReplicationFactor = Annotated[
    int | None,
    typer.Option("--replication-factor", "-r", min=1, max=10_000, help="Ask Apache Kafka for this many replicas; Forebay needs none."),
]

TopicNamesArgument = Annotated[
    list[str],
    typer.Argument(
        help="The topics' names; put -- before a name that begins with a dash.",
        metavar="TOPIC...",
        autocompletion=topic_names,
        callback=check_names,
    ),
]


def partition_count(given: int | None) -> int | None:
    """For options that create partitions. Raise `BadParameter` for more than brokers create at once."""
    if given is not None and given > PARTITIONS_MAX:
        raise typer.BadParameter(f"{given:,} partitions are too many: brokers create {PARTITIONS_MAX:,} at most")
    return given
