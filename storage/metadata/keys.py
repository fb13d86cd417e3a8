"""Every key of the metadata store, in one place (DESIGN.md §4). Values: storage/formats.

    llog/cluster                                            cluster id, format version        written once
    llog/topics/{name}                                      the topic                         CAS
    llog/topic-ids/{topic_id}                               its name                          written once, deleted with the topic
    llog/{topic_id}/partitions/{p:05}/meta/control          THE record of the partition       CAS only
    llog/{topic_id}/partitions/{p:05}/index/{end:020}       chunk of entries                  put-if-absent
    llog/{topic_id}/partitions/{p:05}/segments/{end:020}    segment entry                     put-if-absent
    llog/{topic_id}/partitions/{p:05}/producers/{pid:020}   spilled producer state            CAS
    llog/brokers/{id:010}                                   a live broker                     ephemeral
    llog/producer-ids                                       the next block of producer ids    CAS

Every key of a partition has the partition key `{topic_id}/{p}`; all others have `llog`.
"""

from storage.metadata.port import Key, children_of
from storage.vocabulary import PartitionId, TopicId

ROOT = "llog"

CLUSTER = Key(f"{ROOT}/cluster", ROOT)
PRODUCER_IDS = Key(f"{ROOT}/producer-ids", ROOT)
BROKERS_PREFIX = f"{ROOT}/brokers/"
TOPICS_PREFIX = f"{ROOT}/topics/"
CONTROL_SUFFIX = "/meta/control"


def topic(name: str) -> Key:
    return Key(f"{ROOT}/topics/{name}", ROOT)


def topics() -> tuple[Key, str]:
    start, end = children_of(f"{ROOT}/topics")
    return Key(start, ROOT), end


def topic_id(topic_id: str) -> Key:
    return Key(f"{ROOT}/topic-ids/{topic_id}", ROOT)


def broker(broker_id: int) -> Key:
    return Key(f"{ROOT}/brokers/{broker_id:010}", ROOT)


def brokers() -> tuple[Key, str]:
    start, end = children_of(f"{ROOT}/brokers")
    return Key(start, ROOT), end


class PartitionKeys:
    """The keys of one partition."""

    __slots__ = ("control", "index_prefix", "partition_key", "producers_prefix", "segments_prefix")

    def __init__(self, partition: PartitionId) -> None:
        root = f"{ROOT}/{partition.topic_id}/partitions/{partition.partition:05}"
        self.partition_key = f"{partition.topic_id}/{partition.partition}"
        self.control = Key(f"{root}{CONTROL_SUFFIX}", self.partition_key)
        self.index_prefix = f"{root}/index/"
        self.segments_prefix = f"{root}/segments/"
        self.producers_prefix = f"{root}/producers/"

    def index(self, end: int) -> Key:
        return Key(f"{self.index_prefix}{end:020}", self.partition_key)

    def segment(self, end: int) -> Key:
        return Key(f"{self.segments_prefix}{end:020}", self.partition_key)

    def producer(self, producer_id: int) -> Key:
        return Key(f"{self.producers_prefix}{producer_id:020}", self.partition_key)


def partition_of_control(path: str) -> PartitionId | None:
    """The partition whose control record lives at `path`; None for every other key."""
    parts = path.split("/")
    if len(parts) != 6 or parts[0] != ROOT or parts[2] != "partitions" or not path.endswith(CONTROL_SUFFIX):
        return None
    return PartitionId(TopicId(parts[1]), int(parts[3]))
