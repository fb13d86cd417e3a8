"""Workers of Kafka Connect in distributed mode, each in a process of its own, asked through their REST interface.

Their settings are Connect's own but for what a test has no time for: how soon offsets are committed, how soon members hear of a
rebalance, and how long the tasks of a worker that is gone wait for it to come back.
"""

import contextlib
import http.client
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from services.ports import HOST, free_port
from services.process import LocalProcess
from tests.compat.frameworks.jvm import command

GROUP: Final = "connect-workers"
TOPICS: Final = {"config": "connect-configs", "offset": "connect-offsets", "status": "connect-status"}
READY_WITHIN_S: Final = 60.0
_ANSWER_WITHIN_S: Final = 0.9
_ASKED_WITHIN_S: Final = 20.0
_STRING: Final = "org.apache.kafka.connect.storage.StringConverter"


class Worker(LocalProcess):
    """`log` has all that it says. Its REST interface answers when it has joined and read the three topics."""

    port: int

    @property
    def worker_id(self) -> str:
        """As Connect names it in a status."""
        return f"{HOST}:{self.port}"

    def ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> tuple[int, object]:
        """The status and the JSON of its answer."""
        status, said = _ask(self.port, method, path, body, _ASKED_WITHIN_S)
        return status, json.loads(said) if said else None


@contextlib.contextmanager
def working(folder: Path, name: str, bootstrap: str) -> Iterator[Worker]:
    """A worker that is ready; stopped at the end unless a test has ended it. Raise `services.process.ServerError`."""
    port = free_port()
    file = folder / f"{name}.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in _properties(bootstrap, port).items()))
    worker = Worker(
        name=f"Kafka Connect {name}",
        command=[*command("org.apache.kafka.connect.cli.ConnectDistributed"), str(file)],
        environ=os.environ,
        log=folder / f"{name}.log",
        answers=partial(_is_ready, port),
        ready_within_s=READY_WITHIN_S,
    )
    worker.port = port
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def _properties(bootstrap: str, port: int) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": GROUP,
        "key.converter": _STRING,
        "value.converter": _STRING,
        **{f"{kind}.storage.topic": topic for kind, topic in TOPICS.items()},
        **{f"{kind}.storage.replication.factor": "1" for kind in TOPICS},
        "listeners": f"http://{HOST}:{port}",
        "rest.advertised.host.name": HOST,
        "plugin.discovery": "service_load",
        "offset.flush.interval.ms": "500",
        "scheduled.rebalance.max.delay.ms": "1000",
        "heartbeat.interval.ms": "500",
        "consumer.heartbeat.interval.ms": "500",
    }


def _is_ready(port: int) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return _ask(port, "GET", "/health", None, _ANSWER_WITHIN_S)[0] == http.client.OK
    return False


def _ask(port: int, method: str, path: str, body: Mapping[str, str] | None, within_s: float) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=within_s)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
