"""Processes that are measured, and the stores they stand on. Each metered pid is checked to listen."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bench import meter
from forebay.processes.compactor import NICE
from runtime.clock import SystemClock
from services.kafka import running_kafka
from services.oxia import running_oxia
from services.versitygw import running_s3

MEMORY: Final = "memory"
DISK: Final = "disk+sqlite"
NATIVE: Final = "s3+oxia"
STORES: Final = (MEMORY, DISK, NATIVE)
KAFKA: Final = "kafka"
"""No store of a broker of ours, but Apache Kafka in its place: only where it is asked for by name."""

OXIA_SHARDS: Final = 4
HOST: Final = "127.0.0.1"
READY_WITHIN_S: Final = 40.0
STOP_WITHIN_S: Final = 60.0
LOOK_EVERY_S: Final = 0.02
METRICS_AGE_MAX_S: Final = 1.0
"""The broker renders its metrics at most this often."""

KAFKA_SETTINGS: Final = {"group.initial.rebalance.delay.ms": "3000"}
"""Its own default: all members of a group that join at once are of its first generation."""

_ROOT: Final = Path(__file__).resolve().parent.parent

_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Place:
    """The stores of one case. `servers`: pids by name."""

    store: str
    storage_url: str
    metadata_url: str
    servers: Mapping[str, int] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        return {"storage.url": self.storage_url, "metadata.url": self.metadata_url}


@contextlib.contextmanager
def fresh(store: str, folder: Path) -> Iterator[Place]:
    """Empty stores in a folder of their own below `folder`. Credentials are in the environment meanwhile, for brokers and for peers."""
    if store == MEMORY:
        yield Place(store, "memory://", "memory://")
        return
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", dir=folder) as made:
        root = Path(made).resolve()
        if store == DISK:
            yield Place(store, f"file://{root}/objects", f"sqlite:///{root}/meta.db")
        else:
            with _native(root) as place:
                yield place


@contextlib.contextmanager
def _native(root: Path) -> Iterator[Place]:
    with running_oxia(root / "oxia", shards=OXIA_SHARDS) as oxia, running_s3(root / "s3") as s3, _environment(s3.environ):
        yield Place(NATIVE, s3.url(), oxia.url, {"oxia": oxia.pid, "s3": s3.pid})


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class NotReady(Exception):
    """A process ended, or said nothing, instead of listening."""


@dataclass(frozen=True, slots=True)
class Target:
    """A process that listens. `http_port` is None where there are no metrics."""

    pid: int
    port: int
    http_port: int | None

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def counters(self) -> dict[str, float]:
        return counters_of([self])[0]


def counters_of(targets: Sequence[Target]) -> list[dict[str, float]]:
    """Every series of each broker's metrics as `name{label=value,…}`, none older than this call. Takes a second."""
    time.sleep(METRICS_AGE_MAX_S)
    return [latest_counters(target) for target in targets if target.http_port is not None]


def latest_counters(target: Target) -> dict[str, float]:
    """The same of one broker at once: as old as the answer before, if that was given less than `METRICS_AGE_MAX_S` ago."""
    assert target.http_port is not None, "only a broker of ours has metrics"
    return _counters(target.http_port)


def _counters(http_port: int) -> dict[str, float]:
    return {_series(sample["name"], sample["labels"]): sample["value"] for sample in json.loads(_get(http_port, "/metrics.json"))["series"]}


def _get(http_port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection(HOST, http_port, timeout=10.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Start:
    """How a broker is started: from the checkout at `root`, with its interpreter, below the command `under`."""

    root: Path = _ROOT
    python: str = sys.executable
    under: tuple[str, ...] = ()
    ready_within_s: float = READY_WITHIN_S


_start: ContextVar[Start] = ContextVar("start", default=Start())  # noqa: B039 - frozen


@contextlib.contextmanager
def starting(start: Start) -> Iterator[None]:
    """Brokers are started so meanwhile."""
    token = _start.set(start)
    try:
        yield
    finally:
        _start.reset(token)


@contextlib.contextmanager
def broker(place: Place, settings: Mapping[str, str]) -> Iterator[Target]:
    """A broker over the stores of `place`, as `forebay serve` starts it."""
    start = _start.get()
    with _running(_serving(start, place, settings), start) as (process, log):
        kafka = _announced(process, log, "kafka listening", "listeners", start.ready_within_s)
        web = _announced(process, log, "http listening", "address", start.ready_within_s)
        _announced(process, log, "ready", "broker_id", start.ready_within_s)
        meter.check_listens(process.pid, kafka)
        yield Target(process.pid, kafka, web)


@contextlib.contextmanager
def workers(place: Place, settings: Mapping[str, str], count: int) -> Iterator[list[Target]]:
    """The brokers that `forebay serve --workers` starts, each metered by itself; their supervisor does nothing meanwhile."""
    start = _start.get()
    with _running([*_serving(start, place, settings), "--workers", str(count)], start) as (process, log):
        targets = [_worker(process, log, worker, start.ready_within_s) for worker in range(count)]
        for target in targets:
            meter.check_listens(target.pid, target.port)
        yield targets


def _serving(start: Start, place: Place, settings: Mapping[str, str]) -> list[str]:
    given = {
        "kafka.listeners": f"PLAINTEXT://{HOST}:0",
        "http.listen": f"{HOST}:0",
        "shutdown.drain": "0ms",
        # A checkout that is compared with may be older than compactors, and refuses what it does not know.
        **({"compactor.run": "false"} if (start.root / "compactor" / "assembly.py").is_file() else {}),
        **place.settings,
        **settings,
    }
    command = ["-m", "forebay", "serve", "--config", os.devnull, "--log-format", "json", "--log-level", "info"]
    for key, value in given.items():
        command += ["--set", f"{key}={value}"]
    return command


def _worker(process: subprocess.Popen[bytes], log: Path, worker: int, within_s: float) -> Target:
    pid, port, http_port, _ = (
        _announced(process, log, event, field, within_s, worker=worker)
        for event, field in (
            ("worker_started", "pid"),
            ("kafka listening", "listeners"),
            ("http listening", "address"),
            ("worker_ready", "broker_id"),
        )
    )
    return Target(pid, port, http_port)


@contextlib.contextmanager
def compactor(place: Place, settings: Mapping[str, str]) -> Iterator[Target]:
    """A compactor over the stores of `place`, as nice as `forebay serve` makes the one beside it. `port` is that of its metrics, too."""
    command = ["-m", "forebay", "compactor", "serve", "--config", os.devnull]
    for key, value in {"compactor.listen": f"{HOST}:0", "log.format": "json", "log.level": "info", **place.settings, **settings}.items():
        command += ["--set", f"{key}={value}"]
    start = _start.get()
    with _running(command, replace(start, under=(*start.under, "nice", "-n", str(NICE)))) as (process, log):
        web = _announced(process, log, "http listening", "address", start.ready_within_s)
        yield Target(process.pid, web, web)


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[Target]:
    """Apache Kafka (`services/kafka.py`) over an empty folder of its own below `folder`."""
    with (
        tempfile.TemporaryDirectory(prefix="forebay-bench-kafka-", dir=folder) as made,
        running_kafka(Path(made).resolve(), settings=KAFKA_SETTINGS) as server,
    ):
        yield Target(server.pid, server.port, None)


@contextlib.contextmanager
def null_broker(*, partitions: int = 12, records_per_partition: int = 0, record_bytes: int = 1024) -> Iterator[Target]:
    """The peer that answers and does nothing (bench/null_broker.py)."""
    command = ["-m", "bench.null_broker", "--partitions", str(partitions)]
    command += ["--records-per-partition", str(records_per_partition), "--record-bytes", str(record_bytes)]
    with _running(command) as (process, log):
        port = _announced(process, log, "null broker listening", "address")
        meter.check_listens(process.pid, port)
        yield Target(process.pid, port, None)


@contextlib.contextmanager
def latency_proxy(address: str, delay_ms: float) -> Iterator[int]:
    """The port of a proxy whose answers are as late as that (bench/latency_proxy.py). `address`: of the server."""
    with _running(["-m", "bench.latency_proxy", "--to", address, "--ms", str(delay_ms)]) as (process, log):
        yield _announced(process, log, "latency proxy listening", "address")


@contextlib.contextmanager
def _running(arguments: Sequence[str], start: Start = Start()) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as scratch:
        log = Path(scratch) / "log"
        with log.open("wb") as written:
            process = subprocess.Popen(
                [*start.under, start.python, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                env=environment,
                cwd=start.root,
            )
        try:
            yield process, log
        except BaseException:
            sys.stderr.write(log.read_text(errors="replace")[-4_000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_WITHIN_S)


def _announced(
    process: subprocess.Popen[bytes], log: Path, event: str, field: str, within_s: float = READY_WITHIN_S, *, worker: int | None = None
) -> int:
    """The last number of a field of an event of the log, once it is there: of an address, its port. `worker`: whose event."""
    deadline_s = _clock.monotonic_s() + within_s
    while _clock.monotonic_s() < deadline_s:
        for line in log.read_text(errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                said = json.loads(line)
                if said.get("event") == event and (worker is None or said.get("worker") == worker):
                    return int(re.findall(r"\d+", str(said[field]))[-1])
        if process.poll() is not None:
            raise NotReady(f"ended with {process.returncode} before {event!r}")
        time.sleep(LOOK_EVERY_S)
    raise NotReady(f"no {event!r} within {within_s} s")


def _series(name: str, labels: Mapping[str, str]) -> str:
    return name + ("{" + ",".join(f"{key}={labels[key]}" for key in sorted(labels)) + "}" if labels else "")
