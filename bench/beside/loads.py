"""The loads, and what each target is asked for. A target whose answers take longer is given fewer records, so that it is done as soon."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.beside.targets import FILES, S3, S3_30_MS, S3_100_MS, like
from bench.stores import KAFKA

WARM_UP_SHARE: Final = 0.2
KAFKA_WARM_UP_TIMES: Final = 2
"""What a target is given of a load before it is measured. Kafka is compiled while it runs: with a fifth it became faster from round to
round."""
SECONDS_MIN: Final = 0.5
FILLING_PRODUCERS: Final = 8


class LoadKind(enum.StrEnum):
    """What is compared, and per what CPU is counted."""

    VOLUME = "volume"
    """MB/s; CPU and dollars per GiB."""
    REQUESTS = "requests"
    """Requests a second; CPU per 1,000 of them."""
    LATENCY = "latency"
    """Milliseconds; CPU per 1,000 records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideLoad:
    """`words` follow `forebay bench`. `amounts` by target are numbers of records, or seconds where the load is a latency."""

    name: str
    title: str
    kind: LoadKind
    words: tuple[str, ...]
    amounts: Mapping[str, int]

    @property
    def reads(self) -> bool:
        """Whether there must be a topic before."""
        return self.words[0] == "consume"


def _amounts(kafka: int, files: int, s3: int, s3_30ms: int, s3_100ms: int) -> dict[str, int]:
    return {KAFKA: kafka, FILES: files, S3: s3, S3_30_MS: s3_30ms, S3_100_MS: s3_100ms}


LOADS: Final = (
    BesideLoad(
        name="produce-1kib",
        title="write 1 KiB records",
        kind=LoadKind.VOLUME,
        words=("produce", "--record-bytes", "1024"),
        amounts=_amounts(1_000_000, 1_000_000, 400_000, 400_000, 400_000),
    ),
    BesideLoad(
        name="produce-1kib-lz4",
        title="write 1 KiB records, lz4",
        kind=LoadKind.VOLUME,
        words=("produce", "--record-bytes", "1024", "--compression", "lz4"),
        amounts=_amounts(1_000_000, 1_000_000, 400_000, 400_000, 400_000),
    ),
    BesideLoad(
        name="produce-100b-lz4",
        title="write 100 B records, lz4",
        kind=LoadKind.VOLUME,
        words=("produce", "--record-bytes", "100", "--compression", "lz4"),
        amounts=_amounts(2_500_000, 2_500_000, 500_000, 500_000, 500_000),
    ),
    BesideLoad(
        name="produce-1kib-x8",
        title="write 1 KiB records, eight producers",
        kind=LoadKind.VOLUME,
        words=("produce", "--record-bytes", "1024", "--producers", "8"),
        amounts=_amounts(1_000_000, 1_000_000, 400_000, 400_000, 400_000),
    ),
    BesideLoad(
        name="consume-1kib",
        title="read 1 KiB records",
        kind=LoadKind.VOLUME,
        words=("consume",),
        amounts=_amounts(1_000_000, 1_000_000, 1_000_000, 1_000_000, 1_000_000),
    ),
    BesideLoad(
        name="requests",
        title="a 100 B record in each request",
        kind=LoadKind.REQUESTS,
        words=("requests",),
        amounts=_amounts(30_000, 20_000, 10_000, 10_000, 10_000),
    ),
    BesideLoad(
        name="e2e",
        title="200 records a second, from end to end",
        kind=LoadKind.LATENCY,
        words=("e2e", "--rate", "200"),
        amounts=_amounts(10, 10, 10, 10, 10),
    ),
)
"""Every load sends to twelve partitions with acks=all but the last, which has one partition."""


def warm_up_times(target: str) -> float:
    """The part of a load, or several times the load, that warms a target."""
    return KAFKA_WARM_UP_TIMES if target == KAFKA else WARM_UP_SHARE


def load_words(load: BesideLoad, target: str, scale: float) -> list[str]:
    """What follows `forebay bench`, without a topic."""
    if load.kind is LoadKind.LATENCY:
        return [*load.words, "--seconds", f"{max(SECONDS_MIN, load.amounts[like(target)] * scale):g}"]
    return [*load.words, "--records", str(_records(load, target, scale))]


def filling_words(load: BesideLoad, target: str, scale: float) -> list[str]:
    """What writes the topic that a load reads: a tenth more than it measures, since it reads that tenth before its clock starts."""
    assert load.reads, "nothing is read"
    records = _records(load, target, scale)
    words = ["produce", "--record-bytes", "1024", "--producers", str(FILLING_PRODUCERS), "--warm-up", "0"]
    return [*words, "--records", str(records + records // 10)]


def _records(load: BesideLoad, target: str, scale: float) -> int:
    return max(1, int(load.amounts[like(target)] * scale))
