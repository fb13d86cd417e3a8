"""What clients put on a cluster, and where they put it. Pure data."""

from dataclasses import dataclass
from typing import Final

from storage.limits import KIB


@dataclass(frozen=True, slots=True)
class ScaleLoad:
    """Batches of `batch_bytes` bytes and `batch_records` records come as a Poisson process, `broker_batches_per_s` to each broker and
    `partition_batches_per_s` of each partition; one of the two is 0. Each picks one of the partitions of its broker at random.
    """

    name: str
    title: str
    batch_bytes: int
    batch_records: int
    broker_batches_per_s: float = 0.0
    partition_batches_per_s: float = 0.0

    def batches_per_s(self, brokers: int, partitions: int) -> float:
        """What one broker is sent."""
        return self.broker_batches_per_s + self.partition_batches_per_s * partitions / brokers


LOADS: Final = (
    ScaleLoad("sparse", "a record of 200 B to each partition every 20 s", 270, 1, partition_batches_per_s=0.05),
    ScaleLoad("medium", "1,000 batches of 4 KiB a second to each broker", 4 * KIB, 20, broker_batches_per_s=1_000.0),
    ScaleLoad("full", "48 MiB a second to each broker, in batches of 64 KiB", 64 * KIB, 64, broker_batches_per_s=768.0),
)

HOT: Final = ScaleLoad("hot", "100 batches of 4 KiB a second to each broker", 4 * KIB, 20, broker_batches_per_s=100.0)
"""To few partitions, so that brokers collide often enough to be counted."""

ONE_LEADER: Final = "partition"
"""`kafka.leader`: every client finds the same broker for a partition."""
ANY_BROKER: Final = "self"
"""`kafka.leader`: every broker names itself, so a partition is written through all brokers."""
LEADERS: Final = (ONE_LEADER, ANY_BROKER)


@dataclass(frozen=True, slots=True)
class Shape:
    """One cluster under one load."""

    load: ScaleLoad
    leader: str
    brokers: int
    partitions: int

    @property
    def partitions_written(self) -> int:
        """By one broker, on average."""
        return self.partitions if self.leader == ANY_BROKER else max(1, self.partitions // self.brokers)


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """The settings of the brokers of a simulated cluster, those of S3 and Oxia but for early slices, and how far away their stores are."""

    flush_interval_s: float = 0.25
    flush_bytes: int = 8 * KIB * KIB
    early_bytes_per_s: float = 0.0
    """Nothing goes early unless a run says so: the path of objects is the one that scales worse."""
    shards: int = 4
    oxia_write_s: float = 0.002
    oxia_read_s: float = 0.0005
    put_s: float = 0.1
    get_s: float = 0.03
    fetch_partitions: int = 20
    """Partitions that one consumer waits for."""


SETTINGS: Final = ScaleSettings()
