"""The format gate: old, old -> old, new -> new, new -> raised -> old is refused (docs/internals/adr/0017-a-format-gate.md)."""

import asyncio
import contextlib
import random
from collections.abc import Sequence

import pytest

from runtime.ids import IdSource
from storage.catalog.brokers import BrokerDirectory, Endpoint, Registration
from storage.catalog.format_level import Raising, raise_level
from storage.catalog.identity import ClusterRecord, decode_cluster, open_cluster
from storage.catalog.limits import DEFAULT_LIMITS, CatalogLimits
from storage.errors import IncompatibleFormat, NotFound, OutcomeUnknown, Unavailable
from storage.formats.levels import LEVEL_MAX, LEVEL_OF_EARLY
from storage.metadata import keys
from storage.metadata.port import Record, WriteOp
from tests.kit.faulty_metadata import Fault, FaultyMetadata, ManualClock, no_jitter
from tests.unit.storage.catalog.deposed import DeposedMetadata

OLD, NEW = 1, 2
EAGER = CatalogLimits(level_read_every_s=0.001)


class Rolling:
    """A cluster through a rolling upgrade: brokers of releases that know levels up to `level_max`."""

    def __init__(self, metadata: FaultyMetadata | None = None, *, limits: CatalogLimits = DEFAULT_LIMITS) -> None:
        self.metadata = metadata or FaultyMetadata()
        self._limits = limits

    async def start(self, broker_id: int, level_max: int) -> BrokerDirectory:
        clock = ManualClock()
        ids = IdSource(clock=clock, entropy=random.Random(broker_id).randbytes)
        await open_cluster(self.metadata, ids, clock, entropy=no_jitter, level_max=level_max)
        directory = BrokerDirectory(self.metadata, clock=clock, level_max=level_max, limits=self._limits)
        await register(directory, broker_id)
        return directory

    async def upgrade(self, target: int | None = None, *, level_max: int = NEW) -> Raising:
        return await raise_level(self.metadata, target, level_max=level_max, entropy=no_jitter)

    async def cluster(self) -> ClusterRecord:
        (record,) = await self.metadata.store.get_many([keys.CLUSTER])
        assert record is not None
        return decode_cluster(record, level_max=99)


async def register(directory: BrokerDirectory, broker_id: int) -> Registration:
    listeners = (Endpoint("PLAINTEXT", f"broker-{broker_id}", 9092),)
    return await directory.register(listeners=listeners, rack=None, version="0.1", broker_id=broker_id)


async def test_a_rolling_upgrade_raises_the_level_when_every_broker_knows_it_and_refuses_an_old_one_after_that() -> None:
    rolling = Rolling()
    one, two = await rolling.start(1, OLD), await rolling.start(2, OLD)
    await two.deregister()
    two = await rolling.start(2, NEW)
    early = await rolling.upgrade()
    mixed = (one.level, two.level, await rolling.cluster())
    await one.deregister()
    one = await rolling.start(1, NEW)
    raised = await rolling.upgrade()
    await one.deregister()

    assert early.problem == (
        "the format level stays at 1: not every broker knows 2. "
        "Upgrade and restart first: 1 at PLAINTEXT://broker-1:9092 (release 0.1, level 1)"
    )
    assert (mixed[0], mixed[1], mixed[2].level, mixed[2].raising_to) == (1, 1, 1, None)
    assert (raised.problem, raised.before, raised.level) == (None, 1, 2)
    with pytest.raises(IncompatibleFormat, match=r"at format level 2, this forebay \(.*\) knows up to 1: use a newer forebay"):
        await rolling.start(1, OLD)
    assert (await rolling.start(1, NEW)).level == 2
    assert {record.broker_id for record in await two.live()} == {1, 2}


async def test_a_release_before_early_slices_is_waited_for_and_refused_once_batches_may_go_early() -> None:
    rolling, before = Rolling(), LEVEL_OF_EARLY - 1
    old, new = await rolling.start(1, before), await rolling.start(2, LEVEL_OF_EARLY)
    waiting = await rolling.upgrade(level_max=LEVEL_OF_EARLY)
    mixed = old.level, new.level
    await old.deregister()
    raised = await rolling.upgrade(level_max=LEVEL_OF_EARLY)

    assert waiting.problem == (
        "the format level stays at 4: not every broker knows 5. "
        "Upgrade and restart first: 1 at PLAINTEXT://broker-1:9092 (release 0.1, level 4)"
    )
    assert mixed == (before, before)
    assert (raised.problem, raised.before, raised.level) == (None, before, LEVEL_OF_EARLY)
    with pytest.raises(IncompatibleFormat, match=r"at format level 5, this forebay \(.*\) knows up to 4: use a newer forebay"):
        await rolling.start(1, before)
    lowered = await rolling.upgrade(before, level_max=LEVEL_OF_EARLY)
    assert lowered.problem is not None
    assert (await rolling.cluster()).level == LEVEL_OF_EARLY


async def test_a_new_cluster_is_at_the_level_of_the_release_that_made_it() -> None:
    rolling = Rolling()

    assert (await rolling.start(1, NEW)).level == 2
    with pytest.raises(IncompatibleFormat):
        await rolling.start(2, OLD)


async def test_a_running_broker_learns_of_the_level() -> None:
    rolling = Rolling(limits=EAGER)
    await (await rolling.start(1, OLD)).deregister()
    directory = await rolling.start(1, NEW)
    before = directory.level
    following = asyncio.get_running_loop().create_task(directory.follow_level())
    await rolling.upgrade()
    async with asyncio.timeout(25):
        while directory.level < NEW:  # noqa: ASYNC110 - until it looked
            await asyncio.sleep(0.001)
    following.cancel()

    assert before == OLD


async def test_a_running_broker_that_was_not_seen_when_the_level_was_raised_stops() -> None:
    rolling = Rolling(limits=EAGER)
    lost = await rolling.start(1, OLD)
    await lost.deregister()
    await rolling.upgrade()

    with pytest.raises(IncompatibleFormat, match="format level 2"):
        await asyncio.wait_for(lost.follow_level(), 25)
    with pytest.raises(IncompatibleFormat, match="format level 2"):
        await register(lost, 1)
    assert await rolling.metadata.list(*keys.brokers()) == []


async def test_a_running_broker_outlives_an_announcement_and_a_store_that_is_away() -> None:
    rolling = Rolling(limits=EAGER)
    old = await rolling.start(1, OLD)
    await announce(rolling)
    rolling.metadata.reads_fail = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(old.follow_level(), 0.05)
    rolling.metadata.reads_fail = False
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(old.follow_level(), 0.05)

    assert old.is_registered


async def announce(rolling: Rolling) -> None:
    """And die."""
    begun = len(rolling.metadata.writes)

    async def die(_: Sequence[WriteOp]) -> None:
        if len(rolling.metadata.writes) > begun + 1:
            raise asyncio.CancelledError

    rolling.metadata.before_write = die
    with pytest.raises(asyncio.CancelledError):
        await rolling.upgrade()
    rolling.metadata.before_write = None
    assert (await rolling.cluster()).raising_to == NEW


async def test_what_was_announced_keeps_old_brokers_out_until_it_is_done_or_withdrawn() -> None:
    rolling = Rolling()
    old = await rolling.start(1, OLD)
    await announce(rolling)
    with pytest.raises(IncompatibleFormat, match=r"being raised to format level 2.*forebay cluster upgrade --to 1"):
        await rolling.start(2, OLD)
    with pytest.raises(Unavailable, match="being raised"):
        await register(old, 1)  # as after a lost session: it asks again until it may, or must not
    withdrawn = await rolling.upgrade(OLD, level_max=OLD)

    assert (withdrawn.problem, withdrawn.level) == (None, 1)
    assert (await rolling.cluster()).raising_to is None
    assert (await rolling.start(2, OLD)).level == 1


@pytest.mark.parametrize("request_number", range(6))
async def test_a_broker_that_registers_while_the_level_is_raised_is_seen_or_stays_out(request_number: int) -> None:
    """Before a write or behind a read of the one who raises: two reads and four writes."""
    rolling = Rolling()
    await (await rolling.start(1, OLD)).deregister()
    old = BrokerDirectory(rolling.metadata.store, clock=ManualClock(), level_max=OLD)
    requests = 0

    async def come(_: object = None) -> None:
        nonlocal requests
        requests += 1
        if requests == request_number + 1:
            with contextlib.suppress(Unavailable, IncompatibleFormat):
                await register(old, 2)

    rolling.metadata.before_write = rolling.metadata.after_read = come
    raised = await rolling.upgrade()
    rolling.metadata.before_write = rolling.metadata.after_read = None
    cluster = await rolling.cluster()

    assert requests > request_number
    assert old.is_registered == (raised.problem is not None)
    assert (cluster.level, cluster.raising_to) == (1 if old.is_registered else 2, None)


async def test_a_level_read_from_before_the_registration_is_read_again() -> None:
    metadata = DeposedMetadata()
    rolling = Rolling(metadata)
    await rolling.start(1, NEW)
    late = BrokerDirectory(metadata, clock=ManualClock(), level_max=NEW)
    metadata.depose()

    with pytest.raises(Unavailable, match="format level for certain"):
        await register(late, 2)

    assert not late.is_registered
    metadata.elect()
    await register(late, 2)
    assert late.is_registered


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST, Fault.REPLY_LOST])
@pytest.mark.parametrize("write", range(4))
async def test_raising_survives_any_fault_of_any_write(write: int, fault: Fault) -> None:
    rolling = Rolling()
    directory = await rolling.start(1, OLD)
    await directory.deregister()
    rolling.metadata.faults[len(rolling.metadata.writes) + write] = fault
    try:
        raised = await rolling.upgrade()
    except Unavailable:  # of the sentinel
        raised = await rolling.upgrade()

    assert raised.level == 2
    assert ((await rolling.cluster()).level, (await rolling.cluster()).raising_to) == (2, None)


async def test_raising_in_doubt_is_told() -> None:
    rolling = Rolling()
    await (await rolling.start(1, OLD)).deregister()
    rolling.metadata.all_faults = Fault.REQUEST_LOST

    with pytest.raises(OutcomeUnknown):
        await rolling.upgrade()


async def test_a_level_is_never_lowered_nor_raised_beyond_what_the_one_who_raises_knows() -> None:
    rolling = Rolling()
    await rolling.start(1, NEW)

    assert "never lowered" in str((await rolling.upgrade(OLD)).problem)
    assert "knows format levels up to 2, not 3" in str((await rolling.upgrade(3)).problem)
    assert (await rolling.cluster()).level == 2
    assert (await rolling.upgrade()).problem is None


async def test_where_there_is_no_cluster_nothing_is_raised() -> None:
    with pytest.raises(NotFound, match="start a broker first"):
        await Rolling().upgrade()


def test_the_level_is_read_even_of_a_record_of_another_shape() -> None:
    value = b'{"fmt":7,"level":%d,"cluster":{"id":"x"}}' % (LEVEL_MAX + 1)

    with pytest.raises(IncompatibleFormat, match=rf"at format level {LEVEL_MAX + 1}, this forebay \(.*\) knows up to {LEVEL_MAX}"):
        decode_cluster(Record("llog/cluster", value, 1))
