"""A broker of the demo, and the free ports that it listens on."""

import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from forebay.commands.demo.stores import DemoStores
from forebay.processes.child import HOST, ChildProcess, is_ready, metrics_of
from forebay.processes.workers.serving import broker_command
from process.settings.errors import EXIT_USAGE, StartError
from runtime.clock import Clock

READY_WITHIN_S: Final = 30.0
PORTS_TRIED_MAX: Final = 200


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

    def __init__(self, place: DemoPlace, *, clock: Clock) -> None:
        super().__init__(broker_command(place.assignments()), name=f"The broker on {place.address}", log=place.log, clock=clock)
        self.place = place

    def __enter__(self) -> Self:
        self.log.unlink(missing_ok=True)
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def wait_ready(self) -> None:
        """Until /readyz says so. Raise `StartError` with the broker's last words if it ends or takes too long."""
        self.wait_until(lambda: is_ready(self.place.http_port), "ready", within_s=READY_WITHIN_S)

    def metrics(self) -> list[Mapping[str, Any]]:
        """The series of /metrics.json."""
        return metrics_of(f"{HOST}:{self.place.http_port}")
