"""The cluster that a load runs on: stores, brokers and compactors as processes of this machine, and what events do to them."""

import contextlib
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from forebay.commands.bench.load.scenario import DISK, MEMORY, LoadEvent, Scenario
from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from forebay.processes.child import HOST, ChildProcess, is_ready
from forebay.processes.workers.serving import broker_command
from runtime.clock import Clock

READY_WITHIN_S: Final = 120.0
TOPICS_WITHIN_S: Final = 60.0
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
    seen_bytes: int = field(default=0, repr=False)
    """The part of its log that earlier lives wrote."""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"


@dataclass(frozen=True, slots=True)
class LoadStoresInUse:
    """`servers` by name are what events pause. `logged` reads the S3 server's access log."""

    storage_url: str
    metadata_url: str
    environ: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[str, Any] = field(default_factory=dict)
    logged: Callable[[], Sequence[Any]] | None = None


class LoadStack:
    """Runs while the `with` block does. Raise `StartError` or `ClientFailed` for what does not start.

    `module` is the program that brokers run in place of Forebay's own: a wrong one shows what the reconciliation finds.
    """

    def __init__(self, scenario: Scenario, folder: Path, *, clock: Clock, module: str = "forebay") -> None:
        self.members: list[StackMember] = []
        self._scenario = scenario
        self._folder = folder
        self._clock = clock
        self._module = module
        self._closing = contextlib.ExitStack()
        self._stores = LoadStoresInUse("memory://", "memory://")

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
            failing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if member.process.is_running() and not member.is_paused:
                member.process.terminate()
        for member in self.members:
            member.process.stop()
        self._closing.close()

    @property
    def brokers(self) -> list[StackMember]:
        return [member for member in self.members if member.kind == "broker"]

    @property
    def bootstrap(self) -> str:
        """Every broker, also those that are away."""
        return ",".join(f"{HOST}:{member.kafka_port}" for member in self.brokers)

    @property
    def http_addresses(self) -> list[str]:
        return [f"{HOST}:{member.http_port}" for member in self.brokers]

    @property
    def logged(self) -> Callable[[], Sequence[Any]] | None:
        return self._stores.logged

    @property
    def key_prefix(self) -> str:
        """What all keys of the cluster begin with, in the S3 server's log."""
        return urlsplit(self._stores.storage_url).path.lstrip("/") + "/"

    def facts(self) -> dict[str, Any]:
        """What `stack.json` says."""
        return {
            "storage_url": self._stores.storage_url,
            "metadata_url": self._stores.metadata_url,
            "bootstrap": self.bootstrap,
            "members": [
                {
                    "name": one.name,
                    "pid": one.process.pid,
                    "kafka_port": one.kafka_port,
                    "http_port": one.http_port,
                    "log": str(one.process.log),
                }
                for one in self.members
            ],
            "servers": {name: server.pid for name, server in self._stores.servers.items()},
        }

    def create_topics(self) -> None:
        """Raise `ClientFailed` if the cluster refuses one."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        new = [
            NewTopic(name, num_partitions=topic.partitions, replication_factor=1, config=dict(topic.configs))
            for topic in self._scenario.topics
            for name in topic.all_names
        ]
        for name, future in admin.create_topics(new, operation_timeout=TOPICS_WITHIN_S, request_timeout=TOPICS_WITHIN_S).items():
            try:
                future.result(TOPICS_WITHIN_S)
            except KafkaException as error:
                raise ClientFailed(f'Topic "{name}" was not created: {error.args[0].str()}') from error

    def begin(self, event: LoadEvent) -> None:
        """Let it happen. Returns when it has: a broker that starts is ready."""
        match event.do:
            case "kill" | "stop":
                broker = self._broker(event)
                broker.is_away = True
                (broker.process.kill9 if event.do == "kill" else broker.process.stop)()
            case "pause":
                broker = self._broker(event)
                broker.process.pause()
                broker.is_paused = True
            case "roll":
                for broker in self.brokers:
                    if not broker.is_away:
                        broker.process.stop()
                        self._begin(broker)
                        self._await(broker)
            case "add_broker":
                broker = self._made("broker", len(self.brokers) + 1)
                self._begin(broker)
                self._await(broker)
            case _:
                self._stores.servers[event.do.removesuffix("_away")].pause()

    def end(self, event: LoadEvent) -> None:
        """Undo it: a paused one goes on, a broker that is away starts again on its ports."""
        if event.do == "pause":
            broker = self._broker(event)
            broker.process.resume()
            broker.is_paused = False
        elif event.target is not None:
            broker = self._broker(event)
            self._begin(broker)
            self._await(broker)
        else:
            self._stores.servers[event.do.removesuffix("_away")].resume()

    def _broker(self, event: LoadEvent) -> StackMember:
        assert event.target is not None
        return self.brokers[event.target - 1]

    def _made(self, kind: str, number: int) -> StackMember:
        member = StackMember(kind, number, self._process(kind, number, kafka_port=0, http_port=0))
        self.members.append(member)
        return member

    def _begin(self, member: StackMember) -> None:
        """With the ports of its life before, if it had one."""
        if member.http_port:
            member.process = self._process(member.kind, member.number, kafka_port=member.kafka_port, http_port=member.http_port)
        log = member.process.log
        member.seen_bytes = log.stat().st_size if log.exists() else 0
        member.is_away = False
        member.process.start()

    def _await(self, member: StackMember) -> None:
        """Until it is ready; its ports are what its log says."""
        said: dict[str, dict[str, Any]] = {}

        def is_announced() -> bool:
            said.update(_events(member.process.log, member.seen_bytes))
            return "ready" in said and "http listening" in said

        member.process.wait_until(is_announced, "ready", within_s=READY_WITHIN_S)
        member.http_port = _port(said["http listening"]["address"])
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
        access_log = folder.resolve() / "s3-access.log"
        with oxia.running_oxia(data / "oxia") as metadata, s3.running_s3(data / "s3", access_log=access_log) as objects:
            yield LoadStoresInUse(
                objects.url(),
                metadata.url,
                environ=objects.environ,
                servers={"oxia": metadata, "s3": objects},
                logged=lambda: s3.logged_requests(access_log) if access_log.exists() else [],
            )


def check_stores(kind: str) -> None:
    """Raise `ClientFailed` if this Forebay cannot start these stores."""
    if kind not in {DISK, MEMORY}:
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
