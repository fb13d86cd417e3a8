"""An Oxia server of one's own: `with running_oxia(folder) as oxia: … oxia.url …`. One process with every shard; writes are fsynced."""

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from services.build import OXIA, built
from services.ports import HOST, free_port
from services.process import LocalProcess, Runs, Server, ServerError
from services.readiness import oxia_answers

SHARDS: Final = 4
NAMESPACE: Final = "default"
ON_ONE_PROCESSOR: Final = {"GOMAXPROCS": "1"}
"""For the Oxia that is built here: 0.14.0 gives a write its place in a shard's log and puts it there in two steps. On several processors
one of two writes at a time may overtake the other, and the shard takes no writes until the server restarts (docs/internals/adr/0008)."""
IMAGE: Final = "oxia/oxia:0.16.8"
"""What runs in containers: newer than Go's module download can give (docs/internals/adr/0014)."""
_PORT_TRIES: Final = 5


class OxiaServer(Server):
    """`address` is `host:port`."""

    def __init__(self, runs: Runs, *, host: str = HOST, port: int) -> None:
        super().__init__(runs)
        self.host = host
        self.port = port

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """As `metadata.url` has it."""
        return url_of(self.host, self.port)


def url_of(host: str, port: int) -> str:
    return f"oxia://{host}:{port}/{NAMESPACE}"


def command(program: str, folder: str, *, address: str, shards: int = SHARDS, metrics_address: str = f"{HOST}:0") -> list[str]:
    """A standalone Oxia with its data below `folder`. Nobody asks for its metrics: they are served on a port of the system's choice."""
    return [
        program,
        "standalone",
        f"--public-addr={address}",
        f"--metrics-addr={metrics_address}",
        f"--shards={shards}",
        f"--wal-dir={folder}/wal",
        f"--data-dir={folder}/db",
        "--wal-sync-data=true",
        "--wal-retention-time=24h",
        "--notifications-enabled=true",
    ]


@contextlib.contextmanager
def running_oxia(folder: Path, *, port: int = 0, shards: int = SHARDS) -> Iterator[OxiaServer]:
    """A server with its data and `oxia.log` in `folder`, ready; stopped at the end, its data left. Blocks.

    `port` 0 takes a free one. Raise `ServerError` or `services.build.BuildError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    server = _started(folder, port, shards)
    try:
        yield server
    finally:
        server.stop()


def _started(folder: Path, port: int, shards: int) -> OxiaServer:
    program = str(built(OXIA))
    for left in reversed(range(_PORT_TRIES)):
        chosen = port or free_port()
        process = LocalProcess(
            name="oxia",
            command=command(program, str(folder), address=f"{HOST}:{chosen}", shards=shards),
            environ=os.environ | ON_ONE_PROCESSOR,
            log=folder / "oxia.log",
            answers=partial(oxia_answers, chosen),
        )
        try:
            process.start()
        except ServerError as error:
            # Somebody else took the port between the look and the start.
            if port or not left or "address already in use" not in str(error):
                raise
            continue
        return OxiaServer(process, port=chosen)
    raise AssertionError("the last try raises")
