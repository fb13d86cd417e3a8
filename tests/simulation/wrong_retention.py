"""Retention that is wrong on purpose: one function per rule of docs/design/upkeep.md#retention."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec

from compactor import retention, retention_plan
from compactor.retention import Retention
from compactor.retention_plan import RetentionPlan, TidyPolicy, source_bytes, source_ms
from storage.formats.control import Control, EntrySource, LogState, decode_chunk, decode_segment
from storage.log.trim import TrimDecision
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Delete, Key


@contextlib.contextmanager
def moves_log_start_to_where_it_has_planned() -> Iterator[None]:
    """I5: somebody has deleted more meanwhile, and log_start goes back."""

    def trimmed(control: Control, before: int) -> TrimDecision:
        if before == control.log_start:
            return TrimDecision(before, None)
        return TrimDecision(before, msgspec.structs.replace(control, log_start=before))

    with mock.patch.object(retention_plan, "decide_trim", trimmed):
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

    async def change(self: Any, keys: PartitionKeys, log_start: int, now_ms: int) -> Control | None:
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
        first = next((item for item in items if item.base == self.log_start and item.last > item.base and source_bytes(item)), None)
        if first is not None and self.log_start:
            self.log_start += 1
        return is_wanted

    with mock.patch.object(RetentionPlan, "add", add):
        yield


@contextlib.contextmanager
def empties_a_ring_of_which_a_part_is_in_segments() -> Iterator[None]:
    """The rest of it is in no index."""
    original = retention_plan.tidied

    def tidied(control: Control, log_start: int, policy: TidyPolicy, *, now_ms: int) -> Control | None:
        made = original(control, log_start, policy, now_ms=now_ms)
        if control.log_state is LogState.OPEN and control.pending and control.pending[0].last < control.compaction_cursor:
            return msgspec.structs.replace(made or control, pending=())
        return made

    with mock.patch.object(retention, "tidied", tidied):
        yield
