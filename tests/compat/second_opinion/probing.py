"""All probes against one broker: what it answered, by probe."""

from collections.abc import Callable
from typing import Any, Final

from tests.compat.second_opinion import cluster, configs, groups, records, topics
from tests.compat.second_opinion.asking import Asked, Line

PROBES: Final[tuple[Callable[[Line], None], ...]] = (
    *cluster.PROBES,
    *topics.PROBES,
    *configs.PROBES,
    *records.PROBES,
    *groups.PROBES,
)
FOREBAY_SETTINGS: Final = {"kafka.auto_create_topics": "false", "groups.initial_rebalance_delay": "0s"}
# One partition of the offsets topic: it is loaded once, not whenever another group comes first.
# Retention does not look at records of years ago while a slow machine still asks for them.
KAFKA_SETTINGS: Final = {"offsets.topic.num.partitions": "1", "log.initial.task.delay.ms": "3600000"}


def probe_all(port: int) -> dict[str, Any]:
    """The answers of the broker at `port`, which is new: it has seen no probe yet."""
    asked = Asked(port)
    for play in PROBES:
        with asked.connect() as line:
            play(line)
    return asked.answers
