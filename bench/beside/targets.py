"""What the loads are put on: Apache Kafka, and a broker over each kind of store. All of them run at once, until the run is over."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from bench import meter, processes
from bench.processes import HOST, METRICS_AGE_MAX_S, Target
from bench.stores import DISK, KAFKA, NATIVE, Place, fresh
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
        """What its brokers have used so far."""
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
