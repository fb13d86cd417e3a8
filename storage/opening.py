"""URL → stores, with their decorators in this order: the store, metering right around it so that every attempt counts, hedged reads of S3.
Metadata that go back are refused below the metering.

storage.url    s3://bucket/prefix?…   file://./relative   file:///absolute   memory://
metadata.url   oxia://host:port/namespace?…   sqlite:///./relative   sqlite:////absolute   memory://

The clients of S3 and Oxia are imported where they are opened: they are large, and an embedded broker has no use for them.
"""

import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from runtime.blocking import ThreadBlocking
from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.cache.blocks import RangeSource
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.metered import MeteredMetadataStore
from storage.metadata.port import MetadataStore, TellsTime
from storage.metadata.sqlite.file import FILE_LOST
from storage.metadata.sqlite.store import SqliteMetadataStore
from storage.metadata.version_watch import VersionWatch
from storage.objects.block_folder import BlockFolder
from storage.objects.disk import DiskObjectStore
from storage.objects.hedged import HedgedObjectStore
from storage.objects.memory import MemoryObjectStore
from storage.objects.metered import MeteredObjectStore
from storage.objects.port import ObjectStore
from storage.objects.requests import CountedAsS3, RequestMeter
from storage.objects.shared_blocks import THREADS, SharedBlocks
from storage.outcomes import StoreOutcomes

DISK_THREADS: Final = 8

S3Client = Literal["obstore", "aioboto3"]


@dataclass(frozen=True, slots=True)
class Stores:
    metadata: MetadataStore
    objects: ObjectStore
    times: TellsTime | None = None
    """The metadata store, if it has a clock of its own."""
    versions: VersionWatch | None = None
    """Part of `metadata`: what tells that they went back."""


def _ignore(_cause: str) -> None:
    pass


@contextlib.asynccontextmanager
async def open_stores(
    *,
    storage_url: str,
    s3_client: S3Client = "obstore",
    metadata_url: str,
    clock: Clock,
    ids: IdSource,
    telemetry: Telemetry,
    outcomes: StoreOutcomes | None = None,
    on_metadata_lost: Callable[[str], None] = _ignore,
) -> AsyncIterator[Stores]:
    """Open both and close them in the end. The URLs are validated. Raises `Unavailable` and `IncompatibleFormat` with cause and fix.

    `outcomes` hears what becomes of the requests, and says in the log that they fail. `on_metadata_lost`: called once, with the cause, when
    the metadata store is of no use any more for as long as this process lives.
    """
    chance = random.Random(os.urandom(16))  # noqa: S311 - for pauses
    async with contextlib.AsyncExitStack() as closing:
        metadata = await _open_metadata(
            metadata_url, clock=clock, ids=ids, chance=chance, telemetry=telemetry, closing=closing, on_lost=on_metadata_lost
        )
        closing.push_async_callback(metadata.close)
        objects = await _open_objects(
            storage_url, s3_client=s3_client, clock=clock, chance=chance, telemetry=telemetry, closing=closing, outcomes=outcomes
        )
        times = metadata if isinstance(metadata, TellsTime) else None
        versions = VersionWatch(metadata, ids=ids, telemetry=telemetry, on_lost=on_metadata_lost)
        yield Stores(MeteredMetadataStore(versions, telemetry, clock, outcomes=outcomes), objects, times, versions)


@contextlib.asynccontextmanager
async def open_shared_blocks(
    source: RangeSource,
    folder: str | None,
    *,
    bytes_max: int,
    cluster: Callable[[], str],
    ids: IdSource,
    clock: Clock,
    telemetry: Telemetry,
    fills: bool = True,
) -> AsyncIterator[SharedBlocks | None]:
    """Reads of `source` through a folder that the processes of this machine share; None without a folder. The folder may be of no use."""
    if folder is None:
        yield None
        return
    blocking = ThreadBlocking(threads=THREADS, name="shared-cache")
    try:
        async with Nursery() as nursery:
            files = BlockFolder(folder, bytes_max=bytes_max, owner=ids.next_ulid(), now_s=lambda: clock.now_ms() / 1_000)
            shared = SharedBlocks(
                source, files, cluster=cluster, blocking=blocking, clock=clock, nursery=nursery, telemetry=telemetry, fills=fills
            )
            nursery.spawn(shared.run(), name="shared-cache")
            yield shared
    finally:
        blocking.close()


async def _open_metadata(
    url: str,
    *,
    clock: Clock,
    ids: IdSource,
    chance: random.Random,
    telemetry: Telemetry,
    closing: contextlib.AsyncExitStack,
    on_lost: Callable[[str], None],
) -> MetadataStore:
    scheme, _, rest = url.partition("://")
    match scheme:
        case "memory":
            return MemoryMetadataStore(clock=clock)
        case "sqlite":
            file_lost = telemetry.gauge(FILE_LOST)

            def tell(cause: str) -> None:
                file_lost.set(1)
                on_lost(cause)

            blocking = ThreadBlocking(threads=1, name="sqlite")
            return await SqliteMetadataStore.open(Path(rest.removeprefix("/")), blocking=blocking, clock=clock, ids=ids, on_lost=tell)
        case "oxia":
            # Its C library writes lines of its own to standard error about what is logged here as well: a handshake that failed.
            os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
            from storage.metadata.oxia.location import parse_oxia_url
            from storage.metadata.oxia.store import OxiaMetadataStore

            nursery = await closing.enter_async_context(Nursery())
            return await OxiaMetadataStore.open(parse_oxia_url(url), clock=clock, chance=chance, nursery=nursery)
        case _:
            raise AssertionError(f"not validated: metadata.url={url!r}")


async def _open_objects(
    url: str,
    *,
    s3_client: S3Client,
    clock: Clock,
    chance: random.Random,
    telemetry: Telemetry,
    closing: contextlib.AsyncExitStack,
    outcomes: StoreOutcomes | None,
) -> ObjectStore:
    scheme, _, rest = url.partition("://")
    store: ObjectStore
    match scheme:
        case "memory":
            store = CountedAsS3(MemoryObjectStore(clock=clock), RequestMeter(telemetry))
        case "file":
            blocking = ThreadBlocking(threads=DISK_THREADS, name="disk")
            closing.callback(blocking.close)
            store = CountedAsS3(await DiskObjectStore.open(Path(rest), blocking=blocking, clock=clock), RequestMeter(telemetry))
        case "s3":
            from storage.objects.s3.location import parse_s3_url
            from storage.objects.s3.store import open_s3

            store = await open_s3(parse_s3_url(url), client=s3_client, clock=clock, chance=chance, telemetry=telemetry)
        case _:
            raise AssertionError(f"not validated: storage.url={url!r}")
    closing.push_async_callback(store.close)
    metered = MeteredObjectStore(store, telemetry, clock, outcomes=outcomes)
    return HedgedObjectStore(metered, clock=clock, telemetry=telemetry) if scheme == "s3" else metered
