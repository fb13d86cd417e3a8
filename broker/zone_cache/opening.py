"""Puts the zone's cache together: the secret, the peers, and the reads that ask them."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from broker.zone_cache.asking import HttpPeers
from broker.zone_cache.blocks import ZoneBlocks, ZoneLimits, peers_of
from runtime.clock import Clock
from runtime.telemetry import Telemetry
from storage.cache.blocks import RangeSource
from storage.catalog.brokers import BrokerDirectory
from storage.catalog.zone_secret import open_zone_secret
from storage.metadata.port import MetadataStore


@dataclass(frozen=True, slots=True)
class ZoneCache:
    """What a broker has of the zone's cache: reads (`blocks`), and what it answers others by."""

    blocks: ZoneBlocks
    secret: bytes
    limits: ZoneLimits


@contextlib.asynccontextmanager
async def open_zone_cache(
    source: RangeSource,
    *,
    rack: str | None,
    directory: BrokerDirectory,
    metadata: MetadataStore,
    clock: Clock,
    telemetry: Telemetry,
    limits: ZoneLimits | None = None,
) -> AsyncIterator[ZoneCache]:
    """Reads of `source` that ask other brokers of `rack` first, as `directory` saw them last.

    Raises what `open_zone_secret` raises. Its `blocks.run` is the caller's to run.
    """
    limits = limits or ZoneLimits()
    secret = await open_zone_secret(metadata)
    asking = HttpPeers(secret, clock=clock, limits=limits)
    try:
        blocks = ZoneBlocks(
            source,
            peers=lambda: peers_of(directory.last_seen(), rack),
            own_id=lambda: directory.own_id,
            asking=asking,
            clock=clock,
            telemetry=telemetry,
            limits=limits,
        )
        yield ZoneCache(blocks, secret, limits)
    finally:
        await asking.close()
