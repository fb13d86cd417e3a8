import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.errors import Unavailable
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.metered import MeteredMetadataStore
from storage.metadata.port import ABSENT, Key, Put, Unknown, WriteOp, WriteOutcome, children_of
from storage.outcomes import Outcomes, StoreOutcomes

KEY = Key("root/a", "root")


class NeverSure(MemoryMetadataStore):
    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        return Unknown("no reply")


class NeverDone(MemoryMetadataStore):
    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


def requests(telemetry: Telemetry, op: str, outcome: str) -> float | None:
    return telemetry.registry.get_sample_value("forebay_metadata_requests_total", {"op": op, "outcome": outcome})


def timed(telemetry: Telemetry, op: str) -> float | None:
    return telemetry.registry.get_sample_value("forebay_metadata_request_duration_seconds_count", {"op": op})


async def test_every_request_is_counted_and_timed_by_its_op() -> None:
    telemetry = Telemetry()
    store = MeteredMetadataStore(MemoryMetadataStore(clock=SystemClock()), telemetry, SystemClock())
    await store.write([Put(KEY, b"", ABSENT)])
    await store.write([Put(KEY, b"", ABSENT)])
    await store.get_many([KEY])
    await store.get_ceiling(KEY, within="root/")
    start, end = children_of("root")
    scanned = [record.path async for record in store.range_scan(Key(start, "root"), end)]
    listed = await store.list(Key(start, "root"), end)
    await (await store.open_session(timeout_ms=2_000)).close()
    await store.probe()
    await store.close()

    assert scanned == listed == ["root/a"]
    assert requests(telemetry, "write", "ok") == timed(telemetry, "write") == 2
    for op in ("get_many", "get_ceiling", "range_scan", "list", "open_session", "probe"):
        assert requests(telemetry, op, "ok") == timed(telemetry, op) == 1, op


async def test_what_a_closed_store_refuses_is_counted_as_such() -> None:
    telemetry = Telemetry()
    store = MeteredMetadataStore(MemoryMetadataStore(clock=SystemClock()), telemetry, SystemClock())
    await store.close()
    await store.write([Put(KEY, b"", ABSENT)])
    with pytest.raises(Unavailable):
        await store.get_many([KEY])
    with pytest.raises(Unavailable):
        await anext(aiter(store.range_scan(Key("root/", "root"), "root/~")))

    assert requests(telemetry, "write", "not_applied") == 1
    assert requests(telemetry, "get_many", "error") == 1
    assert requests(telemetry, "range_scan", "error") == 1


async def test_unknown_and_cancelled_writes_are_unknown() -> None:
    telemetry = Telemetry()
    await MeteredMetadataStore(NeverSure(clock=SystemClock()), telemetry, SystemClock()).write([Put(KEY, b"", None)])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await MeteredMetadataStore(NeverDone(clock=SystemClock()), telemetry, SystemClock()).write([Put(KEY, b"", None)])

    assert requests(telemetry, "write", "unknown") == 2


async def test_every_outcome_of_an_op_is_a_series_from_its_first_use_on() -> None:
    telemetry = Telemetry()
    store = MeteredMetadataStore(MemoryMetadataStore(clock=SystemClock()), telemetry, SystemClock())
    await store.write([Put(KEY, b"", None)])

    assert [requests(telemetry, "write", outcome) for outcome in ("ok", "not_applied", "unknown", "error")] == [1, 0, 0, 0]
    assert requests(telemetry, "list", "ok") is None


async def test_a_scan_that_is_left_early_was_answered() -> None:
    telemetry = Telemetry()
    store = MeteredMetadataStore(MemoryMetadataStore(clock=SystemClock()), telemetry, SystemClock())
    await store.write([Put(KEY, b"", None), Put(Key("root/b", "root"), b"", None)])
    async with aclosing(store.range_scan(Key("root/", "root"), "root/~")) as scan:  # type: ignore[type-var]
        async for _ in scan:
            break

    assert requests(telemetry, "range_scan", "ok") == timed(telemetry, "range_scan") == 1


def told_of(inner: MemoryMetadataStore) -> tuple[MeteredMetadataStore, Outcomes]:
    telemetry = Telemetry()
    outcomes = StoreOutcomes(clock=SystemClock(), telemetry=telemetry)
    return MeteredMetadataStore(inner, telemetry, SystemClock(), outcomes=outcomes), outcomes.writes


async def test_a_write_whose_conditions_failed_is_a_success_of_the_store() -> None:
    store, writes = told_of(MemoryMetadataStore(clock=SystemClock()))
    await store.write([Put(KEY, b"", 7)])

    assert (writes.failures, writes.last_ok_s is not None) == (0, True)


async def test_writes_that_were_not_applied_or_may_not_have_been_are_told_with_their_reasons() -> None:
    closed, refused = told_of(MemoryMetadataStore(clock=SystemClock()))
    await closed.close()
    await closed.write([Put(KEY, b"", None)])
    unsure, unknown = told_of(NeverSure(clock=SystemClock()))
    await unsure.write([Put(KEY, b"", None)])

    assert (refused.failures, refused.error) == (1, "the metadata store is closed")
    assert (unknown.failures, unknown.error) == (1, "no reply")


async def test_a_write_that_is_cancelled_at_once_says_nothing_of_the_store() -> None:
    store, writes = told_of(NeverDone(clock=SystemClock()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await store.write([Put(KEY, b"", None)])

    assert (writes.failures, writes.last_ok_s) == (0, None)


async def test_reads_say_nothing_of_writes() -> None:
    store, writes = told_of(MemoryMetadataStore(clock=SystemClock()))
    await store.get_many([KEY])
    await store.probe()

    assert writes.last_ok_s is None
