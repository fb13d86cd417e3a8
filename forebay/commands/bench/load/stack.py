"""The cluster that a load runs on: stores, brokers and compactors as processes of this machine, or one that runs already; and what events
do to it."""

import contextlib
import http.client
import importlib
import importlib.util
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from forebay.commands.bench.load.by_http import HttpUnanswered, asked_by_http
from forebay.commands.bench.load.folder import LoadMember, LoadProcess, StackFacts, process_facts, write_facts
from forebay.commands.bench.load.scenario import DISK, MEMORY, SERVICES, LoadEvent, LoadStores, Scenario
from forebay.commands.demo.cluster import free_port
from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from forebay.processes.child import HOST, ChildProcess, is_ready
from forebay.processes.supervisor import broker_command
from runtime.clock import Clock

READY_WITHIN_S: Final = 120.0
DRAINED_WITHIN_S: Final = 60.0
_PORTS_FROM: Final = 15_000
_PORTS_TO: Final = 32_000
_ASK_EVERY_S: Final = 0.1
_ACCESS_LOG: Final = "s3-access.log"
_REFUSED_LOG: Final = "s3-refused.log"
_NEEDS_CHECKOUT: Final = (
    "stores.kind services needs a checkout of Forebay, whose `services` start a real Oxia and a real S3 server; an installed Forebay has "
    "none. Give --short, or write kind: disk."
)


@dataclass(slots=True)
class StackMember:
    """A broker or a compactor. `number` counts each kind from 1. A broker has a port of each kind for each of its workers, one after the
    other; a compactor has no `kafka_ports`.
    """

    kind: str
    number: int
    process: ChildProcess
    http_ports: Sequence[int]
    kafka_ports: Sequence[int]
    is_paused: bool = False
    is_away: bool = False
    """It has ended, and should have."""
    is_drained: bool = False
    seen_bytes: int = field(default=0, repr=False)
    """The part of its log that earlier lives wrote."""

    @property
    def has_workers(self) -> bool:
        return len(self.http_ports) > 1

    def facts(self) -> list[LoadMember]:
        """One, or one for each worker."""
        own = process_facts(f"{self.kind}-{self.number}", self.process.pid if self.process.is_running() else None)
        found = []
        for place, http_port in enumerate(self.http_ports):
            member = LoadMember(
                kind=self.kind,
                number=self.number,
                worker=place if self.has_workers else None,
                kafka=f"{HOST}:{self.kafka_ports[place]}" if self.kafka_ports else "",
                http=f"{HOST}:{http_port}",
                process=own,
                log=str(self.process.log),
                is_paused=self.is_paused,
                is_away=self.is_away,
                is_drained=self.is_drained,
            )
            pid = self._worker_pids().get(place) if self.has_workers else None
            found.append(msgspec.structs.replace(member, process=process_facts(member.name, pid)) if self.has_workers else member)
        return found

    def supervisor(self) -> LoadProcess | None:
        return process_facts(f"{self.kind}-{self.number}-supervisor", self.process.pid) if self.has_workers else None

    def kill9(self) -> None:
        """With its workers, as if their machine were gone."""
        workers = self._running_workers()
        self.process.kill9()
        self._signal(workers, signal.SIGKILL)

    def pause(self) -> None:
        self.process.pause()
        self._signal(self._running_workers(), signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self._signal(self._running_workers(), signal.SIGCONT)
        self.process.resume()
        self.is_paused = False

    def is_ready(self) -> bool:
        """True once each of its processes has said so, and answers. A stranger at one of its ports has said nothing."""
        said = _said(self.process.log, self.seen_bytes, "ready")
        return len(said) == len(self.http_ports) and all(is_ready(port) for port in self.http_ports)

    def _running_workers(self) -> list[LoadProcess]:
        return [
            member.process for member in self.facts() if self.has_workers and member.process is not None and member.process.is_running()
        ]

    def _worker_pids(self) -> dict[int, int]:
        return {line["worker"]: line["pid"] for line in _said(self.process.log, self.seen_bytes, "worker_started").values()}

    @staticmethod
    def _signal(workers: Sequence[LoadProcess], number: signal.Signals) -> None:
        for worker in workers:
            # It may end between the look and the signal.
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, number)


@dataclass(frozen=True, slots=True)
class LoadStoresInUse:
    """`servers` by name are what events pause. `logged` reads the S3 server's access log."""

    storage_url: str
    metadata_url: str
    environ: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[str, Any] = field(default_factory=dict)
    logged: Callable[[], Sequence[Any]] | None = None


class RunningCluster:
    """A cluster that runs already, at the addresses that the scenario names. No event happens to it."""

    def __init__(self, scenario: Scenario) -> None:
        cluster = scenario.cluster
        members = [LoadMember(kind="broker", number=number, kafka="", http=one) for number, one in enumerate(cluster.http, 1)]
        self.facts = StackFacts(bootstrap=",".join(cluster.addresses), members=members)

    def logged(self) -> Sequence[Any] | None:
        return None

    def begin(self, event: LoadEvent) -> None:
        raise AssertionError(f"the scenario was refused for its {event.do}")

    end = begin


class LoadStack:
    """Runs while the `with` block does. Raise `StartError` or `ClientFailed` for what does not start. `stack.json` follows what happens.

    `module` is the program that brokers run in place of Forebay's own: a wrong one shows what the reconciliation finds.
    """

    def __init__(self, scenario: Scenario, folder: Path, *, clock: Clock, module: str = "forebay", control: str = "") -> None:
        """`control`: the socket on which this process, the keeper, takes orders; empty if it is none."""
        self._members: list[StackMember] = []
        self._scenario = scenario
        self._folder = folder
        self._clock = clock
        self._module = module
        self._control = control
        self._closing = contextlib.ExitStack()
        self._stores = LoadStoresInUse("memory://", "memory://")
        self._promised: set[int] = set()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as failing:
            failing.push(self.__exit__)
            self._stores = self._closing.enter_context(_stores(self._scenario.stores, self._folder))
            cluster = self._scenario.cluster
            brokers = [self._made("broker", number) for number in range(1, cluster.brokers + 1)]
            # The first alone, so that what is wrong with all is said once.
            for together in (brokers[:1], brokers[1:], [self._made("compactor", number) for number in range(1, cluster.compactors + 1)]):
                for member in together:
                    self._begin(member)
                for member in together:
                    self._await(member)
            write_facts(self._folder, self.facts)
            failing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            if member.process.is_running() and not member.is_paused:
                member.process.terminate()
        for member in self._members:
            member.process.stop()
        self._closing.close()

    @property
    def facts(self) -> StackFacts:
        """Every broker is in `bootstrap`, also those that are away."""
        started = [member for member in self._members if member.process.was_started]
        members = [one for member in started for one in member.facts()]
        return StackFacts(
            storage_url=self._stores.storage_url,
            metadata_url=self._stores.metadata_url,
            bootstrap=",".join(member.kafka for member in members if member.kafka),
            members=members,
            supervisors=[one for one in (member.supervisor() for member in started) if one is not None],
            servers=[process_facts(name, server.pid) for name, server in self._stores.servers.items()],
            keeper=process_facts("keeper", os.getpid()) if self._control else None,
            control=self._control,
        )

    def logged(self) -> Sequence[Any] | None:
        return None if self._stores.logged is None else self._stores.logged()

    def begin(self, event: LoadEvent) -> None:
        """Let it happen. Returns when it has: a broker that starts is ready, one that drains is drained."""
        match event.do:
            case "kill" | "stop":
                broker = self._broker(event)
                broker.is_away = True
                (broker.kill9 if event.do == "kill" else broker.process.stop)()
            case "pause":
                self._broker(event).pause()
            case "drain":
                broker = self._broker(event)
                self._drain(broker)
                broker.is_drained = True
            case "roll":
                for broker in self._brokers():
                    if not broker.is_away:
                        broker.process.stop()
                        self._begin(broker)
                        self._await(broker)
            case "add_broker":
                broker = self._made("broker", len(self._brokers()) + 1)
                self._begin(broker)
                self._await(broker)
            case _:
                self._stores.servers[event.do.removesuffix("_away")].pause()
        write_facts(self._folder, self.facts)

    def end(self, event: LoadEvent) -> None:
        """Undo it: a paused one goes on, a broker that is away or drained starts again on its ports."""
        if event.do == "pause":
            self._broker(event).resume()
        elif event.target is not None:
            broker = self._broker(event)
            if broker.is_drained:
                broker.process.stop()
            self._begin(broker)
            self._await(broker)
        else:
            self._stores.servers[event.do.removesuffix("_away")].resume()
        write_facts(self._folder, self.facts)

    def _brokers(self) -> list[StackMember]:
        return [member for member in self._members if member.kind == "broker"]

    def _broker(self, event: LoadEvent) -> StackMember:
        assert event.target is not None
        return self._brokers()[event.target - 1]

    def _drain(self, broker: StackMember) -> None:
        """Raise `ClientFailed` if one of its processes does not say that it is drained."""
        for port in broker.http_ports:
            self._drain_one(broker, f"{HOST}:{port}")

    def _drain_one(self, broker: StackMember, address: str) -> None:
        give_up_s = self._clock.monotonic_s() + DRAINED_WITHIN_S
        while True:
            try:
                broker_id = asked_by_http(address, "GET", "/health").document["broker_id"]
                answer = asked_by_http(address, "POST", f"/api/v1/brokers/{broker_id}/drain", {})
                said = str(answer.document.get("error", answer.document))
                if answer.status == http.client.OK:
                    return
                is_refused = answer.status != http.client.ACCEPTED
            except HttpUnanswered as error:
                said, is_refused = str(error), False
            if is_refused or self._clock.monotonic_s() > give_up_s:
                raise ClientFailed(
                    f"broker {broker.number} was not drained within {DRAINED_WITHIN_S:.0f} s: {said}. See {broker.process.log}."
                )
            time.sleep(_ASK_EVERY_S)

    def _made(self, kind: str, number: int) -> StackMember:
        # A port that the system chooses is told to no other broker, and clients of groups are sent from one to the other.
        workers = self._scenario.cluster.workers if kind == "broker" else 1
        http_ports = self._ports(workers)
        kafka_ports = self._ports(workers) if kind == "broker" else ()
        process = self._process(kind, number, http_ports, kafka_ports)
        member = StackMember(kind, number, process, http_ports, kafka_ports)
        self._members.append(member)
        return member

    def _ports(self, count: int) -> Sequence[int]:
        found = high_ports(count, self._promised)
        self._promised.update(found)
        return found

    def _begin(self, member: StackMember) -> None:
        """With the ports of its life before, if it had one."""
        if member.process.was_started:
            member.process = self._process(member.kind, member.number, member.http_ports, member.kafka_ports)
        log = member.process.log
        member.seen_bytes = log.stat().st_size if log.exists() else 0
        member.is_away = member.is_drained = False
        member.process.start()

    def _await(self, member: StackMember) -> None:
        member.process.wait_until(member.is_ready, "ready", within_s=READY_WITHIN_S)

    def _process(self, kind: str, number: int, http_ports: Sequence[int], kafka_ports: Sequence[int]) -> ChildProcess:
        given = {
            "storage.url": self._stores.storage_url,
            "metadata.url": self._stores.metadata_url,
            "log.format": "json",
            "log.level": "info",
            "shutdown.deadline": "15s",
        }
        cluster = self._scenario.cluster
        if kind == "broker":
            given |= {
                "kafka.listeners": f"PLAINTEXT://{HOST}:{kafka_ports[0]}",
                "http.listen": f"{HOST}:{http_ports[0]}",
                "http.allow_writes": "true",
                "shutdown.drain": "0ms",
                "compactor.run": "false",
            }
            if cluster.zones:
                given["broker.rack"] = cluster.zones[(number - 1) % len(cluster.zones)]
        else:
            given["compactor.listen"] = f"{HOST}:{http_ports[0]}"
        given |= cluster.settings
        assignments = [f"{key}={value}" for key, value in given.items()]
        command = broker_command(assignments)
        if kind == "broker":
            command[command.index("forebay")] = self._module
            if cluster.workers > 1:
                command.append(f"--workers={cluster.workers}")
        else:
            command[command.index("serve") : command.index("serve") + 1] = ["compactor", "serve"]
        return ChildProcess(
            command,
            name=f"{kind} {number}",
            log=self._folder / "logs" / f"{kind}-{number}.log",
            clock=self._clock,
            environ=self._stores.environ,
        )


@contextlib.contextmanager
def _stores(stores: LoadStores, folder: Path) -> Iterator[LoadStoresInUse]:
    data = folder.resolve() / "data"
    if stores.kind == MEMORY:
        yield LoadStoresInUse("memory://", "memory://")
    elif stores.kind == DISK:
        data.mkdir()
        yield LoadStoresInUse(f"file://{data}/objects", f"sqlite:///{data}/meta.db")
    else:
        oxia, s3 = _service("oxia"), _service("versitygw")
        with contextlib.ExitStack() as closing:
            metadata = closing.enter_context(oxia.running_oxia(data / "oxia"))
            objects = closing.enter_context(s3.running_s3(data / "s3", access_log=folder.resolve() / _ACCESS_LOG))
            servers, reached = {"oxia": metadata, "s3": objects}, objects
            if stores.has_proxy:
                proxy = s3.running_s3_with_faults(
                    objects,
                    folder.resolve() / "logs",
                    latency_ms=stores.latency_ms,
                    faults=stores.s3_faults,
                    refused=folder.resolve() / _REFUSED_LOG,
                )
                servers["s3-proxy"] = reached = closing.enter_context(proxy)
            yield LoadStoresInUse(
                reached.url(), metadata.url, environ=reached.environ, servers=servers, logged=lambda: logged_by_s3(folder) or []
            )


def logged_by_s3(folder: Path) -> Sequence[Any] | None:
    """The lines of the access log in the folder of a run, and those of the proxy before it; None where no S3 server wrote one."""
    if not (folder / _ACCESS_LOG).exists():
        return None
    lines: list[Any] = []
    for name in (_ACCESS_LOG, _REFUSED_LOG):
        if (folder / name).exists():
            lines += _service("versitygw").logged_requests(folder / name)
    return lines


def high_port(promised: Collection[int]) -> int:
    """A free one below those that the system gives to outgoing connections. Raise `StartError` if there is none."""
    return high_ports(1, promised)[0]


def high_ports(count: int, promised: Collection[int]) -> Sequence[int]:
    """Return consecutive free ones, as `high_port`."""
    while True:
        first = free_port(_PORTS_FROM + secrets.randbelow(_PORTS_TO - _PORTS_FROM), promised=promised)
        found = range(first, first + count)
        if all(free_port(port, promised=promised) == port for port in found):
            return found


def check_stores(kind: str) -> None:
    """Raise `ClientFailed` if this Forebay cannot start these stores."""
    if kind == SERVICES:
        _service("oxia")


def _service(name: str) -> Any:
    """A module of `services`, which is beside the packages of a checkout and in no wheel."""
    root = Path(__file__).resolve().parents[4]
    if not (root / "services" / f"{name}.py").is_file():
        raise ClientFailed(_NEEDS_CHECKOUT, exit_code=EXIT_USAGE)
    if importlib.util.find_spec("services") is None:
        sys.path.append(os.fspath(root))
    return importlib.import_module(f"services.{name}")


def _said(log: Path, seen_bytes: int, event: str) -> dict[int, dict[str, Any]]:
    """The latest line of the event that this life of a process has logged, by worker; 0 for a process without."""
    found = {}
    for line in log.read_bytes()[seen_bytes:].splitlines():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict) and said.get("event") == event:
                found[int(said.get("worker", 0))] = said
    return found
