import asyncio
from collections.abc import Sequence

import pytest

from process.http.probes import (
    METADATA_DEADLINE_S,
    METADATA_IDLE_S,
    OBJECT_STORE_IDLE_S,
    PROBE_BYTES_MAX,
    MetadataProbe,
    ObjectProbe,
    Probed,
    Probes,
)
from runtime.telemetry import Telemetry
from storage.errors import Unavailable
from storage.limits import MIB
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.metered import MeteredMetadataStore
from storage.metadata.port import Delete, Key, NotApplied, Put, WriteOp, WriteOutcome, children_of
from storage.objects.memory import MemoryObjectStore
from storage.objects.metered import MeteredObjectStore
from storage.outcomes import BELIEVED_AGAIN_AFTER_S, StoreOutcomes
from storage.vocabulary import Buffer
from tests.unit.process.http.manual_clock import ManualClock

BROKER_ID = 7
PROBE_KEY = ".probe/broker-0000000007"


class Store:
    """A store that answers, refuses or hangs."""

    def __init__(self) -> None:
        self.probes = 0
        self.error: Exception | None = None
        self.hangs = False

    async def probe(self) -> None:
        self.probes += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


class Watching:
    def __init__(
        self, metadata: Probed | None = None, objects: Probed | None = None, *, metadata_deadline_s: float = METADATA_DEADLINE_S
    ) -> None:
        self.clock = ManualClock()
        self.outcomes = StoreOutcomes(clock=self.clock, telemetry=Telemetry())
        self.metadata, self.objects = Store(), Store()
        self.probes = Probes(
            metadata=metadata or self.metadata,
            objects=objects or self.objects,
            outcomes=self.outcomes,
            clock=self.clock,
            metadata_deadline_s=metadata_deadline_s,
        )

    def fail_put(self) -> None:
        now_s = self.clock.monotonic_s()
        self.outcomes.puts.failed("no space left on device", began_s=now_s, now_s=now_s)


class Disk(MemoryObjectStore):
    """Has room for so many bytes of an object."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())
        self.room_bytes = 1 << 40
        self.forbidden: str | None = None
        self.is_readable = self.is_erasable = True
        self.put: list[tuple[str, int]] = []

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        size_bytes = sum(map(len, parts))
        if size_bytes > self.room_bytes:
            raise Unavailable("no space left on device")
        if self.forbidden is not None and key.startswith(self.forbidden):
            raise Unavailable("403 AccessDenied")
        await super().put_if_absent(key, parts)
        self.put.append((key, size_bytes))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if not self.is_readable:
            raise Unavailable("403 AccessDenied")
        return await super().get_range(key, start, end)

    async def delete_many(self, keys: Sequence[str]) -> None:
        if not self.is_erasable:
            raise Unavailable("403 AccessDenied")
        await super().delete_many(keys)


class Metadata(MemoryMetadataStore):
    """Remembers what was written."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())
        self.written: list[Sequence[WriteOp]] = []
        self.refuses = False
        self.silent: str | None = None

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        self.written.append(ops)
        if self.silent is not None and any(isinstance(op, Put) and op.key.path.startswith(self.silent) for op in ops):
            return NotApplied("the shard has no leader")
        return NotApplied("disk I/O error") if self.refuses else await super().write(ops)


class Written:
    """Both probes on stores in memory, counted as a broker counts them."""

    def __init__(self) -> None:
        clock, telemetry = ManualClock(), Telemetry()
        self.clock = clock
        self.outcomes = StoreOutcomes(clock=clock, telemetry=telemetry)
        self.disk, self.metadata = Disk(), Metadata()
        self.objects = MeteredObjectStore(self.disk, telemetry, clock, outcomes=self.outcomes)
        self.store = MeteredMetadataStore(self.metadata, telemetry, clock, outcomes=self.outcomes)
        self.probes = Probes(
            metadata=MetadataProbe(self.store, broker_id=lambda: BROKER_ID),
            objects=ObjectProbe(self.objects, outcomes=self.outcomes, broker_id=lambda: BROKER_ID),
            outcomes=self.outcomes,
            clock=clock,
        )

    async def keys_left(self) -> list[str]:
        return [stat.key async for stat in self.disk.list("")]


async def test_an_idle_store_is_probed_and_a_busy_one_is_not() -> None:
    watching = Watching()

    await watching.probes.look_at_objects()
    watching.clock.advance(OBJECT_STORE_IDLE_S - 1.0)
    await watching.probes.look_at_objects()
    watching.outcomes.puts.ok(watching.clock.monotonic_s())
    watching.clock.advance(OBJECT_STORE_IDLE_S - 1.0)
    await watching.probes.look_at_objects()
    busy = watching.objects.probes
    watching.clock.advance(1.0)
    await watching.probes.look_at_objects()

    assert (busy, watching.objects.probes, watching.metadata.probes) == (1, 2, 0)


async def test_metadata_is_probed_after_an_idle_time_of_its_own() -> None:
    watching = Watching()
    await watching.probes.look_at_metadata()
    watching.clock.advance(METADATA_IDLE_S)
    await watching.probes.look_at_metadata()

    assert (watching.metadata.probes, watching.objects.probes) == (2, 0)


async def test_a_store_whose_last_write_failed_is_probed_at_every_look_until_one_succeeds() -> None:
    watching = Watching()
    await watching.probes.look_at_objects()
    watching.fail_put()
    watching.objects.error = Unavailable("no space left on device")
    for _ in range(3):
        watching.clock.advance(2.0)
        await watching.probes.look_at_objects()
    bad_since_s = watching.outcomes.puts.bad_since_s
    watching.objects.error = None
    for _ in range(3):
        await watching.probes.look_at_objects()

    assert watching.objects.probes == 1 + 3 + 1
    assert bad_since_s == watching.clock.monotonic_s() - 6.0
    assert watching.outcomes.puts.bad_since_s is None


async def test_a_store_that_does_not_answer_fails_its_probe() -> None:
    watching = Watching(metadata_deadline_s=0.02)
    watching.metadata.hangs = True

    await watching.probes.look_at_metadata()

    assert watching.outcomes.writes.error == "no answer within 0.02 s"


async def test_a_probe_that_fails_beside_a_write_that_succeeds_says_nothing() -> None:
    class Beside(Store):
        async def probe(self) -> None:
            watching.outcomes.writes.ok(watching.clock.monotonic_s())
            raise Unavailable("another shard takes no writes")

    watching = Watching(metadata=Beside())
    await watching.probes.look_at_metadata()

    assert watching.outcomes.writes.failures == 0


async def test_both_stores_are_probed_until_cancelled() -> None:
    watching = Watching()
    outcomes = watching.outcomes

    async with asyncio.TaskGroup() as group:
        running = group.create_task(watching.probes.run())
        while outcomes.writes.last_ok_s is None or outcomes.puts.last_ok_s is None:  # noqa: ASYNC110 - until both probes had their turn
            await asyncio.sleep(0)
        running.cancel()

    assert (watching.metadata.probes, watching.objects.probes) == (1, 1)


async def test_a_probe_writes_to_both_stores_and_leaves_nothing_behind() -> None:
    written = Written()
    await written.probes.look_at_metadata()
    await written.probes.look_at_objects()

    key = keys.probe(BROKER_ID)
    assert written.metadata.written == [[Put(key, b"", None), Delete(key)]]
    start, end = children_of("llog/probes")
    assert await written.metadata.list(Key(start, key.partition_key), end) == []
    assert written.disk.put == [(PROBE_KEY, 1)]
    assert await written.keys_left() == []


async def test_what_a_killed_broker_left_under_the_key_of_a_probe_is_replaced() -> None:
    written = Written()
    await written.disk.put_if_absent(PROBE_KEY, [b"old"])
    await written.probes.look_at_objects()

    assert written.disk.put == [(PROBE_KEY, 3), (PROBE_KEY, 1)]
    assert await written.keys_left() == []
    assert written.outcomes.puts.error is None


async def test_a_disk_that_is_too_full_for_what_was_put_is_not_taken_for_well_by_a_small_probe() -> None:
    written = Written()
    written.disk.room_bytes = 2 * MIB
    with pytest.raises(Unavailable):
        await written.objects.put_if_absent("wal/a", [bytes(3 * MIB)])
    await written.probes.look_at_objects()
    full = written.outcomes.puts.error
    written.disk.room_bytes = 4 * MIB
    await written.probes.look_at_objects()

    assert full == "no space left on device"
    assert written.outcomes.puts.error is None
    assert written.disk.put == [(PROBE_KEY, 3 * MIB)]


async def test_a_probe_is_not_larger_than_an_object_is_as_a_rule() -> None:
    written = Written()
    written.outcomes.puts.failed("500 InternalError", began_s=0.0, now_s=0.0, size_bytes=200 * MIB)
    await written.probes.look_at_objects()

    assert written.disk.put == [(PROBE_KEY, PROBE_BYTES_MAX)]


async def test_a_write_that_is_refused_counts_once() -> None:
    written = Written()
    written.metadata.refuses = True
    written.disk.room_bytes = 0
    await written.probes.look_at_metadata()
    await written.probes.look_at_objects()

    assert (written.outcomes.writes.failures, written.outcomes.writes.error) == (1, "disk I/O error")
    assert (written.outcomes.puts.failures, written.outcomes.puts.error) == (1, "no space left on device")


async def test_a_metadata_store_that_cannot_be_read_is_not_written_to() -> None:
    written = Written()
    await written.metadata.close()
    await written.probes.look_at_metadata()

    assert written.metadata.written == []
    assert written.outcomes.writes.failures == 1


async def test_gets_that_failed_are_probed_until_one_succeeds_though_nobody_reads_any_more() -> None:
    written = Written()
    await written.objects.put_if_absent("wal/a", [b"123"])
    gets = written.outcomes.gets
    written.disk.is_readable = False
    with pytest.raises(Unavailable):
        await written.objects.get_range("wal/a", 0, 3)
    await written.probes.look_at_objects()
    failed = (gets.failures, gets.error, written.outcomes.puts.error)
    written.disk.is_readable = True
    for _ in range(2):
        await written.probes.look_at_objects()

    assert failed == (2, "403 AccessDenied", None)
    assert gets.error is None
    assert written.disk.put == [("wal/a", 3), (PROBE_KEY, 1), (PROBE_KEY, 1)]


async def test_a_probe_that_cannot_be_removed_says_nothing_of_puts() -> None:
    written = Written()
    written.disk.is_erasable = False
    await written.probes.look_at_objects()
    await written.probes.look_at_objects()
    written.outcomes.puts.failed("500 InternalError", began_s=0.0, now_s=0.0)
    await written.probes.look_at_objects()

    assert (written.outcomes.puts.failures, written.outcomes.puts.error) == (1, None)
    assert written.disk.put == [(PROBE_KEY, 1)]


async def test_a_store_that_takes_probes_but_no_wal_object_is_not_taken_for_well() -> None:
    """For one that may not write below wal/, or takes nothing that is larger than any probe."""
    written = Written()
    written.disk.forbidden = "wal/"
    bad = []
    for number in range(20):
        with pytest.raises(Unavailable):
            await written.objects.put_if_absent(f"wal/{number}", [b"123"])
        written.clock.advance(1.0)
        await written.probes.look_at_objects()
        bad.append(written.outcomes.puts.bad_since_s is not None)
    written.disk.forbidden = None
    await written.objects.put_if_absent("wal/a", [b"123"])

    # The first probe is believed: until then nothing contradicts it.
    assert bad == [False] * 5 + [True] * 15
    assert written.outcomes.puts.bad_since_s is None


async def test_a_metadata_store_that_takes_probes_but_no_commit_is_not_taken_for_well() -> None:
    written = Written()
    written.metadata.silent = "llog/topics"
    key = Key("llog/topics/a", "a")
    for _ in range(8):
        assert isinstance(await written.store.write([Put(key, b"", None)]), NotApplied)
        written.clock.advance(1.0)
        await written.probes.look_at_metadata()

    assert written.outcomes.writes.bad_since_s is not None
    assert written.outcomes.writes.error == "the shard has no leader"


async def test_probes_that_were_contradicted_are_believed_again_when_no_client_has_tried_for_a_while() -> None:
    """Nobody sends anything to a broker that is not ready: a real write may never show that the store is well again."""
    written = Written()
    written.disk.forbidden = "wal/"
    for number in range(3):
        with pytest.raises(Unavailable):
            await written.objects.put_if_absent(f"wal/{number}", [b"123"])
        await written.probes.look_at_objects()
    written.disk.forbidden = None
    written.clock.advance(BELIEVED_AGAIN_AFTER_S - 1.0)
    await written.probes.look_at_objects()
    early = written.outcomes.puts.bad_since_s is not None
    written.clock.advance(1.0)
    await written.probes.look_at_objects()

    assert early
    assert written.outcomes.puts.bad_since_s is None
