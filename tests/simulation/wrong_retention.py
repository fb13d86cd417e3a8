"""Retention that is wrong on purpose: one function per rule of docs/internals/design/upkeep.md#retention and #tidying."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec

from compactor import plan, records, retention
from compactor.plan import RetentionPlan, Tidied, source_ms
from compactor.records import GoneBrokers, Records
from compactor.retention import Retention, RetentionResult
from storage.catalog.brokers import read_live
from storage.formats.manifest import EntrySource, Manifest, decode_chunk, decode_segment
from storage.log.trim import TrimDecision
from storage.metadata.keys import PartitionKeys, brokers
from storage.metadata.port import Delete, Key, MetadataStore, Record, Session, WriteOp


@contextlib.contextmanager
def moves_log_start_to_where_it_has_planned() -> Iterator[None]:
    """I5: somebody has deleted more meanwhile, and log_start goes back."""

    def trimmed(manifest: Manifest, before: int) -> TrimDecision:
        if before == manifest.log_start:
            return TrimDecision(before, None)
        return TrimDecision(before, msgspec.structs.replace(manifest, log_start=before))

    with mock.patch.object(plan, "decide_trim", trimmed):
        yield


@contextlib.contextmanager
def deletes_keys_by_their_base() -> Iterator[None]:
    """What begins below log_start goes, whether it ends there or not."""
    original = Retention._delete_keys

    async def delete(self: Any, keys: PartitionKeys, log_start: int) -> tuple[int, bool]:
        for record in (
            await self._records.metadata.get_ceiling(keys.index(log_start), within=keys.index_prefix),
            await self._records.metadata.get_ceiling(keys.segment(log_start), within=keys.segments_prefix),
        ):
            if record is None:
                continue
            is_chunk = record.path.startswith(keys.index_prefix)
            first: EntrySource = (
                decode_chunk(record.value, path=record.path).entries[0] if is_chunk else decode_segment(record.value, path=record.path)
            )
            if first.base < log_start:
                await self._delete([Delete(Key(record.path, keys.partition_key), record.version)])
        return await original(self, keys, log_start)

    with mock.patch.object(Retention, "_delete_keys", delete):
        yield


@contextlib.contextmanager
def deletes_keys_before_its_cas() -> Iterator[None]:
    """The CAS may not be applied, and until it is readers look for what is gone."""
    original = Retention._change

    async def change(self: Any, keys: PartitionKeys, log_start: int, now_ms: int) -> Manifest | None:
        await self._delete_keys(keys, log_start)
        return await original(self, keys, log_start, now_ms)

    with mock.patch.object(Retention, "_change", change):
        yield


@contextlib.contextmanager
def deletes_all_that_is_old_wherever_it_lies() -> Iterator[None]:
    """The first that stays does not keep what is behind it from being counted as old."""

    def add(self: Any, items: Iterable[EntrySource]) -> bool:
        for item in items:
            if self._is_expired(source_ms(item, ahead_ms=self._limits.ahead_ms)):
                self.log_start = item.last + 1
        return True

    with mock.patch.object(RetentionPlan, "add", add):
        yield


@contextlib.contextmanager
def counts_what_goes_as_if_it_stayed() -> Iterator[None]:
    """By size one item more goes than may: less than `retention.bytes` is left."""
    original = RetentionPlan.add

    def add(self: Any, items: Sequence[EntrySource]) -> bool:
        is_wanted = original(self, items)
        if self._kept_bytes and self._kept_bytes >= self._limits.retention_bytes >= 0:
            gone = self._kept.popleft()
            self._kept_bytes -= gone.size_bytes
            self.log_start = gone.last + 1
        return is_wanted

    with mock.patch.object(RetentionPlan, "add", add):
        yield


@contextlib.contextmanager
def begins_the_log_in_the_middle_of_an_item() -> Iterator[None]:
    original = RetentionPlan.add

    def add(self: Any, items: Sequence[EntrySource]) -> bool:
        is_wanted = original(self, items)
        first = next((item for item in items if item.base == self.log_start and item.last > item.base and item.size_bytes), None)
        if first is not None and self.log_start:
            self.log_start += 1
        return is_wanted

    with mock.patch.object(RetentionPlan, "add", add):
        yield


@contextlib.contextmanager
def empties_a_ring_that_is_in_no_index() -> Iterator[None]:
    """I2: the entries are in the record no more, and in no chunk."""
    original = retention.tidied

    def tidied(*given: Any, **named: Any) -> Tidied | None:
        made = original(*given, **named)
        return None if made is None else made._replace(chunk=None)

    with mock.patch.object(retention, "tidied", tidied):
        yield


@contextlib.contextmanager
def takes_a_ring_of_which_a_part_is_in_segments_for_one_that_is_not_needed() -> Iterator[None]:
    """The rest of it is in no index."""
    original = retention.tidied

    def tidied(manifest: Manifest, *given: Any, **named: Any) -> Tidied | None:
        made = original(manifest, *given, **named)
        is_partly = made is not None and manifest.pending and manifest.pending[0].last < manifest.compaction_cursor
        return made._replace(chunk=None) if made is not None and is_partly else made

    with mock.patch.object(retention, "tidied", tidied):
        yield


@contextlib.contextmanager
def puts_the_chunk_after_its_cas() -> Iterator[None]:
    """Readers find nothing until the chunk is there, and a collector that looks meanwhile deletes what it names."""
    original = Records.change_manifest

    async def change_manifest(self: Any, keys: PartitionKeys, decide: Any, *, action: str) -> Any:
        later: list[WriteOp] = []

        async def decide_alone(manifest: Manifest) -> Any:
            later.clear()
            decided = await decide(manifest)
            if isinstance(decided, tuple) and action.startswith("tidy"):
                later.extend(decided[1])
                return decided[0], ()
            return decided

        done = await original(self, keys, decide_alone, action=action)
        if later:
            await self.write(later)
        return done

    with mock.patch.object(Records, "change_manifest", change_manifest):
        yield


@contextlib.contextmanager
def puts_the_chunk_of_the_record_that_it_read_first() -> Iterator[None]:
    """Somebody has appended since: the CAS empties a ring with more entries than the chunk has."""
    run, original = Retention.run, Retention._tidied

    async def run_anew(self: Any, *given: Any) -> RetentionResult:
        self.first_chunk = None
        return await run(self, *given)

    def tidied(self: Any, *given: Any) -> Tidied | None:
        made = original(self, *given)
        if made is None or not hasattr(self, "first_chunk"):
            return made
        self.first_chunk = self.first_chunk or made.chunk
        return made._replace(chunk=self.first_chunk)

    with mock.patch.object(Retention, "run", run_anew), mock.patch.object(Retention, "_tidied", tidied):
        yield


@contextlib.contextmanager
def takes_whoever_is_not_on_its_list_for_gone() -> Iterator[None]:
    """Finding C: a broker that registered after the list was made is on no list, and alive."""
    listed: dict[MetadataStore, frozenset[int]] = {}

    async def read_and_keep(metadata: MetadataStore, session: Session, *, number: int) -> list[Record]:
        records = await read_live(metadata, session, number=number)
        listed[metadata] = frozenset(record.version for record in records)
        return records

    def among(self: Any, epochs: Collection[int]) -> frozenset[int]:
        return frozenset(epochs) - listed[self._metadata] if self._metadata in listed else frozenset()

    with mock.patch.object(records, "read_live", read_and_keep), mock.patch.object(GoneBrokers, "among", among):
        yield


@contextlib.contextmanager
def believes_any_list_of_brokers() -> Iterator[None]:
    """It comes from a deposed leader, which does not know who has registered since."""

    async def read_any(metadata: MetadataStore, _session: Session, *, number: int) -> list[Record]:
        start, end = brokers()
        return [record async for record in metadata.range_scan(start, end)]

    with mock.patch.object(records, "read_live", read_any):
        yield
