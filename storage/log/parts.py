"""The parts of the log of one broker, put together: what `broker.assembly` opens and handlers use piecewise."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from runtime.blocking import Blocking, InlineBlocking
from runtime.clock import Clock
from runtime.frames import Account
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.cache.blocks import BlockCache
from storage.formats.levels import LEVEL_FIRST, LEVEL_OF_EARLY
from storage.log.commit import Committer
from storage.log.decide import PRODUCER_EXPIRATION_MS
from storage.log.early_objects import EarlyObjects
from storage.log.early_pages import EarlyPages
from storage.log.flush import NO_EARLY, EarlySettings, FlushSettings
from storage.log.fresh_reads import Doubt, ManifestReads
from storage.log.index import EntryIndex
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.page_store import ProducerReads
from storage.log.partition import BrokerEpoch, Partitions, TailCache
from storage.log.reader import CorruptReads, Reader
from storage.log.time_search import TimeSearch
from storage.log.tracing import Tracing
from storage.log.traffic import TopicTraffic
from storage.log.trim import Trimmer
from storage.log.unknown_producers import Former, UnknownProducers, no_former
from storage.log.uploads import Uploader
from storage.log.writer import Appender, Sealer
from storage.metadata.port import MetadataStore
from storage.objects.port import ObjectStore
from storage.objects.shared_blocks import SharedBlocks


@dataclass(frozen=True, slots=True)
class LogParts:
    partitions: Partitions
    manifest_reads: ManifestReads
    appender: Appender
    reader: Reader
    time_search: TimeSearch
    trimmer: Trimmer
    producer_reads: ProducerReads
    index: EntryIndex

    def refuse(self, cause: str) -> None:
        """Nothing is committed any more, and nothing is read from what is remembered."""
        self.partitions.refused = cause
        self.appender.refuse(cause)


def open_log(
    *,
    metadata: MetadataStore,
    objects: ObjectStore,
    blocks: BlockCache,
    tail_bytes_max: int,
    flush: FlushSettings,
    epoch: BrokerEpoch,
    ids: IdSource,
    clock: Clock,
    chance: random.Random,
    nursery: Nursery,
    telemetry: Telemetry,
    early: EarlySettings = NO_EARLY,
    level: Callable[[], int] = lambda: LEVEL_FIRST,
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    walking: Blocking | None = None,
    readers: Account | None = None,
    doubt: Doubt | None = None,
    former: Former = no_former,
    traffic: TopicTraffic | None = None,
    shared: SharedBlocks | None = None,
    tracing: Tracing | None = None,
    limits: LogLimits = DEFAULT_LIMITS,
) -> LogParts:
    """`walking` runs what goes through records one by one; None: where it is asked for.

    Nothing is read or written yet: a broker's start needs no recovery. What an earlier broker left is either committed, and found in the
    manifest, or garbage that no entry names; `pending` entries are indexed by whoever commits next.

    `level` is the format level in force, `early` what it allows from LEVEL_OF_EARLY on.

    `readers` counts the frames that the tail cache drops while others hold them. `doubt` hears of manifests that were read older than
    they are known to be. `former` tells the deleted topics that had the name of a topic, the one deleted last ahead. `traffic`: where bytes
    and records are counted by topic. `shared` keeps the objects of this broker for others of its machine.
    """
    partitions = Partitions(telemetry=telemetry, traffic=traffic, limits=limits)
    manifest_reads = ManifestReads(metadata=metadata, partitions=partitions, nursery=nursery, doubt=doubt, limits=limits)
    uploader = Uploader(objects=objects, clock=clock, chance=chance, limits=limits)
    early_objects = EarlyObjects(
        metadata=metadata,
        uploader=uploader,
        ids=ids,
        epoch=epoch,
        clock=clock,
        nursery=nursery,
        telemetry=telemetry,
        limits=limits,
    )
    early_pages = EarlyPages(metadata=metadata, own=early_objects, clock=clock, limits=limits)
    sealer = Sealer(ids=ids, epoch=epoch, uploader=uploader, shared=shared)
    committer = Committer(
        metadata=metadata,
        manifest_reads=manifest_reads,
        tail=TailCache(bytes_max=tail_bytes_max, telemetry=telemetry, readers=readers or Account(), limits=limits),
        early_objects=early_objects,
        epoch=epoch,
        upload_again=sealer.upload_again,
        clock=clock,
        chance=chance,
        nursery=nursery,
        telemetry=telemetry,
        producer_expiration_ms=producer_expiration_ms,
        limits=limits,
        unknown_producers=UnknownProducers(
            metadata=metadata, former=former, clock=clock, nursery=nursery, expiration_ms=producer_expiration_ms
        ),
    )
    appender = Appender(
        settings=flush,
        early=early,
        may_write_early=lambda: level() >= LEVEL_OF_EARLY,
        committer=committer,
        sealer=sealer,
        uploader=uploader,
        early_objects=early_objects,
        clock=clock,
        nursery=nursery,
        telemetry=telemetry,
        tracing=tracing,
        limits=limits,
    )
    index = EntryIndex(metadata=metadata, manifest_reads=manifest_reads, limits=limits)
    corrupt_reads = CorruptReads(clock=clock, telemetry=telemetry, limits=limits)
    reader = Reader(
        index=index,
        objects=blocks.store,
        blocks=blocks,
        manifest_reads=manifest_reads,
        corrupt_reads=corrupt_reads,
        early=early_pages,
        clock=clock,
        nursery=nursery,
        telemetry=telemetry,
        limits=limits,
    )
    time_search = TimeSearch(
        partitions=partitions,
        manifest_reads=manifest_reads,
        index=index,
        reader=reader,
        metadata=metadata,
        walking=walking or InlineBlocking(),
        limits=limits,
    )
    trimmer = Trimmer(metadata=metadata, partitions=partitions, manifest_reads=manifest_reads, entropy=chance.randbytes, limits=limits)
    producer_reads = ProducerReads(
        metadata=metadata, partitions=partitions, manifest_reads=manifest_reads, clock=clock, expiration_ms=producer_expiration_ms
    )
    return LogParts(partitions, manifest_reads, appender, reader, time_search, trimmer, producer_reads, index)
