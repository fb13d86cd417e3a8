"""Apache Kafka itself, to compare with: `with running_kafka(folder) as kafka: … kafka.bootstrap …`. One node that is broker and controller.

Its own defaults but for what one node, tests and a comparison need (`DEFAULTS`); nothing is fsynced before it is acknowledged.
`python -m services.kafka` runs one in the foreground, behind `make kafka`.
"""

import argparse
import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from services.build import BuildError
from services.jars import assembled, found
from services.ports import HOST, free_port, is_free
from services.process import LocalProcess, Runs, Server, ServerError, interrupts_deferred

POM: Final = Path(__file__).parent / "java" / "kafka"
HEAP: Final = "1g"
DEFAULTS: Final = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
}
_ROOT: Final = Path(__file__).resolve().parent.parent
_PORT: Final = 9092
_PORT_TRIES: Final = 5
_FORMAT_WITHIN_S: Final = 60.0
_READY_WITHIN_S: Final = 90.0
"""A JVM on a busy machine, after a kill: the controller first waits for the old session to end."""
_ANSWER_WITHIN_S: Final = 0.9
_NODE: Final = "1"
# Sixteen bytes in Base64, as Kafka has its ids: every cluster started here is this one.
_CLUSTER: Final = "YXBhY2hlLWthZmthLW9uZQ"
# As Kafka's own start script has them.
_COLLECTOR: Final = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent")
_SOON_READY: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A third less CPU until it answers, and slow afterwards."""
_QUIET: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_API_VERSIONS_0: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""Size, key, version, correlation id, no client id."""


class KafkaServer(Server):
    """`bootstrap` is where it listens, also when it advertises another address."""

    def __init__(self, runs: Runs, *, port: int) -> None:
        super().__init__(runs)
        self.port = port

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"


@contextlib.contextmanager
def running_kafka(
    folder: Path,
    *,
    port: int = 0,
    advertised: str | None = None,
    settings: Mapping[str, str] | None = None,
    is_measured: bool = True,
) -> Iterator[KafkaServer]:
    """A server with its data and `kafka.log` in `folder`, ready; stopped at the end, its data left. Blocks.

    `port` 0 takes a free one. `advertised`: `host:port` that clients are sent to, if it is not where the server listens (a proxy).
    `settings`, by Kafka's names, are stronger than `DEFAULTS`. One that is not `is_measured` has a JVM that starts soon and does little.
    Raise `ServerError` or `services.build.BuildError`.
    """
    if port and not is_free(port):
        raise ServerError(f"Port {port} on {HOST} is in use: Apache Kafka cannot start. Choose another.")
    folder.mkdir(parents=True, exist_ok=True)
    server = _started(folder, port, advertised, settings or {}, _COLLECTOR if is_measured else _SOON_READY)
    try:
        yield server
    finally:
        server.stop()


def java(*options: str) -> list[str]:
    """The beginning of a command that runs a class of Apache Kafka. Raise `BuildError`."""
    return [found("java"), *options, "-cp", f"{assembled(POM)}/*"]


def kafka_version() -> str:
    """`4.3.1`: the one that pom.xml asks for."""
    found = re.search(r"<kafka\.version>([^<]+)<", (POM / "pom.xml").read_text())
    assert found, f"{POM}/pom.xml names no version of Apache Kafka"
    return found[1]


def properties(folder: Path, *, port: int, inside: int, controller: int, advertised: str, settings: Mapping[str, str]) -> dict[str, str]:
    """What its server.properties says. `inside`: the port it speaks to itself on, so that only clients use `port`."""
    return {
        "process.roles": "broker,controller",
        "node.id": _NODE,
        "controller.quorum.voters": f"{_NODE}@{HOST}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "INSIDE",
        "listeners": f"PLAINTEXT://{HOST}:{port},INSIDE://{HOST}:{inside},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{advertised},INSIDE://{HOST}:{inside}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "data"),
        **DEFAULTS,
        **settings,
    }


def kafka_answers(port: int, host: str = HOST) -> bool:
    """Whether a broker answers ApiVersions: it listens long before it reads."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_ANSWER_WITHIN_S) as connection:
        connection.sendall(_API_VERSIONS_0)
        return bool(connection.recv(1))
    return False


def _started(folder: Path, port: int, advertised: str | None, settings: Mapping[str, str], options: Sequence[str]) -> KafkaServer:
    file = folder / "server.properties"
    log = folder / "kafka.log"
    command = [*java(f"-Xms{HEAP}", f"-Xmx{HEAP}", *options, _QUIET), "kafka.Kafka", str(file)]
    for left in reversed(range(_PORT_TRIES)):
        chosen = port or free_port()
        chosen_properties = properties(
            folder,
            port=chosen,
            inside=free_port(),
            controller=free_port(),
            advertised=advertised or f"{HOST}:{chosen}",
            settings=settings,
        )
        file.write_text("".join(f"{name}={value}\n" for name, value in chosen_properties.items()))
        if not (folder / "data" / "meta.properties").exists():
            _format(file, log)
        process = LocalProcess(
            name="Apache Kafka",
            command=command,
            environ=os.environ,
            log=log,
            answers=partial(kafka_answers, chosen),
            ready_within_s=_READY_WITHIN_S,
        )
        try:
            process.start()
        except ServerError as error:
            # Somebody else took a port between the look and the start.
            if not left or "address already in use" not in str(error).lower():
                raise
            continue
        return KafkaServer(process, port=chosen)
    raise AssertionError("the last try raises")


def _format(file: Path, log: Path) -> None:
    command = [*java("-Xmx256m", "-XX:TieredStopAtLevel=1", _QUIET), "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(file)]
    process = None
    try:
        with interrupts_deferred():
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said, complaint = process.communicate(timeout=_FORMAT_WITHIN_S)
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"Apache Kafka's storage was not formatted within {_FORMAT_WITHIN_S:.0f} s.") from error
    finally:
        if process is not None:  # after Ctrl-C `subprocess.run` kills it, too, but does not wait until it has ended
            process.kill()
            process.wait()
    log.write_text(said + complaint)
    if process.returncode != 0:
        raise ServerError(f"Apache Kafka's storage cannot be formatted: {file} is refused:\n{complaint}{said}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m services.kafka", description="Apache Kafka in the foreground, until Ctrl-C.")
    parser.add_argument("--port", type=int, default=_PORT, help=f"default {_PORT}")
    parser.add_argument("--folder", type=lambda text: Path(text).absolute(), default=_ROOT / ".services" / "kafka", help="its data and log")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting by Kafka's name; repeatable")
    given = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with running_kafka(given.folder, port=given.port, settings=dict(text.split("=", 1) for text in given.set)) as kafka:
            sys.stdout.write(f"Apache Kafka on {kafka.bootstrap}, pid {kafka.pid}, data and log in {given.folder}; Ctrl-C ends it\n")
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        sys.stderr.write("stopped; data stays\n")
    except (ServerError, BuildError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return os.EX_UNAVAILABLE
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
