"""The brokers of the demo: on free ports, over the same stores, started and stopped together."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from forebay.commands.demo.broker_process import BrokerProcess, DemoPlace, free_port
from forebay.commands.demo.stores import DemoStores
from process.settings.sections import HTTP_PORT
from runtime.clock import Clock

_LOOK_EVERY_S: Final = 0.2


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
