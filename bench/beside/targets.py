"""What the loads are put on: Apache Kafka, and a broker over each kind of store. All of them run at once, until the run is over."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from bench import processes
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
TITLES: Final[Mapping[str, str]] = {
    KAFKA: "Kafka",
    FILES: "files",
    S3: "S3",
    S3_30_MS: "S3 + 30 ms",
    S3_100_MS: "S3 + 100 ms",
}
DELAYS_MS: Final[Mapping[str, float]] = {S3: 0.0, S3_30_MS: 30.0, S3_100_MS: 100.0}
"""How much later the S3 server of a target answers. A target that is not here has none."""

_clock = SystemClock()


@dataclass(slots=True)
class OpenTarget:
    """A target that listens."""

    name: str
    broker: Target
    _read_s: float = float("-inf")

    @property
    def is_billed(self) -> bool:
        """Whether it asks an S3 server."""
        return self.name in DELAYS_MS

    def counters(self) -> dict[str, float]:
        """The counters of its broker, none older than this call."""
        time.sleep(max(0.0, self._read_s + METRICS_AGE_MAX_S - _clock.monotonic_s()))
        found = processes.latest_counters(self.broker)
        self._read_s = _clock.monotonic_s()
        return found


@contextlib.contextmanager
def opened(name: str, folder: Path) -> Iterator[OpenTarget]:
    """A target over empty stores below `folder`. Raise what `bench.processes` and `services` raise where something does not start."""
    if name == KAFKA:
        with processes.kafka(folder) as server:
            yield OpenTarget(name, server)
        return
    store = DISK if name == FILES else NATIVE
    with fresh(store, folder) as place, _at_distance(place, DELAYS_MS.get(name, 0.0)) as place, processes.broker(place, {}) as broker:
        yield OpenTarget(name, broker)


@contextlib.contextmanager
def _at_distance(place: Place, delay_ms: float) -> Iterator[Place]:
    if not delay_ms:
        yield place
        return
    (endpoint,) = parse_qs(urlsplit(place.storage_url).query)["endpoint"]
    with processes.latency_proxy(urlsplit(endpoint).netloc, delay_ms) as port:
        yield replace(place, storage_url=url_of(HOST, port))
