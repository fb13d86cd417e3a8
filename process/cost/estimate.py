"""A load → what a month of it costs. Pure; the formulas are in docs/reference/cost.md.

A month has 730 hours, and all bytes are those that producers send, compressed as they send them.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from process.cost.prices import GIB, MONTH_S, StorePrices
from process.settings.sections import CompactorSettings, StorageSettings
from storage.limits import BLOCK_BYTES
from storage.log.flush import COMMIT_COST_BYTES, ON_OXIA
from storage.log.limits import DEFAULT_LIMITS as EARLY
from storage.objects.requests import UPLOAD_PART_BYTES

KAFKA_REPLICAS: Final = 3
KAFKA_DISK_FULL: Final = 0.6
KAFKA_DISK_PER_GIB_MONTH: Final = 0.08
"""AWS's gp3, second-hand."""
KAFKA_CROSS_ZONE_PER_GIB: Final = 0.02
"""AWS takes half of it at each end; second-hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedLoad:
    """`bytes_per_s` is the load of all brokers, which share it evenly.

    `batches_per_s`, of all brokers, matters where a broker has fewer than one an interval, and for how many of them go early.
    `readers` brokers read each object, the writer included, which has it in memory. `fan_out` groups read everything.
    """

    bytes_per_s: float
    retention_s: float
    brokers: int = 3
    zones: int = 3
    readers: int | None = None
    has_zone_cache: bool = False
    fan_out: float = 1.0
    is_rack_aware: bool = True
    batches_per_s: float | None = None
    flush_interval_s: float = 0.25
    flush_bytes: int = StorageSettings().flush_bytes
    early_bytes_per_s: float = ON_OXIA.bytes_per_s
    segment_bytes: int = CompactorSettings().segment_bytes
    segment_age_s: float = CompactorSettings().segment_age.total_seconds()
    delete_interval_s: float = CompactorSettings().delete_interval.total_seconds()
    delete_grace_s: float = CompactorSettings().delete_grace.total_seconds()
    machine_per_hour: float = 0.0


class CostItem(NamedTuple):
    """So much of something in a month, or at all times if it is kept."""

    name: str
    quantity: float
    unit: str
    dollars: float


@dataclass(frozen=True, slots=True)
class Estimated:
    """`objects_per_s` and `object_bytes` are those of WAL objects of all brokers; both 0 where nothing is written."""

    forebay: tuple[CostItem, ...]
    kafka: tuple[CostItem, ...]
    objects_per_s: float
    object_bytes: float
    gib_per_month: float


def estimate(load: ExpectedLoad, prices: StorePrices) -> Estimated:
    """What Forebay on this store, and Apache Kafka in three zones on AWS, cost in a month of this load."""
    objects_per_s = load.brokers * _objects_per_s(load)
    object_bytes = load.bytes_per_s / objects_per_s if objects_per_s else 0.0
    written_gib = load.bytes_per_s * MONTH_S / GIB
    stored_gib = load.bytes_per_s * load.retention_s / GIB
    puts = objects_per_s * MONTH_S
    readers = (load.zones if load.has_zone_cache else load.readers or load.brokers) - 1
    gets = puts * readers * math.ceil(object_bytes / BLOCK_BYTES)
    segments = load.bytes_per_s * MONTH_S / load.segment_bytes
    lists = MONTH_S / load.delete_interval_s * _pages(load, objects_per_s)
    put, get = prices.of_request("put"), prices.of_request("get")
    of_segment = segment_requests(load.segment_bytes)
    moved_in_gib = written_gib * (2 if objects_per_s else 1)
    moved_out_gib = written_gib * (1 + readers) if objects_per_s else 0.0
    forebay = [
        CostItem("PUT of WAL objects", puts, "requests", puts * put),
        CostItem("GET by readers", gets, "requests", gets * get),
        CostItem("GET by compaction", puts, "requests", puts * get),
        CostItem("PUT of segments", segments * of_segment, "requests", segments * of_segment * put),
        CostItem("LIST by collection", lists, "requests", lists * prices.of_request("list")),
        CostItem("storage", stored_gib, "GiB", stored_gib * prices.storage_per_gib_month),
    ]
    if prices.upload_per_gib:
        forebay.append(CostItem("bytes into the store", moved_in_gib, "GiB", moved_in_gib * prices.upload_per_gib))
    if prices.retrieval_per_gib:
        forebay.append(CostItem("bytes out of the store", moved_out_gib, "GiB", moved_out_gib * prices.retrieval_per_gib))
    disks_gib = stored_gib * KAFKA_REPLICAS / KAFKA_DISK_FULL
    crossing_gib = written_gib * (2 / 3 + 2 + (0 if load.is_rack_aware else 2 / 3 * load.fan_out))
    kafka = [
        CostItem("bytes between zones", crossing_gib, "GiB", crossing_gib * KAFKA_CROSS_ZONE_PER_GIB),
        CostItem("disks (gp3)", disks_gib, "GiB", disks_gib * KAFKA_DISK_PER_GIB_MONTH),
    ]
    if load.machine_per_hour:
        machines = CostItem("machines", load.brokers, "machines", load.brokers * load.machine_per_hour * MONTH_S / 3_600)
        forebay.append(machines)
        kafka.append(machines)
    return Estimated(tuple(forebay), tuple(kafka), objects_per_s, object_bytes, written_gib)


def segment_requests(size_bytes: int) -> int:
    """What it takes to store a segment: 6 requests for 64 MiB, and one for what fits into one part."""
    parts = math.ceil(size_bytes / UPLOAD_PART_BYTES)
    return 1 if parts <= 1 else parts + 2


def _objects_per_s(load: ExpectedLoad) -> float:
    """WAL objects of one broker."""
    bytes_per_s = load.bytes_per_s / load.brokers
    by_interval = 1 / load.flush_interval_s
    if load.batches_per_s is not None:
        batches_per_s = load.batches_per_s / load.brokers
        by_interval = min(by_interval, batches_per_s)
    else:
        batches_per_s = 0.0  # they are large: what each costs beside its bytes is little
    if bytes_per_s and bytes_per_s + batches_per_s * COMMIT_COST_BYTES <= load.early_bytes_per_s:
        return max(bytes_per_s / EARLY.early_object_bytes, 1 / EARLY.early_age_s)
    return max(bytes_per_s / load.flush_bytes, by_interval) if bytes_per_s else 0.0


def _pages(load: ExpectedLoad, objects_per_s: float) -> float:
    """Requests of one cycle of the collector, which lists what is kept: WAL objects until they are compacted and deleted, and segments."""
    kept_s = load.segment_age_s + load.delete_grace_s + load.delete_interval_s
    wal = objects_per_s * min(kept_s, load.retention_s)
    segments = load.bytes_per_s * load.retention_s / load.segment_bytes
    return max(1, math.ceil(wal / 1_000)) + max(1, math.ceil(segments / 1_000))
