"""The loads and their targets: Apache Kafka, and a broker over each kind of store. A slower target is given fewer records."""

import contextlib
import enum
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from bench import meter, processes
from bench.processes import DISK, HOST, KAFKA, METRICS_AGE_MAX_S, NATIVE, Place, Target, fresh
from runtime.clock import SystemClock
from services.versitygw import url_of

FILES: Final = "files"
S3: Final = "s3"
S3_30_MS: Final = "s3-30ms"
S3_100_MS: Final = "s3-100ms"
OURS: Final = (FILES, S3, S3_30_MS, S3_100_MS)
TARGETS: Final = (KAFKA, *OURS)
"""The page shows these."""
FILES_2: Final = "files-2"
FILES_2_BY_PARTITION: Final = "files-2-by-partition"
S3_2: Final = "s3-2"
S3_2_BY_PARTITION: Final = "s3-2-by-partition"
TITLES: Final[Mapping[str, str]] = {
    KAFKA: "Kafka",
    FILES: "files",
    S3: "S3",
    S3_30_MS: "S3 + 30 ms",
    S3_100_MS: "S3 + 100 ms",
}
DELAYS_MS: Final[Mapping[str, float]] = {S3: 0.0, S3_30_MS: 30.0, S3_100_MS: 100.0}
"""How much later the S3 server of a target answers. A target that is not here has none."""
WARM_UP_SHARE: Final = 0.2
KAFKA_WARM_UP_TIMES: Final = 2
"""What a target is given of a load before it is measured. Kafka is compiled while it runs: with a fifth it became faster from round to
round."""
SECONDS_MIN: Final = 0.5
FILLING_PRODUCERS: Final = 8


@dataclass(frozen=True, slots=True)
class Workers:
    """`count` brokers of one machine over the stores of the target `of`, and which of them leads a partition (`kafka.leader`)."""

    of: str
    count: int
    leader: str


WORKERS: Final[Mapping[str, Workers]] = {
    FILES_2: Workers(FILES, 2, "self"),
    FILES_2_BY_PARTITION: Workers(FILES, 2, "partition"),
    S3_2: Workers(S3, 2, "self"),
    S3_2_BY_PARTITION: Workers(S3, 2, "partition"),
}
"""Targets that are measured when they are named."""

_clock = SystemClock()


@dataclass(slots=True)
class OpenTarget:
    """A target that listens: at several addresses if it has several workers."""

    name: str
    brokers: Sequence[Target]
    _read_s: float = float("-inf")

    @property
    def is_counted(self) -> bool:
        """Whether it has counters to read: Kafka has none here."""
        return self.name != KAFKA

    @property
    def is_billed(self) -> bool:
        """Whether it asks an S3 server."""
        return like(self.name) in DELAYS_MS

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def cpu_s(self) -> float:
        """CPU seconds of its brokers so far."""
        return sum(meter.used(broker.pid).total_s for broker in self.brokers)

    def peak_rss_bytes(self) -> int:
        """The most that one of its brokers has had resident."""
        return max(meter.peak_rss_bytes(broker.pid) for broker in self.brokers)

    def counters(self) -> dict[str, float]:
        """The counters of its brokers together, none older than this call."""
        time.sleep(max(0.0, self._read_s + METRICS_AGE_MAX_S - _clock.monotonic_s()))
        found: dict[str, float] = defaultdict(float)
        for broker in self.brokers:
            for series, count in processes.latest_counters(broker).items():
                found[series] += count
        self._read_s = _clock.monotonic_s()
        return found


def like(name: str) -> str:
    """The target over the same stores with one broker."""
    return WORKERS[name].of if name in WORKERS else name


@contextlib.contextmanager
def opened(name: str, folder: Path) -> Iterator[OpenTarget]:
    """A target over empty stores below `folder`. Raise what `bench.processes` and `services` raise where something does not start."""
    if name == KAFKA:
        with processes.kafka(folder) as server:
            yield OpenTarget(name, [server])
        return
    stores, workers = like(name), WORKERS.get(name)
    with fresh(DISK if stores == FILES else NATIVE, folder) as place, _at_distance(place, DELAYS_MS.get(stores, 0.0)) as place:
        if workers is None:
            with processes.broker(place, {}) as broker:
                yield OpenTarget(name, [broker])
        else:
            with processes.workers(place, {"kafka.leader": workers.leader}, workers.count) as brokers:
                yield OpenTarget(name, brokers)


@contextlib.contextmanager
def _at_distance(place: Place, delay_ms: float) -> Iterator[Place]:
    if not delay_ms:
        yield place
        return
    (endpoint,) = parse_qs(urlsplit(place.storage_url).query)["endpoint"]
    with processes.latency_proxy(urlsplit(endpoint).netloc, delay_ms) as port:
        yield replace(place, storage_url=url_of(HOST, port))


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
SIZES: Final = (
    BesideLoad(
        name="requests-1kib",
        title="a 1 KiB record in each request",
        kind=LoadKind.REQUESTS,
        words=("requests", "--record-bytes", "1024"),
        amounts=_amounts(30_000, 20_000, 10_000, 10_000, 10_000),
    ),
    BesideLoad(
        name="requests-4kib",
        title="a 4 KiB record in each request",
        kind=LoadKind.REQUESTS,
        words=("requests", "--record-bytes", "4096"),
        amounts=_amounts(30_000, 20_000, 10_000, 10_000, 10_000),
    ),
    BesideLoad(
        name="requests-16kib",
        title="a 16 KiB record in each request, one partition",
        kind=LoadKind.REQUESTS,
        words=("requests", "--record-bytes", "16384", "--partitions", "1"),
        amounts=_amounts(20_000, 5_000, 3_000, 3_000, 3_000),
    ),
    BesideLoad(
        name="e2e-1kib",
        title="200 records of 1 KiB a second, from end to end",
        kind=LoadKind.LATENCY,
        words=("e2e", "--rate", "200", "--record-bytes", "1024"),
        amounts=_amounts(10, 10, 10, 10, 10),
    ),
    BesideLoad(
        name="e2e-1kib-2000",
        title="2,000 records of 1 KiB a second, from end to end",
        kind=LoadKind.LATENCY,
        words=("e2e", "--rate", "2000", "--record-bytes", "1024"),
        amounts=_amounts(10, 10, 10, 10, 10),
    ),
)
"""Loads that are measured when they are named: small and medium records. A latency is that of one partition."""


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
