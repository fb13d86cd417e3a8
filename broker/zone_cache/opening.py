"""Puts the zone's cache together: the secret, the peers, and the reads that ask them."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from broker.zone_cache.asking import HttpPeers
from broker.zone_cache.blocks import ZoneBlocks, ZoneLimits, peers_of
from process.settings.errors import EXIT_UNREACHABLE, EXIT_USAGE, StartError
from process.settings.model import Settings
from runtime.clock import Clock
from runtime.telemetry import Telemetry
from storage.catalog.brokers import BrokerDirectory
from storage.catalog.identity import open_zone_secret
from storage.errors import IncompatibleFormat, StorageError
from storage.metadata.port import MetadataStore
from storage.opening import Stores


@dataclass(frozen=True, slots=True)
class ZoneCache:
    """A broker's part of the zone's cache: `blocks` reads, and answers to others are signed by `secret`."""

    blocks: ZoneBlocks
    secret: bytes
    limits: ZoneLimits


@contextlib.asynccontextmanager
async def open_zone_cache(
    settings: Settings,
    stores: Stores,
    directory: BrokerDirectory,
    *,
    clock: Clock,
    telemetry: Telemetry,
    limits: ZoneLimits | None = None,
) -> AsyncIterator[ZoneCache]:
    """Reads of the object store that ask other brokers of `broker.rack` first, as `directory` saw them last.

    Its `blocks.run` is the caller's to run. Raises `StartError` without the secret.
    """
    limits = limits or ZoneLimits()
    secret = await _secret(stores.metadata)
    asking = HttpPeers(secret, clock=clock, limits=limits)
    try:
        blocks = ZoneBlocks(
            stores.objects,
            peers=lambda: peers_of(directory.last_seen(), settings.broker.rack),
            own_id=lambda: directory.own_id,
            asking=asking,
            clock=clock,
            telemetry=telemetry,
            limits=limits,
        )
        yield ZoneCache(blocks, secret, limits)
    finally:
        await asking.close()


async def _secret(metadata: MetadataStore) -> bytes:
    try:
        return await open_zone_secret(metadata)
    except IncompatibleFormat as error:
        raise StartError(str(error), exit_code=EXIT_USAGE) from error
    except StorageError as error:
        cause = f"cannot read the secret of storage.zone_cache: {error}. Without the setting the broker starts and reads the object store"
        raise StartError(cause, exit_code=EXIT_UNREACHABLE) from error
