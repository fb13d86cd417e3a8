"""Compaction of what many brokers left: a gibibyte of 1 KiB records in 10,000 slices of 500 partitions, and reading it afterwards."""

import asyncio
import json
import os
import random
import struct
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from bench import clients, meter, processes
from bench.cases.case import Case, Plan, answered, grown, metered
from bench.clients import Load
from bench.processes import DISK, NATIVE, Place, fresh
from bench.results import GIB, KIB, MIB, CaseResult, Fact, Run, Work
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.catalog.identity import open_cluster, write_marker
from storage.catalog.topics import Topics
from storage.formats.manifest import Entry, IndexChunk, Manifest, encode
from storage.formats.wal import Slice, encode_header, header_bytes, object_key
from storage.log.limits import DEFAULT_LIMITS
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, MetadataStore, Put
from storage.opening import open_stores
from storage.recordbatch import HEADER_BYTES
from storage.vocabulary import ObjectId, PartitionId

TOPIC: Final = "old"
GETS: Final = "forebay_object_store_requests_total{op=get,outcome=ok}"
_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class OldLog:
    """`slices` of one batch each, of `records_per_slice` records of 1 KiB, dealt out to the partitions in turn; `objects` hold them."""

    partitions: int = 500
    slices: int = 10_000
    records_per_slice: int = 105
    object_bytes: int = 8 * MIB

    @property
    def records(self) -> int:
        return self.slices * self.records_per_slice


def batch_of(records: int, timestamp_ms: int, *, seed: int) -> bytes:
    """A record batch of values of 1 KiB that no codec makes smaller."""
    chance = random.Random(seed)
    value = chance.randbytes(KIB)
    body = bytearray()
    for delta in range(records):
        record = b"\x00\x00" + _varint(delta) + b"\x01" + _varint(KIB) + value + b"\x00"
        body += _varint(len(record)) + record
    rest = struct.pack(">hiqqqhii", 0, records - 1, timestamp_ms, timestamp_ms, -1, -1, -1, records) + bytes(body)
    batch = struct.pack(">qiibI", 0, 9 + len(rest), 0, 2, crc32c(rest)) + rest
    assert len(batch) > HEADER_BYTES
    return batch


async def write_old_log(storage_url: str, metadata_url: str, shape: OldLog, *, topic: str = "old") -> int:
    """Fill empty stores. Return the number of WAL objects."""
    clock = SystemClock()
    ids = IdSource(clock=clock)
    telemetry = Telemetry()
    async with open_stores(storage_url=storage_url, metadata_url=metadata_url, clock=clock, ids=ids, telemetry=telemetry) as stores:
        await write_marker(stores.objects, await open_cluster(stores.metadata, ids, clock))
        topics = Topics(stores.metadata, clock=clock, ids=ids, telemetry=telemetry)
        made = await topics.create(topic, partition_count=shape.partitions, replication_factor=1, configs={})
        topics.close()
        now_ms = clock.now_ms()
        batch = batch_of(shape.records_per_slice, now_ms, seed=1)
        per_object = max(1, shape.object_bytes // len(batch))
        entries: dict[PartitionId, list[Entry]] = {}
        ends = dict.fromkeys(range(shape.partitions), 0)
        objects = 0
        for begin in range(0, shape.slices, per_object):
            numbers = range(begin, min(begin + per_object, shape.slices))
            object_id = ObjectId(ids.next_ulid(above=""))
            first = header_bytes(len(numbers))
            slices = [
                Slice(made.partition(number % shape.partitions), first + place * len(batch), len(batch))
                for place, number in enumerate(numbers)
            ]
            await stores.objects.put_if_absent(object_key(object_id), [encode_header(object_id, 1, slices), *[batch] * len(slices)])
            objects += 1
            for one in slices:
                base = ends[one.partition.partition]
                last = base + shape.records_per_slice - 1
                ends[one.partition.partition] = last + 1
                entries.setdefault(one.partition, []).append(
                    Entry(base, last, object_id, ((one.position, one.length),), max_timestamp=now_ms, running_max_timestamp=now_ms)
                )
        for partition, found in entries.items():
            await _write_entries(stores.metadata, partition, found)
    return objects


async def _write_entries(metadata: MetadataStore, partition: PartitionId, entries: list[Entry]) -> None:
    """Chunks of the index as drained rings leave them, and the rest in the manifest."""
    keys = PartitionKeys(partition)
    (record,) = await metadata.get_many([keys.manifest])
    assert record is not None
    pending = tuple(entries[len(entries) // DEFAULT_LIMITS.pending_entries_max * DEFAULT_LIMITS.pending_entries_max :])
    indexed = entries[: len(entries) - len(pending)]
    ops = [
        Put(
            keys.index(indexed[begin + DEFAULT_LIMITS.pending_entries_max - 1].last),
            encode(IndexChunk(entries=tuple(indexed[begin : begin + DEFAULT_LIMITS.pending_entries_max]))),
            None,
        )
        for begin in range(0, len(indexed), DEFAULT_LIMITS.pending_entries_max)
    ]
    size_bytes = sum(entry.size_bytes for entry in entries)
    manifest = Manifest(
        sequence_counter=entries[-1].last + 1,
        pending=pending,
        bytes_total=size_bytes,
        max_timestamp=entries[-1].max_timestamp,
        max_timestamp_offset=entries[0].base,
        last_append_ms=entries[-1].max_timestamp,
    )
    for begin in range(0, len(ops), 500):
        assert isinstance(await metadata.write(ops[begin : begin + 500]), Applied)
    assert isinstance(await metadata.write([Put(keys.manifest, encode(manifest), record.version)]), Applied)


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _compact(plan: Plan, store: str) -> CaseResult:
    shape = OldLog(slices=plan.scaled(10_000))
    runs: list[Run] = []
    for _ in range(plan.repeats):
        with fresh(store, plan.folder) as place:
            objects = asyncio.run(write_old_log(place.storage_url, place.metadata_url, shape, topic=TOPIC))
            idle, _, _ = _run_once(place)
            work, found, peak_bytes = _run_once(place, "--now")
            assert found["entries"] == shape.slices, f"not all was compacted: {found}"
            value_bytes = shape.records * KIB
            facts: dict[str, Fact] = {
                "gets_per_object": found["gets"] / objects,
                "segments": found["segments"],
                "cpu_s_of_a_start": idle.cpu_s,
                "cpu_s_per_gib_without_start": (work.cpu_s - idle.cpu_s) * GIB / value_bytes,
            }
            spent = Work(shape.records, value_bytes, found["entries"], work.seconds, work.user_s, work.system_s, work.loop_s)
            runs.append(Run(spent, None, peak_bytes, facts))
    what = "forebay compactor run-once --now over a log that nobody has compacted; a request is an entry"
    settings: dict[str, Fact] = {"slices": shape.slices, "partitions": shape.partitions, "records": shape.records}
    goals = {"cpu_s_per_gib": 6.0, "peak_rss_mib": 256.0, "gets_per_object": 1.2}
    return CaseResult("compact", store, what, settings, runs, goals)


def _run_once(place: Place, *options: str) -> tuple[Work, dict[str, int], int]:
    command = [sys.executable, "-m", "forebay", "compactor", "run-once", "-o", "json", "--config", os.devnull, *options]
    for key, value in place.settings.items():
        command += ["--set", f"{key}={value}"]
    began_s = _clock.monotonic_s()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, meter.PeakMemory(process.pid) as peak:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"forebay compactor run-once failed: {process.returncode}"
    work = Work(0, 0, 0, _clock.monotonic_s() - began_s, used.ru_utime, used.ru_stime, 0.0)
    return work, json.loads(said), peak.rss_bytes


def _read(plan: Plan, store: str) -> CaseResult:
    """The whole log by brokers that have just started, in order, one partition after the other as a consumer of twelve does."""
    shape = OldLog(partitions=12, slices=plan.scaled(10_000))
    runs: list[Run] = []
    with fresh(store, plan.folder) as place:
        asyncio.run(write_old_log(place.storage_url, place.metadata_url, shape, topic=TOPIC))
        compact_now(place)
        for number in range(plan.repeats):
            with processes.broker(place, {}) as target:
                _serve_once(target.bootstrap, f"first-{number}")
                before = target.counters()

                def read(bootstrap: str = target.bootstrap) -> None:
                    with clients.consumer(bootstrap, TOPIC, shape.partitions) as reader:
                        clients.consume(reader, shape.records)

                work = metered(target, read, records=shape.records, value_bytes=shape.records * KIB)
                after = target.counters()
                gets = grown(after, before, GETS)
                facts: dict[str, Fact] = {"gets": gets, "mib_per_get": work.value_bytes / gets / 2**20 if gets else 0.0}
                counted = Work(
                    work.records, work.value_bytes, answered(after, before, "Fetch"), work.seconds, work.user_s, work.system_s, work.loop_s
                )
                runs.append(Run(counted, None, meter.peak_rss_bytes(target.pid), facts))
    settings: dict[str, Fact] = {"records": shape.records, "partitions": shape.partitions}
    what = "the whole log from segments, by a broker that has just started and served another topic once"
    return CaseResult("fetch-segments", store, what, settings, runs, {"cpu_s_per_gib": 0.7}, {"mib_per_get": 4.0})


def compact_now(place: Place) -> None:
    """All there is."""
    _run_once(place, "--now")


def _serve_once(bootstrap: str, topic: str) -> None:
    """The code of each API is loaded with its first request (ADR 18), which is no cost of reading."""
    load = Load(records=1, record_bytes=KIB, partitions=1, turn_records=1)
    clients.create_topic(bootstrap, topic, load.partitions)
    with clients.producer(bootstrap, load) as made:
        clients.produce(made, topic, load)
    with clients.consumer(bootstrap, topic, load.partitions) as reader:
        clients.consume(reader, load.records)


CASES: Final = (
    Case("compact", (DISK, NATIVE), _compact),
    Case("fetch-segments", (DISK, NATIVE), _read),
)
