"""URL → stores, with their decorators in this order: the store, then metering right around it, so that every attempt counts.

storage.url    file://./relative   file:///absolute   memory://
metadata.url   sqlite:///./relative   sqlite:////absolute   memory://
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.blocking import ThreadBlocking
from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.metered import MeteredMetadataStore
from storage.metadata.port import MetadataStore
from storage.metadata.sqlite import SqliteMetadataStore
from storage.objects.disk import DiskObjectStore
from storage.objects.memory import MemoryObjectStore
from storage.objects.metered import MeteredObjectStore
from storage.objects.port import ObjectStore

DISK_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class Stores:
    metadata: MetadataStore
    objects: ObjectStore


@contextlib.asynccontextmanager
async def open_stores(
    *,
    storage_url: str,
    metadata_url: str,
    clock: Clock,
    ids: IdSource,
    telemetry: Telemetry,
    on_metadata_ok: Callable[[], None],
    on_objects_ok: Callable[[], None],
) -> AsyncIterator[Stores]:
    """Open both and close them in the end. The URLs are validated. Raises `Unavailable` and `IncompatibleFormat` with cause and fix.

    `on_metadata_ok`, `on_objects_ok`: called after each request of the store that succeeded.
    """
    async with contextlib.AsyncExitStack() as closing:
        metadata = await _open_metadata(metadata_url, clock=clock, ids=ids)
        closing.push_async_callback(metadata.close)
        objects = await _open_objects(storage_url, clock=clock, closing=closing)
        closing.push_async_callback(objects.close)
        yield Stores(
            MeteredMetadataStore(metadata, telemetry, clock, on_ok=on_metadata_ok),
            MeteredObjectStore(objects, telemetry, clock, on_ok=on_objects_ok),
        )


async def _open_metadata(url: str, *, clock: Clock, ids: IdSource) -> MetadataStore:
    scheme, _, rest = url.partition("://")
    match scheme:
        case "memory":
            return MemoryMetadataStore(clock=clock)
        case "sqlite":
            blocking = ThreadBlocking(threads=1, name="sqlite")
            return await SqliteMetadataStore.open(Path(rest.removeprefix("/")), blocking=blocking, clock=clock, ids=ids)
        case _:
            raise AssertionError(f"not validated: metadata.url={url!r}")


async def _open_objects(url: str, *, clock: Clock, closing: contextlib.AsyncExitStack) -> ObjectStore:
    scheme, _, rest = url.partition("://")
    match scheme:
        case "memory":
            return MemoryObjectStore(clock=clock)
        case "file":
            blocking = ThreadBlocking(threads=DISK_THREADS, name="disk")
            closing.callback(blocking.close)
            return await DiskObjectStore.open(Path(rest), blocking=blocking, clock=clock)
        case _:
            raise AssertionError(f"not validated: storage.url={url!r}")
