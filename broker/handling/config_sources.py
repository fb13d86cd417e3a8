"""Where a config value comes from, in the numbers of CreateTopics and DescribeConfigs."""

from typing import Final

from storage.catalog.topic_configs import TopicConfigValue

TOPIC: Final = 1
STATIC_BROKER: Final = 4
DEFAULT: Final = 5


def source_of(held: TopicConfigValue) -> int:
    return TOPIC if held.is_set else DEFAULT
