"""A broker in this process, for tests and for programs that bring their log along: one `async with`.

    async with embedded_broker("data") as broker:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)

Everything lies in the folder: the same broker finds it again, and so does `forebay serve` (docs/guides/library.md).
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from broker.assembly import open_broker
from forebay.log import CannotOpen, noting, unwrapped
from forebay.processes.serve import http_side
from process.settings.errors import StartError
from process.settings.model import Settings

__all__ = ["EmbeddedBroker", "embedded_broker"]

HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class EmbeddedBroker:
    """`bootstrap` is for Kafka's clients, `http` for the HTTP API: addresses of this machine alone, with ports of the system's choice."""

    bootstrap: str
    http: str
    broker_id: int
    cluster_id: str


@contextlib.asynccontextmanager
async def embedded_broker(
    folder: str | Path | None = None, *, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> AsyncIterator[EmbeddedBroker]:
    """A broker on the event loop of the caller, for as long as the context is open; leaving it answers and commits what was received.

    `folder` is made if it is not there; None: everything is in memory, and gone afterwards. `settings`: sections of the configuration
    file, as {"kafka": {"auto_create_topics": False}}. No compactor runs. Raises `CannotOpen`.
    """
    chosen = _settings(folder, settings or {})
    async with unwrapped() as raised, contextlib.AsyncExitStack() as closing:
        with noting(raised):
            try:
                broker = await closing.enter_async_context(open_broker(chosen, announce=_say_nothing))
                closing.push_async_callback(broker.drain, drain_s=0.0)
                address = await closing.enter_async_context(http_side(chosen, broker, announce=_say_nothing))
            except StartError as error:
                raise CannotOpen(str(error)) from error
            (listener, *_) = broker.listeners
            yield EmbeddedBroker(f"{listener.host}:{listener.port}", f"http://{address}", broker.broker_id, broker.cluster_id)


def _settings(folder: str | Path | None, given: Mapping[str, Mapping[str, Any]]) -> Settings:
    stores = {"metadata": {"url": "memory://"}, "storage": {"url": "memory://"}}
    if folder is not None:
        place = Path(folder).resolve()
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotOpen(f"{place} cannot be made: {error.strerror or error}") from error
        stores = {"metadata": {"url": f"sqlite:///{place / 'meta.db'}"}, "storage": {"url": f"file://{place / 'objects'}"}}
    addresses = {"kafka": {"listeners": f"PLAINTEXT://{HOST}:0"}, "http": {"listen": f"{HOST}:0"}}
    sections = [stores, addresses, given]
    merged = {name: {key: value for one in sections for key, value in one.get(name, {}).items()} for one in sections for name in one}
    try:
        return Settings(**merged)
    except ValueError as error:
        raise CannotOpen(str(error)) from error


def _say_nothing(_stage: str, _facts: Mapping[str, Any]) -> None:
    pass
