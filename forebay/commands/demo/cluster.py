"""The brokers of the demo, each in a process of its own: on free ports, over the same stores, started and stopped together.

Records go to a folder or memory of the demo's own or, for several brokers, to the stores that the settings name.
"""

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from forebay.processes import plan
from forebay.processes.child import HOST, STOP_WITHIN_S, ChildProcess, is_ready, metrics_of
from forebay.processes.supervisor import broker_command
from process.settings.errors import EXIT_USAGE, StartError
from process.settings.loading import CONFIG_VARIABLE, load
from process.settings.model import OF_A_SHARED_STORE
from process.settings.reference import SETTINGS
from process.settings.sections import HTTP_PORT
from runtime.clock import Clock

URLS: Final = ("metadata.url", "storage.url")
FLUSH_INTERVAL: Final = "storage.flush_interval"
OF_S3: Final = {FLUSH_INTERVAL: SETTINGS[FLUSH_INTERVAL].notation.show(OF_A_SHARED_STORE[FLUSH_INTERVAL])}
"""What the demo writes is priced as on S3, so it is written as often as there."""
READY_WITHIN_S: Final = 30.0
PORTS_TRIED_MAX: Final = 200
_LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class DemoStores:
    """`assignments` are the settings of every broker of the demo, those of the stores included. `data` None: not in a folder of the demo's.

    `is_own` False: others use these stores, too, so the topic is deleted in the end.
    """

    metadata_url: str
    storage_url: str
    assignments: tuple[str, ...]
    data: Path | None
    is_own: bool

    @property
    def flush_interval(self) -> str:
        return next(value for key, _, value in (one.partition("=") for one in reversed(self.assignments)) if key == FLUSH_INTERVAL)


def own_stores(data: Path | None) -> DemoStores:
    """Embedded stores; None: in memory, for one broker."""
    storage_url = f"file://{_url_path(data)}/objects" if data else "memory://"
    metadata_url = f"sqlite:///{_url_path(data)}/meta.db" if data else "memory://"
    settings = {"storage.url": storage_url, "metadata.url": metadata_url, **OF_S3}
    return DemoStores(metadata_url, storage_url, tuple(f"{key}={value}" for key, value in settings.items()), data, is_own=True)


def choose_stores(data: Path | None, *, brokers: int, environ: Mapping[str, str]) -> DemoStores:
    """What the settings name, or embedded stores in `data` if they name none. Raise `StartError` if several brokers cannot share it."""
    file = environ.get(CONFIG_VARIABLE)
    loaded = load(file=Path(file) if file else None, environ=environ)
    interval = {} if FLUSH_INTERVAL in loaded.given else OF_S3
    if loaded.given.isdisjoint(URLS):
        if data is None:
            raise StartError(
                f"--brokers {brokers} needs stores that several processes can share, and memory is none. Leave --in-memory out, "
                "or use real ones: `make services && . .services/env`.",
                exit_code=EXIT_USAGE,
            )
        stores = own_stores(data)
        overrides = {**{key: value for key, _, value in (one.partition("=") for one in stores.assignments) if key in URLS}, **interval}
        return DemoStores(stores.metadata_url, stores.storage_url, tuple(plan.assignments(loaded, overrides)), data, is_own=True)
    plan.check_shareable(loaded.settings, brokers=brokers, option="--brokers")
    urls = loaded.settings.metadata.url, loaded.settings.storage.url
    # Deleted, the topic stays away: an interrupted producer goes on asking for it as long as it lives, and asking makes topics.
    return DemoStores(*urls, tuple(plan.assignments(loaded, {"kafka.auto_create_topics": "false", **interval})), None, is_own=False)


def _url_path(path: Path) -> str:
    return os.fspath(path) if path.is_absolute() else f"./{path}"


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """`log` is where the broker's own words go."""

    kafka_port: int
    http_port: int
    stores: DemoStores
    log: Path

    @property
    def address(self) -> str:
        return f"{HOST}:{self.kafka_port}"

    def assignments(self) -> list[str]:
        """A later one is stronger than an earlier one."""
        return [
            *self.stores.assignments,
            f"kafka.listeners=PLAINTEXT://{HOST}:{self.kafka_port}",
            f"kafka.advertised_listeners=PLAINTEXT://{HOST}:{self.kafka_port}",
            f"http.listen={HOST}:{self.http_port}",
            "log.format=json",
            "shutdown.drain=0ms",
            "shutdown.deadline=10s",
        ]


def free_port(first: int, *, promised: Collection[int] = ()) -> int:
    """The first port from `first` on that nobody listens on or was promised. Raise `StartError` when there is none."""
    for port in range(first, min(first + PORTS_TRIED_MAX, 65_536)):
        if port in promised:
            continue
        with socket.socket() as probe:
            # As the broker will bind it: a port whose last owner only just left counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise StartError(f"No free port from {first} on. Choose another first one with --port.", exit_code=EXIT_USAGE)


class BrokerProcess(ChildProcess):
    """Runs while the `with` block does; leaving stops it."""

    def __init__(self, place: DemoPlace, *, clock: Clock, stop_within_s: float = STOP_WITHIN_S) -> None:
        name = f"The broker on {place.address}"
        super().__init__(broker_command(place.assignments()), name=name, log=place.log, clock=clock, stop_within_s=stop_within_s)
        self.place = place

    def __enter__(self) -> Self:
        self.log.unlink(missing_ok=True)
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def wait_ready(self, *, within_s: float = READY_WITHIN_S) -> None:
        """Until /readyz says so. Raise `StartError` with the broker's last words if it ends or takes too long."""
        self.wait_until(lambda: is_ready(self.place.http_port), "ready", within_s=within_s)

    def metrics(self) -> list[Mapping[str, Any]]:
        """The series of /metrics.json."""
        return metrics_of(f"{HOST}:{self.place.http_port}")


def places(stores: DemoStores, *, brokers: int, port: int, log_folder: Path, say: Callable[[str], None]) -> list[DemoPlace]:
    """Free ports from `port` and the usual HTTP port on. Raise `StartError` when there are none."""
    found: list[DemoPlace] = []
    kafka_port, http_port = port, HTTP_PORT
    promised: set[int] = set()
    for number in range(brokers):
        promised.add(kafka := free_port(kafka_port, promised=promised))
        promised.add(http := free_port(http_port, promised=promised))
        for wanted, given in ((kafka_port, kafka), (http_port, http)):
            if wanted != given:
                say(f"port {wanted} is in use, {given} is free")
        log = log_folder / ("broker.log" if brokers == 1 else f"broker-{number}.log")
        found.append(DemoPlace(kafka_port=kafka, http_port=http, stores=stores, log=log))
        kafka_port, http_port = kafka + 1, http + 1
    return found


class Brokers:
    """Run while the `with` block does; leaving stops them."""

    def __init__(self, places: Sequence[DemoPlace], *, clock: Clock) -> None:
        self.places = tuple(places)
        self._clock = clock
        self._stack = ExitStack()
        self._running: list[BrokerProcess] = []
        self._metrics_of_killed: list[Mapping[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for broker in self._running:
            broker.terminate()
        self._stack.close()

    def start(self) -> None:
        """The first alone, so that what is wrong with all is said once. Raise `StartError` if one does not get ready."""
        first, *others = self.places
        for together in ([first], others):
            begun = [self._stack.enter_context(BrokerProcess(place, clock=self._clock)) for place in together]
            self._running += begun
            for broker in begun:
                broker.wait_ready()

    def running(self) -> list[DemoPlace]:
        """The brokers alive: one may have ended by itself, or have been killed a moment ago."""
        return [broker.place for broker in self._running if broker.is_running()]

    def at(self, address: str) -> DemoPlace:
        """The place of the broker that listens there."""
        return next(place for place in self.places if place.address == address)

    def note_metrics(self, place: DemoPlace) -> None:
        """Keep the metrics of a broker about to be killed: what it does after this is not counted."""
        self._metrics_of_killed += self._process(place).metrics()

    def kill9(self, place: DemoPlace) -> None:
        broker = self._process(place)
        broker.kill9()
        self._running.remove(broker)

    def _process(self, place: DemoPlace) -> BrokerProcess:
        return next(broker for broker in self._running if broker.place == place)

    def metrics(self) -> list[Mapping[str, Any]]:
        """The series of all brokers, one after the other."""
        return [series for broker in self._running for series in broker.metrics()] + self._metrics_of_killed

    def wait_end(self) -> None:
        """Until one ends by itself; raises `StartError` that says which."""
        while True:
            for broker in self._running:
                if not broker.is_running():
                    raise broker.failure("ended by itself")
            time.sleep(_LOOK_EVERY_S)
