"""The cluster that a load runs on: stores, brokers and compactors as processes of this machine, or one that runs already; and what events
do to it."""

import contextlib
import http.client
import importlib
import importlib.util
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from forebay.commands.bench.load.by_http import HttpUnanswered, asked_by_http
from forebay.commands.bench.load.facts import LoadMember, StackFacts, process_facts, write_facts
from forebay.commands.bench.load.scenario import DISK, MEMORY, SERVICES, LoadEvent, Scenario
from forebay.commands.demo.broker_process import free_port
from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from forebay.processes.child import HOST, ChildProcess, is_ready
from forebay.processes.workers.serving import broker_command
from runtime.clock import Clock

READY_WITHIN_S: Final = 120.0
DRAINED_WITHIN_S: Final = 60.0
_PORTS_FROM: Final = 15_000
_PORTS_TO: Final = 32_000
_ASK_EVERY_S: Final = 0.1
_ACCESS_LOG: Final = "s3-access.log"
_NEEDS_CHECKOUT: Final = (
    "stores.kind services needs a checkout of Forebay, whose `services` start a real Oxia and a real S3 server; an installed Forebay has "
    "none. Give --short, or write kind: disk."
)


@dataclass(slots=True)
class StackMember:
    """A broker or a compactor. `number` counts each kind from 1; `kafka_port` is 0 for compactors."""

    kind: str
    number: int
    process: ChildProcess
    kafka_port: int = 0
    http_port: int = 0
    is_paused: bool = False
    is_away: bool = False
    """It has ended, and should have."""
    is_drained: bool = False
    seen_bytes: int = field(default=0, repr=False)
    """The part of its log that earlier lives wrote."""

    def facts(self) -> LoadMember:
        return LoadMember(
            kind=self.kind,
            number=self.number,
            kafka=f"{HOST}:{self.kafka_port}" if self.kafka_port else "",
            http=f"{HOST}:{self.http_port}",
            process=process_facts(f"{self.kind}-{self.number}", self.process.pid if self.process.is_running() else None),
            log=str(self.process.log),
            is_paused=self.is_paused,
            is_away=self.is_away,
            is_drained=self.is_drained,
        )


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
            self._stores = self._closing.enter_context(_stores(self._scenario.stores.kind, self._folder))
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
        return StackFacts(
            storage_url=self._stores.storage_url,
            metadata_url=self._stores.metadata_url,
            bootstrap=",".join(f"{HOST}:{member.kafka_port}" for member in started if member.kind == "broker"),
            members=[member.facts() for member in started],
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
                (broker.process.kill9 if event.do == "kill" else broker.process.stop)()
            case "pause":
                broker = self._broker(event)
                broker.process.pause()
                broker.is_paused = True
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
            broker = self._broker(event)
            broker.process.resume()
            broker.is_paused = False
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
        """Raise `ClientFailed` if it does not say that it is drained."""
        address = f"{HOST}:{broker.http_port}"
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
        http_port = high_port(self._promised)
        self._promised.add(http_port)
        process = self._process(kind, number, kafka_port=0, http_port=http_port)
        member = StackMember(kind, number, process, http_port=http_port)
        self._members.append(member)
        return member

    def _begin(self, member: StackMember) -> None:
        """With the ports of its life before, if it had one."""
        if member.process.was_started:
            member.process = self._process(member.kind, member.number, kafka_port=member.kafka_port, http_port=member.http_port)
        log = member.process.log
        member.seen_bytes = log.stat().st_size if log.exists() else 0
        member.is_away = member.is_drained = False
        member.process.start()

    def _await(self, member: StackMember) -> None:
        """Until it is ready; its ports are what its log says."""
        said: dict[str, dict[str, Any]] = {}

        def is_announced() -> bool:
            said.update(_events(member.process.log, member.seen_bytes))
            return "ready" in said

        member.process.wait_until(is_announced, "ready", within_s=READY_WITHIN_S)
        if member.kind == "broker":
            member.kafka_port = _port(said["kafka listening"]["listeners"])
        member.process.wait_until(lambda: is_ready(member.http_port), "ready", within_s=READY_WITHIN_S)

    def _process(self, kind: str, number: int, *, kafka_port: int, http_port: int) -> ChildProcess:
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
                "kafka.listeners": f"PLAINTEXT://{HOST}:{kafka_port}",
                "http.listen": f"{HOST}:{http_port}",
                "http.allow_writes": "true",
                "shutdown.drain": "0ms",
                "compactor.run": "false",
            }
            if cluster.zones:
                given["broker.rack"] = cluster.zones[(number - 1) % len(cluster.zones)]
        else:
            given["compactor.listen"] = f"{HOST}:{http_port}"
        given |= cluster.settings
        assignments = [f"{key}={value}" for key, value in given.items()]
        command = broker_command(assignments)
        if kind == "broker":
            command[command.index("forebay")] = self._module
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
def _stores(kind: str, folder: Path) -> Iterator[LoadStoresInUse]:
    data = folder.resolve() / "data"
    if kind == MEMORY:
        yield LoadStoresInUse("memory://", "memory://")
    elif kind == DISK:
        data.mkdir()
        yield LoadStoresInUse(f"file://{data}/objects", f"sqlite:///{data}/meta.db")
    else:
        oxia, s3 = _service("oxia"), _service("versitygw")
        access_log = folder.resolve() / _ACCESS_LOG
        with oxia.running_oxia(data / "oxia") as metadata, s3.running_s3(data / "s3", access_log=access_log) as objects:
            servers = {"oxia": metadata, "s3": objects}
            yield LoadStoresInUse(
                objects.url(), metadata.url, environ=objects.environ, servers=servers, logged=lambda: logged_by_s3(folder) or []
            )


def logged_by_s3(folder: Path) -> Sequence[Any] | None:
    """The lines of the access log in the folder of a run; None where no S3 server wrote one."""
    access_log = folder / _ACCESS_LOG
    if not access_log.exists():
        return None
    lines: Sequence[Any] = _service("versitygw").logged_requests(access_log)
    return lines


def high_port(promised: Collection[int]) -> int:
    """A free one below those that the system gives to outgoing connections. Raise `StartError` if there is none."""
    return free_port(_PORTS_FROM + secrets.randbelow(_PORTS_TO - _PORTS_FROM), promised=promised)


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


def _events(log: Path, seen_bytes: int) -> dict[str, dict[str, Any]]:
    """The latest line of each event that this life of a process has logged."""
    found = {}
    for line in log.read_bytes()[seen_bytes:].splitlines():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict) and "event" in said:
                found[str(said["event"])] = said
    return found


def _port(address: object) -> int:
    """The last number of an address."""
    return int(re.findall(r"\d+", str(address))[-1])
